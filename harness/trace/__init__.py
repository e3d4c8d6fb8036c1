"""The trace of a run: spans, instants, counters, their journal, and the timelines made of it.

Knows nothing of models or rubrics.
"""

from harness.trace.calls import UNRELIABLE, Call, CallGroup, calls_of, group_calls
from harness.trace.clock import Clock, monotonic
from harness.trace.exporter import Exporter, ExportTarget
from harness.trace.journal import Durability, OnFailure
from harness.trace.journal_line import dump_json
from harness.trace.journal_reader import Journal
from harness.trace.records import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    Interval,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    SpanStatus,
    describe,
)
from harness.trace.run_list import AUDIT_LOG, AuditLine, append_line, list_runs
from harness.trace.run_trace import TIMELINES, RunTrace, TimelineFormat, TraceOptions
from harness.trace.secrets import Redactor
from harness.trace.shared_tracer import SharedTracer
from harness.trace.tracer import ContentPolicy, Sink, Span, Tracer, add_run_context, sha256_of

__all__ = [
    "AUDIT_LOG", "TIMELINES", "UNRELIABLE", "AuditLine", "Call", "CallGroup", "Clock",
    "Content", "ContentPolicy", "CounterSet", "Durability", "ExportTarget", "Exporter", "Flow",
    "Flows", "Instant", "Interval", "Journal", "NodeOutput", "OnFailure", "Record", "Redactor",
    "RunEnded", "RunStarted", "RunTrace", "SharedTracer", "Sink", "Span", "SpanEnded", "SpanRecord",
    "SpanStarted", "SpanStatus", "TimelineFormat", "TraceOptions", "Tracer", "add_run_context",
    "append_line", "calls_of", "describe", "dump_json", "group_calls", "list_runs", "monotonic",
    "sha256_of",
]  # fmt: skip
