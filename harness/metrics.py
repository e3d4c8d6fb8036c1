"""Metrics of runs, for Prometheus and for OpenTelemetry, named by its GenAI conventions.

They are made of the runs' records, after the calls.
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

# Every set of labels is a series, so labels are what is configured or stands in code: models,
# pipelines, classes of errors; never a run or a text.
# The most series of a metric; all others share one, as in OpenTelemetry's own library.
_MOST_SERIES = 2_000
_OVERFLOW = (("otel.metric.overflow", "true"),)

# The bounds that the conventions advise.
_CALL_S = tuple(0.01 * 2**n for n in range(14))
_FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08),
    *(0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_RUN_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
_TOKENS = tuple(4.0**n for n in range(14))

# What GenAI calls a managed API, if not by its prefix in a model's name.
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
    """What is measured, as OpenTelemetry describes it."""

    name: str
    unit: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    bounds: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """Its name in Prometheus, as OpenTelemetry's own exporter for it has it."""
        unit = "_seconds" if self.unit == "s" else ""
        return f"{self.name.replace('.', '_')}{unit}{'_total' if self.kind == 'counter' else ''}"


_DURATION = "gen_ai.client.operation.duration"
_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
_FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105 - no secret
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
    _Instrument(_FIRST_TOKEN, "s", "histogram", "The same, as model servers name it", _FIRST_S),
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
    """Metrics of any number of runs at once: an observer of each, in as many threads.

    `pipeline.run_async(…, observers=[metrics])` takes a run's, and `text` shows all to Prometheus:

        @app.get("/metrics")
        def shown() -> Response:
            return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)

    Args:
        meter: OpenTelemetry's, which gets the same figures: `opentelemetry.metrics.get_meter(…)`.
    """

    MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, *, meter: Meter | None = None) -> None:
        self._lock = threading.Lock()
        # Metric → labels → how many values lie in each bucket, and at the end their sum.
        self._series: dict[str, dict[tuple[tuple[str, object], ...], list[float]]] = {
            metric.name: {} for metric in METRICS
        }
        self._bounds = {metric.name: metric.bounds for metric in METRICS}
        self._tell = {} if meter is None else {m.name: _teller(meter, m) for m in METRICS}
        self._own = _RunFigures(self._measure)

    def __call__(self, record: Record) -> None:
        """Takes one record; those of several runs at once need an `of_run` each."""
        self._own(record)

    def of_run(self) -> Sink:
        """The observer of one run."""
        # Span ids begin at 1 in every run: those of two runs must not meet in one table.
        return _RunFigures(self._measure)

    def add(self, journal: Journal) -> None:
        """Takes a run from its journal, also while it is going; raises `JournalInvalid`."""
        figures = _RunFigures(self._measure)
        goes_on = journal.ended is None and is_going(journal.path)

        def spans_of_calls() -> Iterator[SpanRecord]:
            for item in journal.items(SpanRecord, Instant):
                if not isinstance(item, SpanRecord):
                    figures(item)
                    continue
                # What a kill left open is not under way once the run was resumed.
                is_open = item.status == "unfinished" and not journal.resumed_after(item.end_ns)
                if goes_on and is_open and item.name in events.REQUESTS:
                    figures.under_way(item, 1)
                if item.name in {events.Chat.NAME, *PHASES}:
                    yield item
                else:
                    figures(item)

        if goes_on or journal.ended is not None:
            figures(journal.started)
        for call in calls_of(spans_of_calls()):
            # The phases of a run that goes on may not be in the file yet.
            if call.phases or not goes_on or call.status != "ok":
                figures.end(call)
        if journal.ended is not None:
            figures(journal.ended._replace(time_ns=journal.last_ns))

    def _measure(self, name: str, value: float, labels: Labels) -> None:
        """Adds a value to a metric, or a difference to a gauge."""
        if tell := self._tell.get(name):
            tell(value, labels)
        key, bounds, series = tuple(labels.items()), self._bounds[name], self._series[name]
        with self._lock:
            if key not in series and len(series) >= _MOST_SERIES:
                key = _OVERFLOW
            # A cell for each bound, one for values above the last bound, and the sum.
            cells = series.setdefault(key, [0] * (len(bounds) + 2))
            # `bisect_left`, since Prometheus counts a value that equals a bound as within it.
            cells[bisect_left(bounds, value)] += 1
            cells[-1] += value

    def text(self) -> str:
        """All metrics in Prometheus's text format."""
        with self._lock:
            # Copied, since runs in other threads go on measuring.
            taken = {
                name: [(labels, [*cells]) for labels, cells in series.items()]
                for name, series in self._series.items()
            }
        lines: list[str] = []
        for metric in METRICS:
            family = metric.family
            lines += [f"# HELP {family} {metric.about}", f"# TYPE {family} {metric.kind}"]
            for key, (*counts, total) in taken[metric.name]:
                labels = [f'{name.replace(".", "_")}="{_escaped(value)}"' for name, value in key]
                in_braces = f"{{{','.join(labels)}}}" if labels else ""
                if metric.kind != "histogram":
                    lines.append(f"{family}{in_braces} {total!r}")
                    continue
                count: float = 0
                for bound, more in zip((*metric.bounds, "+Inf"), counts, strict=True):
                    count += more
                    within = ",".join([*labels, f'le="{bound}"'])
                    lines.append(f"{family}_bucket{{{within}}} {count}")
                lines.append(f"{family}_sum{in_braces} {total!r}")
                lines.append(f"{family}_count{in_braces} {count}")
        return "\n".join(lines) + "\n"


