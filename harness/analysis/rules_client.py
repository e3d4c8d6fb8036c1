"""Rules about how the run itself made its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.analysis.facts import (
    LEAST_LOST_NS,
    TEXTS_OF_CALLS,
    Observed,
    busy_ns,
    per_model,
    queues_in_server,
    tells_of_queues,
    ttft,
)
from harness.analysis.finding import MOST_SPANS, Evidence, Expected, Found, counted, named, said_ns
from harness.analysis.rules_prompts import needed_replies
from harness.analysis.rules_waiting import FULL_KV, had_places
from harness.trace import events
from harness.trace.calls import Call
from harness.trace.intervals import common, depths, length_ns, parts_within
from harness.trace.records import Interval

LEAST_SERIAL_CALLS = 4
"""Calls that could have been made at once; two or three are often written one after another for
clarity, and little is lost."""

LARGE_SHARE = 0.4
"""Of the critical path: so much time is worth a finding whatever it went into."""

LONGEST_GAP_NS = 1_000_000_000
"""A call that comes later after the one before waited for something: a person, a tool."""

SAMPLE_LAG_NS = 1_200_000_000
"""A counter may be so much older than it looks: llama.cpp is asked every 1.1 s."""

LEAST_TURNS = 2
"""Calls that waited for their turn, or queued in the server; one alone may have met a moment."""

LEAST_IDLE_CALLS = 2
"""Calls that waited while nothing was at work."""

LEAST_AT_ONE_PLACE = 0.5
"""The share of the time that the process stood still which one function has to answer for, before
it is called the cause."""


def serial_client(observed: Observed) -> Found | None:
    """Calls that do not need each other went one after another, none beside another.

    What must wait, may: nodes for the nodes before them, a revise loop's rounds for each other,
    prompts for the replies they hold.
    """
    alone = _alone(observed.calls)
    first = alone[:TEXTS_OF_CALLS]
    if len(first) < LEAST_SERIAL_CALLS:
        return None
    # When each could have ended, had it begun as soon as those it needs had; and its place in the
    # longest row of calls that it needs.
    ends_ns: list[int] = []
    ranks: list[int] = []
    for call, needed in zip(first, _needed_or_paused(observed, first), strict=True):
        ends_ns.append(busy_ns(call) + max((ends_ns[n] for n in needed), default=0))
        ranks.append(1 + max((ranks[n] for n in needed), default=0))
    (rank, at_once), *_ = Counter(ranks).most_common()
    independent = [call for call, its in zip(first, ranks, strict=True) if its == rank]
    server = observed.server(independent[0].model)
    in_process = server.is_in_process
    # The first calls, whose texts are known, stand for all.
    in_turn_ns = max(1, sum(map(busy_ns, first)))
    at_best_ns = max(*ends_ns, in_turn_ns / server.places if in_process else 0)
    lost_ns = round((1 - at_best_ns / in_turn_ns) * sum(map(busy_ns, alone)))
    if at_once < LEAST_SERIAL_CALLS or not observed.matters(lost_ns):
        return None
    nodes = named(call.node for call in independent if call.node)
    kept_apart = any(observed.parents.get(one.id) in observed.place_waits for one in independent)
    return Found(
        case="in process" if in_process else "",
        severity="hint" if in_process else "warning",
        model=server.model,
        seen=f"{len(alone)} calls ran one after another, and {at_once} of "
        + ("them" if first == alone else f"the first {len(first)}")
        + (f" in {nodes}" if nodes else "")
        + " do not depend on each other."
        + (
            ""
            if in_process
            else f" Run at once, they could have saved up to {observed.said(lost_ns)}."
        ),
        first=(observed.more_places,) if kept_apart and observed.more_places else (),
        evidence=Evidence.of(independent, serial_calls=len(alone), independent_calls=at_once),
        expected=None if in_process else _shorter(observed, lost_ns),
        lost_ns=None if in_process else lost_ns,
    )


def _shorter(observed: Observed, gain_ns: float) -> Expected:
    run_s = observed.run.duration_ns / 1e9
    return Expected("the run", run_s, run_s - gain_ns / 1e9, "s")


def _needed_or_paused(observed: Observed, calls: Sequence[Call]) -> Iterator[set[int]]:
    """Which calls each needs; after a pause, those before it as well."""
    last_before_pause: set[int] = set()
    for number, needed in enumerate(needed_calls(observed, calls)):
        if number and calls[number].start_ns - calls[number - 1].end_ns > LONGEST_GAP_NS:
            last_before_pause = {number - 1}
        yield needed | last_before_pause


def _alone(calls: Sequence[Call]) -> list[Call]:
    alone: list[Call] = []
    end_ns = 0
    for call in calls:
        if alone and call.start_ns < alone[-1].end_ns:
            alone.pop()
        elif call.status == "ok" and call.start_ns >= end_ns:
            alone.append(call)
        end_ns = max(end_ns, call.end_ns)
    return alone


@per_model
def max_concurrency(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Calls waited for their turn under the endpoint's own limit, and its server was not full."""
    turns = [turn for call in calls for turn in call.turns]
    waited = [call for call in calls if length_ns(call.turns) >= LEAST_LOST_NS]
    lost_ns = length_ns(turns)
    if (
        len(waited) < LEAST_TURNS
        or not observed.matters(lost_ns)
        or _is_full(observed, model, calls)
        or any(pause.model == model and pause.reason == "RateLimited" for pause in observed.retries)
    ):
        return None
    server = observed.server(model)
    certain = tells_of_queues(observed, calls) or server.is_in_process
    limit = server.max_parallel
    longest_ns = max(turn.duration_ns for turn in turns)
    at_once = max(depth for _, depth in depths(calls))
    now = "" if limit is None else f" (now {limit})"
    return Found(
        severity="warning" if certain else "hint",
        seen=f"{len(waited)} of {len(calls)} calls to '{model}' waited in this process for their "
        f"turn, up to {said_ns(longest_ns)} ({observed.said(lost_ns)}), "
        + (
            "while none waited for a place in its server."
            if certain
            else "and its server does not report whether it was full."
        ),
        evidence=Evidence.of(
            waited,
            waiting_calls=len(waited),
            longest_wait_s=longest_ns / 1e9,
            **({} if limit is None else {"max_parallel": limit}),
        ),
        first=(
            f"max_parallel = {at_once} under [endpoints.{model}]{now}, if so many are answered",
        ),
        expected=Expected("longest wait for a turn", longest_ns / 1e9, 0.0, "s"),
        lost_ns=lost_ns,
    )


