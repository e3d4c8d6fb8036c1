"""Rules about models that are loaded and unloaded, and about calls that wait."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from harness.analysis.facts import (
    LEAST_LOST_NS,
    MACHINE,
    Observed,
    decoding,
    per_model,
    queues_in_server,
    tells_of_queues,
    ttft,
    waits_before_sending,
)
from harness.analysis.finding import Evidence, Expected, Found, named, said_ns
from harness.inference.providers import Aim
from harness.trace import events
from harness.trace.calls import Call
from harness.trace.intervals import common, depths, length_ns, parts_within, without
from harness.trace.records import Interval

LONG_LOAD_NS = 200_000_000
"""A shorter load is a warm one: a model that is in memory answers within that."""

LEAST_RELOADS = 2
"""One load more than needed may be chance; from two on, models push each other out."""

LEAST_COLD_NS = 500_000_000
"""Of a first call's wait; connecting and warming up take less."""

LEAST_ITEMS = 4
"""Calls of a node of which one can be called slower than the others."""

LEAST_WAITS = 2
"""Calls that waited for room; one alone may have met a busy moment."""

_MIB = 1 << 20
_TABLES = {MACHINE: "budget"}
"""Where the capacity of memory is set that is no device of its own."""


def cold_start(observed: Observed) -> Found | None:
    """The first call of a model waited for its weights. Further loads are `swap-thrash`."""
    waited = {load: _waited_for(load, observed) for load in _first_loads(observed)}
    firsts = [load for load, parts in waited.items() if length_ns(parts) >= LONG_LOAD_NS]
    lost_ns = length_ns(part for load in firsts for part in waited[load])
    if not firsts or not observed.matters(lost_ns):
        return None
    longest = max(firsts, key=lambda load: load.duration_ns)
    # A model that the run itself starts has to be loaded once.
    is_usual = observed.server(longest.model).is_in_process
    return Found(
        severity="hint" if is_usual else "warning",
        model=longest.model if len(firsts) == 1 else None,
        server=longest.model,
        seen=f"The first call to {named(load.model for load in firsts)} waited for the model to "
        f"be loaded ({observed.said(lost_ns)}), before a token of its prompt was read.",
        evidence=Evidence.of(firsts, loads=len(firsts), longest_load_s=longest.duration_ns / 1e9),
        expected=Expected("wait of the first call for the model", lost_ns / 1e9, 0.0, "s")
        if observed.server(longest.model).remedies(Aim.KEEP_LOADED)
        else None,
        lost_ns=lost_ns,
    )


def _unexplained_ns(observed: Observed, call: Call) -> int:
    """How much longer a call waited for its first token than it took to read its prompt, at least.

    Reading a token takes no longer than writing one. 0 where it cannot be told.
    """
    asked, itl_ns = call.input_tokens, call.itl_mean_ns
    if call.ttft_ns is None or asked is None or itl_ns is None:
        return 0
    queued_ns = sum(one.duration_ns for one in queues_in_server(observed, [call]).values())
    read = asked - (call.cached_tokens or 0)
    return max(0, call.ttft_ns - queued_ns - read * itl_ns)


def _swaps_in_server(observed: Observed) -> Found | None:
    """Calls waited whenever the one before had been to another model, and else they did not."""
    calls = [call for calls in observed.by_model().values() for call in calls]
    calls.sort(key=lambda call: call.start_ns)
    known: set[str] = set()
    swaps: list[Call] = []
    lost_ns = 0
    for before, call in pairwise(calls):
        known.add(before.model)
        wait_ns = _unexplained_ns(observed, call)
        if call.start_ns < before.end_ns or wait_ns < LEAST_COLD_NS:
            continue
        if call.model == before.model:
            return None
        lost_ns += wait_ns
        swaps += [call] if call.model in known else []
    if len(swaps) < LEAST_RELOADS or not observed.matters(lost_ns):
        return None
    return Found(
        seen=f"{len(swaps)} calls waited longer for their first token than their prompts explain, "
        f"each after a call to another model ({observed.said(lost_ns)}): "
        f"{named(call.model for call in swaps)} seem to take turns in a server's memory.",
        evidence=Evidence.of(swaps, reloads=len(swaps)),
        server=swaps[0].model,
        first=_side_by_side(observed),
        lost_ns=lost_ns,
    )


