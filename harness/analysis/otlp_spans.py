"""A run's spans as OpenTelemetry spans, named by its GenAI semantic conventions.

Release 1.44, now in open-telemetry/semantic-conventions-genai. Every attribute is also kept under
its own name, after `harness.`. Times are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from harness.inference.providers import provider_named
from harness.metrics import model_attributes
from harness.trace import events
from harness.trace.calls import grouped
from harness.trace.journal_line import dump_json
from harness.trace.journal_reader import Journal
from harness.trace.records import Attributes, Content, Instant, SpanRecord, error_class, title
from harness.trace.tracer import span_id, trace_id

# The most events and links of one span, as in OpenTelemetry's own libraries.
_MOST = 128
_STATUS_CODES = {"ok": Status.STATUS_CODE_OK, "error": Status.STATUS_CODE_ERROR}
_INT64 = range(-(1 << 63), 1 << 63)

_OPERATIONS = {
    events.name_of(event): operation
    for event, operation in {
        events.RunSpanEvent: "invoke_workflow",
        events.Chat: "chat",
        events.SchemaProbe: "chat",
        events.ToolProbe: "chat",
        events.Embed: "embeddings",
        events.Rerank: "rerank",
        events.Recall: "retrieval",
        events.Agent: "invoke_agent",
        events.ToolEvent: "execute_tool",
    }.items()
}
"""Name of a span → its `gen_ai.operation.name`."""

_NAMES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "structured": "gen_ai.output.type",
    "finish_reason": "gen_ai.response.finish_reasons",
    "ttft_ns": "gen_ai.response.time_to_first_chunk",
    "model_id": "gen_ai.response.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
"""GenAI's names for attributes of requests to a model."""

_CONVERTED: dict[str, Callable[[Any], object]] = {
    "structured": lambda structured: "json" if structured else "text",
    "finish_reason": lambda reason: [reason],
    "ttft_ns": lambda ns: ns / 1e9,
}

_TEXTS = {
    "prompt_sha256": ("gen_ai.input.messages", "user"),
    "reply_sha256": ("gen_ai.output.messages", "assistant"),
}
"""GenAI's names for the texts behind our hashes, and whose message each is: a prompt counts as one
message, with the roles of its parts in the text."""

# Attributes that may quote a text: all that pass through `Tracer.excerpt`. A task's text may be the
# seed that an evaluator is drawn by; a call's seed is a number, and quotes nothing.
QUOTING = frozenset(
    {"about", "answer", "detail", "digest", "findings", "hits", "metadata", "query"}
    | {"row_ids", "section", "seed", "text", "title", "traceback", "where"}
)


def otlp_spans(journal: Journal, *, content: bool = False) -> Iterator[Span]:
    """The spans of a journal, which is read twice, in its order.

    Keeps the instants in spans in memory, and with `content` the run's texts.
    """
    run = _RunSpans(journal, content=content)
    return (run.span(record) for record in journal.spans())


