"""Rules about how the run itself made its calls."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.analysis.facts import (
    LEAST_LOST_NS,
    MOSTLY,
    SEVERAL,
    TEXTS_OF_CALLS,
    Observed,
    busy_ns,
    gains_by_company,
    per_model,
    queues_in_server,
    tells_of_queues,
)
from harness.analysis.finding import Observation, counted, ids, named, said_ns
from harness.analysis.rules import Remedy, rule
from harness.analysis.rules_prompts import needed_replies, pieces_of
from harness.analysis.rules_waiting import FULL_KV, had_places
from harness.analysis.time_budget import lost_to_places_ns
from harness.trace import events
from harness.trace.calls import Call
from harness.trace.intervals import common, depths, length_ns, most_at_once, parts_within
from harness.trace.records import Interval

# Calls that could have been made at once; two or three are often written one after another for
# clarity, and little is lost.
LEAST_SERIAL_CALLS = 4

# This share of the critical path is worth a finding, whatever the time went into.
LARGE_SHARE = 0.4

# The scheduler lets a process wait less, however many want the cores.
LONGEST_STARVED_NS = 1_000_000_000

# A call that comes later after the one before waited for something: a person, a tool.
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
            ("let more through; to bound calls, use max_parallel under [endpoints.{tag}]",),
        ),
    },
    explains=("decode", "prefill", "overhead"),
)
def serial_client(observed: Observed) -> Observation | None:
    """Calls that do not need each other went one after another, none beside another."""
    alone = _alone(observed.calls)
    first = alone[:TEXTS_OF_CALLS]
    # At an account's limit, more calls at once would only be refused.
    if len(first) < LEAST_SERIAL_CALLS or "RateLimited" in {r.reason for r in observed.retries}:
        return None
    independent, shortest_ns = _independent(observed, first)
    if len(independent) < LEAST_SERIAL_CALLS:
        return None
    server = observed.server(independent[0].model)
    # The first calls, whose texts are known, stand for all.
    in_turn_ns = max(1, sum(map(busy_ns, first)))
    lost_ns = round((1 - shortest_ns / in_turn_ns) * sum(map(busy_ns, alone)))
    # An engine in this process shares its cores among calls: several at once may be no faster.
    if server.is_in_process or not observed.matters(lost_ns):
        return None
    nodes = named(call.node for call in independent if call.node)
    items = {call.node_span or 0 for call in independent} & observed.nodes.keys()
    # Items that ran together, with calls one after another, are held back by code of their own.
    is_held = most_at_once(observed.nodes[item] for item in items) >= LEAST_SERIAL_CALLS
    functions = {observed.parents.get(call.id) for call in independent}
    waited_for_places = functions & observed.place_waits.keys()
    if waited_for_places and _places(observed):
        return None  # `max-parallel` tells of it.
    more_places = observed.more_places if waited_for_places else ""
    # Whether calls of one function need each other shows only in texts, and code may use no text.
    is_certain = len(functions) == len(independent)
    return Observation(
        severity="warning" if is_certain else "hint",
        case="held" if is_held or more_places else "",
        model=server.model,
        seen=f"{len(alone)} calls ran one after another, and {len(independent)} of "
        + ("them" if first == alone else f"the first {len(first)}")
        + (f" in {nodes}" if nodes else "")
        + (
            " do not depend on each other. They"
            if is_certain
            else " quote no more than a few words of each other's replies. Unless their code needs "
            "one reply for the next call, they"
        )
        + f" could have run at once and saved up to {observed.said(lost_ns)}, if the server has "
        "places for them.",
        first=(more_places,) if more_places else (),
        spans=ids(independent),
        lost_ns=lost_ns,
    )


def _independent(observed: Observed, calls: Sequence[Call]) -> tuple[list[Call], int]:
    """Calls that could have run at once, and how long all would have taken then."""
    # When each could have ended, had it begun as soon as those it needs had, and how many calls one
    # after another it needs at most.
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


def _alone(calls: Sequence[Call]) -> list[Call]:
    alone: list[Call] = []
    end_ns = 0
    for call in calls:
        # It began beside the last: neither was alone.
        if alone and call.start_ns < alone[-1].end_ns:
            alone.pop()
        elif call.status == "ok" and call.start_ns >= end_ns:
            alone.append(call)
        end_ns = max(end_ns, call.end_ns)
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
            ("make them faster, or do such work for several items in one call of a node",),
        ),
    },
    explains=("place", "turn"),
    explained_by=("client-lag",),
)
def max_parallel(observed: Observed) -> Observation | None:
    """Calls waited for a turn at an endpoint, or calls of nodes for a place, under a limit."""
    waits = [wait for wait in (_turns(observed), _places(observed)) if wait is not None]
    return max(waits, key=lambda wait: wait.lost_ns or 0, default=None)


@per_model
def _turns(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Calls waited for their turn under the endpoint's own limit, and its server was not full."""
    turns = [turn for call in calls for turn in call.turns]
    waited = [call for call in calls if length_ns(call.turns) >= LEAST_LOST_NS]
    lost_ns = length_ns(turns)
    if len(waited) < SEVERAL or not observed.matters(lost_ns) or _is_full(observed, model, calls):
        return None
    server = observed.server(model)
    certain = tells_of_queues(observed, calls) or server.is_in_process
    limit, deepest = server.max_parallel, most_at_once(calls)
    at_most = "" if limit is None else f" (max_parallel = {limit})"
    # Twice the limit at most: how a server takes more is seen step by step.
    enough = min(deepest, 2 * (limit or deepest))
    longest_ns = max(turn.duration_ns for turn in turns)
    return Observation(
        severity="warning" if certain else "hint",
        seen=f"{len(waited)} of {len(calls)} calls to '{model}' waited in this process for their "
        f"turn{at_most}, up to {said_ns(longest_ns)} ({observed.said(lost_ns)}), "
        + ("while none waited in its server." if certain else "and the server's queue is unknown."),
        spans=ids(waited),
        first=(f"max_parallel = {enough} under [endpoints.{model}]",) if certain else (),
        lost_ns=lost_ns,
    )


