"""The gate of an endpoint: how many calls go through at once, and to which replica.

While no replica answers, calls wait here, and one at a time tries whether the outage is over.

Calls that begin alike go to one replica, by rendezvous hashing (Thaler and Ravishankar 1998), so
that its prefix cache serves them. No replica takes far more than the others: loads are bounded
(Mirrokni, Thorup and Zadimoghaddam 2018, "Consistent Hashing with Bounded Loads"). How quick or
full the servers are is a router's business.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from harness.errors import HarnessError, Overloaded, QueueFull, RateLimited, RunLimitReached
from harness.inference.endpoint import Endpoint
from harness.inference.health import OutageReason, is_replicas_fault, outage_of, pause_s
from harness.inference.request import ChatRequest, Request
from harness.inference.structured import SharedResult
from harness.inference.waiting import PlaceWaiter, WaitingLine
from harness.log import log_warning
from harness.trace import Tracer, describe, events

# How many times the mean load a replica takes at most, rounded up: `c` in the paper.
LEEWAY = 1.25
# So much of a text counts as its prefix if no message says what it shares with other calls.
_PREFIX_CHARS = 2048
# Tries that fail just before an outage reaches its limit must not follow each other in no time.
_LEAST_PAUSE_S = 0.1

ReplicaReason = Literal["prefix", "load", "failed over"]
"""Why a replica got a call. `prefix`: it is the home of calls that begin alike. `load`: their home
had too many calls, or no place. `failed over`: their home is left out, or has failed the call."""

OnHold = Callable[[], object]
"""Called before each wait for the end of an outage."""

Lease = Callable[[Request], AbstractAsyncContextManager[object]]
"""Gives the lease held while a call is sent, such as the model's place in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica at the moment when the replica for a call is chosen."""

    load: int = 0  # our calls that it has, and those that wait and would go to it first
    has_place: bool = True
    is_out: bool = False  # whether it is left out, since it failed
    is_gone: bool = False  # whether it is left out, since nobody listens there any more


@dataclass(slots=True, kw_only=True)
class Replica:
    """One of the servers behind an endpoint, with the gate's record of it."""

    name: str = ""  # as traces show it; empty for an endpoint's only one
    # Asks the server for its slots before the first call; None from it means no limit.
    slots: Callable[[], Awaitable[int | None]] | None = None
    places: int | None = None
    under_way: int = 0
    failures: int = 0  # consecutive failures
    out_until_ns: int = 0
    is_gone: bool = False  # whether nobody listened there when it last failed

    @property
    def has_place(self) -> bool:
        """Whether it takes a further call now."""
        return self.places is None or self.under_way < self.places

    def state(self, now_ns: int, waiting: int) -> ReplicaState:
        """The replica at this moment, when `waiting` calls would go to it first."""
        # After a failure, a replica is tried again with one call at a time.
        is_being_tried = self.failures > 0 and self.under_way > 0
        is_out = is_being_tried or now_ns < self.out_until_ns
        return ReplicaState(
            load=self.under_way + waiting,
            has_place=self.has_place,
            is_out=is_out,
            is_gone=is_out and self.is_gone,
        )


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """A call's place at a replica."""

    replica: int
    reason: ReplicaReason
    name: str  # the name of the replica; empty for an endpoint's only one
    is_probe: bool = False  # whether the call tries whether an outage is over


@dataclass(slots=True, kw_only=True, eq=False)
class _GateWaiter(PlaceWaiter[ReplicaPlace]):
    order: tuple[int, ...]  # the replicas in the order of the call's preference
    tried: set[int]  # the replicas that have failed the call
    may_wait: bool  # whether it waits for the end of an outage
    on_hold: OnHold


