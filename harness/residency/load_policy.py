"""The policy: decides from the models in memory and the waiting calls what happens next.

Pure: no clock, no model. Calls to resident models go first, so calls are grouped by model. Models
are switched when the resident one has no more calls, or when another call has waited too long. The
chosen load leaves the fewest seconds of loading for the forecast. The next model is loaded ahead if
there is room.
"""

from __future__ import annotations

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

# How long an idle model stays after a call: the next call comes soon, and may be for a model that
# has room beside it.
_MOMENT_NS: Final = 50_000_000
# How long a model stays at most, in longest waits, while calls wait too long for others.
_LONGEST_TURN: Final = 2


def decide(state: BudgetState) -> Decision:
    """The next action; equal states have equal ones."""
    # 1. Calls for what is in memory, but for those that must let a model go that is overdue.
    urgent = _urgent(state)
    granted = tuple(_grantable(state, urgent))
    if granted:
        return Grant(calls=granted)
    # 2. One move at a time: what is free after it is not known before.
    if state.ledger.moving is not None:
        return Wait()
    # 3. What must go whoever waits.
    overgrown = _overgrown(state)
    if overgrown is not None:
        return overgrown
    # 4. What has been waited for too long, once the models that go for it are idle.
    if urgent is not None:
        idle = all(state.ledger.residents[model].leases == 0 for model in urgent.evict)
        return urgent if idle else Wait()
    # 5. What is waited for; then, with nothing to load for a call, what no call waits for.
    switch = _switch(state)
    if isinstance(switch, LoadModel):
        return switch
    return _pinned(state) or _prefetch(state) or _release(state) or switch


def why_it_waits(call: WaitingCall, state: BudgetState) -> tuple[PlaceOf, str]:
    """What a call is waiting for now, with a sentence about it."""
    ledger = state.ledger
    resident = ledger.residents.get(call.model)
    if resident is not None:
        if _is_full(tenant := state.tenants[call.model], resident.leases):
            return "slots", f"slots: all {tenant.slots} of '{call.model}' are taken"
        return "memory", f"'{call.model}' makes way for a model that was waited for longer"
    if ledger.moving is not None:
        return "memory", f"'{ledger.moving.model}' is on the move"
    in_use = [f"'{resident.model}'" for resident in ledger.residents.values() if resident.leases]
    if in_use:
        return "memory", f"no room until calls to {', '.join(in_use)} end"
    return "memory", "what is in memory is about to be used again"


def _is_full(tenant: Tenant, leases: int) -> bool:
    # Slots alone: each has room for a context of its own, so no cache is full before they are.
    return tenant.slots is not None and leases >= tenant.slots


# --- calls for what is resident ---------------------------------------------------------------


def _grantable(state: BudgetState, urgent: LoadModel | None) -> Iterator[int]:
    """The calls that can begin, in order; never one before an earlier call of its model."""
    # Where models must take turns, no call is sent to wait in a server: there it could not be
    # overtaken, and would keep its model in memory. Elsewhere servers keep their own queues.
    is_crowded = state.is_crowded
    held_up: set[str] = set()
    going = urgent.evict if urgent is not None else ()
    due: WaitingCall | None = None
    leases = {model: resident.leases for model, resident in state.ledger.residents.items()}
    for call in state.waiting:
        if urgent is not None and due is None and call.model == urgent.model:
            # The calls before it have been waiting longer, and go first.
            due = call
        if call.model in held_up or call.model not in leases:
            continue
        if due is not None and call.model in going and _makes_way(call, due, state):
            held_up.add(call.model)
            continue
        if not (is_crowded and _is_full(state.tenants[call.model], leases[call.model])):
            leases[call.model] += 1
            yield call.id


# --- calls for what is not ----------------------------------------------------------------------


def _wanted(state: BudgetState) -> dict[str, WaitingCall]:
    """The oldest call of each model that calls wait for and that is not resident."""
    oldest: dict[str, WaitingCall] = {}
    for call in state.waiting:
        if call.model not in state.ledger.residents:
            oldest.setdefault(call.model, call)
    return oldest


def _urgent(state: BudgetState) -> LoadModel | None:
    """The switch that must be made now, or once calls to the models that make way have ended."""
    needed = _wanted(state)
    if not needed or state.ledger.moving is not None:
        return None
    due_ns = _latest_switch_ns(list(needed.values()), state)
    if state.now_ns < due_ns:
        return None
    model, call = next(iter(needed.items()))
    choice = Choice(state)
    why = {model: f"it has been waited for {_seconds(state, call)} s"}
    # Rather at the cost of idle models, for which no call has to end.
    return choice.best(why, going=choice.idle) or choice.best(why)