def _places(observed: Observed) -> Observation | None:
    """Calls of nodes waited for one of the pipeline's places, or of their node's own."""
    waits = observed.place_waits
    gain_ns = lost_to_places_ns(observed.seen[events.NodeAttempt], observed.journal.flows)
    if len(waits) < SEVERAL or not observed.matters(gain_ns):
        return None
    at_work = [*observed.calls, *observed.seen[events.Embed]]
    # Places that nodes without models hold are a matter of their code, and of no server.
    calls_models = length_ns(common(waits.values(), at_work)) > length_ns(waits.values()) / 2
    models = observed.by_model if calls_models else {}
    if any(_is_full(observed, model, calls) for model, calls in models.items()):
        return None  # They would wait in the server, or for this process.
    certain = all(tells_of_queues(observed, calls) for calls in models.values())
    places = f"the places of the pipeline (max_parallel={observed.max_parallel})"
    if of_node := observed.node_of_places:
        places = f"the places of their node, '{of_node}', under its Concurrency(n)"
    longest_first = sorted(waits, key=lambda span: waits[span].duration_ns, reverse=True)
    return Observation(
        severity="warning" if certain else "hint",
        case="" if calls_models else "no models",
        seen=f"{len(waits)} calls of nodes waited for one of {places}, up to "
        f"{said_ns(waits[longest_first[0]].duration_ns)}. They held the run up for "
        f"{observed.said(gain_ns)}" + ("." if certain else ", and servers' queues are unknown."),
        spans=tuple(longest_first),
        first=(observed.more_places,) if certain else (),
        lost_ns=gain_ns,
    )


