from harness.trace import SpanRecord
from harness.trace.summary_tracks import SummaryTracks

MS = 1_000_000


def span(number, name, start_ms, end_ms, parent=None, **attributes):
    times = (start_ms * MS, end_ms * MS)
    return SpanRecord(number, parent, name, *times, "ok", None, attributes)


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
        span(1, "chat", 0, 100, output_tokens=11),
        span(2, "decode", 50, 100, 1),
        span(3, "chat", 20, 120, output_tokens=21),
        span(4, "decode", 20, 120, 3),
        span(5, "chat", 100, 110),
    ) == {
        "calls": [(0, 1), (20, 2), (110, 1), (120, 0)],
        # 10 tokens in 50 ms, and 20 in 100.
        "decoding": [(20, 200), (50, 400), (100, 200), (120, 0)],
    }


def test_nodes_that_waited_are_counted_until_they_begin():
    assert values(
        span(1, "node", 0, 50),
        span(2, "node", 50, 90, place_wait_ns=50 * MS),
        span(3, "node", 70, 90, place_wait_ns=10 * MS, concurrency_wait_ns=20 * MS),
    ) == {"nodes": [(0, 1), (40, 2), (50, 1), (70, 0)]}


def test_a_reply_from_the_cache_is_no_call():
    assert values(span(1, "chat", 0, 1, from_cache=True)) == {}
