"""The report of a run: latencies, goodput, idle time, the critical path, loops and cost.

Everything is derived from the journal, however the run ended. Unknown values are None, never 0.
Times count from the run's start, not from its clock's zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.speed_limits import SpeedLimit, speed_limits_of
from harness.analysis.time_budget import TimeShare, TimeSpent
from harness.analysis.what_if import NodeSlack, Schedule, WhatIf
from harness.residency.residents import ROOM_FOR
from harness.trace.calls import (
    Call,
    CallGroup,
    Interval,
    RunCost,
    call_group,
    calls_of,
    cost_of,
    group_calls,
    priced_asides,
)
from harness.trace.intervals import depths, without
from harness.trace.journal_reader import Journal
from harness.trace.node_records import CriticalPath, critical_path, place_wait_ns
from harness.trace.records import Instant, OpenSpan, RunState, SpanRecord, node_of_all, title
from harness.wiggum import LOOP_RECORDS, RecordedLoop, recorded_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoads:
    """How often a model came into memory."""

    model: str
    loads: int
    """Including failed loads."""
    load_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run in figures. Groups and loops stand in the order they began."""

    run_id: str
    pipeline: str
    status: RunState
    error: str | None
    parts: int
    """1, and 1 more for each time it was resumed."""
    duration_ns: int
    """From its first record to its last, without the pauses before it was resumed."""
    calls: CallGroup
    """All, those answered from the cache included."""
    models: tuple[CallGroup, ...]
    nodes: tuple[CallGroup, ...]
    """A nested pipeline's nodes over all calls of it."""
    roles: tuple[CallGroup, ...]
    replicas: tuple[CallGroup, ...]
    """Of endpoints with `urls`; a name is the model's tag and the server's address."""
    speed_limits: tuple[SpeedLimit, ...]
    """Of models that the machine's own processor computed."""
    asides: tuple[Aside, ...]
    goodput: Goodput
    occupancy: Occupancy
    loads: tuple[ModelLoads, ...]
    """By model, in the order of their first loads; loads outside calls included."""
    load_ns: int
    critical_path: CriticalPath
    time: tuple[TimeShare, ...]
    """Causes of time on the critical path, largest first; they add up to the run."""
    max_parallel: int | None
    """How many calls of nodes the pipeline ran at once; None for any number, or if it is no
    pipeline."""
    place_waits: int
    """Calls of nodes that waited for a place, among those or among their node's."""
    slack: tuple[NodeSlack, ...]
    """Of the pipeline's own nodes, in the order they began."""
    what_if: WhatIf | None
    loops: tuple[RecordedLoop, ...]
    cost: RunCost
    retries: int
    fallbacks: int
    evictions: int
    """Models taken out of memory to make room for another."""
    unfinished: tuple[OpenSpan, ...]
    """What was still under way at the end, in the order it began; what was when an earlier part was
    killed is not."""


def report_of(
    journal: Journal, *, targets: Targets | None = None, what_if: str | None = None
) -> RunReport:
    """Reads a journal once, and keeps some two kilobytes for each model call.

    Args:
        journal: Of a run that ended, was killed, or is still going.
        targets: What calls are judged by; half a second to the first token, and then twenty tokens
            a second, when left out.
        what_if: A change of nodes' durations or of the pipeline's limit, whose effect is told; see
            `Schedule.parsed`.

    Raises:
        JournalInvalid: A line in the middle is not a record.
        InvalidInput: The change is not written as one.
    """
    run = Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
    seen = _Seen()
    calls = calls_of(seen.spans_of(journal))
    asked = [call for call in calls if not call.from_cache and not call.was_refused]
    loads = _loads(seen.spans["load"], {call.id: call.model for call in calls})
    path = critical_path(seen.spans["node"], journal.flows, run=run)
    schedule = Schedule(seen.spans["node"], journal.flows, run=run, max_parallel=seen.max_parallel)
    return RunReport(
        run_id=journal.started.run_id,
        pipeline=journal.started.name,
        status=journal.ended.status if journal.ended else "unfinished",
        error=journal.ended.error if journal.ended else None,
        parts=journal.parts,
        duration_ns=run.duration_ns,
        calls=call_group(calls),
        models=group_calls(calls, by=lambda call: call.model),
        nodes=group_calls(calls, by=lambda call: call.node and node_of_all(call.node)),
        roles=group_calls(calls, by=lambda call: call.role),
        replicas=group_calls(
            (call for call in calls if "replica" in call.attributes),
            by=lambda call: f"{call.model} {call.attributes['replica']}",
        ),
        speed_limits=speed_limits_of(asked, seen.instants),
        asides=asides_of(seen.asides),
        goodput=goodput_of(asked, targets=targets or Targets(), run_ns=run.duration_ns),
        occupancy=occupancy_of([*asked, *_as_intervals(seen.asides)], run=run),
        loads=loads,
        load_ns=sum(one.load_ns for one in loads),
        critical_path=path,
        time=seen.time.shares(path, calls, run=run),
        max_parallel=seen.max_parallel,
        place_waits=sum(place_wait_ns(node) > 0 for node in seen.spans["node"]),
        slack=schedule.slack(),
        what_if=None if what_if is None else schedule.what_if(schedule.parsed(what_if)),
        loops=recorded_loops(seen.of_loops),
        cost=cost_of(
            [*asked, *priced_asides(seen.asides)],
            seen.instants["endpoint"],
            run_ns=run.duration_ns,
        ),
        retries=len(seen.instants["retry"]),
        fallbacks=len(seen.instants["fallback"]),
        evictions=sum(
            "model" in one.attributes and str(one.attributes.get("reason")).startswith(ROOM_FOR)
            for one in seen.instants["evict"]
        ),
        unfinished=tuple(
            OpenSpan(
                name=span.name,
                title=title(span),
                start_ns=span.start_ns - run.start_ns,
                open_ns=span.duration_ns,
            )
            for span in seen.unfinished
            if not journal.resumed_after(span.end_ns)
        ),
    )


