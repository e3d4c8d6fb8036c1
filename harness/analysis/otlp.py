"""A run's spans, sent to an OpenTelemetry collector: OTLP over HTTP, as gzipped protocol buffers.

Not as JSON, which Phoenix refuses. Needs the extra `otlp`. Ids are derived from the run's, so a run
that is sent twice is one trace; times are exact. Counters are left out, since OTLP's traces have
none, and so are instants outside any span. Messages quote neither keys nor passwords.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256

import httpx
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from harness.analysis.facts import provider_named
from harness.analysis.otlp_names import (
    evaluation_results,
    model_attributes,
    own_attributes,
    span_attributes,
    span_name,
)
from harness.errors import ExportFailed, InvalidInput
from harness.trace.journal_line import dump_json
from harness.trace.journal_reader import Journal
from harness.trace.records import Attributes, Content, Flow, Instant, SpanRecord
from harness.trace.secrets import Redactor
from harness.version import __version__

_BATCH_BYTES = 4_000_000
"""A batch that has grown to this goes out: collectors refuse requests beyond some 20 MB."""
_MOST = 128
"""Events and links of one span, as in OpenTelemetry's own libraries."""
_OF_A_MODEL = frozenset({"chat", "embed", "count tokens", "schema probe"})
"""Spans of requests to a model."""
_STATUS_CODES = {"ok": Status.STATUS_CODE_OK, "error": Status.STATUS_CODE_ERROR}
_INT64 = range(-(1 << 63), 1 << 63)

_PATH = "/v1/traces"
_PROTOBUF = "application/x-protobuf"
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_MAY_PASS = {429, 502, 503, 504}
"""The statuses after which OTLP has a client try again."""
_ATTEMPTS = 5
_LONGEST_WAIT_S = 60.0
"""A collector that asks for a longer wait is not asked again."""
_NO_KEY = "pass the collector's key with --header NAME=VALUE"
_WRONG_ADDRESS = f"is the address right? {_PATH} is added where it is missing"
_HINTS = {
    401: _NO_KEY,
    403: _NO_KEY,
    404: _WRONG_ADDRESS,
    405: _WRONG_ADDRESS,
    413: "raise the collector's limit on the size of a request, or send no texts",
}