def _switch(state: BudgetState) -> LoadModel | Wait:
    """A switch for a waiting call, if it is due; else when to look again."""
    needed = _wanted(state)
    if not needed:
        return Wait()
    due_ns = _latest_switch_ns(list(needed.values()), state)
    idle = [name for name, resident in state.ledger.residents.items() if resident.leases == 0]
    if not _can_fit(needed, state, going=idle):
        return Wait(until_ns=due_ns)
    choice = Choice(state)
    reasons = dict.fromkeys(needed, "a call waits for it")
    best = choice.best(_of_highest_rank(reasons, state.tenants))
    if best is None:
        return Wait()
    stay_until_ns = [choice.stays_until_ns(model) for model in best.evict]
    if None in stay_until_ns:  # until its last call has ended, and that is an event
        return Wait(until_ns=due_ns)
    latest_ns = max((ns for ns in stay_until_ns if ns is not None), default=0)
    return best if latest_ns <= state.now_ns else Wait(until_ns=min(latest_ns, due_ns))


def _can_fit(models: Iterable[str], state: BudgetState, *, going: Collection[str]) -> bool:
    """Whether one of these models fits after these unloads: much cheaper than the choice."""
    tenants = (state.tenants[model] for model in models if model in state.tenants)
    return any(state.ledger.has_room(tenant.need, going=going) for tenant in tenants)


def _of_highest_rank(reasons: Mapping[str, str], tenants: Mapping[str, Tenant]) -> dict[str, str]:
    """The models of the highest priority; of these, models on one device before split ones."""
    # A split model computes as slowly as the slowest of its devices.
    ranks = {model: (tenants[model].priority, not tenants[model].is_split) for model in reasons}
    highest = max(ranks.values())
    return {model: reason for model, reason in reasons.items() if ranks[model] == highest}


def _seconds(state: BudgetState, call: WaitingCall) -> str:
    return f"{(state.now_ns - call.since_ns) / 1e9:.1f}"


# --- how long a call can be put off ---------------------------------------------------------------


def _makes_way(call: WaitingCall, due: WaitingCall, state: BudgetState) -> bool:
    """Whether a call for a resident model is held up, so that a due call gets its model."""
    tenant, due_tenant = state.tenants[call.model], state.tenants[due.model]
    back_ns = state.now_ns + round((due_tenant.load_s + due_tenant.call_s + tenant.load_s) * 1e9)
    turn_ns = state.now_ns - state.ledger.residents[call.model].since_ns
    # A call that could not wait for its model to come back would be due as soon as the other model
    # has come, and the two would go for each other after every call.
    can_wait = back_ns <= call.since_ns + state.max_wait_ns
    # But a turn has an end: calls that keep coming would hold the model for ever.
    return can_wait or turn_ns >= _LONGEST_TURN * state.max_wait_ns


