from harness.trace import ManualClock, monotonic


def test_the_clock_of_real_runs_counts_nanoseconds_and_never_goes_back():
    readings = [monotonic() for _ in range(1000)]

    assert readings == sorted(readings)
    assert all(isinstance(reading, int) for reading in readings)


def test_a_manual_clock_moves_only_when_told_to():
    clock = ManualClock(start_ns=5)
    assert clock() == clock() == 5

    clock.advance(ns=2, ms=3)
    assert clock() == 3_000_007
