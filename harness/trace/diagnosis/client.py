"""Rules about how the run itself made its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.trace.calls import Call, Interval
from harness.trace.diagnosis.dependence import needed_calls
from harness.trace.diagnosis.finding import MOST_SPANS, Evidence, Finding, named
from harness.trace.diagnosis.intervals import common, length_ns, parts_within, without
from harness.trace.diagnosis.moves import moves
from harness.trace.diagnosis.observed import TEXTS_OF_CALLS, Observed
from harness.trace.diagnosis.timing import busy_ns, ttft

LEAST_SERIAL_CALLS = 4
"""Calls that could have been made at once; two or three are often written one after another for
clarity, and little is lost."""

LONGEST_GAP_NS = 1_000_000_000
"""A call that comes later after the one before waited for something: a person, a tool."""

SAMPLE_LAG_NS = 1_200_000_000
"""A counter may be so much older than it looks: llama.cpp is asked every 1.1 s."""

LEAST_IDLE_CALLS = 2
"""Calls, or node calls, that waited while nothing was at work."""


def serial_client(observed: Observed) -> Finding | None:
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
    # The first calls, whose texts are known, stand for all.
    lost_share = 1 - max(ends_ns) / max(1, sum(map(busy_ns, first)))
    lost_ns = round(lost_share * sum(map(busy_ns, alone)))
    (rank, at_once), *_ = Counter(ranks).most_common()
    if at_once < LEAST_SERIAL_CALLS or not observed.matters(lost_ns):
        return None
    independent = [call for call, its in zip(first, ranks, strict=True) if its == rank]
    server = observed.server(independent[0].model)
    nodes = named(call.node for call in independent if call.node)
    return Finding(
        rule="serial-client",
        severity="warning",
        model=server.tag,
        seen=f"{len(alone)} calls went one after another, and {at_once} of "
        + ("them" if first == alone else f"the first {len(first)}")
        + (f" in {nodes}" if nodes else "")
        + " need nothing of each other. All at once they could have saved up to "
        f"{observed.said(lost_ns)}.",
        evidence=Evidence.of(independent, serial_calls=len(alone), independent_calls=at_once),
        meaning="A serial client: the server had one call at a time, and a batch of them costs it "
        "little more.",
        layer="L6",
        move=(
            "make it a mapped node, which runs once per item: @pipeline.node(each={...})",
            "make the calls of one function together: asyncio.gather, or a task group",
            *(moves("answer more at once", server) if server.backend == "embedded" else ()),
        ),
        lost_ns=lost_ns,
    )


def _needed_or_paused(observed: Observed, calls: Sequence[Call]) -> Iterator[set[int]]:
    """Which calls each needs; after a pause, those before it as well."""
    last_before_pause: set[int] = set()
    for number, needed in enumerate(needed_calls(observed, calls)):
        if number and calls[number].start_ns - calls[number - 1].end_ns > LONGEST_GAP_NS:
            last_before_pause = {number - 1}
        yield needed | last_before_pause


def _alone(calls: Sequence[Call]) -> list[Call]:
    """The calls that no other one overlaps."""
    alone: list[Call] = []
    end_ns = 0
    for call in calls:
        if alone and call.start_ns < alone[-1].end_ns:
            alone.pop()
        elif call.status == "ok" and call.start_ns >= end_ns:
            alone.append(call)
        end_ns = max(end_ns, call.end_ns)
    return alone


def idle_device(observed: Observed) -> Finding | None:
    """Work waited in the client while no server had anything to do."""
    for_place = _waits_for_a_place(observed)
    idle_ns = length_ns(without(for_place.values(), observed.calls))
    if len(for_place) >= LEAST_IDLE_CALLS and observed.matters(idle_ns):
        return Finding(
            rule="idle-device",
            severity="warning",
            model=None,
            seen=f"{len(for_place)} calls of nodes were ready and waited for a place, while not "
            f"one call to a model was under way ({observed.said(idle_ns)}).",
            evidence=Evidence(
                spans=tuple(for_place)[:MOST_SPANS],
                figures={"waiting_node_calls": len(for_place)},
            ),
            meaning="A limit in the client: nodes that do something else than call a model hold "
            "all the places that the run has for nodes.",
            layer="L6",
            move=("make nodes that call no model faster, or fewer: each holds a place meanwhile",),
            lost_ns=idle_ns,
        )
    return _idle_server(observed)


def _waits_for_a_place(observed: Observed) -> dict[int, Interval]:
    """From when each node's call had all it needed to when it began, by its span."""
    waits = {}
    for span, began in observed.nodes.items():
        sources = [observed.nodes[s] for s in observed.sources.get(span, ()) if s in observed.nodes]
        if sources:
            ready_ns = max(source.end_ns for source in sources)
            if ready_ns < began.start_ns:
                waits[span] = Interval(start_ns=ready_ns, end_ns=began.start_ns)
    return waits


def _idle_server(observed: Observed) -> Finding | None:
    """Calls were under way to a server that said it had none."""
    for model, calls in observed.by_model().items():
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
            return Finding(
                rule="idle-device",
                severity="hint",
                model=model,
                seen=f"{len(waiting)} calls to '{model}' had been sent, while its server said that "
                f"it was running none and had none waiting ({observed.said(lost_ns)}).",
                evidence=Evidence.of(waiting, waiting_calls=len(waiting)),
                meaning="Something between the run and the server holds calls back, or sends them "
                "to another server than the one that is asked for its counters.",
                layer="L4a",
                move=(
                    "raise the gateway's limit of connections or of calls at once",
                    "balance by queue depth rather than in turn",
                    f"point url under [endpoints.{model}] at the server itself",
                ),
                lost_ns=lost_ns,
            )
    return None
