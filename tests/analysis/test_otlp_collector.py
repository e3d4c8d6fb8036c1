"""Sending a run to a collector on the loopback interface that keeps what it was sent."""

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from sample_runs import span, write_journal

from harness.analysis.otlp import export_otlp, retry_delay_s, send_otlp
from harness.errors import ExportFailed, InvalidInput
from harness.trace import ExportTarget
from harness.version import __version__

PROTOBUF = "application/x-protobuf"
KEY = "pa55word-of-the-collector"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the collector answers."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    media_type: str = PROTOBUF


@dataclass(frozen=True, kw_only=True)
class Posted:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes
    """As it was before gzip."""

    @property
    def resource_spans(self):
        (resource_spans,) = service.ExportTraceServiceRequest.FromString(self.body).resource_spans
        return resource_spans

    @property
    def names(self):
        (scope_spans,) = self.resource_spans.scope_spans
        return [span.name for span in scope_spans.spans]


class Receiver(ThreadingHTTPServer):
    """Plays its replies in order, then says yes."""

    daemon_threads = True

    def __init__(self, *replies):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.posted = []
        self.replies = iter(replies)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = gzip.decompress(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.posted.append(Posted(path=self.path, headers=headers, body=body))
        reply = next(self.server.replies, Reply())
        self.send_response(reply.status)
        said = {"content-type": reply.media_type, "content-length": str(len(reply.body))}
        for name, value in (said | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_):
        pass


@pytest.fixture
def journal(tmp_path):
    """Three spans."""
    spans = [span(n, n, n + 1, name=name) for n, name in enumerate("abc", start=1)]
    return write_journal(tmp_path / "run.jsonl", *spans)


def rejection(spans, said):
    response = service.ExportTraceServiceResponse()
    response.partial_success.rejected_spans = spans
    response.partial_success.error_message = said
    return response.SerializeToString()


@pytest.mark.parametrize(
    ("given", "posted_to"),
    [
        ("", "/v1/traces"),
        ("/v1/traces/", "/v1/traces"),
        ("/api/public/otel", "/api/public/otel/v1/traces"),
        ("/otlp?project=7", "/otlp/v1/traces?project=7"),
    ],
)
def test_a_request_says_what_it_holds_and_who_sends_it(journal, given, posted_to):
    headers = {"Authorization": f"Bearer {KEY}\n", "Content-Type": "application/json"}
    with Receiver() as receiver:
        sent = send_otlp(journal, endpoint=receiver.url + given, headers=headers)

    (posted,) = receiver.posted
    assert (sent, posted.names, posted.path) == (3, ["a", "b", "c"], posted_to)
    expected = {
        "content-type": PROTOBUF,
        "content-encoding": "gzip",
        "authorization": f"Bearer {KEY}",
        "user-agent": f"harness/{__version__}",
    }
    assert expected.items() <= posted.headers.items()
    resource = posted.resource_spans.resource.attributes
    assert {one.key: one.value.string_value for one in resource} == {
        "service.name": "harness",
        "service.version": __version__,
    }
    (of_scope,) = posted.resource_spans.scope_spans
    assert of_scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"


@pytest.mark.parametrize(
    ("batch", "notes", "sent"),
    [
        pytest.param(2, 9, [["a", "b"], ["c"]], id="at its number of spans"),
        pytest.param(512, 3_000_000, [["a"], ["b"], ["c"]], id="grown large"),
    ],
)
def test_a_batch_ends(tmp_path, batch, notes, sent):
    sizes = {"a": 9, "b": notes, "c": 9}
    spans = [
        span(n, n, n + 1, name=name, notes="é" * size)
        for n, (name, size) in enumerate(sizes.items(), start=1)
    ]
    journal = write_journal(tmp_path / "run.jsonl", *spans)
    with Receiver() as receiver:
        assert send_otlp(journal, endpoint=receiver.url, batch=batch) == 3

    assert [posted.names for posted in receiver.posted] == sent


@pytest.mark.parametrize(
    ("address", "headers", "code"),
    [
        *((bad, {}, "address") for bad in ("", "127.0.0.1:6006", "ftp://host", "http://host:70000")),
        ("http://127.0.0.1:1", {f"Bearer {KEY}": ""}, "header"),
        ("http://127.0.0.1:1", {"x-key": f"{KEY}\r\nx: y"}, "header"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_said_before_anything_is_read_and_without_secrets(
    journal, address, headers, code
):
    with pytest.raises(InvalidInput) as caught:
        send_otlp(journal, endpoint=address, headers=headers)

    assert caught.value.code == f"export.{code}-invalid"
    assert KEY not in str(caught.value)


def test_headers_of_opentelemetrys_variable_are_decoded_and_not_quoted(journal, monkeypatch):
    variable = "OTEL_EXPORTER_OTLP_HEADERS"
    monkeypatch.setenv(variable, f"Authorization=Basic%20{KEY}=, x-scope = a%2Cb ,")
    with Receiver() as receiver:
        export_otlp(journal, ExportTarget(endpoint=receiver.url))
    sent = receiver.posted[0].headers
    assert (sent["authorization"], sent["x-scope"]) == (f"Basic {KEY}=", "a,b")
    monkeypatch.setenv(variable, KEY)
    with pytest.raises(InvalidInput) as caught:
        export_otlp(journal, ExportTarget(endpoint=receiver.url))
    assert (caught.value.code, KEY in str(caught.value)) == ("export.header-malformed", False)


def test_nobody_there_is_said_with_the_address_but_not_with_a_password(journal):
    with Receiver() as receiver:
        pass

    with pytest.raises(ExportFailed) as caught:
        send_otlp(journal, endpoint=f"http://me:{KEY}@127.0.0.1:{receiver.server_port}/x?key={KEY}")

    assert caught.value.address == f"{receiver.url}/x/v1/traces"
    assert (caught.value.status, KEY in str(caught.value)) == (None, False)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        pytest.param(Reply(status=400, body=b"\x12\x04dull"), "dull", id="protobuf"),
        pytest.param(Reply(status=401), "--header NAME=VALUE", id="no key"),
        pytest.param(Reply(status=404), "/v1/traces is added", id="another server"),
        pytest.param(Reply(status=307, headers={"location": "/x"}), "", id="moved"),
        pytest.param(Reply(status=503, headers={"retry-after": "3600"}), "later", id="busy"),
        pytest.param(
            Reply(status=403, body=f"no key {KEY}, Basic {KEY}".encode(), media_type="text/plain"),
            "no key [redacted]",
            id="a header quoted",
        ),
        pytest.param(
            Reply(body=b"<html>", media_type="text/html; charset=utf-8"), "", id="a web page"
        ),
    ],
)
def test_a_refusal_is_told_with_what_would_mend_it(journal, reply, said):
    headers = {"Authorization": f"Basic {KEY}"}
    with Receiver(reply) as receiver, pytest.raises(ExportFailed) as caught:
        send_otlp(journal, endpoint=receiver.url, sleep=pytest.fail, headers=headers)

    error = caught.value
    assert (error.address, error.status) == (f"{receiver.url}/v1/traces", reply.status)
    assert said in str(error)
    assert KEY not in str(error)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(body=b"{}", media_type="application/json"), id="JSON"),
        pytest.param(Reply(body=rejection(0, "old names")), id="a warning"),
    ],
)
def test_any_other_yes_is_a_yes(journal, reply):
    with Receiver(reply) as receiver:
        assert send_otlp(journal, endpoint=receiver.url) == 3


