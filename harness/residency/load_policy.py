"""The policy: decides from the models in memory and the waiting calls what happens next.

Pure: no clock, no model. Calls to resident models go first, so calls are grouped by model. Models
are switched when the resident one has no more calls, or when another call has waited too long. The
chosen load leaves the fewest seconds of loading for the forecast. The next model is loaded ahead if
there is room.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from harness.residency.ledger import (
    BudgetState,
    Decision,
    Grant,
    LoadModel,
    Resident,
    Strand,
    Tenant,
    UnloadModel,
    Wait,
    WaitingCall,
)
from harness.trace.events import PlaceOf

# An idle model stays so long after a call, since the next call comes soon, and may be for a model
# that has room beside it.
_MOMENT_NS: Final = 50_000_000
# The longest time that a model stays while calls wait too long for others, in `max_wait_ns`.
_LONGEST_TURN: Final = 2

# Name of a strand → the models that it is still to use; none if it has ended.
_Ahead = dict[str, tuple[str, ...]]


def decide(state: BudgetState) -> Decision:
    """The next action; the same for equal states."""
    # 1. Grant calls for models in memory, except those that must make way for an overdue model.
    urgent = _urgent(state)
    granted = tuple(_grantable(state, urgent))
    if granted:
        return Grant(calls=granted)
    # 2. Make one move at a time: only after it is known what is free.
    if state.ledger.moving is not None:
        return Wait()
    # 3. Unload a model if the models take more memory than there is.
    overgrown = _overgrown(state)
    if overgrown is not None:
        return overgrown
    # 4. Load the model that calls have waited for too long, once those that make way are idle.
    if urgent is not None:
        is_idle = all(state.ledger.residents[model].leases == 0 for model in urgent.evict)
        return urgent if is_idle else Wait()
    # 5. Load a model for which calls wait. If none is due, move models for which no call waits.
    switch = _switch(state)
    if isinstance(switch, LoadModel):
        return switch
    return _pinned(state) or _prefetch(state) or _release(state) or switch


def why_it_waits(call: WaitingCall, state: BudgetState) -> tuple[PlaceOf, str]:
    """What a call is waiting for now, as an event's value and as a sentence."""
    ledger = state.ledger
    resident = ledger.residents.get(call.model)
    if resident is not None:
        tenant = state.tenants[call.model]
        if _is_full(tenant, resident.leases):
            return "slots", f"slots: all {tenant.slots} of '{call.model}' are taken"
        return "memory", f"'{call.model}' makes way for a model that was waited for longer"
    if ledger.moving is not None:
        return "memory", f"'{ledger.moving.model}' is on the move"
    in_use = [f"'{resident.model}'" for resident in ledger.residents.values() if resident.leases]
    if in_use:
        return "memory", f"no room until calls to {', '.join(in_use)} end"
    return "memory", "what is in memory is about to be used again"


def _is_full(tenant: Tenant, leases: int) -> bool:
    # Only slots count: each has room for a whole context, so that no cache is full before them.
    return tenant.slots is not None and leases >= tenant.slots


# --- calls for models in memory -------------------------------------------------------------------


def _grantable(state: BudgetState, urgent: LoadModel | None) -> Iterator[int]:
    """Ids of the calls that can begin, in order; never one before an earlier call of its model."""
    # If models must take turns, no call is sent to wait in a server: there it could not be
    # overtaken, and would keep its model in memory. Otherwise servers keep their own queues.
    is_crowded = state.is_crowded
    held_up: set[str] = set()
    evicted = urgent.evict if urgent is not None else ()
    due: WaitingCall | None = None
    leases = {model: resident.leases for model, resident in state.ledger.residents.items()}
    for call in state.waiting:
        if urgent is not None and due is None and call.model == urgent.model:
            # Calls before this one have been waiting longer, and need not make way for it.
            due = call
        if call.model in held_up or call.model not in leases:
            continue
        if due is not None and call.model in evicted and _makes_way(call, due, state):
            held_up.add(call.model)
            continue
        if not (is_crowded and _is_full(state.tenants[call.model], leases[call.model])):
            leases[call.model] += 1
            yield call.id


# --- calls for models not in memory ---------------------------------------------------------------


def _oldest_calls(state: BudgetState) -> dict[str, WaitingCall]:
    """Model that is not resident → the oldest call that waits for it; the oldest of these first."""
    oldest: dict[str, WaitingCall] = {}
    for call in state.waiting:
        if call.model not in state.ledger.residents:
            oldest.setdefault(call.model, call)
    return oldest


