"""The command line of harness. It parses options, calls the package, and prints one result.

What a user gave wrongly raises `InvalidInput` wherever it is read; `consoles.Command` turns every
error of the package into words, JSON and an exit code.
"""
