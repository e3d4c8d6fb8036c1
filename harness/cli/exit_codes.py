"""What the command's exit codes mean."""

FAILED = 1
"""What was asked for was tried, and failed."""

UNUSABLE = 2
"""Something given is not usable."""

INTERRUPTED = 130
"""Ctrl-C."""

TERMINATED = 143
"""Told to end (SIGTERM), by a supervisor or `timeout`."""