class _RunSpans:
    """Makes OpenTelemetry's spans of a run's records."""

    def __init__(self, journal: Journal, *, content: bool) -> None:
        started = journal.started
        # Ids are derived from the run's: a run that is sent twice is one trace.
        self._trace_id = trace_id(started.run_id)
        self._run_id = started.run_id
        self._shift_ns = started.wall_ns - started.time_ns  # from the run's clock to Unix time
        self._content = content
        self._texts: dict[object, str] = {}  # SHA-256 → text
        self._endpoints: dict[str, events.EndpointEvent] = {}  # tag → endpoint
        self._instants: dict[int, list[Instant]] = {}  # span → the instants in it
        # Span that wrote a draft → its verdict; if the draft was given, the verdict's own span.
        self._verdicts: dict[int, events.Evaluate] = {}
        # Span → the flows that lead to it.
        self._flows = grouped(journal.flows, by=lambda flow: flow.target)
        self._parts: list[events.RunSpanEvent] = []  # the spans of a run and of its resumptions
        for item in journal.items():
            if verdict := events.Evaluate.of(item):
                # GenAI wants a verdict at the span that wrote the draft.
                flows = self._flows.get(verdict.id, ())
                writers = [flow.source for flow in flows if flow.name == "draft"]
                self._verdicts[writers[0] if writers else verdict.id] = verdict
            # Instants outside any span are left out, as are counters: OTLP's traces have neither.
            elif isinstance(item, Instant) and item.span is not None:
                self._instants.setdefault(item.span, []).append(item)
            elif part := events.RunSpanEvent.of(item):
                self._parts.append(part)
            elif endpoint := events.EndpointEvent.of(item):
                self._endpoints[endpoint.model] = endpoint
            # Texts are sent only on request, since a viewer is often on another's machine.
            elif isinstance(item, Content) and content:
                self._texts[item.sha256] = item.text

    def span(self, record: SpanRecord) -> Span:
        model: dict[str, object] = {}
        is_remote = False
        request = events.request_of(record)
        if request is not None:
            endpoint = self._endpoints.get(request.model)
            model = model_attributes(request.model, endpoint)
            backend = endpoint.backend if endpoint else events.EndpointEvent.backend
            is_local = provider_named(backend).loading is not None or backend == "scripted"
            is_remote = not is_local and not request.from_cache
        values = {
            **model,
            **self._attributes(record),
            "error.type": error_class(record.error) or None,
            "harness.status": None if record.status == "ok" else record.status,
            "session.id": self._run_id,
        }
        span_events, links = self._events(record), self._links(record)
        return Span(
            trace_id=self._trace_id,
            span_id=span_id(self._run_id, record.id),
            parent_span_id=self._parent_id(record),
            name=_clean(_span_name(record, model.get("gen_ai.request.model"))),
            kind=Span.SPAN_KIND_CLIENT if is_remote else Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=record.start_ns + self._shift_ns,
            end_time_unix_nano=record.end_ns + self._shift_ns,
            attributes=key_values(values),
            events=span_events[:_MOST],
            dropped_events_count=len(span_events[_MOST:]),
            links=links[:_MOST],
            dropped_links_count=len(links[_MOST:]),
            # Unset for a span that was cut short. An error's message may quote a text.
            status=Status(
                code=_STATUS_CODES.get(record.status, Status.STATUS_CODE_UNSET),
                message=_clean(
                    (record.error or "") if self._content else error_class(record.error)
                ),
            ),
        )

    def _parent_id(self, record: SpanRecord) -> bytes:
        """The id of the span around a span; of those that no node made, the run's."""
        parent = record.parent
        if parent is None and events.RunSpanEvent.of(record) is None:
            # Viewers read the run's name and times from the trace's only root.
            parts = (part.id for part in self._parts if part.end_ns >= record.start_ns)
            parent = next(parts, None)
        return b"" if parent is None else span_id(self._run_id, parent)

    def _attributes(self, record: SpanRecord) -> dict[str, object]:
        """A span's attributes, under our names and GenAI's; None stands for an unknown value."""
        attributes = record.attributes
        values = {
            "harness.span": record.name,
            "gen_ai.operation.name": _OPERATIONS.get(record.name),
            **_own_attributes(attributes, texts=self._content),
        }
        if events.request_of(record) is not None:
            for name, genai_name in _NAMES.items():
                value = attributes.get(name)
                if value is not None:
                    values[genai_name] = _CONVERTED[name](value) if name in _CONVERTED else value
        if run := events.RunSpanEvent.of(record):
            # Since the conventions have a repository of their own, a workflow is an agent, too.
            values["gen_ai.workflow.name"] = values["gen_ai.agent.name"] = run.label
        elif record.name == events.name_of(events.Agent):
            values["gen_ai.agent.name"] = title(record)
        elif tool := events.ToolEvent.of(record):
            values["gen_ai.tool.name"] = tool.tool
        if self._content:
            for name, (genai_name, role) in _TEXTS.items():
                if text := self._texts.get(str(attributes.get(name))):
                    parts = [{"type": "text", "content": text}]
                    message: dict[str, object] = {"role": role, "parts": parts}
                    if role == "assistant":
                        message["finish_reason"] = events.Chat.read(record).finish_reason
                    values[genai_name] = dump_json([message]).decode()
            values["harness.draft"] = self._texts.get(events.Evaluate.read(record).draft_sha256)
            if recall := events.Recall.of(record):
                values["gen_ai.retrieval.query.text"] = recall.query
        return values

    def _events(self, record: SpanRecord) -> list[Span.Event]:
        """A span's instants, and the scores of the draft that it wrote."""
        named_values = [
            (event.name, event.time_ns, _own_attributes(event.attributes, texts=self._content))
            for event in self._instants.get(record.id, ())
        ]
        if verdict := self._verdicts.get(record.id):
            results = _evaluation_results(verdict, texts=self._content)
            named_values += [("gen_ai.evaluation.result", verdict.end_ns, r) for r in results]
        return [
            Span.Event(
                name=_clean(name),
                time_unix_nano=time_ns + self._shift_ns,
                attributes=key_values(values),
            )
            for name, time_ns, values in named_values
        ]

    def _links(self, record: SpanRecord) -> list[Span.Link]:
        """Links to the spans that led to this one, except its parent, which has a field."""
        return [
            Span.Link(
                trace_id=self._trace_id,
                span_id=span_id(self._run_id, flow.source),
                attributes=key_values({"harness.flow": flow.name}),
            )
            for flow in self._flows.get(record.id, ())
            if flow.source != record.parent
        ]


