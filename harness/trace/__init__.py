"""The run's record: spans, instants, counters, the journal they go to, and what is made of it.

Knows nothing of models or rubrics.
"""

from harness.trace.audit_log import AuditEntry, LoopEntry, append_entry
from harness.trace.chrome import write_chrome_trace
from harness.trace.clock import Clock, ManualClock, monotonic
from harness.trace.journal import JournalWriter, read_journal
from harness.trace.lanes import Lane, assign_lanes
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanStarted,
)
from harness.trace.run_record import RunRecord, SpanRecord, assemble, load_run
from harness.trace.run_trace import RunTrace
from harness.trace.summary import ModelSummary, summarise_models
from harness.trace.tracer import Sink, Span, Tracer

__all__ = [
    "Attributes",
    "AuditEntry",
    "Clock",
    "Content",
    "CounterSet",
    "Instant",
    "JournalWriter",
    "Lane",
    "LoopEntry",
    "ManualClock",
    "ModelSummary",
    "NodeOutput",
    "Record",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "RunTrace",
    "Sink",
    "Span",
    "SpanEnded",
    "SpanRecord",
    "SpanStarted",
    "Tracer",
    "append_entry",
    "assemble",
    "assign_lanes",
    "load_run",
    "monotonic",
    "read_journal",
    "summarise_models",
    "write_chrome_trace",
]
