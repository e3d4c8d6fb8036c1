"""Rules about models that are loaded and unloaded, and about what waits for others."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from harness.analysis.finding import Observation, Observations, counted, ns_text, quoted, span_ids
from harness.analysis.observed import (
    LEAST_COMPARED,
    LEAST_LOST_NS,
    LONG_NS,
    MOSTLY,
    SEVERAL,
    Observed,
    batching_helps,
    per_model,
    queues_in_server,
    reports_queue,
    times_sent,
)
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
from harness.analysis.rules_prompts import fixed_wait_ns
from harness.analysis.speed_limits import MACHINE, computed_tokens
from harness.analysis.time_budget import times_in
from harness.inference.providers import Aim
from harness.trace import events
from harness.trace.calls import Call, grouped
from harness.trace.intervals import common, length_ns, most_at_once, without
from harness.trace.records import Interval

# Among fewer items of a node, none can be called slower than the others.
LEAST_ITEMS = 4
# A straggler took at least so many times the median of its node's items.
LONG_FACTOR = 3.0
# Waits are uneven if the longest is more than so many times the shortest. A model takes about the
# same time for each load, so uneven waits are due to the calls of others.
UNEVEN = 2
# A slow server takes at least so many times as long for a token as the quickest one.
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
            Aim.KEEP_LOADED,
            "send a short call ahead, while the run has other things to do",
        ),
        "each call": Remedy(
            "Something goes before each reply that is neither the prompt nor another call: the "
            "server loads the model anew, compiles a schema, or the way to it is that slow.",
            "L3",
            Aim.KEEP_LOADED,
            "see the server's log for what it does before it answers",
            "use one type for all calls with returns=: a server may compile each new schema",
        ),
    },
    explains=("load", "prefill"),
    # Models that take turns in memory (`swap-thrash`) cannot be loaded ahead.
    explained_by=("out-of-reach", "retries", "swap-thrash"),
)
def cold_start(observed: Observed) -> Observations:
    """The first call of a model waited for its weights. Further loads are `swap-thrash`."""
    yield from _loaded(observed)
    yield from _cold_in_server(observed)
    yield from _fixed_wait(observed)


def _loaded(observed: Observed) -> Observations:
    """The journal shows loads, and calls waited for the first load of a model."""
    # Load → the parts of it that a call waited for.
    waits = {load: _waits_for(load, observed) for load in _first_loads(observed)}
    loads = [load for load, parts in waits.items() if length_ns(parts) >= LEAST_LOST_NS]
    if not loads:
        return
    lost_ns = length_ns(part for load in loads for part in waits[load])
    longest = max(loads, key=lambda load: load.duration_ns)
    server = observed.server(longest.model)
    yield Observation(
        # A model that the run itself starts has to be loaded once.
        severity="hint" if server.is_in_process else "warning",
        model=longest.model if len(loads) == 1 else None,
        server=longest.model,
        seen=f"The first call to {quoted(load.model for load in loads)} waited for the model to "
        f"be loaded ({observed.share(lost_ns)}), before a token of its prompt was read.",
        spans=span_ids(loads),
        lost_ns=lost_ns,
    )


def _unexplained_ns(observed: Observed, call: Call, most_ns_per_token: float = math.inf) -> int:
    """The part of a call's time to first token that its prompt does not explain; 0 if unknown.

    Reading a token of the prompt takes at most `most_ns_per_token`.
    """
    if call.ttft_ns is None or call.itl_mean_ns is None or observed.was_held_back(call):
        return 0
    hidden = observed.hidden_tokens(call)
    # The server must have counted hidden tokens: an estimate from the reply is too low.
    if call.input_tokens is None or (hidden and not call.reasoning_tokens):
        return 0
    queued_ns = sum(queue.duration_ns for queue in queues_in_server(observed, [call]).values())
    # Reading a token takes no longer than writing one.
    read_ns = computed_tokens(call) * min(call.itl_mean_ns, most_ns_per_token)
    return max(0, round(call.ttft_ns - queued_ns - read_ns - hidden * call.itl_mean_ns))


def _least_ns_per_token(calls: Sequence[Call]) -> float:
    """The shortest time that a model's server took to read a token; infinite if unknown."""
    read = [call for call in calls if call.cached_tokens is not None and computed_tokens(call) > 0]
    # Some servers report 0 whatever they had cached.
    if not any(call.cached_tokens for call in read):
        return math.inf
    return min((call.ttft_ns or math.inf) / computed_tokens(call) for call in read)


