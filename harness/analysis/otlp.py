"""Sends a run's spans to an OpenTelemetry collector: OTLP over HTTP. Needs the extra `otlp`.

Messages quote neither keys nor passwords.
"""

from __future__ import annotations

import gzip
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import unquote

import httpx2
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from harness.analysis.otlp_spans import key_values, otlp_spans
from harness.errors import ExportFailed, InvalidInput
from harness.trace.exporter import ExportTarget
from harness.trace.journal_reader import Journal
from harness.trace.secrets import Redactor
from harness.version import __version__

# A batch that has grown to this goes out: collectors refuse requests beyond some 20 MB.
_BATCH_BYTES = 4_000_000
_PATH = "/v1/traces"
_PROTOBUF = "application/x-protobuf"
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# The statuses after which OTLP has a client try again.
_MAY_PASS = {429, 502, 503, 504}
_ATTEMPTS = 5
# A collector that asks for a longer wait is not asked again.
_LONGEST_WAIT_S = 60.0
_NO_KEY = "pass the collector's key with --header NAME=VALUE"
_WRONG_ADDRESS = f"is the address right? {_PATH} is added where it is missing"
_HINTS = {
    401: _NO_KEY,
    403: _NO_KEY,
    404: _WRONG_ADDRESS,
    405: _WRONG_ADDRESS,
    413: "raise the collector's limit on the size of a request, or send no texts",
}


def export_otlp(journal: Journal, target: ExportTarget) -> str:
    """Sends a run to the target's endpoint, else that of OpenTelemetry's own variables.

    See `Exporter`. `OTEL_EXPORTER_OTLP_HEADERS` count beside the target's headers.
    """
    if target.output is not None:
        raise InvalidInput(
            "--output is for a file; otlp sends to --endpoint", code="export.not-for-otlp"
        )
    endpoint = target.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        raise InvalidInput(
            "there is no collector to send to; give --endpoint, such as http://127.0.0.1:6006, "
            "or set OTEL_EXPORTER_OTLP_ENDPOINT",
            code="export.no-collector",
        )
    headers: dict[str, str] = {}
    pairs = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")
    for pair in filter(None, map(str.strip, pairs)):
        name, separator, value = pair.partition("=")
        if not separator:
            # The part may be a key, and is not quoted.
            raise InvalidInput(
                "a part of OTEL_EXPORTER_OTLP_HEADERS is not of the form name=value; write %2C "
                "for a comma in a value",
                code="export.header-malformed",
            )
        # OpenTelemetry has both percent-encoded: `Authorization=Basic%20…`.
        headers[unquote(name).strip()] = unquote(value).strip()
    sent = send_otlp(
        journal, endpoint=endpoint, headers={**headers, **target.headers}, content=target.content
    )
    return f"{sent} spans sent to {endpoint}"


