"""Time that passes when a test says so."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def __call__(self) -> int:
        """The current time, in nanoseconds."""
        return self._now_ns

    def advance(self, *, ns: int = 0, ms: int = 0) -> None:
        """Move forward."""
        self._now_ns += ns + ms * 1_000_000