def _swaps_in_server(observed: Observed) -> Observations:
    """Calls waited if the call before them in their server was to another model, and only then."""
    answered = [call for calls in observed.by_model.values() for call in calls]
    answered.sort(key=lambda call: call.start_ns)
    ns_per_token = {model: _least_ns_per_token(calls) for model, calls in observed.by_model.items()}
    last_calls: dict[str | None, Call] = {}  # url of a server → its last call
    loaded: dict[str, None] = {}  # an ordered set of models
    swaps: list[Call] = []
    lost_ns = 0
    is_certain = False
    for call in answered:
        url = observed.server(call.model).url
        before = last_calls.get(url)
        last_calls[url] = call
        if before is None or call.start_ns < before.end_ns:
            continue
        loaded[before.model] = None
        wait_ns = _unexplained_ns(observed, call, ns_per_token[call.model])
        if call.model == before.model:
            # Calls wait after their own model too, so taking turns is not the reason.
            if wait_ns >= LONG_NS:
                return
            is_certain = True
        elif wait_ns >= LONG_NS:
            lost_ns += wait_ns
            # The first call of a model would have loaded it in any case.
            if call.model in loaded:
                swaps.append(call)
    if len(swaps) < SEVERAL:
        return
    # If no call comes after its own model, the way to the server may be slow.
    doubt = "" if is_certain else ", unless each call to it is that slow"
    yield Observation(
        severity="warning" if is_certain else "hint",
        seen=f"{len(swaps)} calls waited longer for their first token than their prompts explain, "
        f"each after a call to another model ({observed.share(lost_ns)}): {quoted(loaded)} seem to "
        f"take turns in a server's memory{doubt}.",
        spans=span_ids(swaps),
        server=swaps[0].model,
        first_moves=_more_items_at_once(observed),
        lost_ns=lost_ns,
    )


