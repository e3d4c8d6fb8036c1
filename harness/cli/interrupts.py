"""How a command that is told to end is ended: by SIGTERM as by Ctrl-C, with its run closed."""

from __future__ import annotations

import signal

from harness.cli.exit_codes import INTERRUPTED, TERMINATED


class Interrupts:
    """Has SIGTERM raise `KeyboardInterrupt` too, from when it is made.

    Attributes:
        exit_code: What to exit with after one.
    """

    def __init__(self) -> None:
        self.exit_code = INTERRUPTED
        signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.exit_code = TERMINATED
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As a shell has it for what it starts in the background.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
