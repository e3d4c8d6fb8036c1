"""Rules about how the run itself made its calls."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from harness.analysis.finding import Observation, Observations, counted, ns_text, quoted, span_ids
from harness.analysis.observed import (
    LEAST_LOST_NS,
    MOSTLY,
    SEVERAL,
    TEXTS_OF_CALLS,
    Observed,
    batching_helps,
    busy_ns,
    per_model,
    queues_in_server,
    reports_queue,
)
from harness.analysis.rules import Remedy, rule
from harness.analysis.rules_prompts import needed_replies, pieces_of
from harness.analysis.rules_waiting import FULL_KV, server_had_places
from harness.analysis.time_budget import lost_to_places_ns
from harness.trace import events
from harness.trace.calls import Call, grouped
from harness.trace.intervals import common, depths, length_ns, most_at_once, parts_within
from harness.trace.records import Interval

# Two or three calls are often written one after another for clarity, and little is lost.
LEAST_SERIAL_CALLS = 4
# This share of the critical path is worth a finding, whatever the time went into.
LARGE_SHARE = 0.4
# The scheduler never lets a process wait for so long, however many programs want the cores.
LONGEST_STARVED_NS = 1_000_000_000
# After a longer pause, a call had waited for something else than a call: a person, a tool.
LONGEST_GAP_NS = 1_000_000_000


@rule(
    "serial-client",
    "A serial client: the server had one call at a time, and calls that do not need each other "
    "waited for each other. A server that batches them gives them back sooner.",
    "L6",
    "make it a mapped node, which runs once per item: @pipeline.node(each={{...}})",
    "make the calls of one function together: run.map, asyncio.gather, or a task group",
    cases={
        "held": Remedy(
            "The items could run side by side, and something lets one through at a time: a limit "
            "on them, or a lock or semaphore in their code.",
            "L6",
            "let more through; to bound calls, use max_parallel under [endpoints.{tag}]",
        )
    },
    explains=("decode", "prefill", "overhead"),
)
def serial_client(observed: Observed) -> Observations:
    """Calls that do not need each other went one after another, none beside another."""
    serial = _calls_alone(observed.calls)
    # These calls, whose texts are known, stand for all.
    first = serial[:TEXTS_OF_CALLS]
    # At an account's limit, more calls at once would only be refused.
    is_limited = any(retry.reason == "RateLimited" for retry in observed.retries)
    if len(first) < LEAST_SERIAL_CALLS or is_limited:
        return
    independent, shortest_ns = _independent(observed, first)
    if len(independent) < LEAST_SERIAL_CALLS:
        return
    server = observed.server(independent[0].model)
    # An engine in this process shares its cores among calls: several at once may be no faster.
    if server.is_in_process:
        return
    in_turn_ns = max(1, sum(map(busy_ns, first)))
    lost_ns = round((1 - shortest_ns / in_turn_ns) * sum(map(busy_ns, serial)))
    items = {call.node_span or 0 for call in independent} & observed.nodes.keys()
    # Code of their own, such as a lock, holds back the calls of items that ran at once.
    has_lock = most_at_once(observed.nodes[item] for item in items) >= LEAST_SERIAL_CALLS
    # The functions that made the calls.
    functions = {observed.node_around(call.id) for call in independent}
    waited_for_places = functions & observed.place_waits.keys()
    if waited_for_places and any(observed.is_costly(seen) for seen in _places(observed)):
        return  # The rule `max-parallel` reports it.
    larger_limit = observed.larger_limit if waited_for_places else ""
    examined = "them" if first == serial else f"the first {len(first)}"
    nodes = quoted(call.node for call in independent if call.node)
    where = f" in {nodes}" if nodes else ""
    is_certain = len(functions) == len(independent)
    evidence = "do not depend on each other. They"
    if not is_certain:
        # Of calls by one function, texts alone show what needs what, and they may not show all.
        evidence = "quote no more than a few words of each other's replies. Unless their code "
        evidence += "needs one reply for the next call, they"
    yield Observation(
        severity="warning" if is_certain else "hint",
        case="held" if has_lock or larger_limit else "",
        model=server.model,
        seen=f"{len(serial)} calls ran one after another, and {len(independent)} of {examined}"
        f"{where} {evidence} could have run at once and saved up to {observed.share(lost_ns)}, if "
        "the server has places for them.",
        first_moves=(larger_limit,) if larger_limit else (),
        spans=span_ids(independent),
        lost_ns=lost_ns,
    )


def _independent(observed: Observed, calls: Sequence[Call]) -> tuple[list[Call], int]:
    """Calls that could have run at once, and how long all calls would have taken then."""
    # For each call: when it would have ended, had it begun at the end of the last call it needs,
    # and its rank, the length of the longest chain of calls that ends with it.
    ends_ns: list[int] = []
    ranks: list[int] = []
    last_before_pause: set[int] = set()
    needs = _needed_calls(observed, calls)
    for number, call in enumerate(calls):
        if number and call.start_ns - calls[number - 1].end_ns > LONGEST_GAP_NS:
            last_before_pause = {number - 1}
        needed = needs[number] | last_before_pause
        ends_ns.append(busy_ns(call) + max((ends_ns[n] for n in needed), default=0))
        ranks.append(1 + max((ranks[n] for n in needed), default=0))
    # Calls of one rank do not need each other: the most frequent rank is what could run at once.
    common_rank = statistics.mode(ranks)
    return [c for c, rank in zip(calls, ranks, strict=True) if rank == common_rank], max(ends_ns)


def _calls_alone(calls: Sequence[Call]) -> list[Call]:
    """The calls that succeeded with no other call beside them."""
    alone: list[Call] = []
    last_end_ns = 0
    for call in calls:
        if alone and call.start_ns < alone[-1].end_ns:
            # This call began beside the one before it, so neither was alone.
            alone.pop()
        elif call.status == "ok" and call.start_ns >= last_end_ns:
            alone.append(call)
        last_end_ns = max(last_end_ns, call.end_ns)
    return alone


@rule(
    "max-parallel",
    "A limit of the run's own held calls back, and nothing shows that the server was full.",
    "L6",
    "raise that limit step by step, while each step makes the run shorter: a full server makes it "
    "longer",
    cases={
        "no models": Remedy(
            "The pipeline's own limit: calls of nodes that call no model held its places.",
            "L6",
            "make them faster, or do such work for several items in one call of a node",
        )
    },
    explains=("place", "turn"),
    explained_by=("client-lag",),
)
def max_parallel(observed: Observed) -> Observations:
    """Calls waited for a turn at an endpoint, or calls of nodes for a place, under a limit."""
    yield from _turns(observed)
    yield from _places(observed)


@per_model
def _turns(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Calls waited for their turn under the endpoint's own limit, and its server was not full."""
    turns = [turn for call in calls for turn in call.turns]
    waiting = [call for call in calls if length_ns(call.turns) >= LEAST_LOST_NS]
    if len(waiting) < SEVERAL or _is_full(observed, model, calls):
        return
    server = observed.server(model)
    is_certain = reports_queue(observed, calls) or server.is_in_process
    queue = "while none waited in its server" if is_certain else "and the server's queue is unknown"
    limit = f" (now {server.max_parallel})" if server.max_parallel else ""
    larger_limit = server.filled("a larger max_parallel under [endpoints.{tag}]") + limit
    lost_ns = length_ns(turns)
    yield Observation(
        severity="warning" if is_certain else "hint",
        seen=f"{len(waiting)} of {len(calls)} calls to '{model}' waited in this process for their "
        f"turn, up to {ns_text(max(turn.duration_ns for turn in turns))} "
        f"({observed.share(lost_ns)}), {queue}.",
        spans=span_ids(waiting),
        first_moves=(larger_limit,) if is_certain else (),
        lost_ns=lost_ns,
    )


