"""The gate of an endpoint: how many calls go through at one time, and what each holds meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from harness.inference.request import Request
from harness.trace import Tracer

Lease = Callable[[Request], AbstractAsyncContextManager[object]]
"""Gives what is held while a call is sent, such as the model's place in memory."""


class Gate:
    """Lets so many calls through at one time; the others wait, first come first served.

    A call's time limits begin when it is sent: the wait is not part of them.

    Args:
        max_parallel: How many calls; None for as many as the server has slots.
        slots: Asks the server for its slots before the first call; None from it means no limit.
        lease: Held by each call that was let through; None for nothing.
        tracer: Sees the waits.
    """

    def __init__(
        self,
        *,
        max_parallel: int | None = None,
        slots: Callable[[], Awaitable[int | None]] | None = None,
        lease: Lease | None = None,
        tracer: Tracer,
    ) -> None:
        self._places = None if max_parallel is None else asyncio.Semaphore(max_parallel)
        self._reason = f"max_parallel = {max_parallel}"
        self._slots = slots if max_parallel is None else None
        self._asking = asyncio.Lock()
        self._lease = lease
        self._tracer = tracer

    @asynccontextmanager
    async def passed(self, request: Request) -> AsyncIterator[None]:
        """Begins when the call may be sent, and gives its place back at the end."""
        if self._slots is not None:
            await self._ask_for_slots()
        places = self._places
        if places is not None:
            queue = self._tracer.span("queue", source="measured", reason=self._reason)
            with queue if places.locked() else nullcontext():
                await places.acquire()
        try:
            async with self._lease(request) if self._lease else nullcontext():
                yield
        finally:
            if places is not None:
                places.release()

    async def _ask_for_slots(self) -> None:
        async with self._asking:
            if self._slots is None:
                return
            with self._tracer.span("ask slots") as span:
                slots = await self._slots()
                span.set(slots=slots)
            self._slots, self._reason = None, f"slots: all {slots} of the server's are taken"
            self._places = None if slots is None else asyncio.Semaphore(slots)
