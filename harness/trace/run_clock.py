"""The run's clock: that of the main process in the run's first part.

A part that resumes the run begins on it where the run had ended before: the time in between, in
which nothing ran, is not the run's. Processes that joined have clocks of their own.
"""

from __future__ import annotations

from harness.trace.records import RunEnded, RunStarted


def part_shift_ns(part: RunStarted) -> int:
    """What to add to the times of a part that resumes a run to have them on the run's clock.

    Args:
        part: Its first record.
    """
    assert part.joined_ns is not None, "as readers make sure"
    return part.joined_ns - part.time_ns


def joined_shift_ns(
    own: RunStarted, ended: RunEnded | None, *, main: RunStarted, main_ended: RunEnded | None
) -> int:
    """What to add to the times of a process that joined to have them on the main process's clock.

    Args:
        own: The first record of the process.
        ended: Its last, if it came to its end.
        main: The first record of the main process, in the part that was joined.
        main_ended: Its last in that part, if that came to its end.
    """
    by_wall_ns = (own.wall_ns - own.time_ns) - (main.wall_ns - main.time_ns)
    if own.joined_ns is None:
        return by_wall_ns
    earliest_ns = own.joined_ns - own.time_ns
    if own.boot_id is not None and own.boot_id == main.boot_id and earliest_ns <= 0:
        return 0  # the clock is the same
    # Wall clocks are set, and differ between machines; that it was asked before it began is
    # certain, and that it ended before the main process is likely where there was time for it.
    shift_ns = max(by_wall_ns, earliest_ns)
    if ended is None or main_ended is None:
        return shift_ns
    latest_ns = main_ended.time_ns - ended.time_ns
    return min(shift_ns, latest_ns) if latest_ns >= earliest_ns else shift_ns