class _Seen:
    """A report's other records, picked out of a journal by name."""

    def __init__(self) -> None:
        self.spans: dict[str, list[SpanRecord]] = {name: [] for name in ("node", "load")}
        self.instants: dict[str, list[Instant]] = {
            name: [] for name in ("endpoint", "retry", "fallback", "evict", "weights", "machine")
        }
        self.asides: list[SpanRecord] = []
        self.of_loops: list[SpanRecord | Instant] = []
        self.unfinished: list[SpanRecord] = []
        self.time = TimeSpent()
        self.max_parallel: int | None = None

    def spans_of(self, journal: Journal) -> Iterator[SpanRecord]:
        """The spans; what else there is to look at is noted in passing."""
        for item in journal.items(SpanRecord, Instant):
            if type(item) is not SpanRecord and type(item) is not Instant:
                continue
            self.time.note(item)
            if item.name in LOOP_RECORDS:
                self.of_loops.append(item)
            if type(item) is SpanRecord:
                if item.name == "run" and isinstance(
                    limit := item.attributes.get("max_parallel"), int
                ):
                    self.max_parallel = limit
                if item.name in self.spans:
                    self.spans[item.name].append(item)
                elif item.name in ASIDE:
                    self.asides.append(item)
                if item.status == "unfinished":
                    self.unfinished.append(item)
                yield item
            elif type(item) is Instant and item.name in self.instants:
                self.instants[item.name].append(item)


def _as_intervals(asides: Iterable[SpanRecord]) -> Iterator[Interval]:
    """When models were asked what no call is around: a probe lies in the call that it precedes."""
    for span in asides:
        if span.name not in {"schema probe", "tool probe"}:
            yield Interval(start_ns=span.start_ns, end_ns=span.end_ns)


def _loads(spans: Iterable[SpanRecord], models: Mapping[int | None, str]) -> tuple[ModelLoads, ...]:
    """Loads by model: the one that the span names, else the model of the call around it."""
    times_ns: dict[str, list[int]] = {}
    for span in spans:
        if "waits_for" in span.attributes:
            continue  # a call's share of a load that has a span of its own
        model = span.attributes.get("model") or models.get(span.parent)
        times_ns.setdefault(str(model), []).append(span.duration_ns)
    return tuple(
        ModelLoads(model=model, loads=len(times), load_ns=sum(times))
        for model, times in times_ns.items()
    )


ASIDE = ("embed", "count tokens", "schema probe", "tool probe")
"""Names of the spans of requests to a model that are no chat calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """One kind of request that is no chat call, to one model."""

    name: str
    model: str
    requests: int
    failed: int
    total_ns: int
    """Time in them, added up; a probe's is also in the call that it preceded."""
    input_tokens: int | None
    """Prompts, or what was embedded; None if no server counted them."""
    output_tokens: int | None


