"""The policy: what is in memory and who waits for what, in; what to do about it, out.

Pure: no clock, no model. Calls for what is resident go first. A switch happens when nothing is left
for the model that goes, or when a call has waited so long that it must. Which model comes and which
goes is settled by what the forecast says of the rest of the run: the fewest seconds of loading, and
of waiting for it. The next model is loaded ahead when there is room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.residency.choice import Choice
from harness.residency.ledger import Resident, Tenant
from harness.residency.state import Decision, Grant, Load, State, Unload, Wait, WaitingCall
from harness.residency.urgency import latest_switch_ns, makes_way


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