def _is_full(observed: Observed, model: str, calls: Sequence[Call]) -> bool:
    """Whether more calls at once would only have waited elsewhere."""
    kv = observed.highest(model, "KV cache") or 0.0
    queues = queues_in_server(observed, calls).values() if tells_of_queues(observed, calls) else ()
    queued = [queue for queue in queues if queue.duration_ns >= LEAST_LOST_NS]
    server = observed.server(model)
    return (
        observed.is_late
        or gains_by_company(observed, calls) is False
        or any(pause.model == model and pause.reason == "RateLimited" for pause in observed.retries)
        or bool(observed.highest(model, "waiting"))
        or kv > FULL_KV
        or (len(queued) >= SEVERAL and not had_places(observed, calls))
        or (server.is_in_process and server.places <= (server.max_parallel or server.places))
    )


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
            (
                "divide the rows over several processes, or run nodes on workers (--on ray)",
                "more calls at once gain nothing",
            ),
        ),
    },
    explains=("client lag",),
)
def client_lag(observed: Observed) -> Observation | None:
    """The process stood still, while calls were under way or other nodes could have gone on."""
    at_work = [*observed.calls, *observed.seen[events.Embed]]
    side_by_side = [stretch for stretch, depth in depths(_innermost(observed)) if depth > 1]
    # A lag in which nothing else could have gone on cost nothing.
    every_lag = observed.seen[events.ClientLag]
    held_up = parts_within(every_lag, [*at_work, *side_by_side])
    lags = [lag for lag, parts in zip(every_lag, held_up, strict=True) if parts]
    lost_ns = length_ns(part for parts in held_up for part in parts)
    if not observed.matters(lost_ns):
        return None
    longest_first = sorted(lags, key=lambda lag: lag.duration_ns, reverse=True)
    longest_ns = longest_first[0].duration_ns
    place = _place_of_most(observed, longest_first)
    if place is None and not observed.is_core_full:
        return None  # A remark tells of other programs.
    return Observation(
        # Many short ones are what a busy process looks like.
        severity="warning" if place is None or place.duration_ns >= LEAST_LOST_NS else "hint",
        case="" if place else "core full",
        seen=f"The event loop of this process stood still for {said_ns(longest_ns)}"
        + (f" and {counted(len(lags) - 1, 'shorter time')}" if len(lags) > 1 else "")
        + (" while calls to models were" if common(lags, at_work) else " while other nodes were")
        + f" under way ({observed.said(lost_ns)})"
        + (f": {_said_place(observed, place)}." if place else ", at no one place."),
        spans=ids(longest_first),
        lost_ns=lost_ns,
    )


def _innermost(observed: Observed) -> list[Interval]:
    """Calls of nodes in which no other node was called."""
    around = {span for node in observed.nodes for span in _around(observed, node)}
    return [attempt for node, attempt in observed.nodes.items() if node not in around]


def _place_of_most(observed: Observed, lags: Sequence[events.ClientLag]) -> events.ClientLag | None:
    """The longest lag in the function that answers for most of the time; None without such one."""
    by_function: Counter[str | None] = Counter()
    for lag in lags:
        # A pause of the interpreter, such as a collection of garbage, is at no line of anyone's.
        by_function[lag.function if lag.at else None] += lag.duration_ns
    function, most_ns = by_function.most_common(1)[0]
    if function is None or most_ns < MOSTLY * by_function.total():
        return None
    longest, *shorter = [lag for lag in lags if lag.function == function]
    # Where other programs have the cores, the process may stand still anywhere: one short lag in a
    # function tells nothing of it.
    is_chance = observed.is_starved and not shorter and longest.duration_ns < LONGEST_STARVED_NS
    return None if is_chance else longest


def _nodes_during(observed: Observed, lag: events.ClientLag) -> list[events.NodeAttempt]:
    # Its ends are known to a heartbeat only.
    middle_ns = lag.start_ns + lag.duration_ns // 2
    nodes = observed.nodes.values()
    return [node for node in nodes if node.start_ns <= middle_ns <= node.end_ns]


def _said_place(observed: Observed, lag: events.ClientLag) -> str:
    during = [node.node for node in _nodes_during(observed, lag)]
    if blocked := [name for name in during if name.split("/")[-1] == lag.function]:
        return f"in node {named(blocked)} ({lag.at})"
    return f"in '{lag.function}' ({lag.at})" + (f", while {named(during)} ran" if during else "")


