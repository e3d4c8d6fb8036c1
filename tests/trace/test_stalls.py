import pytest
from manual_clock import ManualClock

from harness.trace import Interval
from harness.trace.stalls import Stalls

MS = 1_000_000


def beating(*times_ms: int) -> Stalls:
    """What is known after beats at these times."""
    clock = ManualClock()
    stalls = Stalls(clock)
    for time_ms in times_ms:
        clock.advance(ns=time_ms * MS - clock())
        stalls.beat()
    return stalls


def between(start_ms: int, end_ms: int) -> Interval:
    return Interval(start_ns=start_ms * MS, end_ns=end_ms * MS)


STALLED = (*range(0, 101, 10), 600, *range(610, 2001, 10))
"""The loop stood still from 100 to 600 ms."""


@pytest.mark.parametrize(
    ("measured", "is_wrong"),
    [
        (between(10, 90), False),
        (between(10, 600), True),  # what ended it came while nobody looked
        (between(10, 604), True),  # and is read one thing after the other
        (between(10, 700), False),  # it went on all the while
        (between(600, 700), True),  # it may have begun long before
        (between(650, 700), False),
        (between(590, 50_000), False),  # so little does not matter
    ],
)
def test_what_begins_or_ends_in_a_stall_is_unreliable(measured, is_wrong):
    assert beating(*STALLED).falsify(measured) is is_wrong


def test_what_this_process_has_sent_itself_it_knows_the_time_of():
    stalls = beating(*STALLED)
    assert not stalls.falsify(between(600, 700), from_sending=True)
    assert stalls.falsify(between(50, 600), from_sending=True)


@pytest.mark.parametrize(
    ("measured", "longest_ms", "is_wrong"),
    [
        (between(10, 90), 20, False),
        (between(10, 700), 500, True),  # its means are right, and the waits within are not
        (between(10, 700), 20_000, False),
        (between(700, 900), 20, False),
    ],
)
def test_waits_for_tokens_are_unreliable_if_a_stall_is_among_them(measured, longest_ms, is_wrong):
    assert beating(*STALLED).falsify_gaps(measured, longest_ns=longest_ms * MS) is is_wrong


def test_a_stall_counts_before_the_beat_that_ends_it():
    clock = ManualClock()
    stalls = Stalls(clock)
    stalls.beat()
    clock.advance(ms=400)
    assert stalls.overdue_ns == 390 * MS
    assert stalls.falsify(between(-100, 400))
    stalls.stop()
    assert stalls.overdue_ns == 0
    assert not stalls.falsify(between(-100, 400))


def test_without_beats_nothing_is_in_doubt():
    assert not beating().falsify(between(0, 1000))


def test_a_beat_a_little_late_is_no_stall():
    assert not beating(0, 10, 27, 37).falsify(between(0, 30))
