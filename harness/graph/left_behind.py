"""What becomes of a call that was cancelled, and goes on: the run goes on as well, without it."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.graph.shared import Log
from harness.log import log_debug, log_warning
from harness.trace import describe


class LeftBehind(BaseException):
    """Raised where a call waits that ignores its cancellation."""

    def __init__(self) -> None:
        super().__init__("it went on although it was cancelled")


def leave_behind(task: asyncio.Task[Any], *, label: str, log: Log) -> None:
    """Goes on without a call that was cancelled, whether it has ended or not.

    One that has not is broken off where it waits, so that its spans end. What ignores even that
    goes on, and nobody waits for it.

    Args:
        task: Where it runs.
        label: The call's, for messages.
        log: Knows what was left behind.
    """
    task.add_done_callback(forget)
    if task.done():
        return
    log_warning(
        "a node goes on although it was cancelled, and is left behind",
        code="run.node-left-behind",
        node=label,
    )
    log.left_behind.add(task)
    task.add_done_callback(log.left_behind.discard)
    coroutine = task.get_coro()
    assert coroutine is not None  # as an eager task's is that is over
    try:
        # Not close(): what it raises does not get through to an async generator.
        coroutine.throw(LeftBehind())
    except (LeftBehind, StopIteration):
        pass
    except Exception as error:  # noqa: BLE001 - whatever it has to say on its way out
        log_debug("a node that was left behind ended", node=label, error=describe(error))
    task.cancel()  # wakes the task, which finds its coroutine ended


def forget(task: asyncio.Task[Any]) -> None:
    """Takes what a task that is done raised as seen: asyncio would complain that nobody did."""
    if not task.cancelled():
        task.exception()
