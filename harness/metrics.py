"""Metrics of runs for Prometheus and OpenTelemetry, named by OpenTelemetry's GenAI conventions.

They are computed from the records of runs.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from harness.errors import ConfigurationInvalid
from harness.inference.providers import provider_named
from harness.trace import (
    Call,
    Instant,
    Journal,
    Record,
    RunEnded,
    RunStarted,
    Sink,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    calls_of,
    events,
)
from harness.trace.calls import PHASES, charges_of
from harness.trace.node_records import attempt_status
from harness.trace.records import error_class, joined
from harness.trace.run_trace import is_going
from harness.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

Labels = Mapping[str, str | int]

# Every set of labels is a series, so a label must have few values: models, pipelines and classes of
# errors, never a run or a text.

# The bounds that the conventions advise.
_CALL_S = tuple(0.01 * 2**n for n in range(14))
_RUN_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
_TOKENS = tuple(4.0**n for n in range(14))

# Prefix of a managed API in a model's name → the name that GenAI has for it, if another.
_MANAGED = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}

_OPERATIONS = {events.Embed.NAME: "embeddings", events.Rerank.NAME: "rerank"}


class _Instrument(NamedTuple):
    """A metric, as OpenTelemetry describes it."""

    name: str
    unit: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    bounds: tuple[float, ...] = ()  # of a histogram's buckets

    @property
    def family(self) -> str:
        """Its name in Prometheus, the same as by OpenTelemetry's own exporter for it."""
        unit = "_seconds" if self.unit == "s" else ""
        ending = "_total" if self.kind == "counter" else ""
        return f"{self.name.replace('.', '_')}{unit}{ending}"


_DURATION = "gen_ai.client.operation.duration"
_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
_USAGE = "gen_ai.client.token.usage"
_RUNS = "gen_ai.workflow.duration"
_QUEUE = "harness.call.queue.duration"
_COST = "harness.call.cost.usd"
_CALLS_ACTIVE = "harness.calls.active"
_RUNS_ACTIVE = "harness.runs.active"
_RETRIES = "harness.retries"
_ROWS = "harness.rows"
_EXPECTED = "harness.rows.expected"

METRICS = (
    _Instrument(_DURATION, "s", "histogram", "Time of a call of a model, waits included", _CALL_S),
    _Instrument(_FIRST_CHUNK, "s", "histogram", "Time from sending to the first token", _CALL_S),
    _Instrument(_USAGE, "{token}", "histogram", "Tokens of a call, by its server's count", _TOKENS),
    _Instrument(
        _QUEUE, "s", "histogram", "Time that a call waited for its turn or for room", _CALL_S
    ),
    _Instrument(_COST, "{USD}", "counter", "Dollars, of calls whose price is known"),
    _Instrument(_CALLS_ACTIVE, "{call}", "gauge", "Calls of models under way"),
    _Instrument(
        _RETRIES, "{retry}", "counter", "Calls of models and of nodes that were tried again"
    ),
    _Instrument(_RUNS, "s", "histogram", "Time of a run, or of a part of one", _RUN_S),
    _Instrument(_RUNS_ACTIVE, "{run}", "gauge", "Runs under way"),
    _Instrument(_ROWS, "{row}", "counter", "Rows of batches, by what became of them"),
    _Instrument(_EXPECTED, "{row}", "counter", "Rows of batches, done or to come"),
)


