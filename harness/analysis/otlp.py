"""The OpenTelemetry export: a run, sent to a collector as OTLP over HTTP."""

from __future__ import annotations

import gzip
import heapq
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Self

import httpx

from harness.analysis.otlp_names import (
    IN_PROCESS,
    ServedModel,
    evaluation_results,
    own_attributes,
    span_attributes,
    span_name,
)
from harness.errors import ExportFailed, InvalidInput
from harness.trace.journal_reader import Journal
from harness.trace.lenient_json import dump_json
from harness.trace.protobuf import double, fixed64, integer, message, text
from harness.trace.records import Attributes, Content, Flow, Instant, SpanRecord
from harness.trace.secrets import Redactor
from harness.version import __version__

_BATCH_BYTES = 4_000_000
"""A batch that has grown to this goes out: collectors refuse requests beyond some 20 MB."""


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
        headers: Sent along, to be let in. No message quotes their values.
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
    resource = {
        "service.name": "harness",
        "service.version": __version__,
        "openinference.project.name": journal.started.name,
    }
    sent = 0
    with Collector(endpoint, headers=headers or {}, sleep=sleep) as collector:
        for spans in _batches(otlp_spans(journal, content=content), batch):
            collector.post(export_request(spans, resource=resource, version=__version__))
            sent += len(spans)
    if collector.rejected_spans:
        raise ExportFailed(
            f"the collector at {collector.shown} kept {sent - collector.rejected_spans} of the "
            f"run's {sent} spans: {collector.complaint or 'it does not say why'}",
            address=collector.shown,
            rejected_spans=collector.rejected_spans,
        )
    return sent