@per_model
def slow_first_call(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """The first call waited, alone, for far longer than its prompt takes to be read."""
    first = calls[0]
    alone = all(call.start_ns >= first.end_ns for call in calls[1:])
    if not alone or any(load.model == model for load in observed.loads):
        return None  # `queueing` tells of company, and `cold-start` of loads that are known.
    lost_ns = _unexplained_ns(observed, first)
    if lost_ns < LEAST_COLD_NS or not observed.matters(lost_ns):
        return None
    return Found(
        seen=f"The first call to '{model}' waited {said_ns(first.ttft_ns or 0)} for its first "
        "token. At the pace of the reply, reading its prompt takes at most "
        f"{said_ns((first.ttft_ns or 0) - lost_ns)}; {observed.said(lost_ns)} went into something "
        "else.",
        evidence=Evidence.of(
            [first], first_ttft_s=(first.ttft_ns or 0) / 1e9, unexplained_s=lost_ns / 1e9
        ),
        lost_ns=lost_ns,
    )


def straggler(observed: Observed) -> Found | None:
    """One item of a mapped node took far longer than the others, and the run waited for it."""
    on_path = {step.span for step in observed.path.steps}
    of_node: dict[str, list[int]] = {}
    for span, node in observed.nodes.items():
        of_node.setdefault(node.node, []).append(span)
    worst: tuple[int, int, float] | None = None
    queues: dict[int | None, list[Interval]] = {}
    for call in observed.calls:
        queues.setdefault(observed.parents.get(call.id), []).extend(call.phases.get("queue", ()))
    own_ns = {
        span: length_ns(without([node], queues.get(span, ())))
        for span, node in observed.nodes.items()
    }
    for spans in of_node.values():
        *others, last = sorted(spans, key=lambda span: observed.nodes[span].duration_ns)
        if len(spans) < LEAST_ITEMS or last not in on_path:
            continue
        usual_ns = statistics.median(own_ns[span] for span in others)
        lost_ns = observed.nodes[last].duration_ns - observed.nodes[others[-1]].duration_ns
        if own_ns[last] >= LONG_FACTOR * usual_ns and (worst is None or lost_ns > worst[0]):
            worst = lost_ns, last, usual_ns
    if worst is None or not observed.matters(worst[0]):
        return None
    lost_ns, last, usual_ns = worst
    took_ns = own_ns[last]
    queued = took_ns < observed.nodes[last].duration_ns
    return Found(
        seen=f"'{observed.nodes[last].caption}' took {said_ns(took_ns)}, the others of its node "
        f"{said_ns(usual_ns)} in the median"
        + (", queues left out" if queued else "")
        + f", and the run waited for it alone ({observed.said(lost_ns)}).",
        evidence=Evidence(
            spans=(last,), figures={"took_s": took_ns / 1e9, "usual_s": usual_ns / 1e9}
        ),
        lost_ns=lost_ns,
    )


def swap_thrash(observed: Observed) -> Found | None:
    """Models were loaded again and again, because another one was in their place."""
    firsts = {load.id for load in _first_loads(observed)}
    again = [load for load in observed.loads if load.id not in firsts]
    if not observed.loads:
        return _swaps_in_server(observed)
    if len(again) < LEAST_RELOADS:
        return None
    between = [u for u in observed.seen[events.Unload] if u.start_ns < again[-1].start_ns]
    lost_ns = length_ns(
        [*(part for load in again for part in _waited_for(load, observed)), *between]
    )
    loads = Counter(load.model for load in observed.loads)
    taking_turns = [model for model, count in loads.most_common() if count > 1]
    if len(loads) == 1 or not observed.matters(lost_ns):
        return None
    return Found(
        seen=f"{named(taking_turns)} took turns in memory: {len(observed.loads)} loads where "
        f"{len(loads)} would have done. Waiting for these loads, and making room, took "
        f"{observed.said(lost_ns)}.",
        evidence=Evidence.of(
            again, loads=len(observed.loads), models=len(loads), reloads=len(again)
        ),
        server=taking_turns[0],
        first=(room := _room_for_all(observed)) + _side_by_side(observed),
        expected=Expected("time of the reloads", lost_ns / 1e9, 0.0, "s") if room else None,
        lost_ns=lost_ns,
    )


def budget_wait(observed: Observed) -> Found | None:
    """Calls waited in this process, until a call to another model left room for theirs."""
    elsewhere = [*observed.loads, *observed.seen[events.Unload], *observed.seen[events.ClientLag]]
    in_use = {
        model: without([one for one in observed.calls if one.model != model], elsewhere)
        for model in {call.model for call in observed.calls}
    }
    waits = {
        call.id: parts
        for call in observed.calls
        if length_ns(parts := common(_waits_for_room(call), in_use[call.model])) >= LEAST_LOST_NS
    }
    lost_ns = length_ns(part for parts in waits.values() for part in parts)
    if len(waits) < LEAST_WAITS or not observed.matters(lost_ns):
        return None
    waited = [call for call in observed.calls if call.id in waits]
    return Found(
        seen=f"{len(waits)} calls to {named(call.model for call in waited)} waited in this "
        "process, not in the server, until calls to another model ended and left room in the "
        f"memory budget ({observed.said(lost_ns)}).",
        evidence=Evidence.of(waited, waiting_calls=len(waits)),
        server=waited[0].model,
        first=_room_for_all(observed),
        lost_ns=lost_ns,
    )


def _waits_for_room(call: Call) -> list[Interval]:
    return without(waits_before_sending(call), call.turns)


def _first_loads(observed: Observed) -> list[events.Load]:
    firsts: dict[str, events.Load] = {}
    for load in observed.loads:
        firsts.setdefault(load.model, load)
    return list(firsts.values())


def _waited_for(load: events.Load, observed: Observed) -> list[Interval]:
    """What of a load some call waited for: of one that was made ahead of it, perhaps nothing."""
    if not load.prefetch:
        return [load]
    return common([load], [part for call in observed.calls for part in call.phases.get("load", ())])


def _room_for_all(observed: Observed) -> tuple[str, ...]:
    """The capacity, by device, that would have held all, where the needs are known."""
    needs: dict[str, dict[str, int]] = {}
    for load in observed.loads:
        if load.need_bytes and isinstance(device := observed.server(load.model).device, str):
            needs.setdefault(device, {})[load.model] = load.need_bytes
    return tuple(
        f"give all of them room: [{_TABLES.get(device, f'budget.devices.{device}')}] capacity = "
        f'"{_mib(sum(of_models.values()) + observed.reserves.get(device, 0))} MiB" or more in '
        "harness.toml"
        for device, of_models in needs.items()
        if len(of_models) > 1
    )


def _side_by_side(observed: Observed) -> tuple[str, ...]:
    places = f", with {observed.more_places}" if observed.more_places else ""
    return (
        f"run more items side by side{places}: of those, one model does all before another comes",
    )


def _mib(size_bytes: int) -> int:
    return math.ceil(size_bytes / _MIB)


QUEUED_SHARE = 0.5
"""A call queued when half of its time to the first token was queue: else the prompt was the
matter."""

LEAST_QUEUED = 2
"""Calls that waited; one alone may have met a busy moment."""

LEAST_INFERRED = 4
"""As many, where queueing is only inferred: long prompts can look like it."""

FULL_KV = 0.85
"""From this share on, it is the KV cache that keeps calls waiting."""

LONG_FACTOR = 3.0
"""A convoy's head is that much longer than the median, and its tail waits that much longer than
the call that waited least."""


@per_model
def queueing(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Calls waited in their server for one of its places. Waiting to be sent is `budget-wait`."""
    queues = queues_in_server(observed, calls)
    queued = _queued(calls, queues)
    lost_ns = length_ns(queues[call.id] for call in queued)
    certain = tells_of_queues(observed, calls)
    least = LEAST_QUEUED if certain else LEAST_INFERRED
    if len(queued) < least or not observed.matters(lost_ns) or had_places(observed, calls):
        return None
    waits = [queues[call.id].duration_ns for call in queued]
    seats = max((depth for _, depth in depths(decoding(calls))), default=0)
    waiting, kv = observed.highest(model, "waiting"), observed.highest(model, "KV cache")
    kv_is_full = kv is not None and kv > FULL_KV
    figures = {"calls": len(calls), "queued_calls": len(queued), "answered_at_once": seats}
    computes_all_it_can = any(
        one.model == model and one.bound == "compute" for one in observed.limits
    )
    wanted = Aim.ANSWER_MORE_AT_ONCE, f"{_most_at_once(calls)} calls at once"
    expected = _with_places(calls, queues, queued)
    case = "places gain nothing" if expected.after >= expected.before else ""
    case = "at its limit" if computes_all_it_can else case
    if kv_is_full:  # in elements of half the size, twice as many fit
        wanted = Aim.MORE_KV_ROOM, ""
        expected = Expected("room in a 16-bit KV cache for", seats, 2 * seats, "calls")
    return Found(
        severity="warning" if certain else "hint",
        case="KV cache full" if kv_is_full else case,
        seen=f"{len(queued)} of {len(calls)} calls to '{model}' queued in the server, not here: "
        f"{said_ns(statistics.median(waits))} in the median, {said_ns(max(waits))} at most "
        f"({observed.said(lost_ns)}). It answered {'one' if seats == 1 else seats} at a time"
        + (f", and {waiting:.0f} were waiting" if waiting else "")
        + (f", with its KV cache {kv:.0%} full." if kv_is_full else ".")
        + ("" if certain else " The server reports no queue: calls began only as others ended."),
        evidence=Evidence.of(
            queued,
            **figures,
            queue_median_s=statistics.median(waits) / 1e9,
            queue_max_s=max(waits) / 1e9,
            **({} if waiting is None else {"waiting_max": waiting}),
        ),
        wanted=wanted,
        expected=expected,
        lost_ns=lost_ns,
    )


def _with_places(
    calls: Sequence[Call], queues: Mapping[int, Interval], queued: Sequence[Call]
) -> Expected:
    """With a place for each call that was there at once; the median over queued calls.

    Prompts that are there together are read together: the first tokens come when all of them have
    been read, which takes as long as one after the other did. What else a call waited for it waits
    for again. Calls come when they did; writing replies is taken to take nothing from reading.
    """
    none = Interval(start_ns=0, end_ns=0)
    own_ns = {c.id: (c.ttft_ns or 0) - queues.get(c.id, none).duration_ns for c in calls}
    read_ns = {c.id: min(own_ns[c.id], c.phase_ns("prefill")) for c in calls}
    waiting = sorted((one.start_ns, c.id) for c in calls if (one := ttft(c)))
    now_ns, first_ns = 0, dict[int, int]()
    while waiting:
        now_ns = max(now_ns, waiting[0][0])
        together = [number for sent_ns, number in waiting if sent_ns <= now_ns]
        now_ns += sum(read_ns[number] for number in together)
        for sent_ns, number in waiting[: len(together)]:
            first_ns[number] = now_ns - sent_ns + own_ns[number] - read_ns[number]
        waiting = waiting[len(together) :]
    before_s = statistics.median(call.ttft_ns or 0 for call in queued) / 1e9
    after_s = statistics.median(first_ns.get(call.id, 0) for call in queued) / 1e9
    return Expected("time to first token of queued calls", before_s, after_s, "s")


@per_model
def behind_prefill(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Calls had a place in their server, and waited there until other prompts had been read."""
    queues = queues_in_server(observed, calls)
    queued = _queued(calls, queues)
    if len(queued) < LEAST_QUEUED or not had_places(observed, calls):
        return None
    # A call's own prompt is read after its queue, never during it.
    prefills = [part for call in calls for part in call.phases.get("prefill", ())]
    waits = [queues[call.id] for call in queued]
    behind = [part for parts in parts_within(waits, prefills) for part in parts]
    lost_ns = length_ns(behind)
    if lost_ns < QUEUED_SHARE * length_ns(waits) or not observed.matters(lost_ns):
        return None
    longest_ns = max(wait.duration_ns for wait in waits)
    return Found(
        seen=f"{len(queued)} of {len(calls)} calls to '{model}' waited in the server for up to "
        f"{said_ns(longest_ns)} while it read the prompts of others ({observed.said(lost_ns)}). "
        f"At most {_most_at_once(calls)} were in the server at once, and none waited for a place.",
        evidence=Evidence.of(
            queued,
            calls=len(calls),
            queued_calls=len(queued),
            queue_max_s=longest_ns / 1e9,
            calls_at_once=_most_at_once(calls),
        ),
        lost_ns=lost_ns,
    )


def _queued(calls: Sequence[Call], queues: Mapping[int, Interval]) -> list[Call]:
    return [
        call
        for call in calls
        if call.id in queues
        and queues[call.id].duration_ns
        >= max(LEAST_LOST_NS, QUEUED_SHARE * (call.ttft_ns or call.duration_ns))
    ]


def had_places(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether it is certain that the server had a place for each of a model's calls."""
    model = calls[0].model
    server, waiting = observed.server(model), observed.highest(model, "waiting")
    if server.is_in_process:
        return not waiting and _most_at_once(calls) <= server.places
    answered = max((depth for _, depth in depths(decoding(calls))), default=0)
    return waiting == 0 and _most_at_once(calls) <= answered


def _most_at_once(calls: Sequence[Call]) -> int:
    sent = [Interval(start_ns=one.start_ns, end_ns=c.end_ns) for c in calls if (one := ttft(c))]
    return max((depth for _, depth in depths(sent)), default=0)
