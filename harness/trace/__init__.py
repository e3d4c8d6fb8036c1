"""The run's record: spans, instants, counters, the journal they go to, and what is made of it.

Knows nothing of models or rubrics.
"""

from harness.trace.audit_log import AuditEntry, LoopEntry, append_line
from harness.trace.chrome import write_chrome_trace
from harness.trace.clock import Clock, ManualClock, monotonic
from harness.trace.exports import TIMELINES, TimelineFormat
from harness.trace.journal import Durability, JournalWriter
from harness.trace.journal_reader import Item, Journal
from harness.trace.lanes import Lane, Lanes
from harness.trace.perfetto import write_perfetto_trace
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Flow,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    SpanStatus,
)
from harness.trace.run_record import RunRecord, load_run
from harness.trace.run_trace import JoinedTrace, RunTrace, TraceOptions
from harness.trace.secrets import Redactor
from harness.trace.summary import ModelSummary, summarise_models
from harness.trace.tracer import ContentPolicy, RecordMaker, Sink, Span, Tracer, describe

__all__ = [
    "TIMELINES",
    "Attributes",
    "AuditEntry",
    "Clock",
    "Content",
    "ContentPolicy",
    "CounterSet",
    "Durability",
    "Flow",
    "Instant",
    "Item",
    "JoinedTrace",
    "Journal",
    "JournalWriter",
    "Lane",
    "Lanes",
    "LoopEntry",
    "ManualClock",
    "ModelSummary",
    "NodeOutput",
    "Record",
    "RecordMaker",
    "Redactor",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "RunTrace",
    "Sink",
    "Span",
    "SpanEnded",
    "SpanRecord",
    "SpanStarted",
    "SpanStatus",
    "TimelineFormat",
    "TraceOptions",
    "Tracer",
    "append_line",
    "describe",
    "load_run",
    "monotonic",
    "summarise_models",
    "write_chrome_trace",
    "write_perfetto_trace",
]
