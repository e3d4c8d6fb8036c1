"""Work that a cancellation must not leave half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


async def to_its_end(function: Callable[[], object]) -> None:
    """Runs a function in a thread of its own; a cancellation waits until it has ended or failed.

    The threads that a loop shares may all be busy with plain functions that cannot be stopped, and
    an interrupted run is closed this way too.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = asyncio.get_running_loop().run_in_executor(pool, function)
        cancelled = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled from running.exception()
    running.result()