def send_otlp(
    journal: Journal,
    *,
    endpoint: str,
    headers: Mapping[str, str] | None = None,
    content: bool = False,
    batch: int = 512,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Sends a run to a collector that takes OTLP, such as Jaeger, and returns how many spans.

    Best when the run is over, since viewers keep what they got first. `/v1/traces` is added to an
    endpoint that lacks it. With `content`, prompts, replies, drafts, and words about them go too.

    Raises:
        InvalidInput: The address or a header is not usable.
        ExportFailed: The collector is not there, or did not take all of the run.
        JournalInvalid: A line in the middle of the journal is not a record.
    """
    url = _address(endpoint)
    address = _shown(str(url))
    headers = headers or {}
    # A reply may quote the key without the `Bearer` before it.
    redactor = Redactor([part for v in headers.values() for part in (v, *v.split())])
    sent = rejected = 0
    complaint = ""
    with httpx2.Client(
        headers=_all_headers(headers),
        timeout=httpx2.Timeout(30.0, connect=5.0),
        # Servers drop a connection after 5 s idle: let it go before they do.
        limits=httpx2.Limits(keepalive_expiry=3.0),
        # Without TLS no certificates are loaded, which takes 40 ms.
        verify=url.scheme == "https",
        # As for models, no proxy of the environment stands between us and this machine.
        trust_env=url.host not in _LOOPBACK,
    ) as client:
        for spans in _batches(otlp_spans(journal, content=content), batch):
            # Protocol buffers, since some collectors refuse JSON. Without a time from gzip, the
            # same spans are the same bytes.
            body = gzip.compress(_request(spans), mtime=0)
            response = _post(client, url, body, sleep=sleep)
            # A web page at the address answers any request with success.
            if not response.is_success or "html" in response.headers.get("content-type", ""):
                raise _refusal(response, address, redactor)
            sent += len(spans)
            # Some collectors reply with nothing, or in words of their own.
            with suppress(DecodeError):
                reply = ExportTraceServiceResponse.FromString(_protobuf_in(response))
                rejected += reply.partial_success.rejected_spans
                complaint = complaint or redactor.clean(reply.partial_success.error_message)
    if rejected:
        raise ExportFailed(
            f"the collector at {address} kept {sent - rejected} of the run's {sent} "
            f"spans: {complaint or 'it does not say why'}",
            address=address,
            rejected_spans=rejected,
        )
    return sent


def retry_delay_s(status: int, retry_after: str | None, *, attempt: int) -> float | None:
    """How long to wait before the next attempt, in seconds; None to give up.

    `attempt` counts from 1. A date as `retry_after` is ignored.
    """
    if status not in _MAY_PASS or attempt >= _ATTEMPTS:
        return None
    wait_s = 2.0 ** (attempt - 1)
    with suppress(ValueError):
        wait_s = float(retry_after or wait_s)
    return wait_s if 0 <= wait_s <= _LONGEST_WAIT_S else None


def _batches(spans: Iterable[Span], limit: int) -> Iterator[list[Span]]:
    batch: list[Span] = []
    size = 0
    for span in spans:
        # A span that is larger alone goes alone: only the collector knows if it is too large.
        if batch and (len(batch) >= limit or size + span.ByteSize() > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += span.ByteSize()
    if batch:
        yield batch


# The conventions that name our spans: the last version before generative AI's moved elsewhere.
_SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"


def _request(spans: Iterable[Span]) -> bytes:
    resource = {"service.name": "harness", "service.version": __version__}
    scope = InstrumentationScope(name="harness", version=__version__)
    of_run = ResourceSpans(
        resource=Resource(attributes=key_values(resource)),
        scope_spans=[ScopeSpans(scope=scope, spans=spans, schema_url=_SCHEMA_URL)],
    )
    request: bytes = ExportTraceServiceRequest(resource_spans=[of_run]).SerializeToString()
    return request


def _post(
    client: httpx2.Client, url: httpx2.URL, body: bytes, *, sleep: Callable[[float], None]
) -> httpx2.Response:
    """The collector's answer to a request, which is sent again a few times if it is busy.

    Raises:
        ExportFailed: No answer came.
    """
    attempt = 1
    while True:
        try:
            response = client.post(url, content=body)
        except httpx2.RequestError as error:
            hint = "is it running, and is the address right?"
            if url.port == 4317:
                hint = "port 4317 is usually OTLP over gRPC; over HTTP it is 4318"
            address = _shown(str(url))
            raise ExportFailed(
                f"no collector answers at {address} ({error or type(error).__name__}); {hint}",
                address=address,
            ) from error
        wait_s = retry_delay_s(
            response.status_code, response.headers.get("retry-after"), attempt=attempt
        )
        if wait_s is None:
            return response
        sleep(wait_s)
        attempt += 1


def _refusal(response: httpx2.Response, address: str, redactor: Redactor) -> ExportFailed:
    status = response.status_code
    if response.is_success:
        message = f"{address} is a web page and no collector; {_WRONG_ADDRESS}"
        return ExportFailed(message, address=address, status=status)
    reason = response.text
    with suppress(DecodeError):
        # Refusals hold a `google.rpc.Status`, whose message has the same number as this one's.
        reason = Status.FromString(_protobuf_in(response)).message or reason
    reason = redactor.clean(reason).strip()[:500]
    hint = _HINTS.get(status) or ("try again later" if status in _MAY_PASS else "")
    return ExportFailed(
        f"the collector at {address} refused the run: "
        + "; ".join(part for part in (f"HTTP {status}", reason, hint) if part),
        address=address,
        status=status,
    )


def _protobuf_in(response: httpx2.Response) -> bytes:
    is_protobuf = response.headers.get("content-type", "").startswith(_PROTOBUF)
    return response.content if is_protobuf else b""


def _address(endpoint: str) -> httpx2.URL:
    wrong = InvalidInput(
        f"'{_shown(endpoint)}' is not an address; one is such as http://127.0.0.1:6006",
        code="export.address-invalid",
    )
    try:
        url = httpx2.URL(endpoint)
    except httpx2.InvalidURL as error:
        raise wrong from error
    if url.scheme not in {"http", "https"} or not url.host or (url.port or 0) > 65535:
        raise wrong
    path = url.path.rstrip("/")
    return url.copy_with(path=path if path.endswith(_PATH) else path + _PATH)


def _all_headers(extra: Mapping[str, str]) -> httpx2.Headers:
    # Checked here, since the client's own error would quote a bad one, a key perhaps.
    headers = httpx2.Headers({"user-agent": f"harness/{__version__}"})
    for name, value in extra.items():
        is_name = re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name)
        if not is_name or not re.fullmatch(r"[\t -~]*", value.strip()):
            raise InvalidInput(
                "a header is not valid in HTTP; write NAME=VALUE, and check that the value was "
                "copied whole, with nothing else",
                code="export.header-invalid",
            )
        headers[name] = value.strip()
    headers.update({"content-type": _PROTOBUF, "content-encoding": "gzip"})
    return headers


def _shown(address: str) -> str:
    """An address as messages quote it: without a password, or a key in its query."""
    return re.sub(r"//.*@", "//", address).partition("?")[0]
