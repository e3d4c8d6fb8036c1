"""How the revise loops of a run went, from the spans that they leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.trace.records import SpanRecord, SpanStatus
from harness.trace.timelines.timeline import title


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """How a revise loop went."""

    node: str | None
    """The node it ran in."""
    rubric: str
    """What drafts were measured by."""
    composites: tuple[float, ...]
    """The score of each round that was evaluated, in points."""
    best_round: int | None
    """The round whose draft was returned, counted from 1; None when none was."""
    passed: bool | None
    """Whether that draft met the rubric."""
    stop_reason: str | None
    """Why no further round was made; None when the loop was not its own end."""
    status: SpanStatus
    """How it ended."""
    duration_ns: int
    """How long it took."""


def loops_of(
    loops: Iterable[SpanRecord], *, nodes: Iterable[SpanRecord], rounds: Iterable[SpanRecord]
) -> tuple[LoopReport, ...]:
    """One report for each loop.

    Args:
        loops: The `wiggum` spans.
        nodes: The `node` spans.
        rounds: The `evaluate` spans: a loop that was cut off did not come to sum them up itself.
    """
    titles: dict[int | None, str] = {span.id: title(span) for span in nodes}
    scores: dict[int | None, list[object]] = {}
    for span in rounds:
        scores.setdefault(span.parent, []).append(span.attributes.get("composite"))
    # One that a further part of the run went on with is one loop still.
    parts: dict[object, list[SpanRecord]] = {}
    for span in loops:
        parts.setdefault(span.attributes.get("key") or span.id, []).append(span)
    return tuple(
        _loop(
            spans,
            titles.get(spans[0].parent),
            [score for span in spans for score in scores.get(span.id, [])],
        )
        for spans in parts.values()
    )


def _loop(parts: Sequence[SpanRecord], node: str | None, scores: list[object]) -> LoopReport:
    # The last one sums up those before it.
    said, status = parts[-1].attributes, parts[-1].status
    composites = said.get("composites", scores)
    best_round, passed, reason = said.get("best_round"), said.get("passed"), said.get("stop_reason")
    return LoopReport(
        node=node,
        rubric=str(said.get("rubric")),
        composites=tuple(
            float(one)
            for one in (composites if isinstance(composites, list) else ())
            if isinstance(one, int | float)
        ),
        best_round=best_round if isinstance(best_round, int) else None,
        passed=passed if isinstance(passed, bool) else None,
        stop_reason=reason if isinstance(reason, str) else None,
        status=status,
        duration_ns=sum(span.duration_ns for span in parts),
    )