def send_otlp(
    journal: Journal,
    *,
    endpoint: str,
    headers: Mapping[str, str] | None = None,
    content: bool = False,
    batch: int = 512,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Sends a run to a collector: Phoenix, Langfuse, Jaeger, or any other that takes OTLP.

    Args:
        journal: The run's; best when it is over, since viewers keep what they got first.
        endpoint: The collector's address; `/v1/traces` is added where it is missing.
        headers: Sent along, such as a key.
        content: Whether prompts, replies, drafts, and words about them go too.
        batch: Spans in one request, at most.
        sleep: Waits, in seconds.

    Returns:
        How many spans were sent.

    Raises:
        InvalidInput: The address or a header is not usable.
        ExportFailed: The collector is not there, or did not take all of the run.
        JournalInvalid: A line in the middle of the journal is not a record.
    """
    url = _address(endpoint)
    shown = _shown(str(url))
    headers = headers or {}
    # A reply may quote the key without the `Bearer` before it.
    redactor = Redactor([part for v in headers.values() for part in (v, *v.split())])
    sent = rejected = 0
    complaint = ""
    with httpx.Client(
        headers=_all_headers(headers),
        timeout=httpx.Timeout(30.0, connect=5.0),
        # Servers drop a connection after 5 s idle: let it go before they do.
        limits=httpx.Limits(keepalive_expiry=3.0),
        # As for models: no proxy of the environment's between us and this machine.
        verify=url.scheme == "https",
        trust_env=url.host not in _LOOPBACK,
    ) as client:
        for spans in _batches(otlp_spans(journal, content=content), batch):
            body = gzip.compress(_request(spans, project=journal.started.name), mtime=0)
            response = _post(client, url, body, sleep=sleep)
            if not response.is_success or "html" in response.headers.get("content-type", ""):
                raise _refusal(response, shown, redactor)
            sent += len(spans)
            # Some collectors reply with nothing, or in words of their own.
            with suppress(DecodeError):
                kept = ExportTraceServiceResponse.FromString(_protobuf_in(response))
                rejected += kept.partial_success.rejected_spans
                complaint = complaint or redactor.clean(kept.partial_success.error_message)
    if rejected:
        raise ExportFailed(
            f"the collector at {shown} kept {sent - rejected} of the run's {sent} "
            f"spans: {complaint or 'it does not say why'}",
            address=shown,
            rejected_spans=rejected,
        )
    return sent


def otlp_spans(journal: Journal, *, content: bool = False) -> Iterator[Span]:
    """A run's spans as OTLP has them, in the journal's order.

    Reads the journal twice. Holds what happened in spans, and with `content` the run's texts.
    """
    run = _Run(journal, content=content)
    return (run.span(record) for record in journal.spans())


class _Run:
    """What the spans of a run refer to."""

    def __init__(self, journal: Journal, *, content: bool) -> None:
        started = journal.started
        digest = sha256(started.run_id.encode()).digest()
        self._trace_id, self._first_id = digest[:16], int.from_bytes(digest[16:24], "big")
        self._run_id = started.run_id
        self._shift_ns = started.wall_ns - started.time_ns
        self._content = content
        self._texts: dict[str, str] = {}
        self._models: dict[str, Attributes] = {}
        self._instants: dict[int, list[Instant]] = {}
        self._verdicts: dict[int, SpanRecord] = {}
        self._flows: dict[int, list[Flow]] = {}
        for flow in journal.flows:
            self._flows.setdefault(flow.target, []).append(flow)
        for item in journal.items():
            match item:
                case Instant(span=None, name="endpoint", attributes=endpoint):
                    self._models[str(endpoint.get("model"))] = endpoint
                case Instant(span=int(number)):
                    self._instants.setdefault(number, []).append(item)
                case SpanRecord(name="evaluate"):
                    # GenAI wants a verdict at the span that wrote the draft.
                    drafts = [f for f in self._flows.get(item.id, ()) if f.name == "draft"]
                    self._verdicts[drafts[0].source if drafts else item.id] = item
                case Content() if content:
                    self._texts[item.sha256] = item.text

    def span(self, record: SpanRecord) -> Span:
        endpoint: Attributes = {}
        model: dict[str, object] = {}
        is_remote = False
        if record.name in _OF_A_MODEL:
            tag = str(record.attributes.get("model"))
            endpoint = self._models.get(tag, {})
            model = model_attributes(tag, endpoint)
            from_cache = record.attributes.get("from_cache") is True
            provider = provider_named(str(endpoint.get("backend", "openai")))
            is_local = provider.loading is not None or endpoint.get("backend") == "scripted"
            is_remote = not is_local and not from_cache
        error_type = record.error.partition(":")[0] if record.error else ""
        values = {
            **model,
            **span_attributes(record, text_of=self._texts.get if self._content else None),
            "error.type": error_type or None,
            "harness.status": None if record.status == "ok" else record.status,
            "session.id": self._run_id,
        }
        events, links = self._events(record), self._links(record)
        return Span(
            trace_id=self._trace_id,
            span_id=self._span_id(record.id),
            parent_span_id=b"" if record.parent is None else self._span_id(record.parent),
            name=_clean(span_name(record, model.get("gen_ai.request.model"))),
            kind=Span.SPAN_KIND_CLIENT if is_remote else Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=record.start_ns + self._shift_ns,
            end_time_unix_nano=record.end_ns + self._shift_ns,
            attributes=key_values(values),
            events=events[:_MOST],
            dropped_events_count=len(events[_MOST:]),
            links=links[:_MOST],
            dropped_links_count=len(links[_MOST:]),
            # Unset for a span that was cut short. An error's words may quote a text; its class
            # does not.
            status=Status(
                code=_STATUS_CODES.get(record.status, Status.STATUS_CODE_UNSET),
                message=_clean((record.error or "") if self._content else error_type),
            ),
        )

    def _events(self, record: SpanRecord) -> list[Span.Event]:
        happened = [
            (one.name, one.time_ns, own_attributes(one.attributes, texts=self._content))
            for one in self._instants.get(record.id, ())
        ]
        if verdict := self._verdicts.get(record.id):
            happened += [
                ("gen_ai.evaluation.result", verdict.end_ns, result)
                for result in evaluation_results(verdict, texts=self._content)
            ]
        return [
            Span.Event(
                name=_clean(name),
                time_unix_nano=time_ns + self._shift_ns,
                attributes=key_values(values),
            )
            for name, time_ns, values in happened
        ]

    def _links(self, record: SpanRecord) -> list[Span.Link]:
        """To the spans that led to this one; its parent is known by its id."""
        return [
            Span.Link(
                trace_id=self._trace_id,
                span_id=self._span_id(flow.source),
                attributes=key_values({"harness.flow": flow.name}),
            )
            for flow in self._flows.get(record.id, ())
            if flow.source != record.parent
        ]

    def _span_id(self, number: int) -> bytes:
        """Never zero, never twice in a run, and unlikely to be another run's."""
        return ((self._first_id + number) % (2**64 - 1) + 1).to_bytes(8, "big")


def key_values(values: Mapping[str, object]) -> list[KeyValue]:
    """Attributes as OTLP has them; None is left out.

    A list of texts, of numbers of one kind or of booleans stays one. Any other that is not a scalar
    becomes JSON, and so does an integer beyond 64 bits.
    """
    return [
        KeyValue(key=_clean(name), value=_any_value(value))
        for name, value in values.items()
        if value is not None
    ]


def retry_delay_s(status: int, retry_after: str | None, *, attempt: int) -> float | None:
    """How long to wait before the next attempt, in seconds; None to give up.

    Args:
        status: HTTP status of the reply.
        retry_after: Its header of that name; a date is ignored.
        attempt: Which attempt it answered, counted from 1.
    """
    if status not in _MAY_PASS or attempt >= _ATTEMPTS:
        return None
    wait_s = 2.0 ** (attempt - 1)
    with suppress(ValueError):
        wait_s = float(retry_after or wait_s)
    return wait_s if 0 <= wait_s <= _LONGEST_WAIT_S else None


def _any_value(value: object) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int() if value in _INT64:
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=_clean(value))
        case list() if {type(one) for one in value} in ({str}, {int}, {float}, {bool}):
            return AnyValue(array_value=ArrayValue(values=map(_any_value, value)))
        case _:
            return AnyValue(string_value=dump_json(value).decode())


