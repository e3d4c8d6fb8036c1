"""Rules about models that are loaded and unloaded, and about what waits for others."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from harness.analysis.facts import (
    LEAST_COMPARED,
    LEAST_LOST_NS,
    LONG_NS,
    MOSTLY,
    SEVERAL,
    Observed,
    gains_by_company,
    per_model,
    queues_in_server,
    tells_of_queues,
    ttft,
)
from harness.analysis.finding import Expected, Observation, counted, ids, named, said_ns
from harness.analysis.rules import (
    FEWER_CALLS,
    LESS_TO_COMPUTE,
    SAME_PART_FIRST,
    SHORTER_PROMPTS,
    SHORTER_REPLIES,
    SMALLER_NEIGHBOR,
    Remedy,
    rule,
)
from harness.analysis.speed_limits import MACHINE, computed_tokens
from harness.analysis.time_budget import times_in
from harness.inference.providers import Aim
from harness.trace import events
from harness.trace.calls import Call
from harness.trace.intervals import common, length_ns, most_at_once, without
from harness.trace.records import Interval

# Among fewer items of a node, none can be called slower than the others.
LEAST_ITEMS = 4

# An item is a straggler from so many times its node's median on.
LONG_FACTOR = 3.0

# Behind others, the longest wait is so many times the shortest: a load takes about the same time
# each time.
UNEVEN = 2

# One server of several is slow from so many times the quickest one's time for a token on.
SLOW_REPLICA = 2.0


@rule(
    "cold-start",
    "A cold start: the weights were not in memory when they were first needed.",
    "L3",
    Aim.KEEP_LOADED,
    "do more in one run: a model is loaded once, at its first call",
    cases={
        "in server": Remedy(
            "A cold start in the server: it loaded or prepared the model before it answered.",
            "L3",
            (Aim.KEEP_LOADED, "send a short call ahead, while the run has other things to do"),
        ),
        "each call": Remedy(
            "Something goes before each reply that is neither the prompt nor another call: the "
            "server loads the model anew, compiles a schema, or the way to it is that slow.",
            "L3",
            (
                Aim.KEEP_LOADED,
                "see the server's log for what it does before it answers",
                "use one type for all calls with returns=: a server may compile each new schema",
            ),
        ),
    },
    explains=("load", "prefill"),
    # Models that take turns in memory (`swap-thrash`) cannot be loaded ahead.
    explained_by=("out-of-reach", "retries", "swap-thrash"),
)
def cold_start(observed: Observed) -> Observation | None:
    """The first call of a model waited for its weights. Further loads are `swap-thrash`."""
    return _loaded(observed) or _cold_in_server(observed)


def _loaded(observed: Observed) -> Observation | None:
    waited = {load: _waited_for(load, observed) for load in _first_loads(observed)}
    firsts = [load for load, parts in waited.items() if length_ns(parts) >= LEAST_LOST_NS]
    lost_ns = length_ns(part for load in firsts for part in waited[load])
    if not firsts or not observed.matters(lost_ns):
        return None
    longest = max(firsts, key=lambda load: load.duration_ns)
    # A model that the run itself starts has to be loaded once.
    is_usual = observed.server(longest.model).is_in_process
    return Observation(
        severity="hint" if is_usual else "warning",
        model=longest.model if len(firsts) == 1 else None,
        server=longest.model,
        seen=f"The first call to {named(load.model for load in firsts)} waited for the model to "
        f"be loaded ({observed.said(lost_ns)}), before a token of its prompt was read.",
        spans=ids(firsts),
        expected=Expected("wait of the first call for the model", lost_ns / 1e9, 0.0, "s")
        if observed.server(longest.model).remedies(Aim.KEEP_LOADED)
        else None,
        lost_ns=lost_ns,
    )


def _unexplained_ns(observed: Observed, call: Call, pace_ns: float = math.inf) -> int:
    """By how much a call's wait for its first token exceeds its prompt's reading; 0 if unknown.

    `pace_ns`: how long reading a token takes at most, if the run shows it.
    """
    if call.ttft_ns is None or call.itl_mean_ns is None or observed.came_at_once(call):
        return 0
    hidden = observed.hidden_tokens(call)
    if call.input_tokens is None or (hidden and not call.reasoning_tokens):
        return 0
    queued_ns = sum(queue.duration_ns for queue in queues_in_server(observed, [call]).values())
    # Reading a token takes no longer than writing one.
    read_ns = computed_tokens(call) * min(call.itl_mean_ns, pace_ns)
    return max(0, round(call.ttft_ns - queued_ns - read_ns - hidden * call.itl_mean_ns))


def _least_pace_ns(calls: Sequence[Call]) -> float:
    """The quickest reading of a token by a model, where it is seen to tell of its cache."""
    read = [call for call in calls if call.cached_tokens is not None and computed_tokens(call) > 0]
    paces_ns = [(call.ttft_ns or math.inf) / computed_tokens(call) for call in read]
    # Some servers say 0 whatever they had cached.
    return min(paces_ns) if any(call.cached_tokens for call in read) else math.inf


def _swaps_in_server(observed: Observed) -> Observation | None:
    """Calls waited whenever their server's last one had been to another model, and else not."""
    models = observed.by_model
    calls = sorted((c for its in models.values() for c in its), key=lambda call: call.start_ns)
    paces_ns = {model: _least_pace_ns(its) for model, its in models.items()}
    last: dict[str | None, Call] = {}
    loaded: dict[str, None] = {}
    swaps: list[Call] = []
    lost_ns, is_certain = 0, False
    for call in calls:
        url = observed.server(call.model).url
        before, last[url] = last.get(url), call
        if before is None or call.start_ns < before.end_ns:
            continue
        loaded[before.model] = None
        waits = (wait_ns := _unexplained_ns(observed, call, paces_ns[call.model])) >= LONG_NS
        # It waits after its own model too, so taking turns is not the reason.
        if waits and call.model == before.model:
            return None
        is_certain |= call.model == before.model
        lost_ns += wait_ns if waits else 0
        # The first call of a model would have loaded it in any case.
        swaps += [call] if waits and call.model in loaded else []
    if len(swaps) < SEVERAL or not observed.matters(lost_ns):
        return None
    return Observation(
        # Where none comes after its own model, the way to the server may be what is slow.
        severity="warning" if is_certain else "hint",
        seen=f"{len(swaps)} calls waited longer for their first token than their prompts explain, "
        f"each after a call to another model ({observed.said(lost_ns)}): {named(loaded)} seem to "
        "take turns in a server's memory"
        + ("." if is_certain else ", unless each call to it is that slow."),
        spans=ids(swaps),
        server=swaps[0].model,
        first=_side_by_side(observed),
        lost_ns=lost_ns,
    )


