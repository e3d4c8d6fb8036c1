"""What a run amounts to: latencies, goodput, idle time, the critical path, loops and cost.

Everything is derived from the journal, whatever ended the run; what the journal does not tell is
None, never 0. Moments count from the run's start, not from the zero of its clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.trace.calls import Interval, calls_of
from harness.trace.journal_reader import Journal
from harness.trace.open_span import OpenSpan
from harness.trace.records import Instant, RunState, SpanRecord
from harness.trace.report.aside import ASIDE, Aside, asides_of, priced_asides
from harness.trace.report.call_group import CallGroup, call_group, group_calls
from harness.trace.report.cost import RunCost, cost_of
from harness.trace.report.critical_path import CriticalPath, critical_path
from harness.trace.report.goodput import Goodput, Targets, goodput_of
from harness.trace.report.loop_report import LoopReport, loops_of
from harness.trace.report.occupancy import Occupancy, occupancy_of
from harness.trace.timelines.timeline import title

_NOT_EVICTED_FOR_ROOM = "end of run"
"""Why a model leaves memory when the run is over: nothing was short then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoads:
    """How often a model came into memory."""

    model: str
    """The endpoint's tag."""
    loads: int
    """How often, failed loads included."""
    load_ns: int
    """How long it took, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run in figures."""

    run_id: str
    """The run's name, which its files bear."""
    pipeline: str
    """What was run."""
    status: RunState
    """How it ended; `unfinished` when it was killed, or is not over."""
    error: str | None
    """What ended it, if an error did."""
    parts: int
    """How many parts it has: 1, and 1 for each time that it was resumed."""
    duration_ns: int
    """From its first record to its last, without the pauses before it was resumed."""
    calls: CallGroup
    """All model calls, those that were answered from the cache included."""
    models: tuple[CallGroup, ...]
    """By model, in the order of their first calls."""
    nodes: tuple[CallGroup, ...]
    """By the node that called."""
    roles: tuple[CallGroup, ...]
    """By what the model was used as."""
    asides: tuple[Aside, ...]
    """What models were asked beside that, by kind and model."""
    goodput: Goodput
    """What came as fast as it should, of what models were asked."""
    occupancy: Occupancy
    """When no model was asked anything, and how many calls were under way at once."""
    loads: tuple[ModelLoads, ...]
    """By model, in the order of their first loads; loads outside calls included."""
    load_ns: int
    """Loading in all, added up."""
    critical_path: CriticalPath
    """The chain of nodes that ended last."""
    loops: tuple[LoopReport, ...]
    """In the order they began."""
    cost: RunCost
    """As far as prices are known."""
    retries: int
    """Calls made again after an error."""
    fallbacks: int
    """Calls made of another endpoint, when the one that was meant could not answer."""
    evictions: int
    """Models taken out of memory to make room; those unloaded at the run's end are not."""
    unfinished: tuple[OpenSpan, ...]
    """What was still under way at the end, in the order it began; what was when an earlier part was
    killed is not."""


def report_of(journal: Journal, *, targets: Targets | None = None) -> RunReport:
    """Reads a journal twice, and keeps about a kilobyte for each model call in between.

    Args:
        journal: Of a run that ended, was killed, or is still going.
        targets: What calls are judged by; half a second to the first token, and then twenty tokens
            a second, when left out.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    run = Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
    calls = calls_of(journal.spans())
    asked = [call for call in calls if not call.from_cache]
    seen = _Seen(journal)
    loads = _loads(seen.spans["load"], {call.id: call.model for call in calls})
    return RunReport(
        run_id=journal.started.run_id,
        pipeline=journal.started.name,
        status=journal.ended.status if journal.ended else "unfinished",
        error=journal.ended.error if journal.ended else None,
        parts=journal.parts,
        duration_ns=run.duration_ns,
        calls=call_group(calls),
        models=group_calls(calls, by=lambda call: call.model),
        nodes=group_calls(calls, by=lambda call: call.node),
        roles=group_calls(calls, by=lambda call: call.role),
        asides=asides_of(seen.asides),
        goodput=goodput_of(asked, targets=targets or Targets(), run_ns=run.duration_ns),
        occupancy=occupancy_of([*asked, *_as_intervals(seen.asides)], run=run),
        loads=loads,
        load_ns=sum(one.load_ns for one in loads),
        critical_path=critical_path(seen.spans["node"], journal.flows, run=run),
        loops=loops_of(
            seen.spans["wiggum"], nodes=seen.spans["node"], rounds=seen.spans["evaluate"]
        ),
        cost=cost_of(
            [*asked, *priced_asides(seen.asides)],
            seen.instants["endpoint"],
            run_ns=run.duration_ns,
        ),
        retries=len(seen.instants["retry"]),
        fallbacks=len(seen.instants["fallback"]),
        evictions=sum(
            "model" in one.attributes and one.attributes.get("reason") != _NOT_EVICTED_FOR_ROOM
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
    """What a report looks at beside the calls, picked out of a journal by name."""

    def __init__(self, journal: Journal) -> None:
        self.spans: dict[str, list[SpanRecord]] = {
            name: [] for name in ("node", "load", "wiggum", "evaluate")
        }
        self.instants: dict[str, list[Instant]] = {
            name: [] for name in ("endpoint", "retry", "fallback", "evict")
        }
        self.asides: list[SpanRecord] = []
        self.unfinished: list[SpanRecord] = []
        for item in journal.items():
            if isinstance(item, SpanRecord):
                if item.name in self.spans:
                    self.spans[item.name].append(item)
                elif item.name in ASIDE:
                    self.asides.append(item)
                if item.status == "unfinished":
                    self.unfinished.append(item)
            elif isinstance(item, Instant) and item.name in self.instants:
                self.instants[item.name].append(item)


def _as_intervals(asides: Iterable[SpanRecord]) -> Iterator[Interval]:
    """When models were asked what no call is around: a probe lies in the call that it precedes."""
    for span in asides:
        if span.name != "schema probe":
            yield Interval(start_ns=span.start_ns, end_ns=span.end_ns)


def _loads(spans: Iterable[SpanRecord], models: Mapping[int | None, str]) -> tuple[ModelLoads, ...]:
    """Loads by model: the one that the span names, else that of the call it is a phase of."""
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