def _places(observed: Observed) -> Observations:
    """Calls of nodes waited for one of the pipeline's places, or of their node's own."""
    waits = observed.place_waits
    if len(waits) < SEVERAL:
        return
    requests = [*observed.calls, *observed.recorded[events.Embed]]
    # If the nodes in the places call no model, only their code can be changed, and no server.
    calls_models = length_ns(common(waits.values(), requests)) > length_ns(waits.values()) / 2
    models = observed.by_model if calls_models else {}
    if any(_is_full(observed, model, calls) for model, calls in models.items()):
        return
    is_certain = all(reports_queue(observed, calls) for calls in models.values())
    places = f"the places of the pipeline (max_parallel={observed.max_parallel})"
    if node := observed.node_with_own_limit:
        places = f"the places of their node, '{node}', under its Concurrency(n)"
    gain_ns = lost_to_places_ns(observed.recorded[events.NodeAttempt], observed.journal.flows)
    longest_first = sorted(waits, key=lambda span: waits[span].duration_ns, reverse=True)
    doubt = "" if is_certain else ", and servers' queues are unknown"
    yield Observation(
        severity="warning" if is_certain else "hint",
        case="" if calls_models else "no models",
        seen=f"{len(waits)} calls of nodes waited for one of {places}, up to "
        f"{ns_text(waits[longest_first[0]].duration_ns)}. They held the run up for "
        f"{observed.share(gain_ns)}{doubt}.",
        spans=tuple(longest_first),
        first_moves=(observed.larger_limit,) if is_certain else (),
        lost_ns=gain_ns,
    )


