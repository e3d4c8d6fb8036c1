"""What emulated servers need whose answers take their time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from servers.emulated import Answer, Gone

T = TypeVar("T")


async def unless_gone(answer: Answer, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is cancelled when the client hangs up.

    Raises:
        Gone: It has.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(answer.hold())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


class Bell:
    """Wakes all who wait for it, each time that it is rung."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    async def rung(self) -> None:
        """Waits for the next change."""
        await self._next.wait()
