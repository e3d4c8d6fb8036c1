"""Work in threads: what a cancellation must not leave half done, and who waits for a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")


@cache
def _threads(name: str, most: int, _process_id: int) -> ThreadPoolExecutor:
    """The threads of one kind of work."""
    # By process: a forked child has none of its parent's.
    # Not started for each run: that took a fifth of what a short run takes.
    return ThreadPoolExecutor(max_workers=most, thread_name_prefix=f"harness {name}")


def disk_threads() -> ThreadPoolExecutor:
    """For work that others wait for, and that is over as soon as the disk has it."""
    return _threads("disk", 8, os.getpid())


async def to_its_end(
    function: Callable[[], T],
    *,
    thread: ThreadPoolExecutor | None = None,
    stop: Callable[[], None] = lambda: None,
) -> T:
    """Runs a function in a thread; a cancellation calls `stop`, and waits until it has ended."""
    # The threads that a loop shares may all be busy with plain functions that cannot be stopped,
    # and an interrupted run is closed this way too: so it is the given thread, or one of our own.
    running = asyncio.get_running_loop().run_in_executor(
        thread or _threads("to its end", 32, os.getpid()), function
    )
    cancelled = None
    while not running.done():
        try:
            # Not awaited itself, which a cancellation would cancel, while its thread goes on.
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is not None:
        raise cancelled from running.exception()
    return running.result()


def resolve(waiting: Iterable[asyncio.Future[None]]) -> None:
    """Ends their waits; to call in the loop of the futures."""
    for future in waiting:
        if not future.done():
            future.set_result(None)
