"""A collector of traces, spoken to as OTLP wants it: protocol buffers over HTTP, gzipped.

What is sent along to be let in stands in no message.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx

from harness.errors import ExportFailed, InvalidInput
from harness.trace.otlp.message import partial_success, status_message
from harness.trace.secrets import Redactor
from harness.version import __version__

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