def _is_full(observed: Observed, model: str, calls: Sequence[Call]) -> bool:
    """Whether more calls at once would only have waited in the server, or for this process."""
    if observed.is_process_slow or batching_helps(observed, calls) is False:
        return True
    if any(retry.model == model and retry.reason == "RateLimited" for retry in observed.retries):
        return True
    server = observed.server(model)
    if server.is_in_process and (
        server.max_parallel is None or server.places <= server.max_parallel
    ):
        return True
    kv_share = observed.highest(model, "KV cache") or 0.0
    if kv_share > FULL_KV or observed.highest(model, "waiting"):
        return True
    if not reports_queue(observed, calls) or server_had_places(observed, calls):
        return False
    queues = queues_in_server(observed, calls).values()
    return sum(queue.duration_ns >= LEAST_LOST_NS for queue in queues) >= SEVERAL


@rule(
    "client-lag",
    "A blocked event loop: code that computes, or waits without `await`, stops everything else in "
    "the process. Replies stay unread, and no call is sent.",
    "L6",
    "call what takes long with await asyncio.to_thread(…)",
    "if the node awaits nothing, define it with def, not async def: it runs in a thread then",
    "what keeps the interpreter's lock (an extension that computes) needs a process",
    cases={
        "core full": Remedy(
            "A Python process computes with one core, and this one's was full: the run made as "
            "many calls a second as it can.",
            "L6",
            "divide the rows over several processes, or run nodes on workers (--on ray)",
            "more calls at once gain nothing",
        )
    },
    explains=("client lag",),
)
def client_lag(observed: Observed) -> Observations:
    """The process stood still in one function, or because it computed all the time."""
    requests = [*observed.calls, *observed.recorded[events.Embed]]
    parallel_nodes = [time for time, depth in depths(_innermost_nodes(observed)) if depth > 1]
    every_lag = observed.recorded[events.ClientLag]
    costly_parts = parts_within(every_lag, [*requests, *parallel_nodes])
    lags = [lag for lag, parts in zip(every_lag, costly_parts, strict=True) if parts]
    lost_ns = length_ns(part for parts in costly_parts for part in parts)
    waiting = "calls to models" if common(lags, requests) else "other nodes"
    stops = [*_stops(observed, lags, lost_ns, waiting)]
    if not any(map(observed.is_costly, stops)):
        stops = [*_stops(observed, every_lag, length_ns(every_lag) - lost_ns)]
    yield from stops


def _stops(
    observed: Observed, lags: Sequence[events.ClientLag], lost_ns: int, waiting: str = ""
) -> Observations:
    """What these lags show; `waiting` is what they held up, if anything."""
    culprit = _lag_of_culprit(observed, lags) if lags else None
    if culprit is None and not (lags and waiting and observed.is_core_full):
        return  # If other programs took the cores, a remark of the diagnosis says so.
    longest_first = sorted(lags, key=lambda lag: lag.duration_ns, reverse=True)
    nodes = _nodes_during(observed, culprit) if culprit else []
    if not waiting and observed.with_answers & {node.id for node in nodes}:
        return  # It waited for a person.
    shorter = f" and {counted(len(lags) - 1, 'shorter time')}" if len(lags) > 1 else ""
    place = f": in '{culprit.function}' ({culprit.at})" if culprit else ", at no one place"
    running = f", while {quoted(node.node for node in nodes)} ran" if nodes else ""
    is_long = culprit is None or culprit.duration_ns >= LEAST_LOST_NS
    # Where nothing else could have gone on, a lag cost no more than its code takes.
    alone = " In a thread it takes as long, and other rows and requests go on meanwhile."
    yield Observation(
        # Many short lags are usual in a busy process.
        severity="warning" if waiting and is_long else "hint",
        case="" if culprit else "core full",
        seen="The event loop of this process stood still for "
        f"{ns_text(longest_first[0].duration_ns)}{shorter} while {waiting or 'none of its calls'} "
        f"were under way ({observed.share(lost_ns)}){place}{running}.{'' if waiting else alone}",
        spans=span_ids(longest_first),
        lost_ns=lost_ns,
    )


def _innermost_nodes(observed: Observed) -> list[Interval]:
    """Calls of nodes in which no other node was called."""
    callers = {span for node in observed.nodes for span in observed.around(node)}
    return [attempt for node, attempt in observed.nodes.items() if node not in callers]