@rule(
    "new-connections",
    "Connections are not kept: the server, or a proxy before it, closes each after its reply. A "
    "new one costs a round trip, with TLS two or three, and a look-up of the name.",
    "L5",
    "turn keep-alive on at the server or proxy, with a longer time than calls are apart",
    explains=("overhead",),
)
@per_model
def new_connections(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Calls that followed each other opened a connection each."""
    # After a longer pause, and with many at once, this process closes connections itself.
    after = [b for a, b in pairwise(calls) if 0 <= b.start_ns - a.end_ns < LONGEST_GAP_NS]
    new = [call for call in after if call.connecting_ns is not None]
    lost_ns = sum(call.connecting_ns or 0 for call in new)
    is_few = len(new) < LEAST_SERIAL_CALLS or len(new) <= MOSTLY * len(after)
    if is_few or observed.server(model).is_in_process:
        return None
    return Observation(
        severity="warning" if observed.matters(lost_ns) else "hint",
        seen=f"{len(new)} of {len(after)} calls to '{model}' that followed another opened a new "
        f"connection, which took {said_ns(lost_ns / len(new))} each ({observed.said(lost_ns)}).",
        spans=ids(new),
        lost_ns=lost_ns,
    )


# A shorter reply may well be a decision: what follows it need not repeat it.
_CONDITION_CHARS = 24


@rule(
    "unused-dependency",
    "The node waited for the other's output, and nothing of it is in its prompts. Its code may use "
    "it otherwise.",
    "L6",
    "if it is not needed, take the parameter out: both then run at the same time",
    cases={
        "beyond the result": Remedy(
            "The result does not need these nodes: they are there for what else they do.",
            "L6",
            (
                "leave them out if nobody reads what they do, or run them on their own afterwards",
                "make them shorter: a lower max_output_tokens",
            ),
        )
    },
    explains=("decode", "prefill"),
)
def unused_dependency(observed: Observed) -> Observation | None:
    """A node that waited for one whose output it does not use, or that the result does not use."""
    return _beyond_result(observed) or _unquoted(observed)


def _beyond_result(observed: Observed) -> Observation | None:
    """Nodes that ran on when the result was there, and that it does not need."""
    # Only of a pipeline that names its result: else the last node is the result.
    results = {pipeline.result for pipeline in observed.seen[events.PipelineEvent]} - {None}
    outermost = [node for node in observed.nodes.values() if "/" not in node.node]
    ready_ns = max((node.end_ns for node in outermost if node.node in results), default=None)
    later = [node for node in outermost if ready_ns is not None and node.end_ns > ready_ns]
    if ready_ns is None or not later:
        return None
    lost_ns = max(node.end_ns for node in later) - ready_ns
    if not observed.matters(lost_ns):
        return None
    return Observation(
        severity="hint",
        case="beyond the result",
        seen=f"The result, {named(map(str, results))}, was there "
        f"{said_ns(ready_ns - observed.run.start_ns)} into the run, which went on for "
        f"{observed.said(lost_ns)} with {named(node.node for node in later)}.",
        spans=ids(later),
        lost_ns=lost_ns,
    )


def _unquoted(observed: Observed) -> Observation | None:
    """A node on the critical path whose prompts quote nothing of the node that it waited for."""
    calls: dict[int, list[Call]] = {}
    for call in observed.calls[:TEXTS_OF_CALLS]:
        if call.node_span is not None and call.status == "ok":
            calls.setdefault(call.node_span, []).append(call)
    # What a `when=` was given has done its work without a place in a prompt.
    flows = observed.journal.flows
    decided = {(flow.source, flow.target) for flow in flows if flow.name == "condition"}
    worst: Observation | None = None
    for before, step in pairwise(observed.path.steps):
        sources = observed.sources.get(step.span, ())
        is_edge = before.span in sources and (before.span, step.span) not in decided
        replies = [observed.reply(call) or "" for call in calls.get(before.span, ())]
        prompts = [observed.prompt(call) or "" for call in calls.get(step.span, ())]
        if not (is_edge and replies and prompts and all(replies) and all(prompts)):
            continue
        # As calls in a row: the one node's, which only reply, then the other's, which only ask.
        uses = needed_replies(
            [*([""] * len(replies)), *prompts], [*replies, *([""] * len(prompts))]
        )
        # A decision may reach a prompt as one word of a reply.
        pieces = set().union(*map(pieces_of, replies))
        quotes = any(piece in prompt for piece in pieces for prompt in prompts)
        is_item = observed.nodes[step.span].item is not None
        if any(uses) or quotes or is_item or max(map(len, replies)) < _CONDITION_CHARS:
            continue
        others_ns = [observed.nodes[n].end_ns for n in sources if n in observed.nodes]
        # Without this source, it could have begun when the last of the others had ended.
        others_ns.remove(observed.nodes[before.span].end_ns)
        could_ns = max(others_ns, default=observed.nodes[before.span].start_ns)
        lost_ns = min(observed.nodes[step.span].start_ns - could_ns, step.duration_ns)
        if observed.matters(lost_ns) and (worst is None or lost_ns > (worst.lost_ns or 0)):
            worst = Observation(
                severity="hint",
                seen=f"'{step.node}' waited for '{before.node}', and no prompt of it has anything "
                f"of what the models replied there. Side by side they would save at most "
                f"{observed.said(lost_ns)}.",
                spans=(before.span, step.span),
                lost_ns=lost_ns,
            )
    return worst


def _needed_calls(observed: Observed, calls: Sequence[Call]) -> list[set[int]]:
    """For each call, the positions of those before it that it needs, or may for all we know."""
    # Its time grows with the square of the number of calls.
    around = [frozenset(_around(observed, call.id)) for call in calls]
    upstream = [_upstream_of(observed, spans) for spans in around]
    prompts = [observed.prompt(call) or "" for call in calls]
    replies = [observed.reply(call) or "" for call in calls]
    quoted = needed_replies(prompts, replies)
    return [
        {
            earlier
            for earlier in range(number)
            if not around[earlier].isdisjoint(upstream[number])
            or earlier in quoted[number]
            or _may_need(observed, calls[earlier], call)
        }
        for number, call in enumerate(calls)
    ]


def _around(observed: Observed, inside: int) -> Iterator[int]:
    """The spans around the span `inside`, the innermost first."""
    span = observed.parents.get(inside)
    while span is not None:
        yield span
        span = observed.parents.get(span)


def _upstream_of(observed: Observed, spans: frozenset[int]) -> set[int]:
    """All spans upstream of `spans`, following flows backwards."""
    sources: set[int] = set()
    open_ends = list(spans)
    while open_ends:
        for source in observed.sources.get(open_ends.pop(), ()):
            if source not in sources:
                sources.add(source)
                open_ends.append(source)
    return sources


def _may_need(observed: Observed, earlier: Call, later: Call) -> bool:
    # The same question again is asked because of what the first answer was.
    if later.prompt_sha256 is not None and later.prompt_sha256 == earlier.prompt_sha256:
        return True
    # Texts of one function's calls are all that could rule it out.
    is_unread = observed.reply(earlier) is None or observed.prompt(later) is None
    return is_unread and observed.parents.get(earlier.id) == observed.parents.get(later.id)


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
            (
                "make the tool faster, or let it take a list, so that one call does for several",
                "see where its time goes: with run.span(…) around its parts, or a profiler",
            ),
        )
    },
    explains=("code", "tool", "client lag"),
    explained_by=("client-lag",),
)
def slow_code(observed: Observed) -> Observation | None:
    """A tool, or a node's own code, took much of the critical path."""
    lags = observed.seen[events.ClientLag]
    blocked = _place_of_most(observed, lags) if lags else None
    kinds = {"code", "tool", "client lag"} if blocked else {"code", "tool"}
    shares = [share for share in observed.shares if share.kind in kinds]
    taken_ns = sum(share.duration_ns for share in shares)
    if sum(share.share for share in shares) < LARGE_SHARE or not observed.matters(taken_ns):
        return None
    # Whose code: where the loop stood still, else what took most of the path, else its steps.
    names = (
        (blocked and [node.caption for node in _nodes_during(observed, blocked)])
        or [part.most_of for part in shares if part.kind == "code" and part.most_of]
        or [step.node for step in observed.path.steps]
    )
    case = ""
    if shares[0].kind == "tool" and (tool := shares[0].most_of):
        calls = [call for call in observed.seen[events.ToolEvent] if call.tool == tool]
        spans = [call.id for call in sorted(calls, key=lambda call: -call.duration_ns)]
        case, what = "tool", f"The tool '{tool}' took in {counted(len(spans), 'call')}"
    elif names:
        where = f", in the function '{blocked.function}'" if blocked else ""
        verb = "took" if len(set(names)) == 1 else "took most of"
        what = f"Code of {named(names[:1])}{where}, with its waits, {verb}"
        spans = [step.span for step in observed.path.steps if step.node in names[:1]]
    else:
        return None
    answered = (answer.span or 0 for answer in observed.seen[events.AnswerEvent])
    if any(spans[:1] == [node] for span in answered for node in (span, *_around(observed, span))):
        return None  # It waited for a person.
    return Observation(
        severity="hint",  # only its author knows whether it has to be there, and can be quicker
        case=case,
        seen=f"{what} {observed.said(taken_ns)}: no model worked for it in that time.",
        spans=tuple(spans[:1]),
        lost_ns=taken_ns,
    )
