"""What processes take of the machine, as Linux counts it in `/proc`; nothing elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Since a process began."""

    cpu_s: float
    """Of all its threads together."""
    resident_bytes: int
    """Now."""
    page_faults: int
    """How often it waited for a page from disk: major faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreUse:
    """Of all cores together, since the machine was started."""

    busy_s: float
    total_s: float


def process_use(process_id: int) -> ProcessUse | None:
    """What a process took so far; None if there is no such process, or no `/proc`."""
    try:
        line = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field, a name in parentheses, may hold spaces and parentheses. See proc(5).
    fields = line.rpartition(")")[2].split()
    # From the third field on: utime and stime are 14 and 15 there, rss is 24, majflt 12.
    return ProcessUse(
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGESIZE"),
        page_faults=int(fields[9]),
    )


def core_use() -> CoreUse | None:
    """What all cores did so far; None if there is no `/proc`."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            first = file.readline()
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in the first two.
    ticks = [int(field) for field in first.split()[1:9]]
    total = sum(ticks) / os.sysconf("SC_CLK_TCK")
    idle = (ticks[3] + ticks[4]) / os.sysconf("SC_CLK_TCK")
    return CoreUse(busy_s=total - idle, total_s=total)