class Metrics:
    """Metrics of any number of runs, also of several at once in different threads.

    `pipeline.run_async(…, observers=[metrics])` measures a run, and `text` shows all metrics to
    Prometheus:

        @app.get("/metrics")
        def shown() -> Response:
            return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)

    Args:
        meter: A meter of OpenTelemetry that gets the same figures:
            `opentelemetry.metrics.get_meter(…)`.
    """

    MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, *, meter: Meter | None = None) -> None:
        self._lock = threading.Lock()
        # Metric → labels → the number of values in each bucket, and at the end the sum of values.
        self._series: dict[str, dict[tuple[tuple[str, object], ...], list[float]]] = {
            metric.name: {} for metric in METRICS
        }
        self._bounds = {metric.name: metric.bounds for metric in METRICS}
        self._otel_recorders: dict[str, Callable[[float, Labels], None]] = {}
        if meter is not None:
            self._otel_recorders = {m.name: _otel_recorder(meter, m) for m in METRICS}
        self._single_run = _RunFigures(self._measure)

    def __call__(self, record: Record) -> None:
        """Takes one record of a run; of several runs at once, each needs its own `of_run`."""
        if isinstance(record, RunStarted):
            self._single_run = _RunFigures(self._measure)
        self._single_run(record)

    def of_run(self) -> Sink:
        """A new observer of one run."""
        # One for each run, since span ids begin at 1 in every run.
        return _RunFigures(self._measure)

    def add(self, journal: Journal) -> None:
        """Takes a run from its journal, also while the run is going; raises `JournalInvalid`."""
        figures = _RunFigures(self._measure)
        is_under_way = journal.ended is None and is_going(journal.path)

        def spans_of_calls() -> Iterator[SpanRecord]:
            """The spans of calls and their phases, of which `calls_of` makes calls.

            `figures` takes all other records on the way: a long run does not fit into memory twice.
            """
            for item in journal.items(SpanRecord, Instant):
                if not isinstance(item, SpanRecord):
                    figures(item)
                    continue
                # After a resume, no span of an earlier part is still open: a kill ended it.
                is_open = item.status == "unfinished" and not journal.resumed_after(item.end_ns)
                if is_under_way and is_open and item.name in events.REQUESTS:
                    figures.under_way(item, 1)
                if item.name in {events.Chat.NAME, *PHASES}:
                    yield item
                else:
                    figures(item)

        if is_under_way or journal.ended is not None:
            figures(journal.started)
        for call in calls_of(spans_of_calls()):
            # The phases of a call that has just ended may not be in the file yet.
            may_lack_phases = is_under_way and call.status == "ok" and not call.phases
            if not may_lack_phases:
                figures.end(call)
        if journal.ended is not None:
            # On the clock of the first part, which all spans are on; a later part has its own.
            figures(journal.ended._replace(time_ns=journal.last_ns))

    def _measure(self, name: str, value: float, labels: Labels) -> None:
        """Adds a value to a metric, or a difference to a gauge."""
        if name in self._otel_recorders:
            self._otel_recorders[name](value, labels)
        key = tuple(labels.items())
        bounds = self._bounds[name]
        series = self._series[name]
        with self._lock:
            # A cell for each bound, one for values above the last bound, and the sum.
            cells = series.setdefault(key, [0] * (len(bounds) + 2))
            # `bisect_left`, since Prometheus counts a value that equals a bound as within it.
            cells[bisect_left(bounds, value)] += 1
            cells[-1] += value

    def text(self) -> str:
        """All metrics in Prometheus's text format."""
        with self._lock:
            # Copied, since runs in other threads go on measuring.
            series_by_metric = {
                name: [(labels, [*cells]) for labels, cells in series.items()]
                for name, series in self._series.items()
            }
        lines: list[str] = []
        for metric in METRICS:
            lines.append(f"# HELP {metric.family} {metric.about}")
            lines.append(f"# TYPE {metric.family} {metric.kind}")
            for labels, cells in series_by_metric[metric.name]:
                lines += _prometheus_lines(metric, labels, cells)
        return "\n".join(lines) + "\n"


def _prometheus_lines(
    metric: _Instrument, labels: tuple[tuple[str, object], ...], cells: list[float]
) -> Iterator[str]:
    """The lines of one series; for its cells see `Metrics._measure`."""
    *counts, total = cells
    texts = [f'{name.replace(".", "_")}="{_escaped(value)}"' for name, value in labels]
    in_braces = f"{{{','.join(texts)}}}" if texts else ""
    if metric.kind != "histogram":
        yield f"{metric.family}{in_braces} {total!r}"
        return
    # A bucket of Prometheus counts the values of all buckets before it, too.
    count: float = 0
    for bound, bucket_count in zip((*metric.bounds, "+Inf"), counts, strict=True):
        count += bucket_count
        with_bound = ",".join([*texts, f'le="{bound}"'])
        yield f"{metric.family}_bucket{{{with_bound}}} {count}"
    yield f"{metric.family}_sum{in_braces} {total!r}"
    yield f"{metric.family}_count{in_braces} {count}"