def _is_full(observed: Observed, model: str, calls: Sequence[Call]) -> bool:
    """Whether more calls at once would only have waited elsewhere."""
    kv = observed.highest(model, "KV cache") or 0.0
    queues = queues_in_server(observed, calls).values() if tells_of_queues(observed, calls) else ()
    queued = [queue for queue in queues if queue.duration_ns >= LEAST_LOST_NS]
    server = observed.server(model)
    return (
        bool(observed.highest(model, "waiting"))
        or kv > FULL_KV
        or (len(queued) >= LEAST_TURNS and not had_places(observed, calls))
        or (server.is_in_process and server.places <= (server.max_parallel or server.places))
    )


def client_lag(observed: Observed) -> Found | None:
    """The process stood still, while calls were under way or other nodes could have gone on."""
    at_work = [*observed.calls, *observed.seen[events.Embed]]
    side_by_side = [stretch for stretch, depth in depths(_innermost(observed)) if depth > 1]
    held_up = parts_within(observed.seen[events.ClientLag], [*at_work, *side_by_side])
    lags = [
        lag for lag, parts in zip(observed.seen[events.ClientLag], held_up, strict=True) if parts
    ]
    lost_ns = length_ns(part for parts in held_up for part in parts)
    if not observed.matters(lost_ns):
        return None
    longest_first = sorted(lags, key=lambda lag: lag.duration_ns, reverse=True)
    longest_ns = longest_first[0].duration_ns
    place = _place_of_most(longest_first)
    unreliable = [call for call in observed.calls if call.has_unreliable_latency]
    return Found(
        # Many short ones are what a busy process looks like.
        severity="warning" if place and place.duration_ns >= LEAST_LOST_NS else "hint",
        case="no one place" if place is None else "",
        seen=f"The event loop of this process stood still for {said_ns(longest_ns)}"
        + (f" and {counted(len(lags) - 1, 'shorter time')}" if len(lags) > 1 else "")
        + (" while calls to models were" if common(lags, at_work) else " while other nodes were")
        + f" under way ({observed.said(lost_ns)})"
        + (", at no one place." if place is None else f": {_said_place(observed, place)}.")
        + (
            f" Latencies of {counted(len(unreliable), 'call')} are unreliable for that."
            if unreliable
            else ""
        ),
        evidence=Evidence.of(
            longest_first,
            lags=len(lags),
            longest_lag_s=longest_ns / 1e9,
            unreliable_calls=len(unreliable),
        ),
        lost_ns=lost_ns,
    )