def _urgent(state: BudgetState) -> LoadModel | None:
    """The load of an overdue model, which is made when the calls to its victims have ended."""
    needed = _oldest_calls(state)
    if not needed or state.ledger.moving is not None:
        return None
    overdue_at_ns = _latest_switch_ns(list(needed.values()), state)
    if state.now_ns < overdue_at_ns:
        return None
    model, call = next(iter(needed.items()))
    choice = Choice(state)
    why = f"it has been waited for {(state.now_ns - call.since_ns) / 1e9:.1f} s"
    # Idle models are evicted first, since no call to them has to end.
    return choice.best([model], why, evictable=choice.idle) or choice.best([model], why)


def _switch(state: BudgetState) -> LoadModel | Wait:
    """The load for a waiting call, once its victims may go; else when to decide again.

    That is when they may go, or when the call is overdue.
    """
    needed = _oldest_calls(state)
    if not needed:
        return Wait()
    overdue_at_ns = _latest_switch_ns(list(needed.values()), state)
    idle = [name for name, resident in state.ledger.residents.items() if resident.leases == 0]
    if not _can_fit(needed, state, evicted=idle):
        # Nothing fits even without the idle models: a call must end first.
        return Wait(until_ns=overdue_at_ns)
    choice = Choice(state)
    best = choice.best(_of_highest_rank(needed, state.tenants), "a call waits for it")
    if best is None:
        # Pinned models are in the way: only a change helps.
        return Wait()
    stay_until_ns = [choice.stays_until_ns(model) for model in best.evict]
    if None in stay_until_ns:  # the end of a call is an event, at which this is decided again
        return Wait(until_ns=overdue_at_ns)
    latest_ns = max((ns for ns in stay_until_ns if ns is not None), default=0)
    return best if latest_ns <= state.now_ns else Wait(until_ns=min(latest_ns, overdue_at_ns))


def _can_fit(models: Iterable[str], state: BudgetState, *, evicted: Collection[str] = ()) -> bool:
    """Whether one of these models fits after these evictions: much cheaper than a `Choice`."""
    tenants = (state.tenants[model] for model in models if model in state.tenants)
    return any(state.ledger.has_room(tenant.need, evicted=evicted) for tenant in tenants)


def _of_highest_rank(models: Collection[str], tenants: Mapping[str, Tenant]) -> list[str]:
    """The models of the highest priority; of these, models on one device before split ones."""
    # A split model computes as slowly as the slowest of its devices.
    ranks = {model: (tenants[model].priority, not tenants[model].is_split) for model in models}
    return [model for model in models if ranks[model] == max(ranks.values())]


# --- how long a call can be put off ---------------------------------------------------------------


def _makes_way(call: WaitingCall, due: WaitingCall, state: BudgetState) -> bool:
    """Whether a call for a resident model is held up, so that an overdue call gets its model."""
    tenant, due_tenant = state.tenants[call.model], state.tenants[due.model]
    back_s = due_tenant.load_s + due_tenant.call_s + tenant.load_s
    back_ns = state.now_ns + round(back_s * 1e9)
    turn_ns = state.now_ns - state.ledger.residents[call.model].since_ns
    # A call that cannot wait until its model is back would be overdue as soon as the other model is
    # loaded, and the two models would replace each other after every call.
    can_wait = back_ns <= call.since_ns + state.max_wait_ns
    # But a turn has an end, or calls that keep coming would hold the model for ever.
    return can_wait or turn_ns >= _LONGEST_TURN * state.max_wait_ns


def _latest_switch_ns(oldest: Sequence[WaitingCall], state: BudgetState) -> int:
    """The last moment to begin making room so that no call waits too long.

    Assumes that the models are loaded one after another, the longest awaited first, and that each
    answers one call before it makes way for the next. The earliest of their deadlines decides:

        min over k of (deadline_k - sum over j < k of (load_j + call_j)) - longest call under way

    Deadlines are met as long as calls take no longer than expected and there is time enough for
    all. `oldest` are the calls of `_oldest_calls`.
    """
    residents = state.ledger.residents
    latest_ns = state.now_ns + state.max_wait_ns
    ahead_ns = 0
    for call in oldest:
        tenant = state.tenants[call.model]
        latest_ns = min(latest_ns, call.since_ns + state.max_wait_ns - ahead_ns)
        ahead_ns += round((tenant.load_s + tenant.call_s) * 1e9)
    under_way = [
        state.tenants[resident.model].call_s for resident in residents.values() if resident.leases
    ]
    latest_ns -= round(max(under_way, default=0.0) * 1e9)
    return latest_ns


# --- while no call waits --------------------------------------------------------------------------


