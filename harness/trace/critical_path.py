"""The critical path: the chain of nodes that decided how long a run took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.trace.calls import Interval
from harness.trace.records import Flow, SpanRecord, SpanStatus
from harness.trace.timelines.timeline import title


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One node on the path; each item of a mapped node is a step of its own."""

    node: str
    """As in the timeline: `text`, `sections[1]`."""
    status: SpanStatus
    wait_ns: int
    """From the end of the step before it, or the run's start, until it began."""
    start_ns: int
    duration_ns: int
    run_share: float | None
    """Of the run's time, from 0 to 1; None when it took none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain that ends in the node that ended last.

    Each step waited for the one before it: of all whose output it was given, the one that ended
    last. The waits, the steps and what came after them add up to the run.
    """

    steps: tuple[PathStep, ...]
    """In order; none when no node began."""
    after_ns: int
    """From the end of the last step to the end of the run."""


def critical_path(
    nodes: Sequence[SpanRecord], flows: Iterable[Flow], *, run: Interval
) -> CriticalPath:
    """Looks for it from its end.

    Args:
        nodes: The `node` spans.
        flows: The run's; those called `output` say who waited for whom.
        run: From its first record to its last.
    """
    steps = []
    free_ns = run.start_ns
    for span in _chain(nodes, flows):
        steps.append(
            PathStep(
                node=title(span),
                status=span.status,
                wait_ns=span.start_ns - free_ns,
                start_ns=span.start_ns - run.start_ns,
                duration_ns=span.duration_ns,
                run_share=span.duration_ns / run.duration_ns if run.duration_ns else None,
            )
        )
        free_ns = span.end_ns
    return CriticalPath(steps=tuple(steps), after_ns=run.end_ns - free_ns)


def _chain(nodes: Sequence[SpanRecord], flows: Iterable[Flow]) -> list[SpanRecord]:
    """The path, from its first node to its last."""
    by_id = {span.id: span for span in nodes}
    sources: dict[int, list[SpanRecord]] = {}
    for flow in flows:
        # Spans are numbered as they begin, so a source has the smaller number.
        if flow.name == "output" and flow.source in by_id and flow.source < flow.target:
            sources.setdefault(flow.target, []).append(by_id[flow.source])
    calls: dict[str, list[SpanRecord]] = {}  # by label, and by node for those of all its items
    for span in nodes:
        for name in {title(span), str(span.attributes.get("node"))}:
            calls.setdefault(name, []).append(span)
    for span in nodes:
        # What an earlier part of the run made has a label here, and no flow.
        needs = span.attributes.get("needs")
        for name in needs if isinstance(needs, list) else ():
            earlier = (one for one in calls.get(str(name), ()) if one.end_ns <= span.start_ns)
            sources.setdefault(span.id, []).extend(earlier)
    chain: dict[int, SpanRecord] = {}
    last = _last(nodes)
    while last is not None and last.id not in chain:  # as in a journal that was tampered with
        chain[last.id] = last
        last = _last(sources.get(last.id, ()))
    return [*chain.values()][::-1]


def _last(spans: Iterable[SpanRecord]) -> SpanRecord | None:
    """The one that ended last; of several that were cut off together, the one that ran longest."""
    return max(spans, key=lambda span: (span.end_ns, -span.start_ns, -span.id), default=None)