def _innermost(observed: Observed) -> list[Interval]:
    """Calls of nodes in which no other node was called."""
    around = {span for node in observed.nodes for span in _around(observed, node)}
    return [one for node, one in observed.nodes.items() if node not in around]


def _place_of_most(lags: Sequence[events.ClientLag]) -> events.ClientLag | None:
    """The longest lag in the function that answers for most of the time; None without such one."""
    by_function: Counter[str | None] = Counter()
    for lag in lags:
        by_function[lag.function] += lag.duration_ns
    function, most_ns = by_function.most_common(1)[0]
    if function is None or most_ns < LEAST_AT_ONE_PLACE * by_function.total():
        return None
    return next(lag for lag in lags if lag.function == function)


def _said_place(observed: Observed, lag: events.ClientLag) -> str:
    middle_ns = lag.start_ns + lag.duration_ns // 2
    during = [
        one.node for one in observed.nodes.values() if one.start_ns <= middle_ns <= one.end_ns
    ]
    if blocked := [name for name in during if name.split("/")[-1] == lag.function]:
        return f"in node {named(blocked)} ({lag.at})"
    return f"in '{lag.function}' ({lag.at})" + (f", while {named(during)} ran" if during else "")


def max_parallel(observed: Observed) -> Found | None:
    """Calls of nodes waited for one of the pipeline's places, and the run with them."""
    waits = observed.place_waits
    if len(waits) < LEAST_TURNS:
        return None
    gain_ns = observed.lost_to_places_ns
    if not observed.matters(gain_ns):
        return None
    at_work = [*observed.calls, *observed.seen[events.Embed]]
    calls_models = length_ns(common(waits.values(), at_work)) > length_ns(waits.values()) / 2
    models = observed.by_model() if calls_models else {}
    if any(_is_full(observed, model, calls) for model, calls in models.items()):
        return None  # They would wait in the server.
    certain = all(tells_of_queues(observed, calls) for calls in models.values())
    places, most = observed.max_parallel or 1, max(depth for _, depth in depths(waits.values()))
    longest_first = sorted(waits, key=lambda span: waits[span].duration_ns, reverse=True)
    return Found(
        severity="warning" if certain else "hint",
        case="" if calls_models else "no models",
        seen=f"{len(waits)} calls of nodes waited for one of the pipeline's {places} places, up to "
        f"{said_ns(waits[longest_first[0]].duration_ns)}. With a place for each, the run could "
        f"have taken {observed.said(gain_ns)} less"
        + (
            "."
            if certain
            else ", if the servers, which do not report queues, can answer that many calls at once."
        ),
        evidence=Evidence(
            spans=tuple(longest_first[:MOST_SPANS]),
            figures={"waiting_node_calls": len(waits), "max_parallel": places},
        ),
        first=(f"max_parallel={places + most} in Pipeline(…), or None for no limit",),
        expected=_shorter(observed, gain_ns),
        lost_ns=gain_ns,
    )