@dataclass(kw_only=True, eq=False)
class Gate:
    """Lets a limited number of calls through at once; others wait, the highest priority first."""

    endpoint: Endpoint
    tracer: Tracer
    replicas: Sequence[Replica] = field(default_factory=lambda: [Replica()])
    lease: Lease | None = None  # held by each call while it is sent
    # Calls a function after some seconds; by default the event loop does.
    later: Callable[[float, Callable[[], None]], object] | None = None
    # Spreads the times at which a server that is down is tried again.
    randomness: random.Random = field(default_factory=random.Random)
    answers: int = field(default=0, init=False)  # how many calls were answered so far

    def __post_init__(self) -> None:
        for replica in self.replicas:
            replica.places = self.endpoint.max_parallel
        self._place_of: events.PlaceOf = "endpoint"
        self._reason = f"max_parallel = {self.endpoint.max_parallel}"
        # A stated limit leaves nothing to ask.
        self._slots_asked = SharedResult(True if self.endpoint.max_parallel is not None else None)
        self._waiting = WaitingLine[_GateWaiter, ReplicaPlace](
            tracer=self.tracer, serve=self._serve, why=self._why, take_back=self._give_back
        )
        self._numbers = count()
        self._outage: OutageReason | None = None  # while no replica answers
        self._down_since_ns = 0
        self._outage_error: HarnessError | None = None
        self._final_error: RunLimitReached | None = None  # once it was down for too long

    @asynccontextmanager
    async def passed(
        self, request: Request, *, tried: set[int], may_wait: bool, on_hold: OnHold = lambda: None
    ) -> AsyncIterator[ReplicaPlace]:
        """Begins when the call may be sent, and gives its place back at the end.

        Replicas in `tried` have failed the call and are avoided; this one is added if it fails it.
        Without `may_wait`, a call does not wait for the end of an outage.
        """
        self.check()
        await self._slots_asked.get(self._ask_for_slots)
        place = await self._place(request, tried, may_wait=may_wait, on_hold=on_hold)
        replica = self.replicas[place.replica]
        try:
            async with self.lease(request) if self.lease else nullcontext():
                yield place
            replica.failures, replica.is_gone = 0, False
            self.answers += 1
            self.note_answer(place)
        # A cancellation is no failure: it says nothing of the server.
        except HarnessError as error:
            is_fault = len(self.replicas) > 1 and is_replicas_fault(error)
            if is_fault:
                tried.add(place.replica)
            self._note_failure(replica, error, is_fault=is_fault)
            raise
        finally:
            self._give_back(place)

    def try_again(self) -> None:
        """Lets a further run wait again for the end of an outage that ended an earlier run."""
        if self._final_error is not None:
            self._final_error = None
            self._down_since_ns = self.tracer.now_ns()

    def check(self) -> None:
        """Raises `RunLimitReached` once the endpoint was down for too long: the run is to end."""
        if self._final_error is not None:
            raise self._final_error.with_traceback(None)

    def holds(self, error: HarnessError, *, answers: int | None, is_last: bool) -> bool:
        """Whether a call that failed waits here for the end of an outage, as one more attempt.

        `answers` is how many calls were answered when it last failed, None if it had not; `is_last`
        says whether it would otherwise not be attempted again.
        """
        reason = outage_of(error)
        # If other calls were answered since it failed, this call itself may break the server.
        if reason is None or answers not in {None, self.answers} or not self.endpoint.max_outage_s:
            return False
        # A server that is loading or full does exist; an address that never answered may be wrong.
        if is_last and not self.is_down and (self.answers or isinstance(error, Overloaded)):
            self._begin_outage(reason, error)
        return self.is_down

    @property
    def is_down(self) -> bool:
        """Whether no replica answers."""
        return self._outage is not None

    def note_answer(self, place: ReplicaPlace) -> None:
        """Ends an outage, since a replica answers or begins to: the calls that wait go on."""
        if not self.is_down:
            return
        self._outage = None
        replica = self.replicas[place.replica]
        replica.failures = replica.out_until_ns = 0
        down_s = round((self.tracer.now_ns() - self._down_since_ns) / 1e9, 1)
        log_warning(
            "an endpoint answers again",
            code="endpoint.back",
            endpoint=self.endpoint.tag,
            after_s=down_s,
        )
        for waiter in self._waiting:
            waiter.changed.set()  # from now on `_why` says that it waits for a place
        self._serve()

    async def _place(
        self, request: Request, tried: set[int], *, may_wait: bool, on_hold: OnHold
    ) -> ReplicaPlace:
        names = [replica.name for replica in self.replicas]
        order = (0,) if len(names) == 1 else preference(stable_prefix(request), names)
        priority = request.priority if isinstance(request, ChatRequest) else 0
        waiter = _GateWaiter(
            rank=(-priority, next(self._numbers)),  # then first come, first served
            order=order,
            tried=tried,
            may_wait=may_wait,
            on_hold=on_hold,
        )
        waiting = self._waiting.join(waiter)
        # Refused only after `join`, which may have given it a place at once.
        max_queue = self.endpoint.max_queue
        is_full = max_queue is not None and waiting >= max_queue
        if waiter.place is None and self.is_down and not may_wait:
            self._waiting.settle(waiter, refusal=copy.copy(self._outage_error))
        elif waiter.place is None and not self.is_down and is_full:
            message = (
                f"{waiting} calls already wait ({self._reason}; max_queue = {max_queue}); "
                "raise either limit, or make fewer calls at once"
            )
            self._waiting.settle(waiter, refusal=QueueFull(message, endpoint=request.model))
        return await self._waiting.place_of(waiter)

    def _why(self, waiter: _GateWaiter) -> events.Happening:
        """What a call waits for, as the event of its wait; says so to a call that is held."""
        if self.is_down:
            waiter.on_hold()
            return events.Hold("measured", self._outage)
        return events.Queue(source="measured", place_of=self._place_of, reason=self._reason)

    def _states(self) -> list[ReplicaState]:
        now_ns = self.tracer.now_ns()
        waiters = self._waiting if len(self.replicas) > 1 else ()  # else no load decides anything
        waiting = Counter(waiter.order[0] for waiter in waiters)
        return [replica.state(now_ns, waiting[n]) for n, replica in enumerate(self.replicas)]

    def _give_back(self, place: ReplicaPlace) -> None:
        self.replicas[place.replica].under_way -= 1
        self._serve()

    def _serve(self) -> None:
        """Grants places to the calls that wait, as far as replicas have some."""
        if not any(replica.has_place for replica in self.replicas):
            return  # at once, since this is asked at each call: the states take all that wait
        states = self._states()
        # Orders without a choice: all calls with the same order have none until a place is granted.
        refused: set[tuple[int, ...]] = set()
        for waiter in self._waiting:
            if not any(state.has_place for state in states):
                break
            if waiter.order in refused and not waiter.tried:
                continue
            chosen = choice(waiter.order, states, tried=waiter.tried, is_down=self.is_down)
            if chosen is None:
                if not waiter.tried:
                    refused.add(waiter.order)
                continue
            number, reason = chosen
            replica = self.replicas[number]
            replica.under_way += 1
            place = ReplicaPlace(number, reason, replica.name, self.is_down)
            self._waiting.settle(waiter, place)
            states = self._states()
            refused.clear()

    def _note_failure(self, failed: Replica, error: HarnessError, *, is_fault: bool) -> None:
        reason = outage_of(error) if self.endpoint.max_outage_s else None
        now_ns = self.tracer.now_ns()
        # Nobody listens any more at an address that has answered.
        failed.is_gone = reason == "unreachable" and self.answers > 0
        # One that is left out since it failed a call in another way may answer all others.
        are_gone = failed.is_gone and all(
            replica.is_gone and now_ns < replica.out_until_ns
            for replica in self.replicas
            if replica is not failed
        )
        if are_gone and not self.is_down:
            self._begin_outage("unreachable", error)
        elif is_fault or (reason and self.is_down):
            self._leave_out(failed, error)

    def _leave_out(self, replica: Replica, error: HarnessError) -> None:
        """Leaves a replica out for a pause that grows with its failures."""
        now_ns = self.tracer.now_ns()
        if now_ns < replica.out_until_ns:
            return  # calls that fail together are one failure
        replica.failures += 1
        retry_after_s = (error.retry_after_s or 0.0) if isinstance(error, Overloaded) else 0.0
        out_s = pause_s(
            replica.failures,
            is_outage=self.is_down,
            jitter=self.randomness.random() if self.is_down else 0.0,
            # A server may ask for days. Its wish counts up to the longest outage.
            asked_s=min(retry_after_s, self.endpoint.max_outage_s),
        )
        if self.is_down:
            rest_of_outage_s = self.endpoint.max_outage_s - (now_ns - self._down_since_ns) / 1e9
            if rest_of_outage_s <= 0:
                self._end_outage(error)
            # The last try is made when the outage reaches its limit: if that fails, the run ends.
            out_s = min(out_s, max(rest_of_outage_s, _LEAST_PAUSE_S))
        # Calls that wait for a place get this one's as soon as the pause is over.
        later = self.later or asyncio.get_running_loop().call_later
        later(out_s, self._serve)
        replica.out_until_ns = now_ns + int(out_s * 1e9)

    def _begin_outage(self, reason: OutageReason, error: HarnessError) -> None:
        """Holds all calls from now on, but those that try whether a replica answers."""
        self._outage = reason
        self._outage_error = copy.copy(error)  # the frames of `error` itself hold the call
        self._down_since_ns = self.tracer.now_ns()
        for replica in self.replicas:
            replica.failures = replica.out_until_ns = 0
            self._leave_out(replica, error)
        for waiter in self._waiting:
            if waiter.may_wait:
                waiter.changed.set()
            else:
                self._waiting.settle(waiter, refusal=copy.copy(self._outage_error))
        log_warning(
            "an endpoint takes no calls; they wait until it does",
            code="endpoint.down",
            endpoint=self.endpoint.tag,
            at_most_s=self.endpoint.max_outage_s,
            error=describe(error),
        )

    def _end_outage(self, error: HarnessError) -> None:
        """Ends the waits of all calls, and with them the run."""
        tag, limit_s = self.endpoint.tag, self.endpoint.max_outage_s
        failed, remedy = "did not answer", "start its server again"
        if isinstance(error, RateLimited):
            failed, remedy = "refused calls (HTTP 429)", "wait until the account may call again"
        elif isinstance(error, Overloaded):
            failed, remedy = "took no calls", "wait until its server is ready"
        self._final_error = RunLimitReached(
            f"endpoint '{tag}' {failed} for {limit_s:g} s (max_outage_s): "
            f"{str(error).rstrip('.')}; {remedy}, and go on with the run",
            limit="outage",
            code="run.endpoint-down",
        )
        for waiter in self._waiting:
            self._waiting.settle(waiter, refusal=self._final_error)

    async def _ask_for_slots(self) -> bool:
        """Asks the servers how many places their replicas have; returns True once that is done."""
        replicas = [replica for replica in self.replicas if replica.slots is not None]
        if replicas:
            with self.tracer.span(events.AskSlots()) as span:
                counts = await asyncio.gather(*(r.slots() for r in replicas if r.slots))
                reported = [slots for slots in counts if slots is not None]
                for replica, slots in zip(replicas, counts, strict=True):
                    # A server that does not report its slots counts as the one with the fewest.
                    replica.places = slots or min(reported, default=None)
                span.set(slots=sum(reported) if reported else None)
            self._place_of = "slots"
            self._reason = f"slots: all {sum(reported)} of the server's are taken"
        return True


