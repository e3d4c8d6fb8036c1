"""The run's record: spans, instants, counters, the journal they go to, and what is made of it.

Knows nothing of models or rubrics.
"""

from harness.trace.audit_log import (
    AUDIT_LOG,
    AuditEntry,
    AuditLine,
    LoopEntry,
    RoundEntry,
    RunVerdict,
    StageUse,
    append_line,
    latest_lines,
    read_audit_log,
    with_unended,
)
from harness.trace.calls import Call, CallGroup, Interval, call_group, calls_of, group_calls
from harness.trace.chrome import write_chrome_trace
from harness.trace.clock import Clock, ManualClock, monotonic
from harness.trace.journal import Durability, JournalWriter, OnFailure
from harness.trace.journal_reader import Item, Journal, RunRecord, load_run
from harness.trace.perfetto import write_perfetto_trace
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    NodeOutput,
    Record,
    RunEnd,
    RunEnded,
    RunStarted,
    RunState,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    SpanStatus,
)
from harness.trace.run_trace import TIMELINES, JoinedTrace, RunTrace, TimelineFormat, TraceOptions
from harness.trace.secrets import Redactor
from harness.trace.timeline import Lane, Lanes
from harness.trace.tracer import ContentPolicy, RecordMaker, Sink, Span, Tracer, describe, sha256_of

__all__ = [
    "AUDIT_LOG",
    "TIMELINES",
    "Attributes",
    "AuditEntry",
    "AuditLine",
    "Call",
    "CallGroup",
    "Clock",
    "Content",
    "ContentPolicy",
    "CounterSet",
    "Durability",
    "Flow",
    "Flows",
    "Instant",
    "Interval",
    "Item",
    "JoinedTrace",
    "Journal",
    "JournalWriter",
    "Lane",
    "Lanes",
    "LoopEntry",
    "ManualClock",
    "NodeOutput",
    "OnFailure",
    "Record",
    "RecordMaker",
    "Redactor",
    "RoundEntry",
    "RunEnd",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "RunState",
    "RunTrace",
    "RunVerdict",
    "Sink",
    "Span",
    "SpanEnded",
    "SpanRecord",
    "SpanStarted",
    "SpanStatus",
    "StageUse",
    "TimelineFormat",
    "TraceOptions",
    "Tracer",
    "append_line",
    "call_group",
    "calls_of",
    "describe",
    "group_calls",
    "latest_lines",
    "load_run",
    "monotonic",
    "read_audit_log",
    "sha256_of",
    "with_unended",
    "write_chrome_trace",
    "write_perfetto_trace",
]
