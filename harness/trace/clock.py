"""The clocks of a run.

A clock is any function that returns integer nanoseconds and never goes back. Code that needs the
time is given one, so that tests can drive it by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

Clock = Callable[[], int]
"""Nanoseconds since an arbitrary start; only differences mean anything."""

monotonic: Clock = time.perf_counter_ns
"""The clock of every real run."""


@cache
def boot_id() -> str | None:
    """The id of this machine's boot; None where the system has none.

    Processes with the same id read `monotonic` from the same clock, unless a container has set its
    own (`man 7 time_namespaces`).
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
