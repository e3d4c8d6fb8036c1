"""What Prometheus and OpenTelemetry are told of runs, read by their own libraries."""

from __future__ import annotations

import asyncio
import gzip
import re
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from demo import ROOT
from session_runs import Charging, fail, pipeline_of, refused, run, settings_of
from test_batch import batch, echo, words_pipeline

import harness
from harness import Journal, Limits, Metrics, Pipeline, Retry, Run, ScriptedBackend
from harness.cli.progress import RunState
from harness.errors import EndpointUnreachable
from harness.metrics import METRICS, otel_metrics
from harness.trace import Instant, RunEnded, RunStarted, Tracer, events

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is missing")

STARTED = RunStarted(1, "20260102T030405Z-00", "essay", 0, 0, 1)
CHAT = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "producer"}


def families(text):
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def samples(metrics, name):
    """The values of one line of the page, by its labels."""
    found = {}
    for family in families(metrics.text()).values():
        for sample in family.samples:
            if sample.name == name:
                found[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(metrics, name, **labels):
    """The sum over the lines that have these labels."""
    lines = samples(metrics, name).items()
    return sum(number for of, number in lines if labels.items() <= dict(of).items())


async def ask(run: Run, task: str) -> str:
    return await run.chat("producer", task)


def chat_of(tracer, *, model="small", **facts):
    event = {"track": "model", "role": None, "label": "chat", "temperature": None, "seed": None}
    event |= {"max_output_tokens": None, "structured": False, "prompt_chars": 1}
    with tracer.span(events.Chat(model=model, prompt_sha256=None, **event)) as span:
        tracer.completed_span("queue", start_ns=0, end_ns=2_000_000_000)
        span.set(**facts)


# --- Prometheus -----------------------------------------------------------------------------------


def test_many_runs_at_once_are_counted_by_one_object_and_none_by_name(tmp_path):
    metrics, pipeline = Metrics(), pipeline_of(ask, name="asking")
    # Several threads that parse code at once are too much for some releases of Python 3.11.
    backends = {"producer": Charging(lambda _: "one two")}
    run(pipeline, settings_of(tmp_path), {"task": "x"}, backends=backends)
    results = []

    def several():
        async def all_of_them():
            runs = [
                pipeline.run_async(
                    task=f"Say {n}.",
                    settings=settings_of(tmp_path),
                    backends=backends,
                    observers=[metrics],
                )
                for n in range(5)
            ]
            results.extend(await asyncio.gather(*runs))

        asyncio.run(all_of_them())

    threads = [threading.Thread(target=several) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "gen_ai_client_operation_duration_seconds_count", **CHAT) == 15
    usage = "gen_ai_client_token_usage_sum"
    assert value(metrics, usage, gen_ai_token_type="output") == 30
    assert value(metrics, usage, gen_ai_token_type="input") == 30
    assert value(metrics, "harness_call_cost_usd_total") == 15 * 0.25
    assert value(metrics, "harness_call_queue_duration_seconds_count") == 15
    ran = {"gen_ai_workflow_name": "asking", "harness_status": "ok"}
    assert value(metrics, "gen_ai_workflow_duration_seconds_count", **ran) == 15
    assert set(samples(metrics, "harness_calls_active").values()) == {0}
    assert set(samples(metrics, "harness_runs_active").values()) == {0}
    text = metrics.text()
    assert not any(result.run_id in text for result in results)
    # The page of all runs is as the sum of their journals.
    again = Metrics()
    for result in results:
        again.add(Journal(result.files.journal))
    names = [line for line in text.splitlines() if re.match(r"\w+(_count|_total|_bucket)\{", line)]
    counts = [line for line in names if "workflow" not in line]
    assert sorted(counts) == sorted(set(again.text().splitlines()) & set(counts))


def test_a_call_under_way_has_the_same_labels_in_its_journal(tmp_path):
    pages, pipeline = [], pipeline_of(ask)

    def answer(_):
        (journal,) = tmp_path.rglob("2*.jsonl")
        again = Metrics()
        again.add(Journal(journal))
        pages.extend(samples(one, "harness_calls_active") for one in (metrics, again))
        return "so"

    metrics = Metrics()
    backends = {"producer": ScriptedBackend(answer)}
    run(pipeline, settings_of(tmp_path), {"task": "x"}, backends=backends, observers=[metrics])
    live, read = pages
    assert live == read
    ((labels, calls),) = read.items()
    assert (calls, CHAT.items() <= dict(labels).items()) == (1, True)
    assert "gen_ai_provider_name" in dict(labels), "which is the endpoint's"


def test_of_a_call_that_says_no_model_no_label_is_invented():
    metrics = Metrics()
    with Tracer(metrics).span("chat"):
        assert samples(metrics, "harness_calls_active") == {(("gen_ai_operation_name", "chat"),): 1}


def test_a_sessions_runs_are_counted_each_as_its_own(tmp_path):
    metrics, pipeline = Metrics(), pipeline_of(ask)

    async def serve():
        backends = {"producer": Charging(lambda _: "one two")}
        async with harness.open(settings=settings_of(tmp_path), backends=backends) as session:
            ask_all = (session.run(pipeline, task=f"{n}", observers=[metrics]) for n in range(20))
            return await asyncio.gather(*ask_all)

    assert len(asyncio.run(serve())) == 20
    assert value(metrics, "gen_ai_client_operation_duration_seconds_count", **CHAT) == 20
    assert value(metrics, "harness_call_cost_usd_total") == 20 * 0.25
    assert value(metrics, "gen_ai_workflow_duration_seconds_count", harness_status="ok") == 20
    assert set(samples(metrics, "harness_calls_active").values()) == {0}


def test_every_metric_is_described_and_its_buckets_add_up():
    metrics = Metrics()
    tracer = Tracer(metrics)
    metrics(STARTED)
    for tokens in (0, 1, 2, 4, 1e9):
        chat_of(tracer, output_tokens=int(tokens), ttft_ns=40_000_000)
    page = families(metrics.text())
    kinds = {metric.family.removesuffix("_total"): metric.kind for metric in METRICS}
    assert {name: family.type for name, family in page.items()} == kinds
    assert all(family.documentation for family in page.values())
    usage = page["gen_ai_client_token_usage"].samples
    within = [(one.labels["le"], one.value) for one in usage if one.name.endswith("_bucket")]
    assert within[:3] == [("1.0", 2), ("4.0", 4), ("16.0", 4)]
    assert within[-2:] == [("67108864.0", 4), ("+Inf", 5)]
    counts = [one.value for one in usage if one.name.endswith("_count")]
    assert counts == [5]
    waited = samples(metrics, "harness_call_queue_duration_seconds_sum")
    assert list(waited.values()) == [10]
    first = page["gen_ai_client_operation_time_to_first_chunk_seconds"].samples
    assert {one.value for one in first if one.labels.get("le") in {"0.02", "0.04"}} == {0, 5}


def test_a_label_is_read_back_as_it_was():
    metrics, name = Metrics(), 'a "model"\\n\n}{ of ours, é\ud800'
    chat_of(Tracer(metrics), model=name)
    text = metrics.text()
    text.encode()
    ((labels, count),) = samples(metrics, "gen_ai_client_operation_duration_seconds_count").items()
    assert (dict(labels)["gen_ai_request_model"], count) == (name.replace("\ud800", "?"), 1)


def test_a_failed_call_has_its_class_and_each_further_attempt_is_counted(tmp_path):
    replies = iter([EndpointUnreachable("gone", endpoint="producer"), "fine"])
    model = ScriptedBackend(lambda _: next(replies))
    metrics = Metrics()
    pipeline = pipeline_of(ask, retry=Retry(2, first_delay_s=0))
    with suppress(Exception):
        run(
            pipeline,
            settings_of(tmp_path),
            {"task": "x"},
            backends={"producer": model},
            observers=[metrics],
        )
    failed = {**CHAT, "error_type": "EndpointUnreachable"}
    assert value(metrics, "gen_ai_client_operation_duration_seconds_count", **failed) == 1
    assert value(metrics, "gen_ai_client_operation_duration_seconds_count", **CHAT) == 2
    retried = {"error_type": "EndpointUnreachable"}
    assert value(metrics, "harness_retries_total", **retried) == 1


def test_a_call_that_was_not_made_is_in_no_figure_and_its_run_says_why(tmp_path):
    metrics = Metrics()

    async def twice(run: Run) -> str:
        await run.chat("producer", "once")
        return await run.chat("producer", "twice")

    run(
        pipeline_of(twice),
        settings_of(tmp_path),
        backends={"producer": ScriptedBackend(lambda _: "so")},
        limits=Limits(max_calls=1),
        observers=[metrics],
    )
    assert value(metrics, "gen_ai_client_operation_duration_seconds_count") == 1
    stopped = {"harness_status": "stopped", "error_type": "RunLimitReached"}
    assert value(metrics, "gen_ai_workflow_duration_seconds_count", **stopped) == 1


def test_a_failed_run_is_counted_by_the_class_of_its_error(tmp_path):
    metrics = Metrics()

    def bad() -> str:
        raise ValueError("secret words")

    fail(pipeline_of(bad), settings_of(tmp_path), observers=[metrics])
    failed = {"harness_status": "error", "error_type": "NodeFailed"}
    assert value(metrics, "gen_ai_workflow_duration_seconds_count", **failed) == 1
    assert "secret" not in metrics.text()


def test_rows_are_counted_by_what_became_of_them_and_also_when_a_batch_goes_on(tmp_path):
    rows = [{"id": name, "task": name} for name in ("one", "two", "three")]
    calls = type("Noted", (), {"note": staticmethod(lambda _: 1)})()
    first, second = Metrics(), Metrics()
    pipeline = words_pipeline(calls, fails=["two"])
    done = batch(pipeline, rows, tmp_path, observers=[first], max_failures=None)
    assert value(first, "harness_rows_expected_total", harness_node="rows") == 3
    assert value(first, "harness_rows_total", harness_status="done") == 2
    assert value(first, "harness_rows_total", harness_status="failed") == 1
    assert value(first, "harness_rows_total") == 3
    again = Metrics()
    again.add(Journal(done.run.files.journal))
    assert samples(again, "harness_rows_total") == samples(first, "harness_rows_total")

    batch(pipeline, rows, tmp_path, observers=[second], max_failures=None, backend=echo())
    expected = value(second, "harness_rows_expected_total")
    assert expected == value(second, "harness_rows_total") == 3
    assert value(second, "harness_rows_total", harness_status="reused") == 2


def test_rows_that_do_not_fit_are_counted_as_failed_wherever_figures_are_shown(tmp_path):
    calls = type("Noted", (), {"note": staticmethod(lambda _: 1)})()
    rows = [{"id": "one", "task": "one"}, {"id": "two"}, {"id": "three"}]
    live, again, state = Metrics(), Metrics(), RunState(["rows"])
    observers = [live, state.take]
    done = batch(words_pipeline(calls), rows, tmp_path, bad_rows="skip", observers=observers)
    again.add(Journal(done.run.files.journal))
    for metrics in (live, again):
        assert value(metrics, "harness_rows_expected_total", harness_node="rows") == 3
        assert value(metrics, "harness_rows_total", harness_status="failed") == 2
        assert value(metrics, "harness_rows_total", harness_node="rows") == 3
    assert state.figures["nodes"]["rows"] == {"total": 3, "left_s": None, "done": 1, "failed": 2}


def test_a_pipeline_that_is_no_batch_has_no_rows(tmp_path):
    metrics, pipeline = Metrics(), Pipeline("mapped")

    @pipeline.node(each={"item": "items"})
    def one(item: int) -> int:
        return item

    run(pipeline, settings_of(tmp_path), {"items": [1, 2]}, observers=[metrics])
    assert samples(metrics, "harness_rows_total") == {}


def test_what_is_counted_never_falls_while_threads_count_and_others_read():
    metrics, ended = Metrics(), threading.Event()
    seen = []

    def count():
        tracer = Tracer(metrics.of_run())
        for _ in range(500):
            chat_of(tracer, output_tokens=3)

    def read():
        while not ended.is_set():
            seen.append(value(metrics, "gen_ai_client_token_usage_count"))

    reader, writers = threading.Thread(target=read), [threading.Thread(target=count)] * 1
    writers += [threading.Thread(target=count) for _ in range(3)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert seen == sorted(seen)
    assert value(metrics, "gen_ai_client_token_usage_count") == 2_000


def test_what_a_thread_left_open_is_not_under_way_once_its_run_has_ended():
    metrics = Metrics()
    tracer = Tracer(metrics)
    metrics(STARTED)
    span = tracer.span("chat", model="small")
    span.__enter__()
    assert value(metrics, "harness_calls_active") == 1
    metrics(RunEnded(5, "cancelled"))
    assert (value(metrics, "harness_calls_active"), value(metrics, "harness_runs_active")) == (0, 0)
    span.__exit__(None, None, None)
    assert value(metrics, "harness_calls_active") == 0


def test_a_price_by_tokens_counts_as_in_the_report():
    metrics = Metrics()
    tracer = Tracer(metrics)
    prices = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 10.0}
    metrics(Instant(None, "endpoint", 0, {"model": "small", "model_id": "org/small-3", **prices}))
    chat_of(tracer, input_tokens=1_000_000, output_tokens=100_000)
    ((labels, usd),) = samples(metrics, "harness_call_cost_usd_total").items()
    assert usd == 3.0
    assert dict(labels)["gen_ai_request_model"] == "org/small-3"
    assert dict(labels)["gen_ai_provider_name"] == "openai"


def test_the_guide_has_every_metric():
    guide = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \| (\w+),", guide, re.MULTILINE)
    assert sorted(told) == sorted((m.name, m.family, m.kind) for m in METRICS)


# --- OpenTelemetry --------------------------------------------------------------------------------


def test_a_meter_of_opentelemetry_gets_the_same_with_the_buckets_that_it_advises(tmp_path):
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is missing")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics = Metrics(meter=sdk.MeterProvider([reader]).get_meter("harness"))
    backends = {"producer": Charging(lambda _: "one two")}
    pipeline = pipeline_of(ask)
    run(pipeline, settings_of(tmp_path), {"task": "x"}, backends=backends, observers=[metrics])
    ((scope,),) = ([*r.scope_metrics] for r in reader.get_metrics_data().resource_metrics)
    told = {metric.name: metric for metric in scope.metrics}
    absent = {"harness.retries", "harness.rows", "harness.rows.expected"}
    # Missing where the machine stood still when the token came.
    doubtful = {m.name for m in METRICS if "time_to_first" in m.name}
    assert told.keys() | doubtful == {m.name for m in METRICS} - absent
    described = {m.name: (m.unit, m.about) for m in METRICS}
    assert all((m.unit, m.description) == described[name] for name, m in told.items())
    (duration,) = told["gen_ai.client.operation.duration"].data.data_points
    assert duration.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    assert duration.explicit_bounds[-1] == 81.92
    attributes = dict(duration.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "producer"
    usage = {
        dict(one.attributes)["gen_ai.token.type"]: (one.sum, one.count)
        for one in told["gen_ai.client.token.usage"].data.data_points
    }
    assert usage == {"input": (1, 1), "output": (2, 1)}
    (cost,) = told["harness.call.cost.usd"].data.data_points
    assert (cost.value, told["harness.call.cost.usd"].data.is_monotonic) == (0.25, True)
    (active,) = told["harness.runs.active"].data.data_points
    assert (active.value, told["harness.runs.active"].data.is_monotonic) == (0, False)


PROGRAM = """\
import sys

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from harness import Pipeline, Run, ScriptedBackend, Settings

exporter = OTLPMetricExporter(endpoint=sys.argv[1] + "/v1/metrics")
set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))
pipeline = Pipeline("served")


@pipeline.node
async def ask(run: Run) -> str:
    return await run.chat("producer", "Say two words.")


settings = Settings.model_validate({"traces": sys.argv[2], "trace": {"otel": True}})
for _ in range(2):
    pipeline.run({}, settings=settings, backends={"producer": ScriptedBackend(["one two"])})
"""


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        is_packed = self.headers["content-encoding"] == "gzip"
        self.server.posted.append((self.path, gzip.decompress(body) if is_packed else body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_program_with_the_official_sdk_sends_them_to_its_collector(tmp_path):
    name = "opentelemetry.exporter.otlp.proto.http"
    pytest.importorskip(name, reason="opentelemetry-sdk with its exporter is missing")
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service

    collector = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    collector.posted = []
    thread = threading.Thread(target=collector.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{collector.server_port}"
    program = [sys.executable, "-c", PROGRAM, url, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    collector.shutdown()
    thread.join()
    collector.server_close()
    assert (done.returncode, done.stderr) == (0, "")
    ((path, body),) = collector.posted
    assert path == "/v1/metrics"
    (resource,) = service.ExportMetricsServiceRequest.FromString(body).resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "harness"
    told = {metric.name: metric for metric in scope.metrics}
    (calls,) = told["gen_ai.client.operation.duration"].histogram.data_points
    assert calls.count == 2
    (runs,) = told["gen_ai.workflow.duration"].histogram.data_points
    assert runs.count == 2


def test_without_its_api_the_setting_says_what_to_install(tmp_path, monkeypatch):
    otel_metrics.cache_clear()
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with refused("trace.otel-missing") as caught:
        run(pipeline_of(ask), settings_of(tmp_path, trace={"otel": True}), {"task": "x"})
    assert "pip install 'wiggum-harness[otel]'" in str(caught.value)


def test_a_run_that_is_not_watched_imports_nothing_of_opentelemetry(tmp_path):
    lines = PROGRAM.replace('"trace": {"otel": True}', "").splitlines()
    program = "\n".join(
        line for line in lines if "opentelemetry" not in line and "xporter" not in line
    )
    program += "\nprint([name for name in sys.modules if name.startswith('opentelemetry')])"
    command = [sys.executable, "-c", program, "", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
