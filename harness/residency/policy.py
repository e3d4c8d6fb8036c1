"""The policy: what is in memory and who waits for what, in; what to do about it, out.

Pure: no clock, no model. Calls for what is resident go first. A switch happens when nothing is left
for the model that goes, or when a call has waited so long that it must. Which model comes and which
goes is settled by what the forecast says of the rest of the run: the fewest seconds of loading, and
of waiting for it. The next model is loaded ahead when there is room for it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.residency.ledger import Need, Resident, Tenant, guests_in_the_way
from harness.residency.state import Decision, Grant, Load, State, Strand, Unload, Wait, WaitingCall


def decide(state: State) -> Decision:
    """What is to be done next."""
    urgent = _urgent(state)
    granted = tuple(_grantable(state, urgent))
    if granted:
        return Grant(calls=granted)
    if state.ledger.moving is not None:
        return Wait()
    overgrown = _overgrown(state)
    if overgrown is not None:
        return overgrown
    if urgent is not None:
        idle = all(state.ledger.residents[model].leases == 0 for model in urgent.evict)
        return urgent if idle else Wait()
    switch = _switch(state)
    if isinstance(switch, Load):
        return switch
    return _pinned(state) or _prefetch(state) or _release(state) or switch


# --- calls for what is resident ---------------------------------------------------------------


def _grantable(state: State, urgent: Load | None) -> Iterator[int]:
    """The calls that can begin, in order; of one model none before an earlier one.

    Where models must take turns, none is sent to wait in a server: there it could not be overtaken,
    and would keep its model in memory. Elsewhere servers keep their own queues.
    """
    is_crowded = state.is_crowded
    held_up: set[str] = set()
    going = urgent.evict if urgent is not None else ()
    due: WaitingCall | None = None
    taken = {model: (one.leases, one.kv_tokens) for model, one in state.ledger.residents.items()}
    for call in state.waiting:
        if urgent is not None and due is None and call.model == urgent.model:
            due = call  # those before it have been waiting longer, and go first
        if call.model in held_up or call.model not in taken:
            continue
        if due is not None and call.model in going and makes_way(call, due, state):
            held_up.add(call.model)
            continue
        leases, kv_tokens = taken[call.model]
        tenant = state.tenants[call.model]
        if not is_crowded or _has_room(tenant, call, leases=leases, kv_tokens=kv_tokens):
            taken[call.model] = leases + 1, kv_tokens + call.kv_tokens
            yield call.id
        else:
            held_up.add(call.model)


def _has_room(tenant: Tenant, call: WaitingCall, *, leases: int, kv_tokens: int) -> bool:
    if leases == 0:
        return True  # if it is too long after all, its server says so
    if tenant.slots is not None and leases >= tenant.slots:
        return False
    return tenant.kv_tokens is None or kv_tokens + call.kv_tokens <= tenant.kv_tokens


# --- calls for what is not ----------------------------------------------------------------------


def _wanted(state: State) -> dict[str, WaitingCall]:
    """The oldest call of each model that calls wait for and that is not resident."""
    oldest: dict[str, WaitingCall] = {}
    for call in state.waiting:
        if call.model not in state.ledger.residents:
            oldest.setdefault(call.model, call)
    return oldest


def _urgent(state: State) -> Load | None:
    """The switch that must be made now, or as soon as the last call of who makes way has ended."""
    wanted = _wanted(state)
    if not wanted or state.ledger.moving is not None:
        return None
    due_ns = latest_switch_ns(list(wanted.values()), state)
    if state.now_ns < due_ns:
        return None
    model, call = next(iter(wanted.items()))
    choice, why = Choice(state), {model: f"it has been waited for {_seconds(state, call)} s"}
    return choice.best(why, going=choice.idle) or choice.best(why)


def _switch(state: State) -> Load | Wait:
    """A switch for a call that waits, if now is the time; else when to look again."""
    wanted = _wanted(state)
    if not wanted:
        return Wait()
    due_ns = latest_switch_ns(list(wanted.values()), state)
    idle = [one for one in state.ledger.residents.values() if one.leases == 0]
    if not _can_fit(wanted, state, going=idle):
        return Wait(until_ns=due_ns)
    choice = Choice(state)
    reasons = dict.fromkeys(wanted, "a call waits for it")
    best = choice.best(_of_highest_rank(reasons, state.tenants))
    if best is None:
        return Wait()
    stay_until_ns = [choice.stays_until_ns(model) for model in best.evict]
    if None in stay_until_ns:  # until its last call has ended, and that is an event
        return Wait(until_ns=due_ns)
    latest_ns = max((ns for ns in stay_until_ns if ns is not None), default=0)
    return best if latest_ns <= state.now_ns else Wait(until_ns=min(latest_ns, due_ns))


def _can_fit(models: Iterable[str], state: State, *, going: Iterable[Resident]) -> bool:
    """Whether one of these models has room when those go: a sum, much cheaper than the choice."""
    tenants = [state.tenants[model] for model in models if model in state.tenants]
    if not tenants:
        return False
    free = {name: state.ledger.room_for_models(name) for name in state.ledger.devices}
    for resident in going:
        for name, bytes_ in resident.need.items():
            free[name] += bytes_
    return any(
        all(free[name] >= bytes_ for name, bytes_ in tenant.need.items()) for tenant in tenants
    )


def _of_highest_rank(reasons: Mapping[str, str], tenants: Mapping[str, Tenant]) -> dict[str, str]:
    """The models that come first: of the highest priority, and one that fits whole before others.

    A model that is split over devices computes as slowly as the slowest of them.
    """
    ranks = {model: (tenants[model].priority, not tenants[model].is_split) for model in reasons}
    highest = max(ranks.values())
    return {model: reason for model, reason in reasons.items() if ranks[model] == highest}


def _seconds(state: State, call: WaitingCall) -> str:
    return f"{(state.now_ns - call.since_ns) / 1e9:.1f}"


# --- while nobody waits ---------------------------------------------------------------------------


def _overgrown(state: State) -> Unload | None:
    """A model that must go since those that are there take more than there is."""
    ledger = state.ledger
    for device in sorted(ledger.devices):
        there = [one for one in ledger.residents.values() if one.need.get(device)]
        # A single model that turned out larger than the room has found room all the same.
        if ledger.room_for_models(device) >= 0 or len(there) < 2:
            continue
        idle = [one for one in there if one.leases == 0 and _may_go(one.model, state)]
        if idle:
            going = min(
                idle, key=lambda o: (state.tenants[o.model].priority, o.idle_since_ns, o.model)
            )
            return Unload(model=going.model, reason=f"'{device}' holds more than it has room for")
    return None


def _pinned(state: State) -> Load | None:
    for model, tenant in sorted(state.tenants.items()):
        if tenant.pin and model not in state.ledger.residents and model not in state.failed:
            choice = Choice(state)
            return choice.best({model: "it is pinned"}, going=choice.idle)
    return None


def _prefetch(state: State) -> Load | None:
    """The model that is used next, if there is room for it, or for what is in it no more use."""
    coming = state.forecast.models
    unused = [
        one
        for one in state.ledger.residents.values()
        if one.leases == 0 and one.model not in coming
    ]
    missing = coming - state.ledger.residents.keys() - state.failed
    # To load ahead must not keep those waiting who are here.
    if _wanted(state) or not _can_fit(missing, state, going=unused):
        return None
    choice = Choice(state)
    load = choice.best(dict.fromkeys(choice.wanted_next, "it is used next"))
    if load is None or load.guests or not all(map(choice.can_go, load.evict)):
        return None
    return load


def _may_go(model: str, state: State) -> bool:
    """Whether it goes although no call needs its room; not again where it did not the last time."""
    return not state.tenants[model].pin and model not in state.failed


def _release(state: State) -> Unload | None:
    """A model that no more call will use: others on the machine can have its memory."""
    forecast = state.forecast
    if not forecast.is_complete or state.waiting:
        return None
    for model, resident in sorted(state.ledger.residents.items()):
        if resident.leases or model in forecast.models or not _may_go(model, state):
            continue
        return Unload(model=model, reason="it is not used again in this run")
    return None


_MOMENT_NS: Final = 50_000_000
"""After a call: soon the one is here that it was made for, and may be for a model that fits beside.
Who chose before that would choose among the others."""


class Choice:
    """Compares the loads that could be made now, by what the rest of the run then takes.

    Args:
        state: The present.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._pinned = {model for model, tenant in state.tenants.items() if tenant.pin}
        self._lookahead = Lookahead(
            [*state.forecast.strands, *_strands_of_calls(state)], state.tenants, _rooms(state)
        )
        residents = state.ledger.residents
        self._now = self._lookahead.start(residents)
        self._later = self._lookahead.advance(self._now)
        self._used_before = self._lookahead.passed(self._now, self._later)
        self._used_after = self._lookahead.ahead(self._later)
        unpinned = [one for one in residents.values() if one.model not in self._pinned]
        self._going = [one.model for one in sorted(unpinned, key=self._missed)]

    @property
    def wanted_next(self) -> list[str]:
        """What could be used next, were it resident."""
        wanted = self._lookahead.wanted(self._later) - self._later.residents
        return sorted(wanted - self._state.failed)

    @property
    def idle(self) -> list[str]:
        """The residents that may go at once, those first that are missed least."""
        residents = self._state.ledger.residents
        return [model for model in self._going if not residents[model].leases]

    def best(
        self, reasons: Mapping[str, str], *, going: Sequence[str] | None = None
    ) -> Load | None:
        """The best load of one of these models; None where none has room beside what is pinned.

        Args:
            reasons: By model, why it should come; of two that are as good the one of higher
                priority is taken, or else the first.
            going: The residents that may go; None for all that are not pinned.
        """
        going = self._going if going is None else going
        best: tuple[tuple[float, bool, int], str, tuple[str, ...]] | None = None
        for model in reasons:
            priority = self._state.tenants[model].priority
            for victims in self._lookahead.ways_to_load(self._later, model, going):
                # How long calls take is not known at first: of equal ways, one that need not wait.
                cost = self._cost_s(model, victims), self._must_wait(victims), -priority
                if best is None or cost < best[0]:
                    best = cost, model, victims
        if best is None:
            return None
        _, model, victims = best
        ledger = self._state.ledger
        for victim in victims:
            ledger = ledger.without(victim)
        return Load(
            model=model,
            evict=victims,
            guests=guests_in_the_way(ledger, self._state.tenants[model].need),
            reason=", ".join([reasons[model], *map(self._why_it_goes, victims)]),
            is_prefetch=all(call.model != model for call in self._state.waiting),
        )

    def stays_until_ns(self, model: str) -> int | None:
        """When a resident may go for another; None where some call must end first.

        One that is about to be used again is kept, though idle: while calls to others are under
        way, which may come before it, and from then on, while nothing happens, for as long as
        loading it again would take. That no call waits too long for it is seen to elsewhere.
        """
        residents, tenants = self._state.ledger.residents, self._state.tenants
        if residents[model].leases:
            return None
        if model not in self._used_before:
            return residents[model].idle_since_ns + _MOMENT_NS
        load_s = tenants[model].load_s
        if any(one.leases for one in residents.values()):
            return None
        idle_since_ns = max(one.idle_since_ns for one in residents.values() if not one.leases)
        return idle_since_ns + round(load_s * 1e9)

    def can_go(self, model: str) -> bool:
        """Whether a resident makes room for what nobody waits for yet: only if it is over."""
        return (
            self._state.forecast.is_complete
            and not self._state.ledger.residents[model].leases
            and not self.is_used_again(model)
        )

    def is_used_again(self, model: str) -> bool:
        """Whether the forecast has a use for it."""
        return model in self._used_before or model in self._used_after

    def _cost_s(self, model: str, victims: Collection[str]) -> float:
        """Seconds of loading from now on, with those until the victims' calls have ended."""
        tenants, residents = self._state.tenants, self._state.ledger.residents
        there = self._lookahead.loaded(self._later, model, victims)
        waits_s = [tenants[victim].call_s for victim in victims if residents[victim].leases]
        return (
            tenants[model].load_s
            + self._lookahead.least_load_s(there, self._pinned)
            + max(waits_s, default=0.0)
        )

    def _must_wait(self, victims: Collection[str]) -> bool:
        return any(self._state.ledger.residents[victim].leases for victim in victims)

    def _missed(self, resident: Resident) -> tuple[int, float, str]:
        """How much it is missed, where the forecast sees no difference; the least goes first.

        What is cheap to load again, large, and long unused: with equal models, the longest unused.
        """
        tenant = self._state.tenants[resident.model]
        idle_ns = 0 if resident.leases else max(self._state.now_ns - resident.idle_since_ns, 0)
        per_byte = tenant.load_s / max(sum(resident.need.values()), 1)
        return tenant.priority, per_byte / (idle_ns + 1), resident.model

    def _why_it_goes(self, model: str) -> str:
        if self.is_used_again(model):
            return f"'{model}' is used again later than others"
        if self._state.forecast.is_complete:
            return f"'{model}' is not used again"
        return f"nothing is left for '{model}'"