@per_model
def _cold_in_server(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """The first call, or each one after a pause, waited for more than its prompt, alone."""
    if any(load.model == model for load in observed.loads):
        return  # `_loaded` reports loads that are in the journal.
    waits_ns = _waits_alone(observed, calls, LONG_NS)
    first, *later = calls
    if first.id not in waits_ns or any(call.start_ns < first.end_ns for call in later):
        return
    cold = [call for call in calls if call.id in waits_ns]
    # One wait may be the first load, and several may be a habit; two are neither.
    if 1 < len(cold) < LEAST_COMPARED:
        return
    # `_behind_others` reports uneven waits.
    if max(waits_ns.values()) > UNEVEN * min(waits_ns.values()):
        return
    slowest_ns = max(call.ttft_ns or 0 for call in cold)
    # The server may load its model for each call: then no call is warm.
    warm_ttft_ns = [call.ttft_ns or 0 for call in calls if call.id not in waits_ns]
    if warm_ttft_ns and slowest_ns < 2 * statistics.median(warm_ttft_ns):
        return
    lost_ns = sum(waits_ns.values())
    yield Observation(
        case="each call" if len(cold) > 1 else "in server",
        seen=f"{counted(len(cold), 'call')} to '{model}' waited up to {ns_text(slowest_ns)} for "
        f"the first token, with no other under way; {observed.share(lost_ns)} of it went into "
        "something else than reading the prompts, at the pace of the replies.",
        spans=span_ids(cold),
        lost_ns=lost_ns,
    )


@per_model
def _fixed_wait(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Calls with short prompts waited about as long for the first token as those with long ones."""
    fixed_ns = fixed_wait_ns(observed, calls)
    waited = [call for call in calls if (call.ttft_ns or 0) > MOSTLY * fixed_ns]
    ttft_ns = statistics.median(call.ttft_ns or 0 for call in waited) if fixed_ns else 0
    if ttft_ns < LONG_NS or fixed_ns < MOSTLY * ttft_ns:
        return
    prompts = sorted(call.input_tokens for call in waited if call.input_tokens)
    lost_ns = min(length_ns(times_in("prefill", waited)), fixed_ns * len(waited))
    yield Observation(
        case="each call",
        seen=f"{len(waited)} calls to '{model}' waited {ns_text(fixed_ns)} for the first token, "
        f"whether their prompts had {prompts[0]} tokens or {prompts[-1]} "
        f"({observed.share(lost_ns)}): the wait does not grow with the prompt.",
        spans=span_ids(waited),
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
            "see what else that server does, and whether it has the same GPU and settings",
            "take it out of urls under [endpoints.{tag}]",
        )
    },
    explains=("decode",),
    explained_by=("client-lag", "retries"),
)
def straggler(observed: Observed) -> Observations:
    """One server of several, or one item of a mapped node, was far slower than the others."""
    yield from _slow_replica(observed)
    yield from _slow_items(observed)


@per_model
def _slow_replica(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """One server of several took far longer for a token than the quickest one."""
    timed = (call for call in calls if call.replica and call.itl_mean_ns)
    calls_by_replica = grouped(timed, by=lambda call: call.replica)
    itl_ns = {
        replica: statistics.median(call.itl_mean_ns or 0 for call in replies)
        for replica, replies in calls_by_replica.items()
        if len(replies) >= LEAST_COMPARED
    }
    if len(itl_ns) < 2:
        return
    slowest = max(itl_ns, key=lambda replica: itl_ns[replica])
    slowest_ns, quickest_ns = itl_ns[slowest], min(itl_ns.values())
    if slowest_ns < SLOW_REPLICA * quickest_ns:
        return
    slow_calls = calls_by_replica[slowest]
    lost_ns = length_ns(times_in("decode", slow_calls)) * (1 - quickest_ns / slowest_ns)
    yield Observation(
        case="replica",
        seen=f"Of the servers of '{model}', {slowest} wrote a token in {ns_text(slowest_ns)}, "
        f"the quickest in {ns_text(quickest_ns)}; {len(slow_calls)} of {len(calls)} calls went "
        f"to it ({observed.share(lost_ns)}).",
        spans=span_ids(slow_calls),
        lost_ns=lost_ns,
    )


def _slow_items(observed: Observed) -> Observations:
    """Items of mapped nodes that took far longer than the others, so that the run waited."""
    # An item that waited for a person is not slow.
    on_path = {step.span for step in observed.path.steps} - observed.with_answers
    items_by_node = grouped(observed.nodes.values(), by=lambda item: item.node)
    # Span → the queues of the calls to models that were made right in it.
    queues: dict[int | None, list[Interval]] = {}
    for call in observed.calls:
        queues.setdefault(observed.node_around(call.id), []).extend(call.phases.get("queue", ()))
    for items in items_by_node.values():
        *others, longest = sorted(items, key=lambda item: item.duration_ns)
        if len(items) < LEAST_ITEMS or longest.id not in on_path:
            continue
        # Without queues: an item whose calls had to queue is late, and not slow.
        times_ns = {item.id: length_ns(without([item], queues.get(item.id, ()))) for item in items}
        longest_ns = times_ns[longest.id]
        usual_ns = statistics.median(times_ns[item.id] for item in others)
        if longest_ns < LONG_FACTOR * usual_ns:
            continue
        # The next longest item would have held the run up as well.
        lost_ns = longest.duration_ns - others[-1].duration_ns
        left_out = ", queues left out" if longest_ns < longest.duration_ns else ""
        yield Observation(
            seen=f"'{longest.caption}' took {ns_text(longest_ns)}, the others of its node "
            f"{ns_text(usual_ns)} in the median{left_out}, and the run waited for it alone "
            f"({observed.share(lost_ns)}).",
            spans=(longest.id,),
            lost_ns=lost_ns,
        )


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
            "leave one of the endpoints out, if both are for the same work",
        )
    },
    explains=("load", "room"),
)
def swap_thrash(observed: Observed) -> Observations:
    """Models were loaded again and again, because another one was in their place."""
    if not observed.loads:
        yield from _swaps_in_server(observed)
        return
    first_loads = {load.id for load in _first_loads(observed)}
    reloads = [load for load in observed.loads if load.id not in first_loads]
    loads_by_model = Counter(load.model for load in observed.loads)
    if len(reloads) < SEVERAL or len(loads_by_model) == 1:
        return
    last_ns = reloads[-1].start_ns
    unloads = [u for u in observed.recorded[events.UnloadEvent] if u.start_ns < last_ns]
    waits = [part for load in reloads for part in _waits_for(load, observed)]
    lost_ns = length_ns([*waits, *unloads])
    taking_turns = [model for model, count in loads_by_model.most_common() if count > 1]
    one_context = _one_context(observed, taking_turns)
    yield Observation(
        case="one model" if one_context else "",
        seen=f"{quoted(taking_turns)} took turns in memory: {len(observed.loads)} loads where "
        f"{1 if one_context else len(loads_by_model)} would have done. Waiting for these loads, "
        f"and making room, took {observed.share(lost_ns)}.",
        spans=span_ids(reloads),
        server=taking_turns[0],
        first_moves=one_context + _room_for_all(observed) + _more_items_at_once(observed),
        lost_ns=lost_ns,
    )


def _first_loads(observed: Observed) -> list[events.LoadEvent]:
    """The first load of each model."""
    loads_by_model = grouped(observed.loads, by=lambda load: load.model)
    return [loads[0] for loads in loads_by_model.values()]


def _waits_for(load: events.LoadEvent, observed: Observed) -> list[Interval]:
    """The parts of a load that a call waited for."""
    if not load.prefetch:
        return [load]
    # A load ahead of its first call may have been over before any call waited for it.
    return common([load], times_in("load", observed.calls))


def _one_context(observed: Observed, tags: Sequence[str]) -> tuple[str, ...]:
    """The advice for endpoints that name one model of a server with different contexts, if any."""
    servers = [observed.server(tag) for tag in tags]
    models = {(server.url, server.model_id) for server in servers}
    sizes = [server.context_tokens for server in servers]
    if len(models) > 1 or not servers[0].url or len(set(sizes)) < 2:
        return ()
    return (f"give {quoted(tags)} the same context_tokens (now {' and '.join(map(str, sizes))})",)


def _room_for_all(observed: Observed) -> tuple[str, ...]:
    """For each device with several models of known size, the advice of a capacity for them all."""
    needs: dict[str, dict[str, int]] = {}  # device → model → bytes
    for load in observed.loads:
        device = observed.server(load.model).device
        # A model on several devices has a list of them, and its need is not known by device.
        if load.need_bytes and isinstance(device, str):
            needs.setdefault(device, {})[load.model] = load.need_bytes
    # Device → the bytes of its capacity that the budget keeps free.
    reserves = {b.device or MACHINE: b.reserve_bytes for b in observed.recorded[events.Budget]}
    advice = []
    for device, bytes_by_model in needs.items():
        if len(bytes_by_model) > 1:
            table = "budget" if device == MACHINE else f"budget.devices.{device}"
            capacity = sum(bytes_by_model.values()) + reserves.get(device, 0)
            advice.append(
                f'give all of them room: [{table}] capacity = "{math.ceil(capacity / 2**20)} MiB" '
                "or more in harness.toml"
            )
    return tuple(advice)


def _more_items_at_once(observed: Observed) -> tuple[str, ...]:
    # With more items, all calls to one model can go before the first to another.
    limit = f", with {observed.larger_limit}" if observed.larger_limit else ""
    return (
        f"run more items side by side{limit}: of those, one model does all before another comes",
    )


# Calls wait for room in the KV cache if more than this share of it is in use.
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
            Aim.MORE_KV_ROOM,
            Aim.BOUND_QUEUE,
            _QUEUE_HERE,
        ),
        "others": Remedy(
            "Queueing behind calls of others, which had the server's places.",
            "L4a",
            "see what else the server answers meanwhile: its log, or its counters",
            "use a server of its own, or another hour",
        ),
        "at its limit": Remedy(
            "Queueing at a server that writes as much as it can: with more places, each call would "
            "be answered more slowly.",
            "L0",
            LESS_TO_COMPUTE,
            SHORTER_PROMPTS,
            SAME_PART_FIRST,
            SHORTER_REPLIES,
        ),
    },
    explains=("queue", "prefill"),
)
def queueing(observed: Observed) -> Observations:
    """Calls waited in their server for one of its places, behind each other or behind others."""
    yield from _behind_each_other(observed)
    yield from _behind_others(observed)


@per_model
def _behind_others(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Calls that were alone in this run waited in their server, now long, now short."""
    waits_ns = _waits_alone(observed, calls, LEAST_LOST_NS)
    if len(waits_ns) < 2 * SEVERAL:
        return
    longest_ns, lost_ns = max(waits_ns.values()), sum(waits_ns.values())
    if longest_ns <= UNEVEN * min(waits_ns.values()):
        return
    yield Observation(
        severity="hint",
        case="others",
        seen=f"{len(waits_ns)} of {len(calls)} calls to '{model}' waited for their first token, up "
        f"to {ns_text(longest_ns)} more than their prompts explain, now long, now short, with no "
        f"other call of this run under way ({observed.share(lost_ns)}).",
        spans=span_ids(c for c in calls if c.id in waits_ns),
        lost_ns=lost_ns,
    )


def _waits_alone(observed: Observed, calls: Sequence[Call], least_ns: int) -> dict[int, int]:
    """Span id → the wait that the prompt does not explain, if it is at least `least_ns`.

    Only of calls that began after the call before them had ended.
    """
    waits_ns = {}
    before: Call | None = None
    for call in calls:
        if before is None or call.start_ns >= before.end_ns:
            wait_ns = _unexplained_ns(observed, call)
            if wait_ns >= least_ns:
                waits_ns[call.id] = wait_ns
        before = call
    return waits_ns


@per_model
def _behind_each_other(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Calls of this run queued in the server for most of the time to their first token."""
    queues = queues_in_server(observed, calls)
    queued = [
        call
        for call in calls
        if call.id in queues
        and queues[call.id].duration_ns
        >= max(LEAST_LOST_NS, MOSTLY * (call.ttft_ns or call.duration_ns))
    ]
    is_certain = reports_queue(observed, calls)
    # An inferred queue may be the reading of a long prompt.
    least = SEVERAL if is_certain else 2 * SEVERAL
    if len(queued) < least or server_had_places(observed, calls):
        return
    waits_ns = [queues[call.id].duration_ns for call in queued]
    # The most calls at once: answered, sent by this run, and counted by the server.
    answered = most_at_once(times_in("decode", calls))
    sent = most_at_once(times_sent(calls))
    running = observed.highest(model, "running") or 0
    waiting = observed.highest(model, "waiting")
    kv_share = observed.highest(model, "KV cache") or 0.0
    case, target = "", 0
    capacity = f"It answered {'one' if answered == 1 else answered} at a time"
    if running > sent:
        # The server ran more calls than this run had sent: some are of others.
        case = "others"
        capacity = f"It answered {running:.0f} at a time, and this run had {sent} under way at most"
    elif kv_share > FULL_KV:
        case = "KV cache full"
    elif _writes_all_it_can(observed, calls, has_queue_report=is_certain):
        case = "at its limit"
    else:
        target = sent
    if waiting:
        capacity += f", and {waiting:.0f} were waiting"
    if kv_share > FULL_KV:
        capacity += f", with its KV cache {kv_share:.0%} full"
    if not is_certain:
        capacity += ". The server reports no queue: calls began only as others ended"
    lost_ns = length_ns(queues[call.id] for call in queued)
    yield Observation(
        severity="warning" if is_certain else "hint",
        case=case,
        seen=f"{len(queued)} of {len(calls)} calls to '{model}' queued in the server, not here: "
        f"{ns_text(statistics.median(waits_ns))} in the median, {ns_text(max(waits_ns))} at most "
        f"({observed.share(lost_ns)}). {capacity}.",
        spans=span_ids(queued),
        target=target,
        lost_ns=lost_ns,
    )


def _writes_all_it_can(
    observed: Observed, calls: Sequence[Call], *, has_queue_report: bool
) -> bool:
    """Whether more places in the server would only slow each call down."""
    bounds = {limit.model: limit.bound for limit in observed.limits}
    if bounds.get(calls[0].model) == "compute" or batching_helps(observed, calls) is False:
        return True
    # Without a report, part of the queue may count as prefill.
    reads, writes = times_in("prefill", calls), times_in("decode", calls)
    is_reading = has_queue_report and length_ns(reads) > length_ns(writes)
    # A server that answers one call at a time does not show what two would do.
    return is_reading and most_at_once(writes) > 1


def server_had_places(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether it is certain that the server had a place for each of a model's calls."""
    model = calls[0].model
    server = observed.server(model)
    waiting = observed.highest(model, "waiting")
    # The places of another server than the run's own are known only from its answers.
    if server.is_in_process:
        return not waiting and most_at_once(times_sent(calls)) <= server.places
    answered = most_at_once(times_in("decode", calls))
    return waiting == 0 and most_at_once(times_sent(calls)) <= answered
