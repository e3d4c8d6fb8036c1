"""Arithmetic with intervals of time: union, intersection, gaps and depth."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from harness.trace.records import Interval


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint stretches, in order; empty ones are left out."""
    joined: list[Interval] = []
    for stretch in sorted(intervals, key=lambda i: i.start_ns):
        if stretch.duration_ns <= 0:
            continue
        if joined and stretch.start_ns <= joined[-1].end_ns:
            start_ns, end_ns = joined[-1].start_ns, max(joined[-1].end_ns, stretch.end_ns)
            joined[-1] = Interval(start_ns=start_ns, end_ns=end_ns)
        else:
            joined.append(Interval(start_ns=stretch.start_ns, end_ns=stretch.end_ns))
    return joined


def length_ns(intervals: Iterable[Interval]) -> int:
    """The length of the time that at least one of the intervals covers."""
    return sum(stretch.duration_ns for stretch in union(intervals))


def common(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The stretches that lie both in one of `some` and in one of `others`."""
    return [part for parts in parts_within(union(some), others) for part in parts]


def parts_within(
    windows: Iterable[Interval], stretches: Iterable[Interval]
) -> list[list[Interval]]:
    """For each window, the parts of the stretches in it."""
    joined = union(stretches)
    starts = [stretch.start_ns for stretch in joined]
    parts = []
    for window in windows:
        inside: list[Interval] = []
        # The last stretch that begins before the window may reach into it.
        index = max(0, bisect_right(starts, window.start_ns) - 1)
        while index < len(joined) and joined[index].start_ns < window.end_ns:
            start_ns = max(window.start_ns, joined[index].start_ns)
            end_ns = min(window.end_ns, joined[index].end_ns)
            if start_ns < end_ns:
                inside.append(Interval(start_ns=start_ns, end_ns=end_ns))
            index += 1
        parts.append(inside)
    return parts


def without(some: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """The parts of `some` outside of `removed`, in order."""
    stretches = union(some)
    if not stretches:
        return []
    inner_edges = (edge for part in union(removed) for edge in (part.start_ns, part.end_ns))
    # Each gap between removed parts goes from an even edge to the next odd one.
    edges = [stretches[0].start_ns, *inner_edges, stretches[-1].end_ns]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return common(stretches, [Interval(start_ns=a, end_ns=b) for a, b in gaps if a < b])


def depths(intervals: Iterable[Interval]) -> list[tuple[Interval, int]]:
    """Stretches in order, each with the number of intervals that cover it; 1 at least."""
    # At one moment, ends (-1) come before starts (+1): intervals that only touch do not overlap.
    edges = sorted(
        (time_ns, step)
        for stretch in intervals
        if stretch.duration_ns > 0
        for time_ns, step in ((stretch.start_ns, +1), (stretch.end_ns, -1))
    )
    stretches = []
    depth, since_ns = 0, 0
    for time_ns, step in edges:
        if depth and time_ns > since_ns:
            stretches.append((Interval(start_ns=since_ns, end_ns=time_ns), depth))
        depth, since_ns = depth + step, time_ns
    return stretches


def most_at_once(intervals: Iterable[Interval], *, least_ns: float = 0) -> int:
    """The most intervals that cover one moment, or moments of `least_ns` in all."""
    lasted_ns = 0
    for stretch, depth in sorted(depths(intervals), key=lambda level: -level[1]):
        lasted_ns += stretch.duration_ns
        if lasted_ns >= least_ns:
            return depth
    return 0


def mean_depths(intervals: Sequence[Interval]) -> list[float]:
    """For each interval, the mean number of intervals that cover it, itself included."""
    levels = depths(intervals)
    starts = [stretch.start_ns for stretch, _ in levels]
    # The depth, added up over time, until the start of each stretch.
    areas = [0, *accumulate(stretch.duration_ns * depth for stretch, depth in levels)]

    def area_until(time_ns: int) -> int:
        index = bisect_right(starts, time_ns) - 1
        stretch, depth = levels[index]
        # Between the end of the stretch and the next one, the depth is 0.
        return areas[index] + depth * (min(time_ns, stretch.end_ns) - stretch.start_ns)

    return [
        (area_until(stretch.end_ns) - area_until(stretch.start_ns)) / stretch.duration_ns
        if stretch.duration_ns > 0
        else 1.0
        for stretch in intervals
    ]
