from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import random_spans, span, steady

from harness.trace import Lane, assign_lanes


def lanes_of(*spans):
    lanes = assign_lanes(spans, root_track="essay")
    return [(lanes[one.id].track, lanes[one.id].index) for one in spans]


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        pytest.param([], [], id="no span"),
        pytest.param(
            [span(1, 0, 9), span(2, 1, 8, parent=1), span(3, 2, 3, parent=2)],
            [("essay", 0), ("essay", 0), ("essay", 0)],
            id="nested",
        ),
        pytest.param(
            [span(1, 0, 9), span(2, 0, 9, parent=1)],
            [("essay", 0), ("essay", 0)],
            id="child as long as its parent",
        ),
        pytest.param(
            [span(1, 0, 9), span(2, 1, 4, parent=1), span(3, 4, 8, parent=1)],
            [("essay", 0), ("essay", 0), ("essay", 0)],
            id="siblings one after the other",
        ),
        pytest.param(
            [span(1, 0, 9), span(2, 1, 5, parent=1), span(3, 4, 8, parent=1)],
            [("essay", 0), ("essay", 0), ("essay", 1)],
            id="siblings that overlap",
        ),
        pytest.param(
            [span(1, 0, 9), span(2, 1, 8, parent=1), span(3, 4, 6, parent=1)],
            [("essay", 0), ("essay", 0), ("essay", 1)],
            id="sibling inside the time of another",
        ),
        pytest.param(
            [span(1, 0, 5), span(2, 3, 8, parent=1)],
            [("essay", 0), ("essay", 1)],
            id="child that outlives its parent",
        ),
        pytest.param(
            [span(1, 3, 8), span(2, 1, 5, parent=1, track="x"), span(3, 0, 4, parent=2)],
            [("essay", 0), ("x", 1), ("x", 0)],
            id="child that begins before its parent",
        ),
        pytest.param(
            [span(1, 0, 5), span(2, 5, 9), span(3, 3, 6)],
            [("essay", 0), ("essay", 0), ("essay", 1)],
            id="a lane is used again",
        ),
        pytest.param(
            [
                span(1, 0, 9, track="plan"),
                span(2, 1, 5, parent=1),
                span(3, 2, 4, parent=2, track="write"),
                span(4, 2, 3, parent=3),
            ],
            [("plan", 0), ("plan", 0), ("write", 0), ("write", 0)],
            id="tracks are inherited",
        ),
        pytest.param(
            [span(1, 0, 9, track="x"), span(2, 1, 5, parent=1, track="x")],
            [("x", 0), ("x", 0)],
            id="the parent's track by name",
        ),
        pytest.param(
            [span(1, 0, 9), span(2, 4, 4, parent=1), span(3, 4, 4, parent=2)],
            [("essay", 0), ("essay", 0), ("essay", 0)],
            id="nested without length",
        ),
        pytest.param(
            [span(1, 0, 9), span(2, 4, 4, parent=1), span(3, 4, 4, parent=1)],
            [("essay", 0), ("essay", 0), ("essay", 1)],
            id="siblings without length at one moment",
        ),
    ],
)
def test_a_span_is_drawn_on(spans, lanes):
    assert lanes_of(*spans) == lanes


def inside(inner, outer):
    """Whether a viewer nests one in the other when both are on one line."""
    begins_inside = outer.start_ns <= inner.start_ns < outer.end_ns
    return inner.end_ns <= outer.end_ns and (begins_inside or inner.start_ns == outer.start_ns)


def ancestors(one, spans):
    while one.parent is not None:
        yield one.parent
        one = spans[one.parent]


RANDOM_SPANS = st.builds(
    random_spans,
    st.randoms(use_true_random=False),
    count=st.integers(0, 14),
    within_ns=st.integers(0, 20),  # so few moments that spans meet in every way
)


@steady
@given(RANDOM_SPANS)
def test_on_every_lane_spans_are_disjoint_or_nested_in_their_ancestors(spans):
    lanes = assign_lanes(spans, root_track="essay")

    by_id = {one.id: one for one in spans}
    for one, other in combinations(spans, 2):
        if lanes[one.id] != lanes[other.id]:
            continue
        disjoint = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
        one_inside = inside(one, other) and other.id in ancestors(one, by_id)
        other_inside = inside(other, one) and one.id in ancestors(other, by_id)
        nested = inside(one, other) or inside(other, one)
        assert one_inside or other_inside if nested else disjoint, (one, other)


@steady
@given(RANDOM_SPANS)
def test_tracks_come_from_the_span_its_parents_or_the_run_and_have_no_gaps(spans):
    lanes = assign_lanes(spans, root_track="essay")

    tracks = {None: "essay"}
    for one in spans:
        tracks[one.id] = one.attributes.get("track", tracks[one.parent])
    assert {number: lane.track for number, lane in lanes.items()} == {
        one.id: tracks[one.id] for one in spans
    }
    for lane in lanes.values():
        below = [Lane(track=lane.track, index=index) for index in range(lane.index)]
        assert set(below) <= set(lanes.values())


@steady
@given(RANDOM_SPANS)
def test_a_span_is_on_its_parents_lane_if_it_lies_inside_it_and_no_sibling_does_so_too(spans):
    lanes = assign_lanes(spans, root_track="essay")

    for child in spans:
        for parent in spans:
            alone = all(
                other.end_ns < child.start_ns or child.end_ns < other.start_ns
                for other in spans
                if other.id not in {child.id, parent.id}
            )
            if child.parent == parent.id and inside(child, parent) and alone:
                assert lanes[child.id] == lanes[parent.id] or "track" in child.attributes