# --- which replica: pure functions of loads and health --------------------------------------------


def stable_prefix(request: Request) -> str:
    """The beginning that a call shares with those that should be answered by the same replica."""
    if not isinstance(request, ChatRequest):
        return request.texts[0][:_PREFIX_CHARS]
    # It ends where the first message says that calls differ: after an evaluator's rubric and
    # sources, before the draft. Without such a mark, it is the system prompt and the beginning of
    # the next message, which stay the same while a conversation grows.
    parts = []
    for message in request.messages:
        if message.shared_chars:
            parts.append(message.content[: message.shared_chars[0]])
            break
        if message.role != "system":
            parts.append(message.content[:_PREFIX_CHARS])
            break
        parts.append(message.content)
    return "\n".join(parts)


def preference(prefix: str, names: Sequence[str]) -> tuple[int, ...]:
    """The replicas by their places in `names`, the one for this prefix first."""
    # Rendezvous hashing: a further name moves only the prefixes that it now comes first for.
    digest = hashlib.sha256(prefix.encode("utf-8", "replace")).digest()
    weights = [hashlib.sha256(digest + name.encode()).digest() for name in names]
    return tuple(sorted(range(len(names)), key=lambda n: weights[n], reverse=True))


def most_for_one(loads: Collection[int]) -> int:
    """The bound: the highest load that one of the replicas with these loads may have."""
    return math.ceil(LEEWAY * sum(loads) / len(loads))


