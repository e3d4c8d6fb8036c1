"""Rules about models that come into memory and leave it, and calls that wait for that."""

from __future__ import annotations

import math
from collections import Counter

from harness.trace.calls import Call, Interval
from harness.trace.diagnosis.finding import Evidence, Finding, named
from harness.trace.diagnosis.intervals import common, length_ns, without
from harness.trace.diagnosis.moves import moves
from harness.trace.diagnosis.observed import LEAST_LOST_NS, MACHINE, Load, Observed
from harness.trace.diagnosis.timing import waits_before_sending

LONG_LOAD_NS = 200_000_000
"""A shorter load is a warm one: a model that is in memory answers within that."""

LEAST_RELOADS = 2
"""One load more than needed may be chance; from two on, models push each other out."""

LEAST_WAITS = 2
"""Calls that waited for room; one alone may have met a busy moment."""

_MIB = 1 << 20
_TABLES = {MACHINE: "budget"}
"""Where the capacity of memory is set that is no device of its own."""


def cold_start(observed: Observed) -> Finding | None:
    """The first call of a model waited for its weights. Further loads are `swap-thrash`."""
    waited = {load: _waited_for(load, observed) for load in _first_loads(observed)}
    firsts = [load for load, parts in waited.items() if length_ns(parts) >= LONG_LOAD_NS]
    lost_ns = length_ns(part for load in firsts for part in waited[load])
    if not firsts or not observed.matters(lost_ns):
        return None
    longest = max(firsts, key=lambda load: load.duration_ns)
    return Finding(
        rule="cold-start",
        severity="warning",
        model=longest.model if len(firsts) == 1 else None,
        seen=f"The first call to {named(load.model for load in firsts)} waited for the model to "
        f"be loaded ({observed.said(lost_ns)}), before a token of its prompt was read.",
        evidence=Evidence.of(firsts, loads=len(firsts), longest_load_s=longest.duration_ns / 1e9),
        meaning="A cold start: the weights were not in memory when they were first needed.",
        layer="L3",
        move=(
            *moves("keep it loaded", observed.server(longest.model)),
            "do more in one run: a model is loaded once, at its first call",
        ),
        lost_ns=lost_ns,
    )


def swap_thrash(observed: Observed) -> Finding | None:
    """Models were loaded again and again, because another one was in their place."""
    firsts = {load.id for load in _first_loads(observed)}
    again = [load for load in observed.loads if load.id not in firsts]
    if len(again) < LEAST_RELOADS:
        return None
    between = [u for u in observed.unloads if u.start_ns < again[-1].start_ns]
    lost_ns = length_ns(
        [*(part for load in again for part in _waited_for(load, observed)), *between]
    )
    loads = Counter(load.model for load in observed.loads)
    taking_turns = [model for model, count in loads.most_common() if count > 1]
    if len(loads) == 1 or not observed.matters(lost_ns):
        return None
    return Finding(
        rule="swap-thrash",
        severity="warning",
        model=None,
        seen=f"{named(taking_turns)} took turns in memory: {len(observed.loads)} loads where "
        f"{len(loads)} would have done. Waiting for these loads, and making room, took "
        f"{observed.said(lost_ns)}.",
        evidence=Evidence.of(
            again, loads=len(observed.loads), models=len(loads), reloads=len(again)
        ),
        meaning="Swap thrash: the models do not fit into memory together, and calls to them "
        "alternate, so that what is pushed out for one is needed again for the next.",
        layer="L4a",
        move=(
            *_room_for_all(observed),
            "run more items side by side: of those, one model does all before another comes",
            *moves("let both stay", observed.server(taking_turns[0])),
            "use smaller weights for one of them",
        ),
        lost_ns=lost_ns,
    )


def budget_wait(observed: Observed) -> Finding | None:
    """Calls waited in this process, until a call to another model left room for theirs."""
    moving = [*observed.loads, *observed.unloads]
    waits = {
        call.id: parts
        for call in observed.calls
        if length_ns(parts := without(_waits_for_room(call), moving)) >= LEAST_LOST_NS
    }
    lost_ns = length_ns(part for parts in waits.values() for part in parts)
    if len(waits) < LEAST_WAITS or not observed.matters(lost_ns):
        return None
    waited = [call for call in observed.calls if call.id in waits]
    return Finding(
        rule="budget-wait",
        severity="warning",
        model=None,
        seen=f"{len(waits)} calls to {named(call.model for call in waited)} waited in this "
        "process, not in the server, until calls to another model ended and left room in the "
        f"memory budget ({observed.said(lost_ns)}).",
        evidence=Evidence.of(waited, waiting_calls=len(waits)),
        meaning="The harness's own budget: models that are in use are never evicted, so a call to "
        "one that does not fit beside them waits.",
        layer="L4a",
        move=(
            *_room_for_all(observed),
            *moves("let both stay", observed.server(waited[0].model)),
            "use smaller weights for one of them",
        ),
        lost_ns=lost_ns,
    )


def _waits_for_room(call: Call) -> list[Interval]:
    return without(waits_before_sending(call), call.turns)


def _first_loads(observed: Observed) -> list[Load]:
    firsts: dict[str, Load] = {}
    for load in observed.loads:
        firsts.setdefault(load.model, load)
    return list(firsts.values())


def _waited_for(load: Load, observed: Observed) -> list[Interval]:
    """What of a load some call waited for: of one that was made ahead of it, perhaps nothing."""
    if not load.is_prefetch:
        return [load]
    return common([load], [part for call in observed.calls for part in call.phases.get("load", ())])


def _room_for_all(observed: Observed) -> tuple[str, ...]:
    """The capacity, by device, that would have held all, where the needs are known."""
    needs: dict[str, dict[str, int]] = {}
    for load in observed.loads:
        if load.need_bytes:
            device = observed.server(load.model).device
            needs.setdefault(device, {})[load.model] = load.need_bytes
    return tuple(
        f"give all of them room: [{_TABLES.get(device, f'budget.devices.{device}')}] capacity = "
        f'"{_mib(sum(of_models.values()) + observed.reserves.get(device, 0))} MiB" or more in '
        "harness.toml"
        for device, of_models in needs.items()
        if len(of_models) > 1
    )


def _mib(size_bytes: int) -> int:
    return math.ceil(size_bytes / _MIB)
