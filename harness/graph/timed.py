"""One attempt under its time limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, Literal

from harness.errors import NodeTimedOut
from harness.graph.left_behind import LeftBehind, leave_behind
from harness.graph.policies import Timeout
from harness.graph.pulse import Pulse
from harness.graph.shared import GRACE_S, Log

_GLANCE_S = 0.1
"""How often to look whether a person has answered, in seconds."""


async def timed(
    made: Coroutine[Any, Any, object],
    limits: Timeout,
    *,
    pulse: Pulse,
    label: str,
    log: Log,
) -> object:
    """Awaits an attempt as long as its limits allow.

    One that goes on although it was cancelled is left behind: the run does not wait for it.

    Args:
        made: The attempt.
        limits: The limits.
        pulse: Its signs of life.
        label: The call's, for messages.
        log: Knows what was left behind.

    Raises:
        NodeTimedOut: A limit was reached.
        Exception: What the attempt raised.
    """
    # A task of its own, since only a task can be left.
    task = asyncio.get_running_loop().create_task(made)
    try:
        reached = await _reached(limits, task, pulse)
    except asyncio.CancelledError:
        await _end(task, label=label, log=log)
        raise
    except LeftBehind:
        leave_behind(task, label=label, log=log)
        raise
    if reached is None:
        return task.result()
    await _end(task, label=label, log=log)
    if reached == "total_s":
        raise NodeTimedOut(f"took longer than total_s = {limits.total_s:g} s", limit="total_s")
    raise NodeTimedOut(f"showed no sign of life for idle_s = {limits.idle_s:g} s", limit="idle_s")


async def _reached(
    limits: Timeout, task: asyncio.Task[object], pulse: Pulse
) -> Literal["total_s", "idle_s"] | None:
    """The limit that an attempt reaches; None if it ends before."""
    now_s = asyncio.get_running_loop().time
    pulse.beat()
    begun_s = now_s() - pulse.asked_s
    while True:
        asked_s, alive_s = pulse.asked_s, pulse.alive_s
        total_end_s = begun_s + asked_s + (limits.total_s or math.inf)
        idle_end_s = alive_s + (limits.idle_s or math.inf)
        left_s = min(total_end_s, idle_end_s) - now_s()
        if pulse.is_asking:
            left_s = max(left_s, _GLANCE_S)
        await asyncio.wait({task}, timeout=None if left_s == math.inf else left_s)
        if task.done():
            return None
        if total_end_s <= idle_end_s:
            if pulse.asked_s == asked_s:
                return "total_s"
        elif pulse.alive_s == alive_s:
            return "idle_s"


async def _end(task: asyncio.Task[object], *, label: str, log: Log) -> None:
    """Cancels a call, and waits a little until it is over."""
    task.cancel()
    try:
        await asyncio.wait({task}, timeout=GRACE_S)
    finally:
        leave_behind(task, label=label, log=log)
