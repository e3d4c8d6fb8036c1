"""A collector on the loopback interface that keeps what it was sent, read by a second library."""

import gzip
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

import pytest

service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="opentelemetry-proto reads back what was sent: pip install -e '.[test]'",
)
trace_pb2 = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2")

PROTOBUF = "application/x-protobuf"


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
        request = service.ExportTraceServiceRequest.FromString(self.body)
        (resource_spans,) = request.resource_spans
        return resource_spans

    @property
    def spans(self) -> list:
        (scope_spans,) = self.resource_spans.scope_spans
        return list(scope_spans.spans)


class Receiver:
    """Plays its replies in order, then says yes; a `with` block is its lifetime."""

    def __init__(self, *replies: Reply) -> None:
        self.posted: list[Posted] = []
        self._replies: Iterable[Reply] = iter(replies)

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = gzip.decompress(body)
        self.posted.append(Posted(path=request.path, headers=headers, body=body))
        reply = next(self._replies, Reply())
        request.send_response(reply.status)
        for name, value in {"content-type": reply.media_type, **reply.headers}.items():
            request.send_header(name, value)
        request.send_header("content-length", str(len(reply.body)))
        request.end_headers()
        request.wfile.write(reply.body)


def values(attributes: Iterable) -> dict[str, object]:
    """Attributes as a dictionary, none of them twice."""
    pairs = [(one.key, value(one.value)) for one in attributes]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def value(any_value) -> object:
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(one) for one in any_value.array_value.values]
    return getattr(any_value, kind)


def events(span) -> list[tuple[str, dict[str, object]]]:
    return [(event.name, values(event.attributes)) for event in span.events]
