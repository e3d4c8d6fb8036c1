"""The run's record: spans, instants, counters, the journal they go to, and what is made of it.

Knows nothing of models or rubrics.
"""

from harness.trace.calls import Call, CallGroup, Interval, call_group, calls_of, group_calls
from harness.trace.chrome import write_chrome_trace
from harness.trace.clock import Clock, ManualClock, monotonic
from harness.trace.journal import Durability, JournalWriter, OnFailure
from harness.trace.journal_line import dump_json
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
from harness.trace.run_list import AUDIT_LOG, AuditLine, append_line, list_runs, read_audit_log
from harness.trace.run_trace import TIMELINES, JoinedTrace, RunTrace, TimelineFormat, TraceOptions
from harness.trace.secrets import Redactor
from harness.trace.timeline import Lane, Lanes
from harness.trace.tracer import ContentPolicy, RecordMaker, Sink, Span, Tracer, describe, sha256_of

__all__ = [
    "AUDIT_LOG",
    "TIMELINES",
    "Attributes",
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
    "ManualClock",
    "NodeOutput",
    "OnFailure",
    "Record",
    "RecordMaker",
    "Redactor",
    "RunEnd",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "RunState",
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
    "call_group",
    "calls_of",
    "describe",
    "dump_json",
    "group_calls",
    "list_runs",
    "load_run",
    "monotonic",
    "read_audit_log",
    "sha256_of",
    "write_chrome_trace",
    "write_perfetto_trace",
]