class _RunFigures:
    """Makes measurements of a run's records.

    One object may see several runs in turn. It forgets each at its end, because span ids begin
    again in every run.
    """

    def __init__(self, measure: Callable[[str, float, Labels], None]) -> None:
        self._measure = measure
        self._run: RunStarted | None = None
        self._is_batch = False
        # Requests and attempts at rows that have not ended, by span id.
        self._open: dict[int, SpanStarted] = {}
        # Requests that have not ended → their phases that have. The keys are span ids.
        self._phases_by_request: dict[int, list[SpanRecord]] = {}
        self._endpoints_by_tag: dict[str, events.EndpointEvent] = {}
        # Kind of request and model tag → labels.
        self._labels: dict[tuple[str, str], Labels] = {}
        # Node and item of each.
        self._failed_rows: set[tuple[str, int]] = set()

    def _reset(self, run: RunStarted | None) -> None:
        self._run = run
        self._is_batch = False
        self._open.clear()
        self._phases_by_request.clear()
        self._endpoints_by_tag.clear()
        self._labels.clear()
        self._failed_rows.clear()

    def __call__(self, record: Record) -> None:
        match record:
            case SpanStarted(id=number, name=name):
                if name in events.REQUESTS:
                    self._phases_by_request[number] = []
                    self.under_way(record, 1)
                elif name not in PHASES and self._attempt(record) is None:
                    return
                self._open[number] = record
            case SpanEnded(id=number) if number in self._open:
                self._end(joined(self._open.pop(number), record))
            case SpanRecord():
                self._end(record)
            case Instant():
                self._note(record)
            case RunStarted():
                self._reset(record)
                self._measure(_RUNS_ACTIVE, 1, self._run_labels)
            case RunEnded():
                self._end_run(record)

    @property
    def _run_labels(self) -> Labels:
        return {"gen_ai.workflow.name": self._run.name} if self._run else {}

    def _end(self, span: SpanRecord) -> None:
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
        elif (row := self._attempt(span)) and span.status != "unfinished":
            self._row(row, attempt_status(span))

    def end(self, call: events.Request) -> None:
        """Measures a request to a model that has ended."""
        # No model was asked, or none has answered yet.
        if call.from_cache or call.was_refused or call.status == "unfinished":
            return
        labels = self._labels_of(call.NAME, call.model)
        kind = {"error.type": call.error_class or "_OTHER"} if call.status != "ok" else {}
        self._measure(_DURATION, call.duration_ns / 1e9, {**labels, **kind})
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
                self._measure(_FIRST_TOKEN, call.ttft_ns / 1e9, labels)

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
                about = model_attributes(tag, self._endpoints_by_tag.get(tag)).items()
                labels |= {key: value for key, value in about if value is not None}
            self._labels[name, tag] = labels
        return self._labels[name, tag]

    def _note(self, instant: Instant) -> None:
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
            self._row(skip, "skipped")
        elif reuse := events.Reuse.of(instant):
            self._row(reuse, "reused")

    def _attempt(self, span: SpanStarted | SpanRecord) -> events.NodeAttempt | None:
        return events.NodeAttempt.of(span) if self._is_batch else None

    def _row(self, row: events.NodeAttempt | events.Skip | events.Reuse, status: str) -> None:
        # A label with a slash is a node of the pipeline that the row goes through.
        if row.item is None or "/" in row.node:
            return
        if status == "failed":
            self._failed_rows.add((row.node, row.item))
        # What would have followed in a row that failed is skipped: it is one row, already counted.
        elif status == "skipped" and (row.node, row.item) in self._failed_rows:
            return
        self._measure(_ROWS, 1, {"harness.node": row.node, "harness.status": status})

    def _end_run(self, ended: RunEnded) -> None:
        if self._run is not None:
            self._measure(_RUNS_ACTIVE, -1, self._run_labels)
            kind = {"error.type": error_class(ended.error)} if ended.error else {}
            labels = {**self._run_labels, "harness.status": ended.status, **kind}
            self._measure(_RUNS, (ended.time_ns - self._run.time_ns) / 1e9, labels)
        # Threads that outlive their run may have calls under way.
        for number in self._phases_by_request:
            self.under_way(self._open[number], -1)
        self._reset(None)


