"""How hosts wait for a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""A load takes seconds, and is not to be waited for much longer than it takes."""


async def until(it_is_so: Callable[[], Awaitable[bool]]) -> None:
    """Asks until it is so, at once and then after ever longer pauses; forever, if it never is."""
    pause_s = FIRST_PAUSE_S
    while not await it_is_so():
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
