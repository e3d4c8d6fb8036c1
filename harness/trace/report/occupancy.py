"""How busy a run kept its models: when no call was under way, and how many were at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.trace.calls import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Model calls over the time of a run. The wait before a call is tried again is idle.

    To embed and to count tokens are calls here as well; what the cache answered is none.
    """

    most_at_once: int
    """The most calls under way at one moment."""
    idle_ns: int
    """Time in which no call was under way."""
    idle_share: float | None
    """Of the run's time, from 0 to 1; None when it took none."""
    idle_gaps: int
    """In how many stretches."""
    longest_gap: Interval | None
    """The longest of them, the first of several; from the run's start."""


def occupancy_of(calls: Sequence[Interval], *, run: Interval) -> Occupancy:
    """Of these calls in this run."""
    gaps = list(_gaps(calls, run))
    idle_ns = sum(gap.duration_ns for gap in gaps)
    longest = max(gaps, key=lambda gap: gap.duration_ns, default=None)
    return Occupancy(
        most_at_once=_most_at_once(calls),
        idle_ns=idle_ns,
        idle_share=idle_ns / run.duration_ns if run.duration_ns else None,
        idle_gaps=len(gaps),
        longest_gap=None if longest is None else _since(run.start_ns, longest),
    )


def _gaps(calls: Iterable[Interval], run: Interval) -> Iterator[Interval]:
    """The stretches of the run that no call covers, in order."""
    idle_from_ns = run.start_ns
    for call in sorted(calls, key=lambda call: call.start_ns):
        if call.start_ns > idle_from_ns:
            yield Interval(start_ns=idle_from_ns, end_ns=call.start_ns)
        idle_from_ns = max(idle_from_ns, call.end_ns)
    if idle_from_ns < run.end_ns:
        yield Interval(start_ns=idle_from_ns, end_ns=run.end_ns)


def _most_at_once(calls: Iterable[Interval]) -> int:
    """Where one ends as another begins, they are not at once."""
    changes: list[tuple[int, int]] = []
    for call in calls:
        # One that took no time still was under way at the moment it happened.
        changes += [(call.start_ns, +1), (max(call.end_ns, call.start_ns + 1), -1)]
    most = under_way = 0
    for _, change in sorted(changes):
        under_way += change
        most = max(most, under_way)
    return most


def _since(zero_ns: int, interval: Interval) -> Interval:
    return Interval(start_ns=interval.start_ns - zero_ns, end_ns=interval.end_ns - zero_ns)