def model_attributes(tag: str, endpoint: events.EndpointEvent | None) -> dict[str, Any]:
    """GenAI's attributes of the model behind a tag; `endpoint` is None if the run names none."""
    backend = endpoint.backend if endpoint else events.EndpointEvent.backend
    provider = provider_named(backend)
    model = (endpoint and endpoint.model_id) or tag
    name = provider.telemetry_name or backend
    prefix, _, rest = model.partition("/")
    if provider.finds_keys and rest:
        model, name = rest, _MANAGED.get(prefix, prefix)
    values: dict[str, Any] = {"gen_ai.request.model": model}
    if endpoint:
        values["gen_ai.provider.name"] = name
    # An address that held a secret has a hole in it.
    with suppress(ValueError):
        address = urlsplit((endpoint and endpoint.url) or "")
        values |= {"server.address": address.hostname, "server.port": address.port}
    return values


def _escaped(value: object) -> str:
    """A label's value as Prometheus writes it."""
    # Lone surrogates are replaced, since UTF-8 cannot hold them.
    text = str(value).encode("utf-8", "replace").decode()
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@cache
def otel_metrics() -> Metrics:
    """Metrics for OpenTelemetry, with the SDK and the exporter that this program has set up.

    Raises:
        ConfigurationInvalid: Its API is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationInvalid(
            "[trace] otel needs OpenTelemetry's API: pip install 'wiggum-harness[otel]'",
            code="trace.otel-missing",
        ) from error
    return Metrics(meter=get_meter("harness", __version__))


def _teller(meter: Meter, metric: _Instrument) -> Callable[[float, Labels], None]:
    name, unit, about, bounds = metric.name, metric.unit, metric.about, metric.bounds
    tell: Callable[[float, Labels], None]
    if metric.kind == "counter":
        tell = meter.create_counter(name, unit, about).add
    # Gauges here receive differences: OpenTelemetry calls such an instrument an up-down counter.
    elif metric.kind == "gauge":
        tell = meter.create_up_down_counter(name, unit, about).add
    else:
        tell = meter.create_histogram(
            name, unit, about, explicit_bucket_boundaries_advisory=bounds
        ).record
    return tell