def asides_of(asides: Iterable[SpanRecord]) -> tuple[Aside, ...]:
    """One for each kind and model, in the order of their first requests."""
    groups: dict[tuple[str, str], list[SpanRecord]] = {}
    for span in asides:
        groups.setdefault((span.name, str(span.attributes.get("model"))), []).append(span)
    return tuple(
        Aside(
            name=name,
            model=model,
            requests=len(spans),
            failed=sum(span.status == "error" for span in spans),
            total_ns=sum(span.duration_ns for span in spans),
            input_tokens=_sum(spans, "input_tokens"),
            output_tokens=_sum(spans, "output_tokens"),
        )
        for (name, model), spans in groups.items()
    )


def _sum(spans: Iterable[SpanRecord], count: str) -> int | None:
    counts = (span.attributes.get(count) for span in spans)
    known = [tokens for tokens in counts if isinstance(tokens, int)]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The latency targets of a call."""

    ttft_ns: int = 500_000_000
    """The longest time to first token."""
    itl_ns: int = 50_000_000
    """The longest inter-token latency, as a mean over the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How much of what a run's calls gave met the targets.

    As in DistServe (Zhong et al. 2024), a call meets them or does not, with all its tokens. A reply
    in one piece has no inter-token latency and is judged by its first token alone. A call that
    failed missed them. One whose latencies are not known is neither met nor missed; nor is one that
    was cancelled or cut short. Waits before a request is sent are not in its time to first token,
    but they are in the run's time, as all time outside of models is.
    """

    targets: Targets
    met: int
    missed: int
    """Including failed ones."""
    failed: int
    unknown: int
    throughput_tokens_per_s: float | None
    """Output tokens of all calls over the run's time; None if the run took no time."""
    tokens_per_s: float | None
    """The goodput: of the calls that met the targets, likewise; None when all are unknown."""
    attained: float | None
    """Share of calls that met the targets, from 0 to 1, among calls that met or missed them."""


def goodput_of(calls: Sequence[Call], *, targets: Targets, run_ns: int) -> Goodput:
    """Judges each call."""
    done = [call for call in calls if call.status == "ok"]
    judged = [call for call in done if _is_known(call)]
    met = [call for call in judged if _meets(call, targets)]
    failed = sum(call.status == "error" for call in calls)
    known = len(judged) + failed
    seconds = run_ns / 1e9
    return Goodput(
        targets=targets,
        met=len(met),
        missed=known - len(met),
        failed=failed,
        unknown=len(calls) - known,
        throughput_tokens_per_s=_output_tokens(done) / seconds if seconds else None,
        tokens_per_s=_output_tokens(met) / seconds if seconds and known else None,
        attained=len(met) / known if known else None,
    )


def _is_known(call: Call) -> bool:
    """Whether it can be judged. What came in one piece took no time from first token to last."""
    in_one_piece = call.phase_ns("decode") == 0
    return call.ttft_ns is not None and (in_one_piece or call.count("itl_mean_ns") is not None)


def _meets(call: Call, targets: Targets) -> bool:
    ttft_ns, itl_ns = call.ttft_ns, call.count("itl_mean_ns")
    assert ttft_ns is not None, "only then is it judged"
    return ttft_ns <= targets.ttft_ns and (itl_ns is None or itl_ns <= targets.itl_ns)


def _output_tokens(calls: Sequence[Call]) -> int:
    return sum(call.count("output_tokens") or 0 for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Model calls over the time of a run. The wait before a call is tried again is idle.

    Embedding and counting tokens count as calls here, replies from the cache do not.
    """

    most_at_once: int
    idle_ns: int
    idle_share: float | None
    """Of the run's time, from 0 to 1; None when it took none."""
    idle_gaps: int
    longest_gap: Interval | None
    """The longest of them, the first of several; from the run's start."""


def occupancy_of(calls: Sequence[Interval], *, run: Interval) -> Occupancy:
    """Of these calls in this run."""
    gaps = without([run], calls)
    idle_ns = sum(gap.duration_ns for gap in gaps)
    longest = max(gaps, key=lambda gap: gap.duration_ns, default=None)
    if longest is not None:
        start_ns, end_ns = longest.start_ns - run.start_ns, longest.end_ns - run.start_ns
        longest = Interval(start_ns=start_ns, end_ns=end_ns)
    # A call that took no time was under way at the moment it happened.
    lasting = (
        Interval(start_ns=one.start_ns, end_ns=max(one.end_ns, one.start_ns + 1)) for one in calls
    )
    return Occupancy(
        most_at_once=max((depth for _, depth in depths(lasting)), default=0),
        idle_ns=idle_ns,
        idle_share=idle_ns / run.duration_ns if run.duration_ns else None,
        idle_gaps=len(gaps),
        longest_gap=longest,
    )