class _RunFigures:
    """Makes measurements of one run's records."""

    def __init__(self, measure: Callable[[str, float, Labels], None]) -> None:
        self._measure = measure
        self._run: RunStarted | None = None
        self._is_batch = False
        # Span id → the start of a request, a phase, or an attempt at a row, that has not ended.
        self._open: dict[int, SpanStarted] = {}
        # Span id of a request that has not ended → its phases that have ended.
        self._phases_by_request: dict[int, list[SpanRecord]] = {}
        self._endpoints_by_tag: dict[str, events.EndpointEvent] = {}
        # (kind of request, tag of its model) → labels.
        self._labels: dict[tuple[str, str], Labels] = {}
        # (node, item) of each.
        self._failed_rows: set[tuple[str, int]] = set()

    def __call__(self, record: Record) -> None:
        """Takes the next record of the run."""
        match record:
            case SpanStarted(id=number, name=name):
                is_request = name in events.REQUESTS
                if is_request:
                    self._phases_by_request[number] = []
                    self.under_way(record, 1)
                if is_request or name in PHASES or self._attempt(record) is not None:
                    self._open[number] = record
            case SpanEnded(id=number) if number in self._open:
                self._end(joined(self._open.pop(number), record))
            case SpanRecord():
                self._end(record)
            case Instant():
                self._measure_instant(record)
            case RunStarted():
                self._run = record
                self._measure(_RUNS_ACTIVE, 1, self._run_labels)
            case RunEnded():
                self._end_run(record)

    @property
    def _run_labels(self) -> Labels:
        return {"gen_ai.workflow.name": self._run.name} if self._run else {}

    def _end(self, span: SpanRecord) -> None:
        """Takes a span that has ended."""
        if span.name in PHASES:
            self._phases_by_request.get(span.parent or 0, []).append(span)
        elif span.name in events.REQUESTS:
            phases = self._phases_by_request.pop(span.id, None)
            # Only a span whose start was seen was counted as under way.
            if phases is not None:
                self.under_way(span, -1)
            if span.name == events.Chat.NAME:
                self.end(calls_of([span, *(phases or ())])[0])
            elif (request := events.request_of(span)) is not None:
                self.end(request)
        elif (attempt := self._attempt(span)) and span.status != "unfinished":
            self._count_row(attempt, attempt_status(span))

    def end(self, call: events.Request) -> None:
        """Measures a request to a model that has ended."""
        # Otherwise no model was called, or none has answered yet.
        if call.from_cache or call.was_refused or call.status == "unfinished":
            return
        labels = self._labels_of(call.NAME, call.model)
        error = {"error.type": call.error_class or "_OTHER"} if call.status != "ok" else {}
        self._measure(_DURATION, call.duration_ns / 1e9, {**labels, **error})
        for direction, tokens in (("input", call.input_tokens), ("output", call.output_tokens)):
            if tokens is not None:
                self._measure(_USAGE, tokens, {**labels, "gen_ai.token.type": direction})
        usd = charges_of([call], self._endpoints_by_tag.values()).get(call.id)
        if usd is not None:
            self._measure(_COST, usd, labels)
        if isinstance(call, Call):
            self._measure(_QUEUE, call.phase_ns("queue") / 1e9, labels)
            if call.ttft_ns is not None:
                self._measure(_FIRST_CHUNK, call.ttft_ns / 1e9, labels)

    def under_way(self, call: SpanStarted | SpanRecord, change: int) -> None:
        """Adds `change` to the number of requests under way."""
        model = events.Request.read(call).model
        self._measure(_CALLS_ACTIVE, change, self._labels_of(call.name, model))

    def _labels_of(self, name: str, tag: str) -> Labels:
        """The labels of a request: its kind, its model and the model's provider."""
        if (name, tag) not in self._labels:
            labels = {"gen_ai.operation.name": _OPERATIONS.get(name, "chat")}
            # An event without a model reads `None`.
            if tag != str(None) or tag in self._endpoints_by_tag:
                attributes = model_attributes(tag, self._endpoints_by_tag.get(tag)).items()
                labels |= {key: value for key, value in attributes if value is not None}
            self._labels[name, tag] = labels
        return self._labels[name, tag]

    def _measure_instant(self, instant: Instant) -> None:
        if endpoint := events.EndpointEvent.of(instant):
            self._endpoints_by_tag[endpoint.model] = endpoint
        elif retry := events.RetryEvent.of(instant):
            labels = self._labels_of(events.Chat.NAME, retry.model) if retry.model else {}
            self._measure(_RETRIES, 1, {**labels, "error.type": retry.reason})
        elif beginning := events.PipelineEvent.of(instant):
            self._is_batch = beginning.is_batch
        elif not self._is_batch:
            return
        elif (items := events.ItemsEvent.of(instant)) and "/" not in items.node:
            self._measure(_EXPECTED, items.total, {"harness.node": items.node})
        elif refused := events.RefusedRows.of(instant):
            self._measure(_EXPECTED, refused.total, {"harness.node": refused.node})
            failed = {"harness.node": refused.node, "harness.status": "failed"}
            self._measure(_ROWS, refused.total, failed)
        elif skip := events.Skip.of(instant):
            self._count_row(skip, "skipped")
        elif reuse := events.Reuse.of(instant):
            self._count_row(reuse, "reused")

    def _attempt(self, span: SpanStarted | SpanRecord) -> events.NodeAttempt | None:
        """The attempt at a row of a batch that a span is; None for any other span."""
        return events.NodeAttempt.of(span) if self._is_batch else None

    def _count_row(
        self, event: events.NodeAttempt | events.Skip | events.Reuse, status: str
    ) -> None:
        # A node with a slash is inside the pipeline that the row goes through, and no row.
        if event.item is None or "/" in event.node:
            return
        if status == "failed":
            self._failed_rows.add((event.node, event.item))
        elif status == "skipped" and (event.node, event.item) in self._failed_rows:
            # A failed row is skipped too by what would have followed it, but is one row.
            return
        self._measure(_ROWS, 1, {"harness.node": event.node, "harness.status": status})

    def _end_run(self, ended: RunEnded) -> None:
        if self._run is not None:
            self._measure(_RUNS_ACTIVE, -1, self._run_labels)
            error = {"error.type": error_class(ended.error)} if ended.error else {}
            labels = {**self._run_labels, "harness.status": ended.status, **error}
            self._measure(_RUNS, (ended.time_ns - self._run.time_ns) / 1e9, labels)
        # Threads that outlive their run may have calls under way, which no longer count.
        for number in self._phases_by_request:
            self.under_way(self._open[number], -1)
        self._open.clear()
        self._phases_by_request.clear()


