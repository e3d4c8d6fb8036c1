"""The timelines a journal can be turned into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from harness.trace.journal_reader import Journal
from harness.trace.timelines.chrome import write_chrome_trace
from harness.trace.timelines.perfetto import write_perfetto_trace

TimelineFormat = Literal["chrome", "perfetto"]

TIMELINES: dict[TimelineFormat, tuple[str, Callable[[Journal, Path], None]]] = {
    "chrome": (".json", write_chrome_trace),
    "perfetto": (".pftrace", write_perfetto_trace),
}
"""By format: how a file of it ends, and what writes one."""
