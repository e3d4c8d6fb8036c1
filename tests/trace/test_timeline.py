from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import random_spans, span

from harness.trace.records import CounterSet
from harness.trace.timeline import Lanes, SummaryTracks, shown_counter


def placed(spans):
    """The lane of each span, by its id."""
    lanes = Lanes("essay")
    return {one.id: lanes.place(one) for one in spans}


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        pytest.param([], "", id="no span"),
        pytest.param([span(1, 0, 9), span(2, 1, 8, parent=1), span(3, 2, 3, parent=2)], "0 0 0",
                     id="nested"),
        pytest.param([span(1, 0, 9), span(2, 1, 4, parent=1), span(3, 4, 8, parent=1)], "0 0 0",
                     id="siblings one after the other"),
        pytest.param([span(1, 0, 9), span(2, 1, 5, parent=1), span(3, 4, 8, parent=1)], "0 0 1",
                     id="siblings that overlap"),
        pytest.param([span(1, 0, 5), span(2, 3, 8, parent=1)], "0 1",
                     id="child that outlives its parent"),
        pytest.param([span(1, 3, 8), span(2, 1, 5, parent=1, track="x"), span(3, 0, 4, parent=2)],
                     "0 x0 x1", id="child that begins before its parent"),
        pytest.param([span(1, 0, 5), span(2, 5, 9), span(3, 3, 6)], "0 0 1",
                     id="a lane is used again"),
        pytest.param([span(1, 0, 9, track="x"), span(2, 1, 5, parent=1),
                      span(3, 2, 4, parent=2, track="y"), span(4, 2, 3, parent=3)], "x0 x0 y0 y0",
                     id="tracks are inherited"),
        pytest.param([span(1, 0, 9, track=7), span(2, 1, 2, parent=1)], "70 70",
                     id="a track named by a number"),
        pytest.param([span(1, 0, 9), span(2, 4, 4, parent=1), span(3, 4, 4, parent=1)], "0 0 1",
                     id="siblings without length at one moment"),
    ],
)  # fmt: skip
def test_a_span_is_drawn_on(spans, lanes):
    found = [(lane.track.removeprefix("essay"), lane.index) for lane in placed(spans).values()]

    assert " ".join(f"{track}{index}" for track, index in found) == lanes


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


@given(RANDOM_SPANS)
def test_on_every_lane_spans_are_disjoint_or_nested_in_their_ancestors(spans):
    lanes = placed(spans)

    by_id = {one.id: one for one in spans}
    for one, other in combinations(spans, 2):
        if lanes[one.id] is not lanes[other.id]:
            continue
        disjoint = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
        one_inside = inside(one, other) and other.id in ancestors(one, by_id)
        other_inside = inside(other, one) and one.id in ancestors(other, by_id)
        nested = inside(one, other) or inside(other, one)
        assert one_inside or other_inside if nested else disjoint, (one, other)


@given(RANDOM_SPANS)
def test_tracks_come_from_the_span_its_parents_or_the_run_and_lanes_have_no_gaps(spans):
    lanes = Lanes("essay")
    at = {one.id: lanes.place(one) for one in spans}

    tracks = {None: "essay"}
    for one in spans:
        tracks[one.id] = one.attributes.get("track", tracks[one.parent])
        assert at[one.id].track == tracks[one.id]
        assert lanes.lane_of(one.id) is at[one.id]
    assert lanes.lane_of(len(spans) + 1) is lanes.lane_of(10**9) is None
    of_track = {}
    for lane in sorted(set(at.values()), key=lambda lane: lane.number):
        of_track.setdefault(lane.track, []).append(lane.index)
    assert all(indexes == list(range(len(indexes))) for indexes in of_track.values())
    numbers = list(dict.fromkeys(lane.number for lane in at.values()))
    assert numbers == list(range(len(numbers)))


@given(RANDOM_SPANS)
def test_the_ends_that_a_lane_tells_of_make_brackets_that_match(spans):
    lanes, drawn = Lanes("essay"), {}

    def end(lane):
        stack = drawn.setdefault(lane.number, [])
        for end_ns in lane.ended:
            assert stack.pop().end_ns == end_ns

    for one in spans:
        lane = lanes.place(one)
        end(lane)
        stack = drawn[lane.number]
        # What is still open lies around it, and is what it is nested in.
        assert all(inside(one, outer) for outer in stack)
        assert not stack or stack[-1].id == one.parent
        stack.append(one)
    for lane in lanes.close():
        end(lane)
    assert not any(drawn.values())
    assert all(not lane.ended for lane in lanes.close())


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("share", 0.0512, ("%", 5.12)),
        ("bytes", 1_500_000, ("MB", 1.5)),
        ("requests", 3, ("requests", 3)),
    ],
)
def test_counters_are_shown_in_units_that_people_read(unit, value, shown):
    counter = shown_counter(CounterSet("one", unit, 0, value, None, None))
    assert (counter.unit, counter.value) == shown


# --- counters of a whole run -------------------------------------------------------------------

MS = 1_000_000


def timed(number, name, start_ms, end_ms, **more):
    return span(number, start_ms * MS, end_ms * MS, name=name, **more)


def values(*spans):
    """By counter, its values and since when they are so, in milliseconds."""
    summary = SummaryTracks()
    for one in spans:
        summary.add(one)
    found = {}
    for counter in summary.counters():
        assert (counter.span, counter.track) == (None, None)
        found.setdefault(counter.name, []).append((counter.time_ns // MS, counter.value))
    return found


def test_calls_and_their_tokens_are_added_up_from_moment_to_moment():
    assert values(
        timed(1, "chat", 0, 100, output_tokens=11),
        timed(2, "decode", 50, 100, parent=1),
        timed(3, "chat", 20, 120, output_tokens=21),
        timed(4, "decode", 20, 120, parent=3),
        timed(5, "chat", 100, 110),
        timed(6, "chat", 0, 1, from_cache=True),  # no call of a model
    ) == {
        "calls": [(0, 1), (20, 2), (110, 1), (120, 0)],
        # 10 tokens in 50 ms, and 20 in 100.
        "decoding": [(20, 200), (50, 400), (100, 200), (120, 0)],
    }


def test_nodes_that_waited_are_counted_until_they_begin():
    assert values(
        timed(1, "node", 0, 50),
        timed(2, "node", 50, 90, place_wait_ns=50 * MS),
        timed(3, "node", 70, 90, place_wait_ns=10 * MS, concurrency_wait_ns=20 * MS),
    ) == {"nodes": [(0, 1), (40, 2), (50, 1), (70, 0)]}
