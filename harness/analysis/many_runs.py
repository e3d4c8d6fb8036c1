"""Several runs of a pipeline in one report: their calls together, and what changed between runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.analysis.run_report import Goodput, Targets, goodput_of
from harness.trace.calls import Call, CallGroup, call_group, calls_of, cost_of, group_calls
from harness.trace.journal_reader import Journal
from harness.trace.records import Instant, RunState, SpanRecord
from harness.wiggum import LOOP_RECORDS, recorded_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One of the runs."""

    run_id: str
    pipeline: str
    wall_ns: int
    """When it began: Unix time."""
    status: RunState
    duration_ns: int
    calls: CallGroup
    composite: float | None
    """Of what its last loop returned; None without a loop."""
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsReport:
    """Runs in the order they began."""

    runs: tuple[RunFigures, ...]
    models: tuple[CallGroup, ...]
    """The calls of all runs, by model."""
    goodput: Goodput
    """Of all calls, over the time of all runs."""


def report_of_runs(journals: Iterable[Journal], *, targets: Targets | None = None) -> RunsReport:
    """Reads each journal once, and keeps some two kilobytes for each model call.

    `journals` stand in the order the runs began.

    Raises:
        JournalInvalid: A line in the middle of one is not a record.
    """
    runs: list[RunFigures] = []
    asked: list[Call] = []
    for journal in journals:
        figures, calls = _figures(journal)
        runs.append(figures)
        asked += [call for call in calls if not call.from_cache and not call.was_refused]
    return RunsReport(
        runs=tuple(runs),
        models=group_calls(asked, by=lambda call: call.model),
        goodput=goodput_of(
            asked, targets=targets or Targets(), run_ns=sum(run.duration_ns for run in runs)
        ),
    )


def _figures(journal: Journal) -> tuple[RunFigures, list[Call]]:
    of_loops: list[SpanRecord | Instant] = []
    endpoints: list[Instant] = []

    def spans() -> Iterator[SpanRecord]:
        for item in journal.items(SpanRecord, Instant):
            if isinstance(item, SpanRecord | Instant) and item.name in LOOP_RECORDS:
                of_loops.append(item)
            if isinstance(item, SpanRecord):
                yield item
            elif isinstance(item, Instant) and item.name == "endpoint":
                endpoints.append(item)

    calls = calls_of(spans())
    duration_ns = journal.last_ns - journal.started.time_ns
    best = [
        one.composites[one.best_round - 1] for one in recorded_loops(of_loops) if one.best_round
    ]
    figures = RunFigures(
        run_id=journal.started.run_id,
        pipeline=journal.started.name,
        wall_ns=journal.started.wall_ns,
        status=journal.ended.status if journal.ended else "unfinished",
        duration_ns=duration_ns,
        calls=call_group(calls),
        composite=best[-1] if best else None,
        cost_usd=cost_of(
            [call for call in calls if not call.from_cache], endpoints, run_ns=duration_ns
        ).usd,
    )
    return figures, calls
