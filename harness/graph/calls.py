"""A run's calls that are under way: a task each, begun when there is a place for it.

A call that is told to end and does not is left behind after a grace: no run hangs on a node.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from harness.graph.left_behind import leave_behind
from harness.graph.places import Places
from harness.graph.shared import Log
from harness.graph.state import State


class Going:
    """A call from its beginning to its end.

    Attributes:
        state: Of which node.
        item: Which item; None for all at once.
        has_place: Whether it is one of those that are counted.
        is_made: Whether its function is at work. Before and after that there is nothing to be
            cancelled: what it gave is only to be written down.
    """

    __slots__ = ("has_place", "is_made", "item", "state")

    def __init__(self, state: State, item: int | None) -> None:
        self.state = state
        self.item = item
        self.has_place = False
        self.is_made = False


class Calls:
    """Those of one run of one graph.

    Args:
        run: Makes a call, and takes down how it ended.
        places: How many may be under way, of all graphs together.
        depth: In how many calls the graph is nested.
        log: Knows what was left behind.
    """

    def __init__(
        self,
        run: Callable[[Going], Coroutine[Any, Any, None]],
        *,
        places: Places,
        depth: int,
        log: Log,
    ) -> None:
        self._run = run
        self._places = places
        self._depth = depth
        self._log = log
        self._loop = asyncio.get_running_loop()
        # A call begins in whatever task makes way for it, which may be inside of other spans.
        self._context = contextvars.copy_context()
        self._tasks: dict[Going, asyncio.Task[None]] = {}
        self._is_over = False

    def begin(self, state: State, item: int | None) -> None:
        """Begins a call, now or when there is a place for it."""
        start = partial(self._start, Going(state, item))
        if state.places is None:
            self._places.take(start, depth=self._depth)
        else:
            state.places.take(partial(self._places.take, start, depth=self._depth))

    def give_back(self, going: Going) -> None:
        """Lets another have a call's place, if it still has it."""
        if going.has_place:
            going.has_place = False
            self._places.give_back()
            if going.state.places is not None:
                going.state.places.give_back()

    def has_ended(self, going: Going) -> bool:
        """Takes a call out; whether it was still in, and not left behind."""
        return self._tasks.pop(going, None) is not None

    def cancel(self) -> None:
        """Tells all that are at work to end."""
        for going, task in self._tasks.items():
            if going.is_made:
                task.cancel()

    def leave_behind(self) -> list[Going]:
        """Takes out those that are still at work, and goes on without them."""
        left = [going for going in self._tasks if going.is_made]
        for going in left:
            task = self._tasks.pop(going)
            leave_behind(task, label=going.state.label(going.item), log=self._log)
            self.give_back(going)
        return left

    def begin_no_more(self) -> None:
        """Nobody waits for the run any more: what still waits for a place passes it on."""
        self._is_over = True

    async def wait(self, timeout_s: float) -> None:
        """Returns when all have ended, or after so many seconds."""
        end_s = self._loop.time() + timeout_s
        while self._tasks and (left_s := end_s - self._loop.time()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left_s)

    def _start(self, going: Going) -> None:
        going.has_place = True
        if self._is_over:
            self._loop.call_soon(self.give_back, going)
            return
        # Not in a task group, which would wait for ever for a call that ignores its cancellation.
        # Not by the loop's own factory either: an eager one would run it within what began it.
        self._tasks[going] = asyncio.Task(
            self._run(going), loop=self._loop, context=self._context.copy()
        )