def _overgrown(state: BudgetState) -> UnloadModel | None:
    """The unload of a model, since the residents take more memory than there is."""
    ledger = state.ledger
    for device in sorted(ledger.devices):
        occupants = {
            resident.model for resident in ledger.residents.values() if resident.need.get(device)
        }
        # A single model is in memory although it is larger than the budget, so it stays.
        if ledger.free_bytes(device) >= 0 or len(occupants) < 2:
            continue
        for model in Choice(state).idle:
            if model in occupants and model not in state.failed:
                return UnloadModel(
                    model=model, reason=f"'{device}' holds more than it has room for"
                )
    return None


def _pinned(state: BudgetState) -> LoadModel | None:
    for model, tenant in sorted(state.tenants.items()):
        if tenant.pin and model not in state.ledger.residents and model not in state.failed:
            choice = Choice(state)
            return choice.best([model], "it is pinned", evictable=choice.idle)
    return None


def _prefetch(state: BudgetState) -> LoadModel | None:
    """The load of the model that is used next, into free room."""
    missing = state.forecast.models - state.ledger.residents.keys() - state.failed
    # A load ahead must not delay a call that waits now.
    if _oldest_calls(state) or not _can_fit(missing, state):
        return None
    choice = Choice(state)
    return choice.best(choice.wanted_next, "it is used next", evictable=())


def _release(state: BudgetState) -> UnloadModel | None:
    """The unload of a model that is not called again."""
    # Without the model, its memory is free for other programs.
    forecast = state.forecast
    # Calls that wait for slots of models in memory need no room, but the next model may.
    if not forecast.is_complete or _oldest_calls(state):
        return None
    needed = forecast.models.union(call.model for call in state.waiting)
    for model, resident in sorted(state.ledger.residents.items()):
        is_needed = resident.leases or model in needed or state.tenants[model].pin
        # A model whose last unload failed would only fail again.
        if not is_needed and model not in state.failed:
            return UnloadModel(model=model, reason="it is not used again in this run")
    return None


# --- which model is loaded, and which are evicted for it ------------------------------------------