def choice(
    order: Sequence[int],
    states: Sequence[ReplicaState],
    *,
    tried: Collection[int] = (),
    is_down: bool = False,
) -> tuple[int, ReplicaReason] | None:
    """The replica for a call, and why; None to wait. The `tried` ones have failed the call."""
    # In an outage, no replica is tried before its time.
    candidates = [number for number in order if not (is_down and states[number].is_out)]
    if not candidates:
        return None
    # One that is gone gets no call, unless there is none beside.
    candidates = [number for number in candidates if not states[number].is_gone] or candidates
    # If all have failed the call, or all are left out, any of them is better than none.
    untried = [number for number in candidates if number not in tried] or candidates
    usable = [number for number in untried if not states[number].is_out] or untried
    home = usable[0]
    is_away = home != order[0]
    # The call is counted in the load of `order[0]`; another home does not count it yet.
    home_load = states[home].load + is_away
    bound = most_for_one([home_load, *(states[number].load for number in usable[1:])])
    stays = home_load <= bound
    # While the call may wait at home, only an idle replica takes it from there.
    highest = 0 if stays else bound - 1
    spare = [n for n in usable[1:] if states[n].has_place and states[n].load <= highest]
    if states[home].has_place and (stays or not spare):
        return home, "failed over" if is_away else "prefix"
    return (spare[0], "failed over" if is_away else "load") if spare else None