def key_values(values: Mapping[str, object]) -> list[KeyValue]:
    """Attributes as OTLP has them; None is left out, what OTLP has no form for becomes JSON."""
    return [
        KeyValue(key=_clean(name), value=_any_value(value))
        for name, value in values.items()
        if value is not None
    ]


def _any_value(value: object) -> AnyValue:
    match value:
        # Before integers, since a bool is one.
        case bool():
            return AnyValue(bool_value=value)
        case int() if value in _INT64:
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=_clean(value))
        # OTLP's lists have elements of one kind.
        case list() if {type(item) for item in value} in ({str}, {int}, {float}, {bool}):
            return AnyValue(array_value=ArrayValue(values=map(_any_value, value)))
        # Also an integer beyond 64 bits.
        case _:
            return AnyValue(string_value=dump_json(value).decode())


def _clean(text: str) -> str:
    # Protocol buffers cannot hold lone surrogates.
    return text.encode("utf-8", "replace").decode()


def _span_name(span: SpanRecord, model: object) -> str:
    """An operation and its object, as GenAI wants it; the title of any other span."""
    operation = _OPERATIONS.get(span.name)
    if operation is None:
        return title(span)
    is_titled = events.RunSpanEvent.of(span) or events.ToolEvent.of(span)
    target = title(span) if is_titled else model
    return f"{operation} {target}" if target else operation


def _own_attributes(attributes: Attributes, *, texts: bool) -> dict[str, object]:
    """Attributes under our own names; attributes that may quote a text only with `texts`."""
    return {
        f"harness.{name}": value
        for name, value in attributes.items()
        if texts or name not in QUOTING or isinstance(value, int)
    }


def _evaluation_results(verdict: events.Evaluate, *, texts: bool) -> Iterator[dict[str, object]]:
    """Attributes of `gen_ai.evaluation.result` events: the whole verdict, then each dimension."""
    if verdict.composite is None or verdict.scores is None:
        return
    yield {
        "gen_ai.evaluation.name": "composite",
        "gen_ai.evaluation.score.value": verdict.composite,
        "gen_ai.evaluation.score.label": "pass" if verdict.passed else "fail",
    }
    # Reasons may quote the draft. `reasons_in` writes them as `name: reason`.
    findings = verdict.findings if texts else ()
    reasons = dict(str(finding).partition(": ")[::2] for finding in findings)
    for name, score in verdict.scores.items():
        yield {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": score,
            "gen_ai.evaluation.explanation": reasons.get(name),
        }