@per_model
def _cold_in_server(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """The first call, or each one after a pause, waited for more than its prompt, alone."""
    if any(load.model == model for load in observed.loads):
        return None  # `_loaded` tells of loads that are known, and `queueing` of company.
    waits_ns = _waits_alone(observed, calls, LONG_NS)
    cold = [call for call in calls if call.id in waits_ns]
    warm_ns = [call.ttft_ns or 0 for call in calls if call.id not in waits_ns]
    lost_ns = sum(waits_ns.values())
    slowest_ns = max((call.ttft_ns or 0 for call in cold), default=0)
    if (
        not observed.matters(lost_ns)
        or calls[0].id not in waits_ns
        or any(call.start_ns < calls[0].end_ns for call in calls[1:])
        # Where a server loads its model for each call, there are no others to compare with.
        or (warm_ns and slowest_ns < 2 * statistics.median(warm_ns))
        # The first call alone, or enough of them for a habit.
        or 1 < len(cold) < LEAST_COMPARED
        # Uneven waits are behind others: see `_behind_others`.
        or max(waits_ns.values()) > UNEVEN * min(waits_ns.values())
    ):
        return None
    return Observation(
        case="each call" if len(cold) > 1 else "in server",
        seen=f"{counted(len(cold), 'call')} to '{model}' waited up to {said_ns(slowest_ns)} for "
        f"the first token, with no other under way; {observed.said(lost_ns)} of it went into "
        "something else than reading the prompts, at the pace of the replies.",
        spans=ids(cold),
        lost_ns=lost_ns,
    )


@rule(
    "straggler",
    "A straggler: a node that needs all items, or the run's end, waits for the slowest one.",
    "L6",
    "divide what is longer than the others into items of its own",
    "map the next node over this one (each={{...}}) in place of a node that takes the whole list: "
    "then no other item waits",
    "begin with the longest items",
    "limit what one item may take: a lower max_output_tokens, or Timeout(…)",
    cases={
        "replica": Remedy(
            "One server of several is slower, and gets its share of the calls all the same.",
            "L4a",
            (
                "see what else that server does, and whether it has the same GPU and settings",
                "take it out of urls under [endpoints.{tag}]",
            ),
        )
    },
    explains=("decode",),
    explained_by=("client-lag", "retries"),
)
def straggler(observed: Observed) -> Observation | None:
    """One server of several, or one item of a mapped node, was far slower than the others."""
    return _slow_replica(observed) or _slow_item(observed)


@per_model
def _slow_replica(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    speeds: dict[str, list[Call]] = {}
    for call in calls:
        if call.replica and call.itl_mean_ns:
            speeds.setdefault(call.replica, []).append(call)
    itl_ns = {
        replica: statistics.median(call.itl_mean_ns or 0 for call in its)
        for replica, its in speeds.items()
        if len(its) >= LEAST_COMPARED
    }
    if len(itl_ns) < 2:
        return None
    slowest, quickest = max(itl_ns, key=itl_ns.__getitem__), min(itl_ns.values())
    lost_ns = length_ns(times_in("decode", speeds[slowest])) * (1 - quickest / itl_ns[slowest])
    if itl_ns[slowest] < SLOW_REPLICA * quickest or not observed.matters(lost_ns):
        return None
    return Observation(
        case="replica",
        seen=f"Of the servers of '{model}', {slowest} wrote a token in {said_ns(itl_ns[slowest])}, "
        f"the quickest in {said_ns(quickest)}; {len(speeds[slowest])} of {len(calls)} calls went "
        f"to it ({observed.said(lost_ns)}).",
        spans=ids(speeds[slowest]),
        lost_ns=lost_ns,
    )


def _slow_item(observed: Observed) -> Observation | None:
    """One item of a mapped node took far longer than the others, and the run waited for it."""
    on_path = {step.span for step in observed.path.steps}
    of_node: dict[str, list[events.NodeAttempt]] = {}
    for node in observed.nodes.values():
        of_node.setdefault(node.node, []).append(node)
    queues: dict[int | None, list[Interval]] = {}
    for call in observed.calls:
        queues.setdefault(observed.parents.get(call.id), []).extend(call.phases.get("queue", ()))
    worst: Observation | None = None
    for items in of_node.values():
        *shorter, last = sorted(items, key=lambda item: item.duration_ns)
        if len(items) < LEAST_ITEMS or last.id not in on_path:
            continue
        # Without queues: that others had the places makes an item late, not slow.
        own_ns = {item.id: length_ns(without([item], queues.get(item.id, ()))) for item in items}
        usual_ns, took_ns = statistics.median(own_ns[item.id] for item in shorter), own_ns[last.id]
        # The next longest would have held the run up as well.
        lost_ns = last.duration_ns - shorter[-1].duration_ns
        is_worse = worst is None or lost_ns > (worst.lost_ns or 0)
        if took_ns < LONG_FACTOR * usual_ns or not observed.matters(lost_ns) or not is_worse:
            continue
        queued = ", queues left out" if took_ns < last.duration_ns else ""
        worst = Observation(
            seen=f"'{last.caption}' took {said_ns(took_ns)}, the others of its node "
            f"{said_ns(usual_ns)} in the median{queued}, and the run waited for it alone "
            f"({observed.said(lost_ns)}).",
            spans=(last.id,),
            lost_ns=lost_ns,
        )
    return worst


@rule(
    "swap-thrash",
    "Swap thrash: the models do not fit into memory together, and calls to them alternate, so that "
    "a model evicted for one call is needed again for the next.",
    "L4a",
    Aim.LET_BOTH_STAY,
    SMALLER_NEIGHBOR,
    cases={
        "one model": Remedy(
            "These endpoints name one model, and its server loads it anew for other settings.",
            "L4a",
            ("leave one of the endpoints out, if both are for the same work",),
        )
    },
    explains=("load", "room"),
)
def swap_thrash(observed: Observed) -> Observation | None:
    """Models were loaded again and again, because another one was in their place."""
    firsts = {load.id for load in _first_loads(observed)}
    again = [load for load in observed.loads if load.id not in firsts]
    if not observed.loads:
        return _swaps_in_server(observed)
    if len(again) < SEVERAL:
        return None
    between = [u for u in observed.seen[events.UnloadEvent] if u.start_ns < again[-1].start_ns]
    lost_ns = length_ns(
        [*(part for load in again for part in _waited_for(load, observed)), *between]
    )
    loads = Counter(load.model for load in observed.loads)
    taking_turns = [model for model, count in loads.most_common() if count > 1]
    if len(loads) == 1 or not observed.matters(lost_ns):
        return None
    one_context = _one_context(observed, taking_turns)
    return Observation(
        case="one model" if one_context else "",
        seen=f"{named(taking_turns)} took turns in memory: {len(observed.loads)} loads where "
        f"{1 if one_context else len(loads)} would have done. Waiting for these loads, and making "
        f"room, took {observed.said(lost_ns)}.",
        spans=ids(again),
        server=taking_turns[0],
        first=one_context + (room := _room_for_all(observed)) + _side_by_side(observed),
        expected=Expected("time of the reloads", lost_ns / 1e9, 0.0, "s") if room else None,
        lost_ns=lost_ns,
    )


def _first_loads(observed: Observed) -> list[events.LoadEvent]:
    firsts: dict[str, events.LoadEvent] = {}
    for load in observed.loads:
        firsts.setdefault(load.model, load)
    return list(firsts.values())


def _waited_for(load: events.LoadEvent, observed: Observed) -> list[Interval]:
    """What of a load some call waited for: of one that was made ahead of it, perhaps nothing."""
    if not load.prefetch:
        return [load]
    return common([load], times_in("load", observed.calls))


def _one_context(observed: Observed, tags: Sequence[str]) -> tuple[str, ...]:
    """Where endpoints name one model of one server, which it loads anew for another context."""
    servers = [observed.server(tag) for tag in tags]
    models = {(server.url, server.model_id) for server in servers}
    sizes = [server.context_tokens for server in servers]
    if len(models) > 1 or not servers[0].url or len(set(sizes)) < 2:
        return ()
    return (f"give {named(tags)} the same context_tokens (now {' and '.join(map(str, sizes))})",)


def _room_for_all(observed: Observed) -> tuple[str, ...]:
    """The capacity, by device, that would have held all, where the needs are known."""
    needs: dict[str, dict[str, int]] = {}
    for load in observed.loads:
        if load.need_bytes and isinstance(device := observed.server(load.model).device, str):
            needs.setdefault(device, {})[load.model] = load.need_bytes
    # Bytes that the budget keeps free of each device's capacity.
    reserves = {b.device or MACHINE: b.reserve_bytes for b in observed.seen[events.Budget]}
    return tuple(
        "give all of them room: "
        f"[{'budget' if device == MACHINE else f'budget.devices.{device}'}] capacity = "
        f'"{math.ceil((sum(of_models.values()) + reserves.get(device, 0)) / 2**20)} MiB" '
        "or more in harness.toml"
        for device, of_models in needs.items()
        if len(of_models) > 1
    )


def _side_by_side(observed: Observed) -> tuple[str, ...]:
    places = f", with {observed.more_places}" if observed.more_places else ""
    return (
        f"run more items side by side{places}: of those, one model does all before another comes",
    )


# From this share on, it is the KV cache that keeps calls waiting.
FULL_KV = 0.85

_QUEUE_HERE = f"{FEWER_CALLS}: they would wait here instead, and other work could go on"


@rule(
    "queueing",
    "Queueing: more calls came at once than the server has places.",
    "L4a",
    Aim.ANSWER_MORE_AT_ONCE,
    Aim.BOUND_QUEUE,
    _QUEUE_HERE,
    cases={
        "KV cache full": Remedy(
            "Queueing: more calls came at once than the KV cache has room for.",
            "L4a",
            (Aim.MORE_KV_ROOM, Aim.BOUND_QUEUE, _QUEUE_HERE),
        ),
        "others": Remedy(
            "Queueing behind calls of others, which had the server's places.",
            "L4a",
            (
                "see what else the server answers meanwhile: its log, or its counters",
                "use a server of its own, or another hour",
            ),
        ),
        "at its limit": Remedy(
            "Queueing at a server that writes as much as it can: with more places, each call would "
            "be answered more slowly.",
            "L0",
            (LESS_TO_COMPUTE, SHORTER_PROMPTS, SAME_PART_FIRST, SHORTER_REPLIES),
        ),
    },
    explains=("queue", "prefill"),
)
def queueing(observed: Observed) -> Observation | None:
    """Calls waited in their server for one of its places, behind each other or behind others."""
    return _behind_each_other(observed) or _behind_others(observed)


@per_model
def _behind_others(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    waits_ns = _waits_alone(observed, calls, LEAST_LOST_NS)
    lost_ns, longest_ns = sum(waits_ns.values()), max(waits_ns.values(), default=0)
    is_uneven = longest_ns > UNEVEN * min(waits_ns.values(), default=0)
    if len(waits_ns) < 2 * SEVERAL or not is_uneven or not observed.matters(lost_ns):
        return None
    return Observation(
        severity="hint",
        case="others",
        seen=f"{len(waits_ns)} of {len(calls)} calls to '{model}' waited for their first token, up "
        f"to {said_ns(longest_ns)} more than their prompts explain, now long, now short, with no "
        f"other call of this run under way ({observed.said(lost_ns)}).",
        spans=ids(c for c in calls if c.id in waits_ns),
        lost_ns=lost_ns,
    )


def _waits_alone(observed: Observed, calls: Sequence[Call], least_ns: int) -> dict[int, int]:
    """By call, what its prompt does not explain of its wait; of calls that came after the last."""
    alone = (c for n, c in enumerate(calls) if not n or c.start_ns >= calls[n - 1].end_ns)
    waits_ns = ((call.id, _unexplained_ns(observed, call)) for call in alone)
    return {span: wait_ns for span, wait_ns in waits_ns if wait_ns >= least_ns}


@per_model
def _behind_each_other(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    queues = queues_in_server(observed, calls)
    queued = [
        call
        for call in calls
        if call.id in queues
        and queues[call.id].duration_ns
        >= max(LEAST_LOST_NS, MOSTLY * (call.ttft_ns or call.duration_ns))
    ]
    lost_ns = length_ns(queues[call.id] for call in queued)
    certain = tells_of_queues(observed, calls)
    enough = SEVERAL if certain else 2 * SEVERAL  # long prompts can look like it
    if len(queued) < enough or not observed.matters(lost_ns) or had_places(observed, calls):
        return None
    waits = [queues[call.id].duration_ns for call in queued]
    seats = most_at_once(times_in("decode", calls))
    sent, running = _sent_at_once(calls), observed.highest(model, "running") or 0
    waiting, kv = observed.highest(model, "waiting"), observed.highest(model, "KV cache") or 0.0
    aim: tuple[Aim, str] | None = (Aim.ANSWER_MORE_AT_ONCE, f"{sent} calls at once")
    case, expected = "", None
    # More than this run had sent: the rest is of others.
    if running > sent:
        case, aim = "others", None
    elif kv > FULL_KV:  # in elements of half the size, twice as many fit
        case, aim = "KV cache full", (Aim.MORE_KV_ROOM, "")
        expected = Expected("room in a 16-bit KV cache for", seats, 2 * seats, "calls")
    elif _writes_all_it_can(observed, calls, is_certain=certain):
        case = "at its limit"
    return Observation(
        severity="warning" if certain else "hint",
        case=case,
        seen=f"{len(queued)} of {len(calls)} calls to '{model}' queued in the server, not here: "
        f"{said_ns(statistics.median(waits))} in the median, {said_ns(max(waits))} at most "
        f"({observed.said(lost_ns)}). "
        + (
            f"It answered {running:.0f} at a time, and this run had {sent} under way at most"
            if case == "others"
            else f"It answered {'one' if seats == 1 else seats} at a time"
        )
        + (f", and {waiting:.0f} were waiting" if waiting else "")
        + (f", with its KV cache {kv:.0%} full." if kv > FULL_KV else ".")
        + ("" if certain else " The server reports no queue: calls began only as others ended."),
        spans=ids(queued),
        wanted=aim,
        expected=expected,
        lost_ns=lost_ns,
    )


def _writes_all_it_can(observed: Observed, calls: Sequence[Call], *, is_certain: bool) -> bool:
    """Whether more places would only slow each call down; `is_certain`: its server tells queues."""
    bounds = {limit.model: limit.bound for limit in observed.limits}
    if bounds.get(calls[0].model) == "compute" or gains_by_company(observed, calls) is False:
        return True
    reads, writes = times_in("prefill", calls), times_in("decode", calls)
    # A server that answers one at a time shows nothing of what two would do.
    return is_certain and most_at_once(writes) > 1 and length_ns(reads) > length_ns(writes)


def had_places(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether it is certain that the server had a place for each of a model's calls."""
    model = calls[0].model
    server, waiting = observed.server(model), observed.highest(model, "waiting")
    # Its places are settings of ours; of another server, only what it has shown is known.
    if server.is_in_process:
        return not waiting and _sent_at_once(calls) <= server.places
    answered = most_at_once(times_in("decode", calls))
    return waiting == 0 and _sent_at_once(calls) <= answered


def _sent_at_once(calls: Sequence[Call]) -> int:
    sent = [Interval(start_ns=wait.start_ns, end_ns=c.end_ns) for c in calls if (wait := ttft(c))]
    return most_at_once(sent)