def _latest_switch_ns(oldest: Sequence[WaitingCall], state: BudgetState) -> int:
    """The last moment to begin making room so that no call waits too long.

    Assumes that the models are loaded one after another, the longest awaited first, and that each
    answers one call before it makes way for the next. The earliest of their deadlines decides:

        min over k of (deadline_k - sum over j < k of (load_j + call_j)) - what calls under way take

    Kept as long as calls take no longer than expected and there is time enough for all. `oldest`
    has the oldest call of each model that is not resident, the oldest first.
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
    """A model that must go since the residents take more than there is."""
    ledger = state.ledger
    for device in sorted(ledger.devices):
        occupants = [
            resident for resident in ledger.residents.values() if resident.need.get(device)
        ]
        # A single model that turned out larger than the room has found room nonetheless.
        if ledger.free_bytes(device) >= 0 or len(occupants) < 2:
            continue
        idle = [
            resident
            for resident in occupants
            if resident.leases == 0 and _may_go(resident.model, state)
        ]
        if idle:
            going = min(
                idle, key=lambda o: (state.tenants[o.model].priority, o.idle_since_ns, o.model)
            )
            reason = f"'{device}' holds more than it has room for"
            return UnloadModel(model=going.model, reason=reason)
    return None


def _pinned(state: BudgetState) -> LoadModel | None:
    for model, tenant in sorted(state.tenants.items()):
        if tenant.pin and model not in state.ledger.residents and model not in state.failed:
            choice = Choice(state)
            return choice.best({model: "it is pinned"}, going=choice.idle)
    return None


def _prefetch(state: BudgetState) -> LoadModel | None:
    """The model that is used next, if there is room for it or the forecast frees some."""
    coming = state.forecast.models
    unused = [
        name
        for name, resident in state.ledger.residents.items()
        if resident.leases == 0 and name not in coming
    ]
    missing = coming - state.ledger.residents.keys() - state.failed
    # A load ahead must not delay a call that waits now.
    if _wanted(state) or not _can_fit(missing, state, going=unused):
        return None
    choice = Choice(state)
    load = choice.best(dict.fromkeys(choice.wanted_next, "it is used next"))
    if load is None or not all(map(choice.can_go, load.evict)):
        return None
    return load


def _may_go(model: str, state: BudgetState) -> bool:
    """Whether it may go although no call needs its room; not if its last unload failed."""
    return not state.tenants[model].pin and model not in state.failed


def _release(state: BudgetState) -> UnloadModel | None:
    """A model that is not called again."""
    # Without the model, its memory is free for other programs.
    forecast = state.forecast
    if not forecast.is_complete or state.waiting:
        return None
    for model, resident in sorted(state.ledger.residents.items()):
        if resident.leases or model in forecast.models or not _may_go(model, state):
            continue
        return UnloadModel(model=model, reason="it is not used again in this run")
    return None


# --- which model comes, and which go for it -------------------------------------------------------


class Choice:
    """Compares the loads that could be made now, one step ahead.

    After a load, everything runs that then can. The best load leaves the fewest seconds of loading
    for models that are still to be used and not in memory. An exact search through the forecast
    makes the same loads in each large workload of `bench_residency`; on its small random runs it
    makes 1.01 times the fewest loads, this 1.02.
    """

    def __init__(self, state: BudgetState) -> None:
        self._state = state
        self._tenants = state.tenants
        self._uses, self._after = _numbered(_strands(state), state.tenants)
        residents = state.ledger.residents
        self._at = self._run([0] * len(self._uses), residents)
        passed = zip(self._uses, self._at, strict=True)
        self._used_now = {model for uses, at in passed for model in uses[:at]}
        self._next_use = self._next_uses(self._at)
        unpinned = [
            resident for resident in residents.values() if not state.tenants[resident.model].pin
        ]
        self._going = [resident.model for resident in sorted(unpinned, key=self._missed)]

    @property
    def wanted_next(self) -> list[str]:
        """The models that could be used next, were they in memory."""
        required = {
            self._uses[n][self._at[n]]
            for n in self._begun(self._at)
            if self._at[n] < len(self._uses[n])
        }
        return sorted(required - self._state.ledger.residents.keys() - self._state.failed)

    @property
    def idle(self) -> list[str]:
        """The residents that may go at once, the least missed first."""
        residents = self._state.ledger.residents
        return [model for model in self._going if not residents[model].leases]

    def best(
        self, reasons: Mapping[str, str], *, going: Sequence[str] | None = None
    ) -> LoadModel | None:
        """The best load of one of these models; None if none can fit.

        `reasons` says why each should come. If `going` is None, all that are not pinned may go.
        """
        options: list[tuple[tuple[float, bool, int, int], str, tuple[str, ...]]] = []
        for model in reasons:
            victims = self._victims(model, self._going if going is None else going)
            if victims is not None:
                options.append((self._cost(model, victims), model, victims))
        if not options:
            return None
        _, model, victims = min(options, key=lambda option: option[0])
        return LoadModel(
            model=model,
            evict=victims,
            reason=", ".join([reasons[model], *map(self._why_it_goes, victims)]),
            is_prefetch=all(call.model != model for call in self._state.waiting),
        )

    def stays_until_ns(self, model: str) -> int | None:
        """When a resident may be evicted for another; None if a call must end first."""
        residents = self._state.ledger.residents
        if residents[model].leases:
            return None
        if model not in self._used_now:
            return residents[model].idle_since_ns + _MOMENT_NS
        # One that is about to be used again stays, though idle, while calls to others are under
        # way, and then for as long as loading it again would take.
        if any(resident.leases for resident in residents.values()):
            return None
        idle_since_ns = max(resident.idle_since_ns for resident in residents.values())
        return idle_since_ns + round(self._tenants[model].load_s * 1e9)

    def can_go(self, model: str) -> bool:
        """Whether a resident may go although no call waits: only if it is not used again."""
        return (
            self._state.forecast.is_complete
            and not self._state.ledger.residents[model].leases
            and not self._is_used_again(model)
        )

    # --- victims, and what a load costs -----------------------------------------------------------

    def _victims(self, model: str, going: Sequence[str]) -> tuple[str, ...] | None:
        """The least missed residents that make room for a model; None if all are too few."""
        victims: list[str] = []
        for victim in going:
            if self._has_room(model, victims):
                break
            victims.append(victim)
        if not self._has_room(model, victims):
            return None
        # A large victim may make smaller ones before it unnecessary: spare the most missed first.
        for spared in reversed(victims):
            fewer = [victim for victim in victims if victim != spared]
            if self._has_room(model, fewer):
                victims = fewer
        return tuple(victims)

    def _has_room(self, model: str, victims: Collection[str]) -> bool:
        return self._state.ledger.has_room(self._tenants[model].need, going=victims)

    def _cost(self, model: str, victims: Collection[str]) -> tuple[float, bool, int, int]:
        """Seconds of loading to come, and of waiting for victims' calls; then what breaks ties."""
        residents = self._state.ledger.residents
        loaded = (residents.keys() - set(victims)) | {model}
        at = self._run(self._at, loaded)
        to_load = [model, *(self._next_uses(at).keys() - loaded)]
        busy_s = [self._tenants[victim].call_s for victim in victims if residents[victim].leases]
        # Not `sum`, by which the order of a set could decide between equal costs.
        cost_s = math.fsum(self._tenants[needed_model].load_s for needed_model in to_load) + max(
            busy_s, default=0.0
        )
        # Among equal costs a way without a wait wins, since the time of calls is unknown at first;
        # then the way that leaves the fewest different sequences of uses, since equal ones go side
        # by side; then the higher priority.
        remaining = {uses[n:] for uses, n in zip(self._uses, at, strict=True)}
        return cost_s, bool(busy_s), len(remaining), -self._tenants[model].priority

    def _missed(self, resident: Resident) -> tuple[float, bool, int, float, float, str]:
        """How much a resident is missed; the smallest goes first."""
        # First counts how long its return and its present calls take; then the lower priority, the
        # later next use, and what is cheap to load again, large, and long unused.
        model, tenant = resident.model, self._tenants[resident.model]
        is_busy = resident.leases > 0
        cost_s = (tenant.call_s if is_busy else 0.0) + (
            tenant.load_s if model in self._next_use else 0.0
        )
        idle_ns = 0 if is_busy else max(self._state.now_ns - resident.idle_since_ns, 0)
        per_byte = tenant.load_s / max(sum(resident.need.values()), 1) / (idle_ns + 1)
        next_use = self._next_use.get(model, math.inf)
        return cost_s, is_busy, tenant.priority, -next_use, per_byte, model

    def _why_it_goes(self, model: str) -> str:
        if self._is_used_again(model):
            return f"'{model}' is used again later than others"
        if self._state.forecast.is_complete:
            return f"'{model}' is not used again"
        return f"no call is left for '{model}'"

    def _is_used_again(self, model: str) -> bool:
        return model in self._used_now or model in self._next_use

    # --- the run ahead ----------------------------------------------------------------------------

    def _run(self, at: Sequence[int], residents: Collection[str]) -> list[int]:
        """How many uses each strand has behind it when all has run that these models let run."""
        # This goes in rounds, until no strand ends that others wait for.
        at = list(at)
        has_ended = True
        while has_ended:
            has_ended = False
            for n in self._begun(at):
                uses, before = self._uses[n], at[n]
                while at[n] < len(uses) and uses[at[n]] in residents:
                    at[n] += 1
                # Only a strand that has ended lets others begin.
                has_ended |= before < at[n] == len(uses)
        return at

    def _begun(self, at: Sequence[int]) -> Iterator[int]:
        for n, before in enumerate(self._after):
            if all(at[strand] == len(self._uses[strand]) for strand in before):
                yield n

    def _next_uses(self, at: Sequence[int]) -> dict[str, int]:
        """How many uses of other models come before a model's next one, in the strand it is in."""
        numbers: dict[str, int] = {}
        for uses, behind in zip(self._uses, at, strict=True):
            for n, model in enumerate(uses[behind:]):
                numbers[model] = min(numbers.get(model, n), n)
        return numbers


def _strands(state: BudgetState) -> list[Strand]:
    """The forecast and the waiting calls: the forecast need not know of every call."""
    models = dict.fromkeys(call.model for call in state.waiting)
    calls = [Strand(name=f"calls of {model}", uses=(model,)) for model in models]
    return [*state.forecast.strands, *calls]


def _numbered(
    strands: Sequence[Strand], tenants: Mapping[str, Tenant]
) -> tuple[list[tuple[str, ...]], list[list[int]]]:
    """Each strand's uses of the budget's models, and the numbers of the strands before it."""
    number = {strand.name: n for n, strand in enumerate(strands)}
    uses = [tuple(model for model in strand.uses if model in tenants) for strand in strands]
    return uses, [[number[name] for name in strand.after if name in number] for strand in strands]