def _strands_of_calls(state: State) -> list[Strand]:
    """What waits, as strands of its own: the forecast need not know of every call."""
    models = dict.fromkeys(call.model for call in state.waiting)
    return [Strand(name=f"calls of {model}", uses=(model,)) for model in models]


def _rooms(state: State) -> dict[str, int]:
    return {name: device.room_bytes for name, device in state.ledger.devices.items()}


_LONGEST_TURN: Final = 2
"""How many times the longest wait a model stays at most, while others are waited for too long."""


def makes_way(call: WaitingCall, due: WaitingCall, state: State) -> bool:
    """Whether a call is not lent its model any more, since that must go for one that is due.

    Not if it could not wait for its model to come back either: it would be due as soon as the other
    has come, and models would go for each other after every call. But no turn lasts for ever.

    Args:
        call: Which waits for a model that is resident.
        due: Which has been waiting for longer, for one that is not.
        state: Tells how long loads and calls take.
    """
    own, other = state.tenants[call.model], state.tenants[due.model]
    back_ns = state.now_ns + round((other.load_s + other.call_s + own.load_s) * 1e9)
    turn_ns = state.now_ns - state.ledger.residents[call.model].since_ns
    can_wait = back_ns <= call.since_ns + state.max_wait_ns
    return can_wait or turn_ns >= _LONGEST_TURN * state.max_wait_ns


