"""What the command's exit codes mean."""

FAILED = 1
"""What was asked for was tried, and failed."""

UNUSABLE = 2
"""Something given is not usable."""

STOPPED = 3
"""A run was stopped at a limit; what was done is kept."""

WAITING = 4
"""A run waits for somebody's answer; what was done is kept."""

INTERRUPTED = 130
"""Ctrl-C."""

TERMINATED = 143
"""Told to end (SIGTERM), by a supervisor or `timeout`."""
