"""A backend that is asked only so much at one time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.trace import Tracer


class Limited(Wrapper):
    """Lets so many calls through at one time; the others wait, first come first served.

    A call's time limits begin when it is sent: the wait is not in them.

    Args:
        backend: Answers those that are let through.
        max_concurrency: How many that may be.
        tracer: Sees the waits.
    """

    def __init__(self, backend: Backend, *, max_concurrency: int, tracer: Tracer) -> None:
        super().__init__(backend)
        self._places = asyncio.Semaphore(max_concurrency)
        self._reason = f"max_concurrency = {max_concurrency}"
        self._tracer = tracer

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks when there is a place."""
        queue = self._tracer.span("queue", source="measured", reason=self._reason)
        with queue if self._places.locked() else nullcontext():
            await self._places.acquire()
        try:
            return await ask(request)
        finally:
            self._places.release()
