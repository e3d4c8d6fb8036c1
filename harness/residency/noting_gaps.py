"""A backend whose calls are noted, so that it is known how long its model lies idle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.inference import Backend, R, T, Wrapper
from harness.residency.keep_alive import ObservedGaps
from harness.trace import Clock


class NotingGaps(Wrapper):
    """Tells of each call when it begins and ends.

    Args:
        backend: Answers.
        gaps: Is told.
        clock: The time.
    """

    def __init__(self, backend: Backend, *, gaps: ObservedGaps, clock: Clock) -> None:
        super().__init__(backend)
        self._gaps = gaps
        self._clock = clock

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks, and notes when."""
        self._gaps.began(self._clock())
        try:
            return await ask(request)
        finally:
            self._gaps.ended(self._clock())
