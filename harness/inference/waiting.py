"""Calls that wait for a place: one at a server, or one for their model in memory.

Their owner decides, by its policy, who goes on. Calls of nodes that wait for a place of the
pipeline (`Places` in `harness/graph/state.py`) are not tasks yet, so nothing here applies to them.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from harness.trace import Tracer, events

PlaceT = TypeVar("PlaceT")
WaiterT = TypeVar("WaiterT", bound="PlaceWaiter[Any]")


@dataclass(slots=True, kw_only=True, eq=False)
class PlaceWaiter(Generic[PlaceT]):
    """A call that waits."""

    rank: tuple[int, ...]
    """The waiter with the lowest rank is the first in line."""
    place: PlaceT | None = None
    """None until it is granted."""
    refusal: Exception | None = None
    """The error that the wait ends with, if it ends without a place."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the wait ends, or when the waiter waits for something else from now on."""


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingLine(Generic[WaiterT, PlaceT]):
    """Waiters in the order of their rank."""

    tracer: Tracer
    serve: Callable[[], None]
    """Grants places by `settle`; called when a waiter comes, or leaves without a place."""
    why: Callable[[WaiterT], events.Happening]
    """Returns the event of a wait, which says what is waited for."""
    take_back: Callable[[PlaceT], None]
    """Gets a place whose waiter ended before it could use it."""
    _waiters: list[WaiterT] = field(default_factory=list, init=False)

    def __iter__(self) -> Iterator[WaiterT]:
        """The waiters of this moment; some may be settled during the iteration."""
        return iter(tuple(self._waiters))

    def join(self, waiter: WaiterT) -> int:
        """Adds a waiter, which may get its place at once; returns how many were there before."""
        before = len(self._waiters)
        bisect.insort(self._waiters, waiter, key=lambda waiter: waiter.rank)
        self.serve()
        return before

    def settle(
        self, waiter: WaiterT, place: PlaceT | None = None, *, refusal: Exception | None = None
    ) -> None:
        """Ends a wait, with a place or an error."""
        self._waiters.remove(waiter)
        waiter.place, waiter.refusal = place, refusal
        waiter.changed.set()

    async def place_of(self, waiter: WaiterT) -> PlaceT:
        """The place of a waiter, as soon as it has one; raises its refusal."""
        try:
            while waiter.place is None and waiter.refusal is None:
                waiter.changed.clear()
                # A new span begins whenever the call waits for something else.
                with self.tracer.span(self.why(waiter)):
                    await waiter.changed.wait()
        except BaseException:  # a call that is abandoned is thrown more than cancellations
            if waiter.place is not None:
                self.take_back(waiter.place)
            elif waiter.refusal is None:
                self._waiters.remove(waiter)
                self.serve()
            raise
        if waiter.refusal is not None:
            # Other waiters raise the same error; none should keep the frames of another.
            raise waiter.refusal.with_traceback(None)
        return cast("PlaceT", waiter.place)
