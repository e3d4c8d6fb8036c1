"""Arithmetic with stretches of time: how long at least one of them lasted, where two overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.trace.calls import Interval


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint stretches, in order; empty ones are left out."""
    joined: list[Interval] = []
    for one in sorted(intervals, key=lambda i: i.start_ns):
        if one.duration_ns <= 0:
            continue
        if joined and one.start_ns <= joined[-1].end_ns:
            start_ns, end_ns = joined[-1].start_ns, max(joined[-1].end_ns, one.end_ns)
            joined[-1] = Interval(start_ns=start_ns, end_ns=end_ns)
        else:
            joined.append(Interval(start_ns=one.start_ns, end_ns=one.end_ns))
    return joined


def length_ns(intervals: Iterable[Interval]) -> int:
    """How long at least one of them lasted."""
    return sum(one.duration_ns for one in union(intervals))


def common(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Where one of the first overlaps with one of the second."""
    mine, theirs = union(some), union(others)
    shared: list[Interval] = []
    i = j = 0
    while i < len(mine) and j < len(theirs):
        start_ns = max(mine[i].start_ns, theirs[j].start_ns)
        end_ns = min(mine[i].end_ns, theirs[j].end_ns)
        if start_ns < end_ns:
            shared.append(Interval(start_ns=start_ns, end_ns=end_ns))
        if mine[i].end_ns < theirs[j].end_ns:
            i += 1
        else:
            j += 1
    return shared


def without(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The first less the second."""
    mine = union(some)
    if not mine:
        return []
    return common(mine, _gaps(union(others), mine[0].start_ns, mine[-1].end_ns))


def depths(intervals: Iterable[Interval]) -> list[tuple[Interval, int]]:
    """Stretches in order, each with how many of the intervals lie over it; 1 at least."""
    edges = sorted(
        (time_ns, step)
        for one in intervals
        if one.duration_ns > 0
        for time_ns, step in ((one.start_ns, +1), (one.end_ns, -1))
    )
    stretches = []
    depth, since_ns = 0, 0
    for time_ns, step in edges:
        if depth and time_ns > since_ns:
            stretches.append((Interval(start_ns=since_ns, end_ns=time_ns), depth))
        depth, since_ns = depth + step, time_ns
    return stretches


def _gaps(taken: Sequence[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    edges = [start_ns, *(edge for one in taken for edge in (one.start_ns, one.end_ns)), end_ns]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [Interval(start_ns=a, end_ns=b) for a, b in pairs if a < b]