def test_spans_that_a_collector_would_not_keep_are_told_when_all_were_sent(journal):
    replies = [Reply(body=rejection(1, f"too long; {KEY}")), Reply(body=rejection(1, "too dull"))]
    with Receiver(*replies) as receiver, pytest.raises(ExportFailed) as caught:
        send_otlp(journal, endpoint=receiver.url, batch=1, headers={"x-key": KEY})

    assert (len(receiver.posted), caught.value.rejected_spans) == (3, 2)
    assert "too long; [redacted]" in str(caught.value)


def test_a_busy_collector_gets_the_same_request_again(journal):
    waits = []
    busy = [Reply(status=429, headers={"retry-after": "7"}), Reply(status=503)]
    with Receiver(*busy) as receiver:
        send_otlp(journal, endpoint=receiver.url, sleep=waits.append)

    assert waits == [7, 2]
    assert len(receiver.posted) == 3
    assert len({posted.body for posted in receiver.posted}) == 1


def test_a_collector_that_stays_busy_is_left_alone(journal):
    waits = []
    with Receiver(*[Reply(status=502)] * 9) as receiver, pytest.raises(ExportFailed) as caught:
        send_otlp(journal, endpoint=receiver.url, sleep=waits.append)

    assert (waits, caught.value.status) == ([1, 2, 4, 8], 502)


@pytest.mark.parametrize(
    ("status", "retry_after", "attempt", "delay_s"),
    [
        (503, None, 1, 1.0),
        (504, "Wed, 21 Oct 2026 07:28:00 GMT", 3, 4.0),
        (429, "0", 1, 0.0),
        (429, "1", 5, None),
        (429, "61", 1, None),
        (429, "nan", 1, None),
        (500, "1", 1, None),
    ],
)
def test_the_wait_before_another_attempt(status, retry_after, attempt, delay_s):
    assert retry_delay_s(status, retry_after, attempt=attempt) == delay_s