def latest_switch_ns(oldest: Sequence[WaitingCall], state: State) -> int:
    """The last moment at which room must begin to be made, so that nobody waits too long.

    The models are taken to be loaded one after another, the one that was waited for longest first,
    each answering one call of its length before it makes way for the next. Counted back from every
    model's own deadline, the earliest moment decides:

        min over k of (deadline_k - sum over j < k of (load_j + call_j)) - what calls under way take

    Kept as far as calls take no longer than is known of them, and as there is time enough for all.

    Args:
        oldest: The oldest call of each model that is not resident, the oldest first.
        state: Tells how long loads and calls take.
    """
    residents = state.ledger.residents
    latest_ns = state.now_ns + state.max_wait_ns
    ahead_ns = 0
    for call in oldest:
        tenant = state.tenants[call.model]
        latest_ns = min(latest_ns, call.since_ns + state.max_wait_ns - ahead_ns)
        ahead_ns += round((tenant.load_s + tenant.call_s) * 1e9)
    under_way = [state.tenants[one.model].call_s for one in residents.values() if one.leases]
    latest_ns -= round(max(under_way, default=0.0) * 1e9)
    return latest_ns


def why_it_waits(call: WaitingCall, state: State) -> str:
    """What stands between a call and its model now."""
    ledger = state.ledger
    resident = ledger.residents.get(call.model)
    if resident is not None:
        return _why_it_waits_for(resident, call, state)
    if ledger.moving is not None:
        return f"'{ledger.moving.model}' is on the move"
    in_use = [f"'{one.model}'" for one in ledger.residents.values() if one.leases]
    if in_use:
        return f"no room until calls to {', '.join(in_use)} end"
    return "what is in memory is about to be used again"