def idle_device(observed: Observed) -> Found | None:
    """Calls were under way to a server that said it had none."""
    for model, calls in observed.by_model().items():
        if observed.server(model).is_in_process:
            continue  # nothing is in between, and while another model loads it cannot be sampled
        idle = common(
            observed.while_counter(model, "running", lambda running: running == 0),
            observed.while_counter(model, "waiting", lambda waiting: waiting == 0),
        )
        certain = [Interval(start_ns=i.start_ns, end_ns=i.end_ns - SAMPLE_LAG_NS) for i in idle]
        sent = [(call, one) for call in calls if (one := ttft(call))]
        waits = parts_within((one for _, one in sent), certain)
        waiting = [call for (call, _), parts in zip(sent, waits, strict=True) if parts]
        lost_ns = length_ns(part for parts in waits for part in parts)
        if len(waiting) >= LEAST_IDLE_CALLS and observed.matters(lost_ns):
            return Found(
                severity="hint",
                model=model,
                seen=f"{len(waiting)} calls to '{model}' were under way while its server reported "
                f"none running and none waiting ({observed.said(lost_ns)}).",
                evidence=Evidence.of(waiting, waiting_calls=len(waiting)),
                lost_ns=lost_ns,
            )
    return None


def needed_calls(observed: Observed, calls: Sequence[Call]) -> list[set[int]]:
    """For each call, the positions of those before it that it needs, or may for all we know.

    `calls` stand in the order they began. Takes time in proportion to their number squared.
    """
    around = [frozenset(_around(observed, call.id)) for call in calls]
    waited_for = [_waited_for(observed, spans) for spans in around]
    quoted = _quoted(observed, calls)
    return [
        {
            earlier
            for earlier in range(number)
            if not around[earlier].isdisjoint(waited_for[number])
            or earlier in quoted[number]
            or _same_function_unread(observed, calls[earlier], call)
            or _same_prompt(calls[earlier], call)
        }
        for number, call in enumerate(calls)
    ]


def _around(observed: Observed, inside: int) -> Iterator[int]:
    span = observed.parents.get(inside)
    while span is not None:
        yield span
        span = observed.parents.get(span)


def _waited_for(observed: Observed, spans: frozenset[int]) -> set[int]:
    """The spans that arrows lead from to these, directly or by way of others."""
    found: set[int] = set()
    open_ends = list(spans)
    while open_ends:
        for source in observed.sources.get(open_ends.pop(), ()):
            if source not in found:
                found.add(source)
                open_ends.append(source)
    return found


def _quoted(observed: Observed, calls: Sequence[Call]) -> list[set[int]]:
    prompts = [observed.prompt(call) or "" for call in calls]
    replies = [observed.reply(call) or "" for call in calls]
    return needed_replies(prompts, replies)


def _same_function_unread(observed: Observed, earlier: Call, later: Call) -> bool:
    """Two calls by one function, whose texts are not known: they may depend on each other."""
    return observed.parents.get(earlier.id) == observed.parents.get(later.id) and (
        observed.reply(earlier) is None or observed.prompt(later) is None
    )


def _same_prompt(earlier: Call, later: Call) -> bool:
    """The same question again is asked because of what the first answer was."""
    return later.prompt_sha256 is not None and later.prompt_sha256 == earlier.prompt_sha256


def slow_code(observed: Observed) -> Found | None:
    """A node's own code, or what it waited for beside models, took much of the critical path.

    A hint: only its author knows whether it has to be there, and can be quicker.
    """
    functions = Counter(lag.function for lag in observed.seen[events.ClientLag] if lag.function)
    kinds = {"code", "client lag"} if functions else {"code"}
    taken = [one for one in observed.shares if one.kind in kinds]
    taken_ns = sum(one.duration_ns for one in taken)
    if sum(one.share for one in taken) < LARGE_SHARE or not observed.matters(taken_ns):
        return None
    names = [one.node for one in taken if one.node] or [step.node for step in observed.path.steps]
    if not names:
        return None
    spans = [step.span for step in observed.path.steps if step.node in names[:1]]
    where = "".join(f", in the function '{name}'" for name, _ in functions.most_common(1))
    return Found(
        severity="hint",
        seen=f"Nodes' own code, with its waits, took {observed.said(taken_ns)}, most of it in "
        f"{named(names[:1])}{where}: no model worked for it in that time.",
        evidence=Evidence(spans=tuple(spans[:1]), figures={"code_s": taken_ns / 1e9}),
        lost_ns=taken_ns,
    )
