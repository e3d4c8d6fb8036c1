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
        max_concurrency: How many that may be; None for as many as its server has slots.
        slots: Finds those out before the first call; all go through where it finds none.
        tracer: Sees the waits.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_concurrency: int | None,
        slots: Callable[[], Awaitable[int | None]] | None = None,
        tracer: Tracer,
    ) -> None:
        super().__init__(backend)
        self._places = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._reason = f"max_concurrency = {max_concurrency}"
        self._slots = slots if max_concurrency is None else None
        self._finding_out = asyncio.Lock()
        self._tracer = tracer

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks when there is a place."""
        if self._slots is not None:
            await self._find_out()
        places = self._places
        if places is None:
            return await ask(request)
        queue = self._tracer.span("queue", source="measured", reason=self._reason)
        with queue if places.locked() else nullcontext():
            await places.acquire()
        try:
            return await ask(request)
        finally:
            places.release()

    async def _find_out(self) -> None:
        async with self._finding_out:
            if self._slots is None:
                return
            with self._tracer.span("ask slots") as span:
                slots = await self._slots()
                span.set(slots=slots)
            self._slots, self._reason = None, f"slots: all {slots} of the server's are taken"
            self._places = None if slots is None else asyncio.Semaphore(slots)