def _why_it_waits_for(resident: Resident, call: WaitingCall, state: State) -> str:
    """The same of a model that is there."""
    model, tenant = call.model, state.tenants[call.model]
    if tenant.slots is not None and resident.leases >= tenant.slots:
        return f"slots: all {tenant.slots} of '{model}' are taken"
    if tenant.kv_tokens is not None and resident.kv_tokens + call.kv_tokens > tenant.kv_tokens:
        return f"KV cache: that of '{model}' is full"
    if any(one.model == model and one.id < call.id for one in state.waiting):
        return f"KV cache: an earlier call waits for room in that of '{model}'"
    return f"'{model}' makes way for a model that was waited for longer"


_MOST_POSITIONS: Final = 300
"""Looked at before the search ends with what it knows: some milliseconds. Pipelines have tens."""
_MOST_WAYS: Final = 16
"""Of making room for one model, that are compared."""
_MOST_VICTIMS: Final = 3
"""Of one load, that are compared with others; beyond it the first that do are taken."""


@dataclass(frozen=True, slots=True)
class Position:
    """A moment of the run, as far as the search tells moments apart."""

    residents: frozenset[str]
    """The models that are in memory."""
    at: tuple[int, ...]
    """How many of its uses each strand has behind it."""


class Lookahead:
    """The ways through one forecast.

    Args:
        strands: What is to come. Those that are alike are looked at once: they go side by side.
        tenants: The models, by tag; uses of others cost nothing.
        rooms: By device, what models may take there.
    """

    def __init__(
        self, strands: Sequence[Strand], tenants: Mapping[str, Tenant], rooms: Mapping[str, int]
    ) -> None:
        self._tenants = tenants
        self._rooms = rooms
        strands = _distinct([_among(strand, tenants) for strand in strands])
        number = {strand.name: index for index, strand in enumerate(strands)}
        self._uses = [strand.uses for strand in strands]
        self._after = [[number[name] for name in s.after if name in number] for s in strands]

    def start(self, residents: Collection[str]) -> Position:
        """The present moment."""
        return Position(frozenset(residents), (0,) * len(self._uses))

    def advance(self, position: Position) -> Position:
        """After everything has run that can be run with what is resident."""
        at = list(position.at)
        moved = True
        while moved:
            moved = False
            for index in self._begun(at):
                uses, old = self._uses[index], at[index]
                while at[index] < len(uses) and uses[at[index]] in position.residents:
                    at[index] += 1
                # Only a strand that has ended lets others begin.
                moved |= at[index] > old and at[index] == len(uses)
        return Position(position.residents, tuple(at))

    def passed(self, before: Position, after: Position) -> frozenset[str]:
        """The models that are used between two moments."""
        return frozenset(
            model
            for uses, first, last in zip(self._uses, before.at, after.at, strict=True)
            for model in uses[first:last]
        )

    def wanted(self, position: Position) -> frozenset[str]:
        """The models that could be used next, were they resident."""
        at = position.at
        return frozenset(
            self._uses[index][at[index]]
            for index in self._begun(at)
            if at[index] < len(self._uses[index])
        )

    def ahead(self, position: Position) -> frozenset[str]:
        """The models that are used at any time from now on."""
        return frozenset(
            model for uses, at in zip(self._uses, position.at, strict=True) for model in uses[at:]
        )

    def ways_to_load(
        self, position: Position, model: str, going: Sequence[str]
    ) -> Iterator[tuple[str, ...]]:
        """What could go so that a model can come: nothing that need not; at most some ways.

        Args:
            position: The moment.
            model: Which is to come.
            going: The residents that may go, those first that are missed least.
        """
        need = self._tenants[model].need
        free = self._free(position.residents)
        if _fits(need, free):
            yield ()
            return
        found: list[set[str]] = []
        for count in range(1, min(_MOST_VICTIMS, len(going)) + 1):
            for victims in itertools.combinations(going, count):
                if any(smaller <= set(victims) for smaller in found):
                    continue
                if _fits(need, self._with_freed(free, victims)):
                    found.append(set(victims))
                    yield victims
                    if len(found) == _MOST_WAYS:
                        return
        if not found:
            for count in range(_MOST_VICTIMS + 1, len(going) + 1):
                if _fits(need, self._with_freed(free, going[:count])):
                    yield tuple(going[:count])
                    return

    def loaded(self, position: Position, model: str, evicted: Collection[str]) -> Position:
        """The moment after a load, when everything has run that then can."""
        residents = (position.residents - frozenset(evicted)) | {model}
        return self.advance(Position(residents, position.at))

    def least_load_s(self, position: Position, staying: Collection[str] = ()) -> float:
        """The seconds of loading that are still to come, at the least.

        Exact where the search comes to its end, which it does but for large forecasts; else what
        cannot be less.

        Args:
            position: The moment, when everything has run that can.
            staying: Models that never go.
        """
        order = itertools.count()
        open_ = [(self._at_least(position), next(order), 0.0, position)]
        best = {position: 0.0}
        at_least = 0.0
        while open_ and len(best) < _MOST_POSITIONS:
            at_least, _, so_far, here = heapq.heappop(open_)
            wanted = self.wanted(here) - here.residents
            if not wanted:
                return at_least
            if so_far > best[here]:
                continue
            going = sorted(here.residents.difference(staying))
            for model in sorted(wanted):
                for victims in self.ways_to_load(here, model, going):
                    there = self.loaded(here, model, victims)
                    cost = so_far + self._tenants[model].load_s
                    if cost < best.get(there, math.inf):
                        best[there] = cost
                        estimate = cost + self._at_least(there)
                        heapq.heappush(open_, (estimate, next(order), cost, there))
        return open_[0][0] if open_ else at_least

    def _at_least(self, position: Position) -> float:
        return sum(
            self._tenants[model].load_s for model in self.ahead(position) - position.residents
        )

    def _begun(self, at: Sequence[int]) -> Iterator[int]:
        for index, before in enumerate(self._after):
            if all(at[other] == len(self._uses[other]) for other in before):
                yield index

    def _free(self, residents: Collection[str]) -> dict[str, int]:
        return {
            device: room - sum(self._tenants[model].need.get(device, 0) for model in residents)
            for device, room in self._rooms.items()
        }

    def _with_freed(self, free: Mapping[str, int], victims: Collection[str]) -> dict[str, int]:
        return {
            device: bytes_ + sum(self._tenants[model].need.get(device, 0) for model in victims)
            for device, bytes_ in free.items()
        }


def _fits(need: Need, free: Mapping[str, int]) -> bool:
    return all(free[device] >= bytes_ for device, bytes_ in need.items())


def _among(strand: Strand, tenants: Mapping[str, Tenant]) -> Strand:
    """The strand without models that nobody loads, and each stretch of one model once."""
    uses = [model for model in strand.uses if model in tenants]
    return Strand(
        name=strand.name,
        uses=tuple(model for model, _ in itertools.groupby(uses)),
        after=strand.after,
    )


def _distinct(strands: Sequence[Strand]) -> list[Strand]:
    """One strand for all that have the same uses after the same others, until no two are alike."""
    while True:
        alike: dict[tuple[tuple[str, ...], frozenset[str]], str] = {}
        for strand in strands:
            alike.setdefault((strand.uses, strand.after), strand.name)
        stands_for = {strand.name: alike[strand.uses, strand.after] for strand in strands}
        kept = [
            Strand(
                name=strand.name,
                uses=strand.uses,
                after=frozenset(stands_for.get(name, name) for name in strand.after),
            )
            for strand in strands
            if stands_for[strand.name] == strand.name
        ]
        if len(kept) == len(strands):
            return kept
        strands = kept
