"""Arithmetic with stretches of time, against a naive count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.calls import Interval
from harness.trace.intervals import (
    common,
    depths,
    length_ns,
    mean_depths,
    most_at_once,
    parts_within,
    union,
    without,
)

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12)).map(
        lambda pair: Interval(start_ns=pair[0], end_ns=pair[0] + pair[1])
    ),
    max_size=8,
)


def moments(some):
    """Every nanosecond that one of them covers: the naive way."""
    return {ns for one in some for ns in range(one.start_ns, one.end_ns)}


@given(intervals, intervals)
def test_stretches_are_as_a_naive_count_has_them(some, others):
    assert moments(union(some)) == moments(some)
    assert length_ns(some) == len(moments(some))
    assert moments(common(some, others)) == moments(some) & moments(others)
    assert moments(without(some, others)) == moments(some) - moments(others)
    assert [moments(parts) for parts in parts_within(some, others)] == [
        moments([one]) & moments(others) for one in some
    ]
    over = {ns: sum(one.start_ns <= ns < one.end_ns for one in some) for ns in moments(some)}
    assert {ns: depth for stretch, depth in depths(some) for ns in moments([stretch])} == over
    lasted = [
        max((d for d in over.values() if n <= sum(o >= d for o in over.values())), default=0)
        for n in (1, 3)
    ]
    assert [most_at_once(some), most_at_once(some, least_ns=3)] == lasted
    assert mean_depths(some) == pytest.approx(
        [
            sum(over[ns] for ns in moments([one])) / one.duration_ns if one.duration_ns else 1
            for one in some
        ]
    )
