"""What people see of a run: its journal as a timeline, and the timeline in a browser.

Lanes first, since slices that overlap cannot share a line; then one file for each format.
"""

from harness.trace.timelines.chrome import write_chrome_trace
from harness.trace.timelines.formats import TIMELINES, TimelineFormat
from harness.trace.timelines.lanes import Lane, Lanes
from harness.trace.timelines.perfetto import write_perfetto_trace

__all__ = [
    "TIMELINES",
    "Lane",
    "Lanes",
    "TimelineFormat",
    "write_chrome_trace",
    "write_perfetto_trace",
]
