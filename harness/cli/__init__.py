"""The command line: words in, words out, exit codes. Decides nothing itself."""
