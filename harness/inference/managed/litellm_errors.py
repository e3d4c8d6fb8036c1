"""litellm's exceptions as this package's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    NotOffered,
    ServerError,
    StreamCut,
)
from harness.inference.endpoint import Endpoint
from harness.inference.time_limits import timed_out
from harness.inference.wire.body import BodyTooLong
from harness.inference.wire.connection import too_large
from harness.inference.wire.errors import context_overflow, error_from_reply

_NO_KEY = re.compile(r"missing (?:credentials|.{0,30}api key)", re.IGNORECASE)


def error_from_litellm(
    error: Exception,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    """The error that one of litellm's means.

    litellm guesses a class from words in the message; what the provider sent is surer, and is found
    among the causes.
    """
    too_long = next((one for one in _causes(error) if isinstance(one, BodyTooLong)), None)
    if too_long or isinstance(error, litellm.exceptions.MidStreamFallbackError):
        cut = StreamCut(f"the reply was cut off: {error}", endpoint=endpoint.tag)
        return too_large(too_long, endpoint=endpoint) if too_long else cut
    for cause in _causes(error):
        match cause:
            case httpx.HTTPStatusError():
                return _refusal(error, cause.response, litellm, endpoint=endpoint)
            case httpx.ConnectTimeout():
                return timed_out("connect_timeout_s", endpoint)
            case httpx.RemoteProtocolError() | httpx.ReadError() | httpx.WriteError():
                return StreamCut(
                    "the reply was cut off: the connection broke before it began: "
                    f"{str(cause) or type(cause).__name__}",
                    endpoint=endpoint.tag,
                )
            case httpx.ConnectError() | httpx.ProxyError():
                return EndpointUnreachable(
                    f"nothing answers at {endpoint.url or 'the provider'} ({cause}); is it "
                    "running, and is the endpoint's url right?",
                    endpoint=endpoint.tag,
                )
    return _of_its_own(error, litellm, endpoint=endpoint)


def not_embedded(
    error: Exception,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    """The error that one of litellm's means where a provider was to embed."""
    if "Unmapped LLM provider for this endpoint" in str(error):
        return NotOffered(
            f"litellm knows no embeddings of this provider ('{endpoint.model_id}')",
            endpoint=endpoint.tag,
        )
    return error_from_litellm(error, litellm, endpoint=endpoint)


def _of_its_own(
    error: Exception,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    """What an error means that no server sent and no connection caused."""
    if isinstance(error, litellm.exceptions.Timeout):
        return CallTimeout(str(error), endpoint=endpoint.tag)
    # Before it has sent anything, it reports that it has no key as a failure of the server or of
    # the connection; and as the latter whatever it could not read.
    no_key = _NO_KEY.search(str(error))
    if isinstance(error, litellm.exceptions.APIConnectionError) and not no_key:
        return ServerError(f"litellm could not read the reply: {error}", endpoint=endpoint.tag)
    status = 401 if no_key else getattr(error, "status_code", 500)
    return _refusal(error, httpx.Response(status, text=str(error)), litellm, endpoint=endpoint)


def _refusal(
    error: Exception,
    response: httpx.Response,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    if response.has_redirect_location:
        return ServerError(
            f"HTTP {response.status_code}: it sends callers on to {response.headers['location']}; "
            "is the endpoint's url right?",
            endpoint=endpoint.tag,
            status=response.status_code,
        )
    try:
        body = response.content
    except httpx.ResponseNotRead:
        body = str(error).encode()
    refusal = error_from_reply(
        response.status_code,
        body,
        headers=response.headers,
        endpoint=endpoint.tag,
        model_id=endpoint.model_id,
    )
    # litellm knows more ways to say this than we do.
    if isinstance(error, litellm.exceptions.ContextWindowExceededError) and not isinstance(
        refusal, ContextOverflow
    ):
        return context_overflow(str(error), endpoint=endpoint.tag)
    return refusal


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