def _lag_of_culprit(
    observed: Observed, lags: Sequence[events.ClientLag]
) -> events.ClientLag | None:
    """The longest lag in the function that caused most of the time in lags; None if none did."""
    # Function → time in its lags. A pause of the interpreter, such as garbage collection, has None.
    lag_ns: Counter[str | None] = Counter()
    for lag in lags:
        lag_ns[lag.function if lag.at else None] += lag.duration_ns
    function, most_ns = lag_ns.most_common(1)[0]
    if function is None or most_ns < MOSTLY * lag_ns.total():
        return None
    in_function = [lag for lag in lags if lag.function == function]
    longest = max(in_function, key=lambda lag: lag.duration_ns)
    # While other programs have the cores, one short lag may be in any function, by chance.
    is_single = len(in_function) == 1 and longest.duration_ns < LONGEST_STARVED_NS
    return None if observed.is_starved and is_single else longest


def _nodes_during(observed: Observed, lag: events.ClientLag) -> list[events.NodeAttempt]:
    # The ends of a lag are only as exact as the heartbeat that noticed it; its middle is in it.
    middle_ns = lag.start_ns + lag.duration_ns // 2
    nodes = observed.nodes.values()
    return [node for node in nodes if node.start_ns <= middle_ns <= node.end_ns]