def model_attributes(tag: str, endpoint: events.EndpointEvent | None) -> dict[str, Any]:
    """GenAI's attributes of the model behind a tag; `endpoint` is None if the run names none."""
    backend = endpoint.backend if endpoint else events.EndpointEvent.backend
    provider = provider_named(backend)
    provider_name = provider.telemetry_name or backend
    model = (endpoint and endpoint.model_id) or tag
    url = (endpoint and endpoint.url) or ""
    prefix, _, name_in_api = model.partition("/")
    if provider.finds_keys and name_in_api:
        # The model of a managed API: `gemini/gemini-2.5-pro`.
        model = name_in_api
        provider_name = _MANAGED.get(prefix, prefix)
    attributes: dict[str, Any] = {"gen_ai.request.model": model}
    if endpoint:
        attributes["gen_ai.provider.name"] = provider_name
    # An address in which a secret was masked may not be readable.
    with suppress(ValueError):
        address = urlsplit(url)
        attributes |= {"server.address": address.hostname, "server.port": address.port}
    return attributes


def _escaped(value: object) -> str:
    """A label's value as Prometheus writes it."""
    # Lone surrogates are replaced, since UTF-8 cannot hold them.
    text = str(value).encode("utf-8", "replace").decode()
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@cache
def otel_metrics() -> Metrics:
    """Metrics for OpenTelemetry, with the SDK and the exporter that this program has set up.

    Raises:
        ConfigurationInvalid: OpenTelemetry's API is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationInvalid(
            "[trace] otel needs OpenTelemetry's API: pip install 'wiggum-harness[otel]'",
            code="trace.otel-missing",
        ) from error
    return Metrics(meter=get_meter("harness", __version__))


def _otel_recorder(meter: Meter, metric: _Instrument) -> Callable[[float, Labels], None]:
    """The function that records a value in OpenTelemetry's instrument for a metric."""
    name, unit, about = metric.name, metric.unit, metric.about
    record: Callable[[float, Labels], None]
    if metric.kind == "counter":
        record = meter.create_counter(name, unit, about).add
    elif metric.kind == "gauge":
        # For differences, OpenTelemetry has up-down counters.
        record = meter.create_up_down_counter(name, unit, about).add
    else:
        record = meter.create_histogram(
            name, unit, about, explicit_bucket_boundaries_advisory=metric.bounds
        ).record
    return record