class Choice:
    """Compares the loads that could be made now, one step ahead.

    After a load, every strand is assumed to proceed as far as the models in memory allow. The best
    load leaves the fewest seconds of loading for models that are still to be used and not in
    memory. An exact search through the forecast makes the same loads in each large workload of
    `bench_residency`; on its small random runs it makes 1.01 times the fewest loads, this 1.02.
    """

    def __init__(self, state: BudgetState) -> None:
        self._state = state
        self._tenants = state.tenants
        strands = _strands(state)
        self._after = {strand.name: strand.after for strand in strands}
        uses = {
            strand.name: tuple(model for model in strand.uses if model in state.tenants)
            for strand in strands
        }
        residents = state.ledger.residents
        # Name of each strand → its last uses, which models in memory do not allow yet; or none.
        self._ahead = self._proceed(uses, residents)
        # The models of the uses before those.
        self._used_now = {
            model
            for name, models in uses.items()
            for model in models[: len(models) - len(self._ahead[name])]
        }
        self._next_use = _next_uses(self._ahead.values())
        unpinned = [
            resident for resident in residents.values() if not state.tenants[resident.model].pin
        ]
        self._evictable = [resident.model for resident in sorted(unpinned, key=self._value)]

    @property
    def wanted_next(self) -> list[str]:
        """The models without which strands cannot proceed."""
        required = {
            uses[0]
            for name, uses in self._ahead.items()
            if uses and self._has_begun(name, self._ahead)
        }
        return sorted(required - self._state.failed)

    @property
    def idle(self) -> list[str]:
        """The residents that can be evicted at once, the least valuable first."""
        residents = self._state.ledger.residents
        return [model for model in self._evictable if not residents[model].leases]

    def best(
        self, models: Iterable[str], why: str, *, evictable: Sequence[str] | None = None
    ) -> LoadModel | None:
        """The best load of one of these models; None if none can fit.

        If `evictable` is None, all residents that are not pinned are.
        """
        options: list[tuple[tuple[float, bool, int, int], str, tuple[str, ...]]] = []
        for model in models:
            victims = self._victims(model, self._evictable if evictable is None else evictable)
            if victims is not None:
                options.append((self._cost(model, victims), model, victims))
        if not options:
            return None
        _, model, victims = min(options, key=lambda option: option[0])
        return LoadModel(
            model=model,
            evict=victims,
            reason=", ".join([why, *map(self._why_evicted, victims)]),
            is_prefetch=all(call.model != model for call in self._state.waiting),
        )

    def stays_until_ns(self, model: str) -> int | None:
        """When a resident may be evicted for another; None if a call must end first."""
        residents = self._state.ledger.residents
        if residents[model].leases:
            return None
        if model not in self._used_now:
            return residents[model].idle_since_ns + _MOMENT_NS
        # A model that is about to be used again stays, although idle, while calls to others are
        # under way, and then for as long as loading it again would take, counted from the end of
        # the last call to any model.
        if any(resident.leases for resident in residents.values()):
            return None
        idle_since_ns = max(resident.idle_since_ns for resident in residents.values())
        return idle_since_ns + round(self._tenants[model].load_s * 1e9)

    # --- victims, and what a load costs -----------------------------------------------------------

    def _victims(self, model: str, evictable: Sequence[str]) -> tuple[str, ...] | None:
        """The least valuable residents that make room for a model.

        `evictable` has the least valuable first. None if without all of them there is no room.
        """
        victims: list[str] = []
        for victim in evictable:
            if self._has_room(model, victims):
                break
            victims.append(victim)
        if not self._has_room(model, victims):
            return None
        # A large victim may make others unnecessary: they are spared, the most valuable first.
        for spared in reversed(victims):
            fewer = [victim for victim in victims if victim != spared]
            if self._has_room(model, fewer):
                victims = fewer
        return tuple(victims)

    def _has_room(self, model: str, victims: Collection[str]) -> bool:
        return self._state.ledger.has_room(self._tenants[model].need, evicted=victims)

    def _cost(self, model: str, victims: Collection[str]) -> tuple[float, bool, int, int]:
        """Seconds of loading to come, and of waiting for victims' calls; then what breaks ties."""
        residents = self._state.ledger.residents
        loaded = (residents.keys() - set(victims)) | {model}
        ahead = self._proceed(self._ahead, loaded)
        to_load = [model, *(_next_uses(ahead.values()).keys() - loaded)]
        busy_s = [self._tenants[victim].call_s for victim in victims if residents[victim].leases]
        # Not `sum`, by which the order of a set could decide between equal costs.
        load_s = math.fsum(self._tenants[needed_model].load_s for needed_model in to_load)
        cost_s = load_s + max(busy_s, default=0.0)
        # Among equal costs, a load without a wait wins, since the time of calls is unknown at
        # first. Then the load that leaves the fewest different sequences of uses, since equal ones
        # proceed together. Then the higher priority.
        sequences = len(set(ahead.values()))
        return cost_s, bool(busy_s), sequences, -self._tenants[model].priority

    def _value(self, resident: Resident) -> tuple[float, bool, int, float, float, str]:
        """The value of keeping a resident in memory; the smallest is evicted first."""
        # First counts how long loading it again and its present calls take. Among equals, these are
        # evicted first: a lower priority, a later next use, cheap to load again, large, long idle.
        model, tenant = resident.model, self._tenants[resident.model]
        is_busy = resident.leases > 0
        call_s = tenant.call_s if is_busy else 0.0
        cost_s = call_s + (tenant.load_s if model in self._next_use else 0.0)
        idle_ns = 0 if is_busy else max(self._state.now_ns - resident.idle_since_ns, 0)
        per_byte = tenant.load_s / max(sum(resident.need.values()), 1) / (idle_ns + 1)
        next_use = self._next_use.get(model, math.inf)
        return cost_s, is_busy, tenant.priority, -next_use, per_byte, model

    def _why_evicted(self, model: str) -> str:
        if model in self._used_now or model in self._next_use:
            return f"'{model}' is used again later than others"
        if self._state.forecast.is_complete:
            return f"'{model}' is not used again"
        return f"no call is left for '{model}'"

    # --- progress through the forecast ------------------------------------------------------------

    def _proceed(self, ahead: _Ahead, residents: Collection[str]) -> _Ahead:
        """What is ahead once all strands went as far as these models in memory allow."""
        while True:
            further = dict(ahead)
            for name, uses in ahead.items():
                if self._has_begun(name, further):
                    further[name] = tuple(itertools.dropwhile(residents.__contains__, uses))
            if further == ahead:
                return ahead
            # Again, since strands may have waited for one that has ended now.
            ahead = further

    def _has_begun(self, name: str, ahead: _Ahead) -> bool:
        return not any(ahead.get(before) for before in self._after[name])


def _next_uses(ahead: Iterable[Sequence[str]]) -> dict[str, int]:
    """Model → the uses of others before its next one, in the strand where it is nearest."""
    distances: dict[str, int] = {}
    for uses in ahead:
        for distance, model in enumerate(uses):
            distances[model] = min(distances.get(model, distance), distance)
    return distances


def _strands(state: BudgetState) -> list[Strand]:
    """The forecast and the waiting calls, since the forecast need not have every call."""
    models = dict.fromkeys(call.model for call in state.waiting)
    calls = [Strand(name=f"calls of {model}", uses=(model,)) for model in models]
    return [*state.forecast.strands, *calls]