@rule(
    "new-connections",
    "Connections are not kept: the server, or a proxy before it, closes each after its reply. A "
    "new one costs a round trip, with TLS two or three, and a look-up of the name.",
    "L5",
    "turn keep-alive on at the server or proxy, with a longer time than calls are apart",
    explains=("overhead",),
)
@per_model
def new_connections(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Calls that followed each other opened a connection each."""
    followers = [
        call
        for before, call in pairwise(calls)
        # After a longer pause, or with many calls at once, this process closes connections itself.
        if 0 <= call.start_ns - before.end_ns < LONGEST_GAP_NS
    ]
    connecting = [call for call in followers if call.connecting_ns is not None]
    lost_ns = sum(call.connecting_ns or 0 for call in connecting)
    count = len(connecting)
    is_rare = count < LEAST_SERIAL_CALLS or count <= MOSTLY * len(followers)
    if is_rare or observed.server(model).is_in_process:
        return
    yield Observation(
        severity="warning" if observed.matters(lost_ns) else "hint",
        whatever_it_cost=True,
        seen=f"{count} of {len(followers)} calls to '{model}' that followed another opened a new "
        f"connection, which took {ns_text(lost_ns / count)} each ({observed.share(lost_ns)}).",
        spans=span_ids(connecting),
        lost_ns=lost_ns,
    )


# A shorter reply may be a decision, which the prompts after it need not repeat.
_DECISION_CHARS = 24


@rule(
    "unused-dependency",
    "The node waited for the other's output, and nothing of it is in its prompts. Its code may use "
    "it otherwise.",
    "L6",
    "if it is not needed, take the parameter out: both then run at the same time",
    explains=("decode", "prefill"),
)
def unused_dependency(observed: Observed) -> Observations:
    """A node that waited for another one whose output it does not use."""
    succeeded = (call for call in observed.calls[:TEXTS_OF_CALLS] if call.status == "ok")
    calls = grouped(succeeded, by=lambda call: call.node_span)
    # Pairs of spans: a condition of `when=` needs no place in a prompt.
    flows = observed.journal.flows
    conditions = {(flow.source, flow.target) for flow in flows if flow.name == "condition"}
    for before, step in pairwise(observed.path.steps):
        nodes = observed.nodes
        sources = observed.sources.get(step.span, ())
        if before.span not in sources or (before.span, step.span) in conditions:
            continue
        replies = [observed.reply(call) or "" for call in calls.get(before.span, ())]
        prompts = [observed.prompt(call) or "" for call in calls.get(step.span, ())]
        # A mapped node uses the other's output by running once for each of its items.
        if nodes[step.span].item is not None or not _is_unquoted(replies, prompts):
            continue
        # Without this source, the node could have begun when the last of the others had ended.
        others_ns = (nodes[n].end_ns for n in sources if n in nodes and n != before.span)
        could_start_ns = max(others_ns, default=nodes[before.span].start_ns)
        lost_ns = min(nodes[step.span].start_ns - could_start_ns, step.duration_ns)
        yield Observation(
            severity="hint",
            seen=f"'{step.node}' waited for '{before.node}', and no prompt of it has anything "
            f"of what the models replied there. Side by side they would save at most "
            f"{observed.share(lost_ns)}.",
            spans=(before.span, step.span),
            lost_ns=lost_ns,
        )


def _is_unquoted(replies: Sequence[str], prompts: Sequence[str]) -> bool:
    """Whether the prompts certainly hold nothing of the replies; unknown texts are empty."""
    if not (replies and prompts and all(replies) and all(prompts)):
        return False
    # A decision may reach a prompt as one word of a reply.
    pieces = set().union(*map(pieces_of, replies))
    is_decision = max(map(len, replies)) < _DECISION_CHARS
    if is_decision or any(piece in prompt for piece in pieces for prompt in prompts):
        return False
    # Compared as calls in a row: first those that only reply, then those that only ask.
    no_prompts, no_replies = [""] * len(replies), [""] * len(prompts)
    return not any(needed_replies([*no_prompts, *prompts], [*replies, *no_replies]))


def _needed_calls(observed: Observed, calls: Sequence[Call]) -> list[set[int]]:
    """For each call, the positions of the earlier calls that it needs, or may need."""
    # The time that this takes grows with the square of the number of calls.
    around = [frozenset(observed.around(call.id)) for call in calls]
    upstream = [_upstream_of(observed, spans) for spans in around]
    prompts = [observed.prompt(call) or "" for call in calls]
    replies = [observed.reply(call) or "" for call in calls]
    quoted_calls = needed_replies(prompts, replies)
    return [
        {
            earlier
            for earlier in range(number)
            if not around[earlier].isdisjoint(upstream[number])
            or earlier in quoted_calls[number]
            or _may_need(observed, calls[earlier], call)
        }
        for number, call in enumerate(calls)
    ]


def _upstream_of(observed: Observed, spans: frozenset[int]) -> set[int]:
    """All spans upstream of `spans`, following flows backwards."""
    upstream: set[int] = set()
    unvisited = list(spans)
    while unvisited:
        for source in observed.sources.get(unvisited.pop(), ()):
            if source not in upstream:
                upstream.add(source)
                unvisited.append(source)
    return upstream


def _may_need(observed: Observed, earlier: Call, later: Call) -> bool:
    # A question is asked again because of its first answer.
    if later.prompt_sha256 is not None and later.prompt_sha256 == earlier.prompt_sha256:
        return True
    # Of calls by one function, only their texts could show that the later does not need the other.
    is_unread = observed.reply(earlier) is None or observed.prompt(later) is None
    return is_unread and observed.node_around(earlier.id) == observed.node_around(later.id)


@rule(
    "slow-code",
    "Work beside models: a computation, a file, a tool or a pause in the node itself.",
    "L6",
    "see where: with run.span(…) around its parts, or a profiler (py-spy)",
    "do it while models work: in a node of its own that others need not wait for",
    "make independent parts of it together: asyncio.gather, or a mapped node",
    cases={
        "tool": Remedy(
            "A tool that an agent's model asked for. For each of its calls the model also replies, "
            "unless it asks for several at once.",
            "L6",
            "make the tool faster, or let it take a list, so that one call does for several",
            "see where its time goes: with run.span(…) around its parts, or a profiler",
        )
    },
    explains=("code", "tool"),
    explained_by=("client-lag",),
)
def slow_code(observed: Observed) -> Observations:
    """A tool, or a node's own code, took much of the critical path."""
    shares = [share for share in observed.shares if share.kind in {"code", "tool"}]
    taken_ns = sum(share.duration_ns for share in shares)
    if sum(share.share for share in shares) < LARGE_SHARE:
        return
    tool = shares[0].most_of if shares[0].kind == "tool" else None
    if tool is not None:
        calls = [call for call in observed.recorded[events.ToolEvent] if call.tool == tool]
        spans = [call.id for call in sorted(calls, key=lambda call: -call.duration_ns)]
        subject = f"The tool '{tool}' took in {counted(len(spans), 'call')}"
    else:
        with_most = [s.most_of for s in shares if s.kind == "code" and s.most_of]
        nodes = with_most or [step.node for step in observed.path.steps]
        if not nodes:
            return
        verb = "took" if len(set(nodes)) == 1 else "took most of"
        subject = f"Code of '{nodes[0]}', with its waits, {verb}"
        spans = [step.span for step in observed.path.steps if step.node == nodes[0]]
    if spans and spans[0] in observed.with_answers:
        return  # It waited for a person.
    yield Observation(
        # Only the author of the code knows whether it is needed, and can be quicker.
        severity="hint",
        case="" if tool is None else "tool",
        seen=f"{subject} {observed.share(taken_ns)}: no model worked for it in that time.",
        spans=tuple(spans[:1]),
        lost_ns=taken_ns,
    )