def _batches(spans: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for span in spans:
        if batch and (len(batch) >= most or size + len(span) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += len(span)
    if batch:
        yield batch


_TEXT_CHARS = 16_000_000
"""How much text is kept for spans to refer to."""
_LATE_NS = 1_000_000_000
"""How long after a span's end its last records may come: threads write side by side."""
_MOST = 128
"""Events that one span may have, and links: as in OpenTelemetry's own libraries."""

_OF_A_MODEL = frozenset({"chat", "embed", "count tokens", "schema probe"})
"""Spans of what a model was asked."""
_INTERNAL, _CLIENT = 1, 3
_STATUS_CODES = {"ok": 1, "error": 2}


def otlp_spans(journal: Journal, *, content: bool = False) -> Iterator[bytes]:
    """A run's spans as OTLP's `Span` messages, more or less in the order they ended."""
    return _Spans(journal, content=content).all()


class _Held:
    """A span that may not be whole yet.

    Args:
        record: Ours.

    Attributes:
        events: Of OTLP, as far as there is room.
        left_out: How many there was no room for.
        found: Attributes that other spans knew.
    """

    def __init__(self, record: SpanRecord) -> None:
        self.record = record
        self.events: list[bytes] = []
        self.left_out = 0
        self.found: dict[str, object] = {}

    def add(self, one: bytes) -> None:
        if len(self.events) < _MOST:
            self.events.append(one)
        else:
            self.left_out += 1


class _Spans:
    def __init__(self, journal: Journal, *, content: bool) -> None:
        self._journal = journal
        self._texts = _Texts() if content else None
        started = journal.started
        self._run_id = started.run_id
        digest = sha256(started.run_id.encode()).digest()
        self._trace_id = digest[:16]
        self._first_id = int.from_bytes(digest[16:24], "big")
        self._shift_ns = started.wall_ns - started.time_ns

        self._flows: dict[int, list[Flow]] = {}
        for flow in journal.flows:
            self._flows.setdefault(flow.target, []).append(flow)
        self._models: dict[str, Attributes] = {}
        self._held: dict[int, _Held] = {}
        self._ends: list[tuple[int, int]] = []  # a heap: when a held span ended, and its id
        # Spans that wrote a draft: held until the verdict on it is known.
        self._authors = {flow.source for flow in journal.flows if flow.name == "draft"}

    def all(self) -> Iterator[bytes]:
        for item in self._journal.items():
            match item:
                case SpanRecord():
                    yield from self._over(item.start_ns - _LATE_NS)
                    self._hold(item)
                case Instant(span=None, name="endpoint", attributes=endpoint):
                    self._models[str(endpoint.get("model"))] = endpoint
                case Instant(span=int(number)) if number in self._held:
                    values = own_attributes(item.attributes, texts=self._texts is not None)
                    self._held[number].add(event(item.name, item.time_ns + self._shift_ns, values))
                case Content() if self._texts is not None:
                    self._texts.add(item)
        self._ends = sorted((held.record.end_ns, number) for number, held in self._held.items())
        yield from self._over(None)

    def _hold(self, record: SpanRecord) -> None:
        held = self._held[record.id] = _Held(record)
        if record.id not in self._authors:
            heapq.heappush(self._ends, (record.end_ns, record.id))
        if record.name == "evaluate":
            self._tell_author(held)

    def _tell_author(self, evaluation: _Held) -> None:
        """Puts a verdict where GenAI and OpenInference want it: on what was evaluated.

        A draft that nobody is known to have written leaves its verdict at the evaluation.
        """
        record = evaluation.record
        drafts = [flow.source for flow in self._flows.get(record.id, ()) if flow.name == "draft"]
        author = self._held.get(drafts[0], evaluation) if drafts else evaluation
        results = evaluation_results(record, texts=self._texts is not None)
        for index, result in enumerate(results):
            author.add(
                event("gen_ai.evaluation.result", record.end_ns + self._shift_ns, result.as_event())
            )
            if author is not evaluation:
                author.found |= result.as_attributes(index)
        if author is not evaluation:
            heapq.heappush(self._ends, (author.record.end_ns, author.record.id))

    def _over(self, before_ns: int | None) -> Iterator[bytes]:
        """The held spans that ended before a time; None is the end of the journal."""
        while self._ends and (before_ns is None or self._ends[0][0] < before_ns):
            held = self._held.pop(heapq.heappop(self._ends)[1], None)
            if held is not None:
                yield self._message(held)

    def _message(self, held: _Held) -> bytes:
        record = held.record
        served = self._served(record)
        is_remote = (
            served is not None
            and served.backend not in IN_PROCESS
            and record.attributes.get("from_cache") is not True
        )
        values = {
            **span_attributes(
                record, served=served, text_of=self._texts.find if self._texts else None
            ),
            **held.found,
            "error.type": _error_type(record),
            "harness.status": None if record.status == "ok" else record.status,
            "session.id": self._run_id,
        }
        links = self._links(record)
        return b"".join(
            [
                message(1, self._trace_id),
                message(2, self._span_id(record.id)),
                b"" if record.parent is None else message(4, self._span_id(record.parent)),
                text(5, span_name(record, served)),
                integer(6, _CLIENT if is_remote else _INTERNAL),
                fixed64(7, record.start_ns + self._shift_ns),
                fixed64(8, record.end_ns + self._shift_ns),
                attributes(9, values),
                *(message(11, one) for one in held.events),
                integer(12, held.left_out),
                *(message(13, one) for one in links[:_MOST]),
                integer(14, len(links[_MOST:])),
                message(15, _status(record, texts=self._texts is not None)),
            ]
        )

    def _served(self, record: SpanRecord) -> ServedModel | None:
        if record.name not in _OF_A_MODEL:
            return None
        tag = str(record.attributes.get("model"))
        return ServedModel(tag, self._models.get(tag, {}))

    def _links(self, record: SpanRecord) -> list[bytes]:
        """To the spans that led to this one; that it is inside of its parent, the parent says."""
        return [
            link(self._trace_id, self._span_id(flow.source), {"harness.flow": flow.name})
            for flow in self._flows.get(record.id, ())
            if flow.source != record.parent
        ]

    def _span_id(self, number: int) -> bytes:
        """Never zero, never twice in a run, and unlikely to be another run's."""
        return ((self._first_id + number) % (2**64 - 1) + 1).to_bytes(8, "big")


class _Texts:
    """The texts that were read or asked for last.

    Args:
        most_chars: How much is kept; one text may be longer.
    """

    def __init__(self, most_chars: int = _TEXT_CHARS) -> None:
        self._most_chars = most_chars
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._chars = 0

    def add(self, content: Content) -> None:
        if content.sha256 not in self._texts:
            self._texts[content.sha256] = content.text
            self._chars += len(content.text)
        while self._chars > self._most_chars and len(self._texts) > 1:
            _, oldest = self._texts.popitem(last=False)
            self._chars -= len(oldest)

    def find(self, sha256: str) -> str | None:
        if sha256 in self._texts:
            self._texts.move_to_end(sha256)
        return self._texts.get(sha256)


def _status(record: SpanRecord, *, texts: bool) -> bytes:
    """`Status`: unset for a span that was cut short, since that is neither."""
    code = integer(3, _STATUS_CODES.get(record.status, 0))
    # What an error says may quote a text; its class does not.
    return code + text(2, (record.error or "") if texts else _error_type(record) or "")


def _error_type(record: SpanRecord) -> str | None:
    return record.error.partition(":")[0] if record.error else None


_PATH = "/v1/traces"
_PROTOBUF = "application/x-protobuf"
_TIMEOUT_S, _CONNECT_TIMEOUT_S, _KEEPALIVE_S = 30.0, 5.0, 3.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

_MAY_PASS = {429, 502, 503, 504}
"""The statuses after which OTLP has a client try again."""
_ATTEMPTS = 5
_LONGEST_WAIT_S = 60.0
"""A collector that asks for more is taken at its word: not now."""

_WRONG_ADDRESS = f"is the address right? {_PATH} is added where it is missing"
_NO_KEY = "pass the collector's key with --header NAME=VALUE"
_HINTS = {
    401: _NO_KEY,
    403: _NO_KEY,
    404: _WRONG_ADDRESS,
    405: _WRONG_ADDRESS,
    413: "raise the collector's limit on the size of a request, or send no texts",
}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")


class Collector:
    """Takes spans, request by request.

    Args:
        endpoint: Its address.
        headers: Sent with every request.
        sleep: Waits, in seconds.

    Raises:
        InvalidInput: The address or a header is not usable.

    Attributes:
        shown: The address, as messages give it.
        rejected_spans: How many spans it would not keep of the requests that it took.
        complaint: What it said of them first.
    """

    def __init__(
        self, endpoint: str, *, headers: Mapping[str, str], sleep: Callable[[float], None]
    ) -> None:
        self._url = _address(endpoint)
        self.shown = _shown(str(self._url))
        self.rejected_spans = 0
        self.complaint = ""
        self._sleep = sleep
        # A reply may quote the key without the `Bearer` before it.
        self._redactor = Redactor([part for v in headers.values() for part in (v, *v.split())])
        self._client = httpx.Client(
            headers=_all_headers(headers),
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            # Servers drop a connection after 5 s idle: let it go before they do.
            limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_S),
            # As for models: no proxy of the environment's between us and this machine.
            verify=self._url.scheme == "https",
            trust_env=self._url.host not in _LOOPBACK,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def post(self, request: bytes) -> None:
        """Delivers an `ExportTraceServiceRequest`, trying for a while if the collector is busy.

        Raises:
            ExportFailed: It is not there, or refused.
        """
        body = gzip.compress(request, mtime=0)
        attempt = 1
        while True:
            response = self._send(body)
            wait_s = retry_delay_s(
                response.status_code, response.headers.get("retry-after"), attempt=attempt
            )
            if wait_s is None:
                break
            self._sleep(wait_s)
            attempt += 1
        if not response.is_success:
            raise self._refusal(response)
        if "html" in response.headers.get("content-type", ""):
            raise ExportFailed(
                f"{self.shown} is a web page and no collector; {_WRONG_ADDRESS}",
                address=self.shown,
                status=response.status_code,
            )
        self._note(response)

    def _send(self, body: bytes) -> httpx.Response:
        try:
            return self._client.post(self._url, content=body)
        except httpx.RequestError as error:
            hint = "is it running, and is the address right?"
            if self._url.port == 4317:
                hint = "port 4317 is usually OTLP over gRPC; over HTTP it is 4318"
            raise ExportFailed(
                f"no collector answers at {self.shown} ({error or type(error).__name__}); {hint}",
                address=self.shown,
            ) from error

    def _refusal(self, response: httpx.Response) -> ExportFailed:
        status = response.status_code
        said = response.text
        if _is_protobuf(response):
            with suppress(ValueError):
                said = status_message(response.content)
        said = self._redactor.clean(said).strip()[:500]
        hint = _HINTS.get(status) or ("try again later" if status in _MAY_PASS else "")
        return ExportFailed(
            f"the collector at {self.shown} refused the run: "
            + "; ".join(part for part in (f"HTTP {status}", said, hint) if part),
            address=self.shown,
            status=status,
        )

    def _note(self, response: httpx.Response) -> None:
        """What it would not keep. Some collectors reply with nothing, or in words of their own."""
        if _is_protobuf(response):
            with suppress(ValueError):
                rejected, said = partial_success(response.content)
                self.rejected_spans += rejected
                self.complaint = self.complaint or self._redactor.clean(said)


def retry_delay_s(status: int, retry_after: str | None, *, attempt: int) -> float | None:
    """How long to wait before the next attempt, in seconds; None if there is to be none.

    Args:
        status: HTTP status of the reply.
        retry_after: Its header of that name. A date, which few send, counts as none.
        attempt: Which attempt it answered, counted from 1.
    """
    if status not in _MAY_PASS or attempt >= _ATTEMPTS:
        return None
    wait_s = 2.0 ** (attempt - 1)
    with suppress(ValueError):
        wait_s = float(retry_after or wait_s)
    return wait_s if 0 <= wait_s <= _LONGEST_WAIT_S else None


def _address(endpoint: str) -> httpx.URL:
    """Where spans go.

    Raises:
        InvalidInput: It is no address.
    """
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
    """Those that are given, and OTLP's.

    Raises:
        InvalidInput: One cannot be sent. The library would say so too, and quote it.
    """
    headers = httpx.Headers({"user-agent": f"harness/{__version__}"})
    for name, value in given.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(
                "a header has a name that HTTP does not know; is it NAME=VALUE?",
                code="export.header-name-invalid",
            )
        if not _HEADER_VALUE.fullmatch(value.strip()):
            raise InvalidInput(
                f"the value of header '{name}' cannot stand in one; was it copied whole, and "
                "alone?",
                code="export.header-value-invalid",
            )
        headers[name] = value.strip()
    headers.update({"content-type": _PROTOBUF, "content-encoding": "gzip"})
    return headers


def _shown(address: str) -> str:
    """An address as messages quote it: without a password, or a key in its query."""
    return re.sub(r"//.*@", "//", address).partition("?")[0]


def _is_protobuf(response: httpx.Response) -> bool:
    return bool(response.headers.get("content-type", "").startswith(_PROTOBUF))


_INT64 = range(-(1 << 63), 1 << 63)


def export_request(
    spans: Iterable[bytes], *, resource: Mapping[str, object], version: str
) -> bytes:
    """`ExportTraceServiceRequest`: spans of one process, as one POST carries them.

    Args:
        spans: `Span` messages.
        resource: Attributes of the process.
        version: This library's, which recorded them.
    """
    scope = text(1, "harness") + text(2, version)
    of_scope = message(1, scope) + b"".join([message(2, span) for span in spans])
    return message(1, message(1, attributes(1, resource)) + message(2, of_scope))


def event(name: str, unix_ns: int, values: Mapping[str, object]) -> bytes:
    """`Span.Event`."""
    return fixed64(1, unix_ns) + text(2, name) + attributes(3, values)


def link(trace_id: bytes, span_id: bytes, values: Mapping[str, object]) -> bytes:
    """`Span.Link`."""
    return message(1, trace_id) + message(2, span_id) + attributes(4, values)


def attributes(field: int, values: Mapping[str, object]) -> bytes:
    """Values as so many `KeyValue`; there is none for None.

    A list of texts, of numbers of one kind or of booleans stays one. What else is not a scalar goes
    as JSON, as does an integer that 64 bits do not hold.
    """
    return b"".join(
        message(field, text(1, name) + message(2, _any_value(value)))
        for name, value in values.items()
        if value is not None
    )


def partial_success(response: bytes) -> tuple[int, str]:
    """What an `ExportTraceServiceResponse` says: how many spans were rejected, and why.

    Raises:
        ValueError: It is no such message.
    """
    rejected, said = 0, ""
    for number, value in _fields(response):
        for inner, part in _fields(value) if number == 1 and isinstance(value, bytes) else ():
            if inner == 1 and isinstance(part, int):
                rejected = part
            elif inner == 2 and isinstance(part, bytes):
                said = part.decode("utf-8", "replace")
    return rejected, said


def status_message(response: bytes) -> str:
    """The message of a `google.rpc.Status`, which is what refusals hold.

    Raises:
        ValueError: It is no such message.
    """
    texts = [value for number, value in _fields(response) if number == 2]
    return texts[0].decode("utf-8", "replace") if texts and isinstance(texts[0], bytes) else ""


def _any_value(value: object) -> bytes:
    match value:
        case bool():
            return integer(2, value)
        case int() if value in _INT64:
            return integer(3, value)
        case float():
            return double(4, value)
        case str():
            return text(1, value)
        case list() if {type(one) for one in value} in ({str}, {int}, {float}, {bool}):
            return message(5, b"".join(message(1, _any_value(one)) for one in value))
        case _:
            return text(1, dump_json(value).decode())


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value.

    Raises:
        ValueError: It is cut off, or has fields of kinds that no reply has.
    """
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        value, at = _varint(body, at)
        match tag & 7:
            case 0:
                yield tag >> 3, value
            case 2 if at + value <= len(body):
                yield tag >> 3, body[at : at + value]
                at += value
            case _:
                raise ValueError("not a message that collectors send")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    number = shift = 0
    while at < len(body):
        byte = body[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ValueError("cut off")
