"""How many calls may be under way at once: places, and who waits for one."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Places:
    """Starts what it is given at once while there is room, and else when there is, in order.

    What is nested goes before what is not: calls that have begun are brought to their end before
    further ones begin. Whoever waits costs one entry in a queue, and no task.

    Args:
        limit: How many at once; as many as come when None.
    """

    __slots__ = ("_count", "_free", "_waiting")

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._count = count()
        self._waiting: list[tuple[int, int, Callable[[], object]]] = []  # a heap

    def take(self, start: Callable[[], object], *, depth: int = 0) -> None:
        """Calls `start`, which must see to it that `give_back` is called, when there is a place.

        Args:
            start: Begins a call.
            depth: In how many others that call is nested.
        """
        if self._free is None:
            start()
        elif self._free > 0:
            self._free -= 1
            start()
        else:
            heappush(self._waiting, (-depth, next(self._count), start))

    def take_again(self) -> None:
        """Takes a place without waiting: for a call that had lent its own to what it nests."""
        if self._free is not None:
            self._free -= 1

    def give_back(self) -> None:
        """A place is free again; the first who waits gets it."""
        if self._free is None:
            return
        if self._waiting and self._free >= 0:
            heappop(self._waiting)[-1]()
        else:
            self._free += 1
