"""The report of a run: latencies, goodput, idle time, the critical path, loops and cost.

Everything is derived from the journal, however the run ended. Unknown values are None, never 0.
Times count from the run's start, not from its clock's zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.observed import Observed
from harness.analysis.speed_limits import SpeedLimit
from harness.analysis.time_budget import TimeShare
from harness.trace import events
from harness.trace.calls import (
    Call,
    CallGroup,
    RunCost,
    call_group,
    cost_of,
    group_calls,
    grouped,
    known_sum,
)
from harness.trace.intervals import most_at_once, without
from harness.trace.journal_reader import Journal
from harness.trace.node_records import CriticalPath
from harness.trace.records import Interval, OpenSpan, RunState, node_of_all, title
from harness.wiggum import RecordedLoop, loops_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoads:
    """How often a model came into memory."""

    model: str
    loads: int  # also those that failed
    load_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run in figures. Groups and loops stand in the order they began."""

    run_id: str
    pipeline: str
    status: RunState
    error: str | None
    parts: int  # 1, and 1 more for each time it was resumed
    wall_ns: int  # when it began: Unix time
    duration_ns: int  # from its first record to its last, without the pauses before it was resumed
    calls: CallGroup  # all, those answered from the cache included
    models: tuple[CallGroup, ...]
    nodes: tuple[CallGroup, ...]  # a nested pipeline's nodes over all calls of it
    roles: tuple[CallGroup, ...]
    replicas: tuple[CallGroup, ...]  # servers of endpoints with `urls`: tag and address
    # The limits of models that are wholly on one device whose speed is known.
    speed_limits: tuple[SpeedLimit, ...]
    asides: tuple[Aside, ...]
    goodput: Goodput
    occupancy: Occupancy
    loads: tuple[ModelLoads, ...]  # in the order of their first loads; also outside of calls
    critical_path: CriticalPath
    time: tuple[TimeShare, ...]  # causes of time on the critical path; they add up to the run
    max_parallel: int | None  # of the pipeline's nodes; None for any number, or without pipeline
    place_waits: int  # calls of nodes that waited for a place, among those or among their node's
    loops: tuple[RecordedLoop, ...]
    cost: RunCost
    retries: int
    fallbacks: int
    evictions: int  # models taken out of memory to make room for another
    unfinished: tuple[OpenSpan, ...]  # under way at the end of the last part


