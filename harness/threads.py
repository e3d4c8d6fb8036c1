"""Work in threads that a cancellation must not leave half done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")


# Cached, since starting threads for each run took a fifth of the time of a short run; and by
# process, since a forked child has no threads of its parent.
@cache
def _threads(name: str, max_workers: int, _process_id: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max_workers, thread_name_prefix=f"harness {name}")


def disk_threads() -> ThreadPoolExecutor:
    """Threads for work that ends as soon as the disk has done it, and that others wait for."""
    return _threads("disk", 8, os.getpid())


async def to_its_end(
    function: Callable[[], T],
    *,
    thread: ThreadPoolExecutor | None = None,
    stop: Callable[[], None] = lambda: None,
) -> T:
    """Runs a function in a thread; a cancellation calls `stop`, and waits until it has ended."""
    # Not in the loop's own threads, which may all be busy with plain functions that cannot be
    # stopped. An interrupted run is closed by this function too.
    thread = thread or _threads("to its end", 32, os.getpid())
    future = asyncio.get_running_loop().run_in_executor(thread, function)
    cancellation = None
    while not future.done():
        try:
            # Not `await future`: a cancellation would cancel it, while its thread goes on.
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancellation = error
            stop()
    if cancellation is not None:
        raise cancellation from future.exception()
    return future.result()


def resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    """Resolves futures that are not done; must be called in their loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)