def _clean(text: str) -> str:
    """Without lone surrogates, which protocol buffers cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _batches(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    batch: list[Span] = []
    size = 0
    for span in spans:
        if batch and (len(batch) >= most or size + span.ByteSize() > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += span.ByteSize()
    if batch:
        yield batch


def _request(spans: Iterable[Span], *, project: str) -> bytes:
    resource = {
        "service.name": "harness",
        "service.version": __version__,
        "openinference.project.name": project,
    }
    scope = InstrumentationScope(name="harness", version=__version__)
    of_run = ResourceSpans(
        resource=Resource(attributes=key_values(resource)),
        scope_spans=[ScopeSpans(scope=scope, spans=spans)],
    )
    request: bytes = ExportTraceServiceRequest(resource_spans=[of_run]).SerializeToString()
    return request


def _post(
    client: httpx.Client, url: httpx.URL, body: bytes, *, sleep: Callable[[float], None]
) -> httpx.Response:
    """The collector's answer to a request, which a busy one gets a few times.

    Raises:
        ExportFailed: No answer came.
    """
    attempt = 1
    while True:
        try:
            response = client.post(url, content=body)
        except httpx.RequestError as error:
            hint = "is it running, and is the address right?"
            if url.port == 4317:
                hint = "port 4317 is usually OTLP over gRPC; over HTTP it is 4318"
            shown = _shown(str(url))
            raise ExportFailed(
                f"no collector answers at {shown} ({error or type(error).__name__}); {hint}",
                address=shown,
            ) from error
        wait_s = retry_delay_s(
            response.status_code, response.headers.get("retry-after"), attempt=attempt
        )
        if wait_s is None:
            return response
        sleep(wait_s)
        attempt += 1


def _refusal(response: httpx.Response, shown: str, redactor: Redactor) -> ExportFailed:
    status = response.status_code
    if response.is_success:
        message = f"{shown} is a web page and no collector; {_WRONG_ADDRESS}"
        return ExportFailed(message, address=shown, status=status)
    said = response.text
    with suppress(DecodeError):
        # Refusals hold a `google.rpc.Status`, whose message has the same number as this one's.
        said = Status.FromString(_protobuf_in(response)).message or said
    said = redactor.clean(said).strip()[:500]
    hint = _HINTS.get(status) or ("try again later" if status in _MAY_PASS else "")
    return ExportFailed(
        f"the collector at {shown} refused the run: "
        + "; ".join(part for part in (f"HTTP {status}", said, hint) if part),
        address=shown,
        status=status,
    )


def _protobuf_in(response: httpx.Response) -> bytes:
    is_protobuf = response.headers.get("content-type", "").startswith(_PROTOBUF)
    return response.content if is_protobuf else b""


def _address(endpoint: str) -> httpx.URL:
    wrong = InvalidInput(
        f"'{_shown(endpoint)}' is not an address; one is such as http://127.0.0.1:6006",
        code="export.address-invalid",
    )
    try:
        url = httpx.URL(endpoint)
    except httpx.InvalidURL as error:
        raise wrong from error
    if url.scheme not in {"http", "https"} or not url.host or (url.port or 0) > 65535:
        raise wrong
    path = url.path.rstrip("/")
    return url.copy_with(path=path if path.endswith(_PATH) else path + _PATH)


def _all_headers(given: Mapping[str, str]) -> httpx.Headers:
    """The given headers and OTLP's; httpx would check them too, and quote a bad one."""
    headers = httpx.Headers({"user-agent": f"harness/{__version__}"})
    for name, value in given.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise InvalidInput(
                "a header's name is not valid in HTTP; is it NAME=VALUE?",
                code="export.header-name-invalid",
            )
        if not re.fullmatch(r"[\t -~]*", value.strip()):
            raise InvalidInput(
                f"the value of header '{name}' is not valid in HTTP; was it copied whole, and "
                "alone?",
                code="export.header-value-invalid",
            )
        headers[name] = value.strip()
    headers.update({"content-type": _PROTOBUF, "content-encoding": "gzip"})
    return headers


def _shown(address: str) -> str:
    """An address as messages quote it: without a password, or a key in its query."""
    return re.sub(r"//.*@", "//", address).partition("?")[0]