def report_of(journal: Journal, *, targets: Targets | None = None) -> RunReport:
    """Reads a journal once, and keeps some two kilobytes for each model call.

    The run may be over, killed, or still going. Calls are judged by `targets`.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    return report_of_observed(Observed(journal), targets or Targets())


def report_of_observed(observed: Observed, targets: Targets) -> RunReport:
    """The report of a run that was read."""
    journal = observed.journal
    run, calls, recorded = observed.run, observed.every_call, observed.recorded
    # Replies from the cache say nothing of servers, and cost nothing.
    sent = [call for call in observed.calls if not call.from_cache]
    nodes = recorded[events.NodeAttempt]
    asides = [aside for aside in recorded[events.OtherRequest] if not aside.was_refused]
    # A probe lies in the call that it precedes.
    beside = (a for a in asides if not isinstance(a, events.SchemaProbe | events.ToolProbe))
    whole = call_group(calls)
    return RunReport(
        run_id=journal.started.run_id,
        pipeline=journal.started.name,
        status=journal.ended.status if journal.ended else "unfinished",
        error=journal.ended.error if journal.ended else None,
        parts=journal.parts,
        wall_ns=journal.started.wall_ns,
        duration_ns=run.duration_ns,
        calls=whole,
        models=group_calls(calls, by=lambda call: call.model, whole=whole),
        nodes=group_calls(calls, by=lambda call: call.node and node_of_all(call.node), whole=whole),
        roles=group_calls(calls, by=lambda call: call.role, whole=whole),
        replicas=group_calls(
            (call for call in calls if call.replica), by=lambda call: f"{call.model} {call.replica}"
        ),
        speed_limits=observed.limits,
        asides=asides_of(asides),
        goodput=goodput_of(sent, targets=targets, run_ns=run.duration_ns),
        occupancy=occupancy_of([*sent, *beside], run=run),
        loads=tuple(
            ModelLoads(
                model=model, loads=len(loads), load_ns=sum(load.duration_ns for load in loads)
            )
            for model, loads in grouped(observed.every_load, by=lambda load: load.model).items()
        ),
        critical_path=observed.path,
        time=observed.shares,
        max_parallel=observed.max_parallel,
        place_waits=sum(node.waited_ns > 0 for node in nodes),
        loops=loops_in(recorded),
        cost=cost_of([*sent, *asides], recorded[events.EndpointEvent], run_ns=run.duration_ns),
        retries=len(recorded[events.RetryEvent]),
        fallbacks=len(recorded[events.Fallback]),
        evictions=sum(evict.makes_room for evict in recorded[events.Evict]),
        unfinished=tuple(
            OpenSpan(
                name=span.name,
                title=title(span),
                start_ns=span.start_ns - run.start_ns,
                open_ns=span.duration_ns,
            )
            for span in observed.unfinished
            if not journal.resumed_after(span.end_ns)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """One kind of request that is no chat call, to one model."""

    name: str
    model: str
    requests: int
    failed: int
    total_ns: int  # time in them, added up; a probe's is also in the call that it preceded
    input_tokens: int | None  # prompts, or what was embedded; None if no server counted them


def asides_of(asides: Iterable[events.OtherRequest]) -> tuple[Aside, ...]:
    """One for each kind and model, in the order of their first requests."""
    groups = grouped(asides, by=lambda aside: (aside.NAME, aside.model))
    return tuple(
        Aside(
            name=name,
            model=model,
            requests=len(group),
            failed=sum(request.status == "error" for request in group),
            total_ns=sum(request.duration_ns for request in group),
            input_tokens=known_sum(request.input_tokens for request in group),
        )
        for (name, model), group in groups.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The latency targets of a call."""

    ttft_ns: int = 500_000_000  # the longest time to first token
    itl_ns: int = 50_000_000  # the longest inter-token latency, as a mean over the reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How much of what a run's calls gave met the targets.

    As in DistServe (Zhong et al. 2024), a call meets them or does not, with all its tokens. Waits
    before a request is sent are not in its time to first token, but they are in the run's time, as
    all time outside of models is.
    """

    targets: Targets
    met: int
    missed: int  # including failed ones
    failed: int
    unknown: int
    throughput_tokens_per_s: float | None  # of all calls; None if the run took no time
    tokens_per_s: float | None  # of the calls that met the targets; None if all are unknown
    attained: float | None  # share of the known calls that met the targets, from 0 to 1


def goodput_of(calls: Sequence[Call], *, targets: Targets, run_ns: int) -> Goodput:
    """Judges calls that were sent: none that the cache answered."""
    # Calls that failed missed the targets. Cancelled calls, calls that were cut short, and calls
    # with unknown latencies have neither met nor missed them.
    done = [call for call in calls if call.status == "ok"]
    met = [call for call in done if _meets(call, targets)]
    failed = sum(call.status == "error" for call in calls)
    counted = sum(_meets(call, targets) is not None for call in done) + failed
    seconds = run_ns / 1e9
    return Goodput(
        targets=targets,
        met=len(met),
        missed=counted - len(met),
        failed=failed,
        unknown=len(calls) - counted,
        throughput_tokens_per_s=_output_tokens(done) / seconds if seconds else None,
        tokens_per_s=_output_tokens(met) / seconds if seconds and counted else None,
        attained=len(met) / counted if counted else None,
    )


def _meets(call: Call, targets: Targets) -> bool | None:
    """Whether a call meets the targets; None if its latencies are unknown."""
    if call.ttft_ns is None:
        return None
    if call.itl_mean_ns is None:
        # A reply in one piece has no inter-token latency: it is judged by its first token alone.
        return call.ttft_ns <= targets.ttft_ns if call.phase_ns("decode") == 0 else None
    return call.ttft_ns <= targets.ttft_ns and call.itl_mean_ns <= targets.itl_ns


def _output_tokens(calls: Sequence[Call]) -> int:
    return sum(call.output_tokens or 0 for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Model calls over the time of a run. The wait before a call is tried again is idle.

    Embedding counts as a call here, replies from the cache do not.
    """

    most_at_once: int
    idle_ns: int
    idle_share: float | None  # from 0 to 1; None if the run took no time
    idle_gaps: int
    longest_gap: Interval | None  # from the run's start; the first of several


def occupancy_of(calls: Sequence[Interval], *, run: Interval) -> Occupancy:
    """The occupancy of the run by these calls; the gaps between them are its idle time."""
    gaps = without([run], calls)
    idle_ns = sum(gap.duration_ns for gap in gaps)
    longest = max(gaps, key=lambda gap: gap.duration_ns, default=None)
    if longest is not None:
        start_ns, end_ns = longest.start_ns - run.start_ns, longest.end_ns - run.start_ns
        longest = Interval(start_ns=start_ns, end_ns=end_ns)
    # A call that took no time was under way at the moment it happened.
    lasting = (Interval(start_ns=c.start_ns, end_ns=max(c.end_ns, c.start_ns + 1)) for c in calls)
    return Occupancy(
        most_at_once=most_at_once(lasting),
        idle_ns=idle_ns,
        idle_share=idle_ns / run.duration_ns if run.duration_ns else None,
        idle_gaps=len(gaps),
        longest_gap=longest,
    )
