"""The gate of an endpoint: how many calls go through at once, and to which replica."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count

from harness.errors import HarnessError, QueueFull
from harness.inference.providers.counters import KV_CACHE, WAITING
from harness.inference.replicas import (
    ReplicaReason,
    ReplicaState,
    choice,
    is_replicas_fault,
    pause_s,
    preference,
    stable_prefix,
)
from harness.inference.request import ChatRequest, Request
from harness.trace import Tracer

Lease = Callable[[Request], AbstractAsyncContextManager[object]]
"""Gives the lease held while a call is sent, such as the model's place in memory."""


@dataclass(slots=True, kw_only=True)
class Replica:
    """One of the servers behind an endpoint, with the gate's record of it."""

    name: str = ""
    """As traces show it; empty for an endpoint's only one."""
    slots: Callable[[], Awaitable[int | None]] | None = None
    """Asks the server for its slots before the first call; None from it means no limit."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """The server's last sampled counters."""
    places: int | None = None
    under_way: int = 0
    waiting: int = 0
    failures: int = 0
    """Consecutive failures."""
    out_until_ns: int = 0
    call_s: float | None = None
    """A mean of the latest calls that it answered."""
    first_sent_ns: int | None = None
    """When it was sent the first of those under way."""

    def answered(self, call_s: float) -> None:
        """A call has got its answer, in so many seconds."""
        self.failures = 0
        self.call_s = call_s if self.call_s is None else self.call_s + (call_s - self.call_s) / 4

    def _first_s(self, now_ns: int) -> float | None:
        if self.first_sent_ns is None or not self.under_way:
            return None  # one whose only call has failed is not slow
        return (now_ns - self.first_sent_ns) / 1e9

    def state(self, now_ns: int) -> ReplicaState:
        """For a choice. After a failure it is tried again with one call at a time."""
        is_tried = self.failures > 0 and self.under_way > 0
        return ReplicaState(
            under_way=self.under_way,
            waiting=self.waiting,
            has_place=self.places is None or self.under_way < self.places,
            is_out=is_tried or now_ns < self.out_until_ns,
            server_waiting=self.counters.get(WAITING.name, 0.0),
            kv_share=self.counters.get(KV_CACHE.name, 0.0),
            call_s=self._first_s(now_ns) if self.call_s is None else self.call_s,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A call's place at a replica."""

    replica: int
    """Its index, from 0."""
    reason: ReplicaReason
    name: str
    """The replica's; empty for an only one."""


@dataclass(slots=True)
class _Waiter:
    order: tuple[int, ...]
    tried: set[int]
    rank: tuple[int, int]
    """Higher priority first, then first come first served."""
    place: asyncio.Future[Place]


class Gate:
    """Lets a limited number of calls through at once; the others wait, the highest priority first.

    A call's time limits begin when it is sent: the wait is not part of them. `max_parallel` is the
    limit for each replica; None for the number of its server's slots. `max_queue` is the number of
    calls that may wait. Each call holds a `lease` while it is sent.
    """

    def __init__(
        self,
        *,
        max_parallel: int | None = None,
        max_queue: int | None = None,
        replicas: Sequence[Replica] | None = None,
        lease: Lease | None = None,
        tracer: Tracer,
    ) -> None:
        self._replicas = replicas or [Replica()]
        for replica in self._replicas:
            replica.places = max_parallel
        self._names = [replica.name for replica in self._replicas]
        self._reason = f"max_parallel = {max_parallel}"
        self._is_asked = max_parallel is not None
        self._asking = asyncio.Lock()
        self._max_queue = max_queue
        self._queue: list[_Waiter] = []
        self._numbers = count()
        self._lease = lease
        self._tracer = tracer

    @asynccontextmanager
    async def passed(
        self, request: Request, *, tried: set[int] | None = None
    ) -> AsyncIterator[Place]:
        """Begins when the call may be sent, and gives its place back at the end.

        `tried` has the replicas that have failed it, which are avoided; this one is added if it
        fails, too.

        Raises:
            QueueFull: It would have to wait, and so many do already.
        """
        if not self._is_asked:
            await self._ask_for_slots()
        tried = set() if tried is None else tried
        place = await self._place(request, tried)
        replica = self._replicas[place.replica]
        try:
            async with self._lease(request) if self._lease else nullcontext():
                sent_ns = self._tracer.now_ns()
                if replica.first_sent_ns is None or replica.under_way == 1:
                    replica.first_sent_ns = sent_ns
                yield place
            replica.answered((self._tracer.now_ns() - sent_ns) / 1e9)
        except HarnessError as error:
            if len(self._replicas) > 1 and is_replicas_fault(error):
                tried.add(place.replica)
                self._leave_out(replica)
            raise
        finally:
            self._give_back(place)

    async def _place(self, request: Request, tried: set[int]) -> Place:
        """A place, at once or after a wait."""
        alone = len(self._replicas) == 1
        order = (0,) if alone else preference(stable_prefix(request), self._names)
        priority = request.priority if isinstance(request, ChatRequest) else 0
        rank = (-priority, next(self._numbers))
        waiter = _Waiter(order, tried, rank, asyncio.get_running_loop().create_future())
        self._replicas[order[0]].waiting += 1
        if self._served(waiter, self._states(), has_waited=False):
            return waiter.place.result()
        if self._max_queue is not None and len(self._queue) >= self._max_queue:
            self._replicas[order[0]].waiting -= 1
            raise QueueFull(
                f"{len(self._queue)} calls already wait ({self._reason}; max_queue = "
                f"{self._max_queue}); raise either limit, or make fewer calls at once",
                endpoint=request.model,
            )
        bisect.insort(self._queue, waiter, key=lambda one: one.rank)
        with self._tracer.span("queue", source="measured", reason=self._reason):
            try:
                return await waiter.place
            except asyncio.CancelledError:
                if waiter.place.cancelled():
                    self._queue.remove(waiter)
                    self._replicas[order[0]].waiting -= 1
                else:
                    self._give_back(waiter.place.result())
                raise

    def _states(self) -> list[ReplicaState]:
        return [replica.state(self._tracer.now_ns()) for replica in self._replicas]

    def _served(self, waiter: _Waiter, states: Sequence[ReplicaState], *, has_waited: bool) -> bool:
        """Gives it a place if there is one for it."""
        chosen = choice(waiter.order, states, tried=waiter.tried, has_waited=has_waited)
        if chosen is None:
            return False
        number, reason = chosen
        self._replicas[waiter.order[0]].waiting -= 1
        self._replicas[number].under_way += 1
        waiter.place.set_result(Place(number, reason, self._names[number]))
        return True

    def _give_back(self, place: Place) -> None:
        self._replicas[place.replica].under_way -= 1
        states, refused = self._states(), set[tuple[int, ...]]()
        for waiter in tuple(self._queue):
            # One that was cancelled just now takes itself out.
            if waiter.place.cancelled() or (waiter.order in refused and not waiter.tried):
                continue
            if self._served(waiter, states, has_waited=True):
                self._queue.remove(waiter)
                states = self._states()
                if not any(state.has_place for state in states):
                    break
                refused.clear()
            elif not waiter.tried:
                refused.add(waiter.order)

    def _leave_out(self, replica: Replica) -> None:
        now_ns = self._tracer.now_ns()
        if now_ns >= replica.out_until_ns:  # calls that fail together are one failure
            replica.failures += 1
            replica.out_until_ns = now_ns + int(pause_s(replica.failures) * 1e9)

    async def _ask_for_slots(self) -> None:
        async with self._asking:
            asked = [replica for replica in self._replicas if replica.slots is not None]
            if not self._is_asked and asked:
                with self._tracer.span("ask slots") as span:
                    told = await asyncio.gather(*(one.slots() for one in asked if one.slots))
                    known = [slots for slots in told if slots is not None]
                    for replica, slots in zip(asked, told, strict=True):
                        # One that does not answer now has as many as the least of the others.
                        replica.places = slots or min(known, default=None)
                    span.set(slots=sum(known) if known else None)
                self._reason = f"slots: all {sum(known)} of the server's are taken"
            self._is_asked = True
