import subprocess
import sys

from harness.trace import ManualClock, monotonic
from harness.trace.clock import boot_id


def test_the_clock_of_real_runs_counts_nanoseconds_and_never_goes_back():
    readings = [monotonic() for _ in range(1000)]

    assert readings == sorted(readings)
    assert all(isinstance(reading, int) for reading in readings)


def test_processes_of_one_machine_know_that_they_share_its_clock():
    code = "from harness.trace.clock import boot_id; print(boot_id())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"{boot_id()}\n"
    assert (boot_id() is not None) == (sys.platform == "linux")


def test_a_manual_clock_moves_only_when_told_to():
    clock = ManualClock(start_ns=5)
    assert clock() == clock() == 5

    clock.advance(ns=2, ms=3)
    assert clock() == 3_000_007
