"""Error replies of model servers, in the four shapes they come in, as this package's errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from harness.errors import (
    AuthenticationFailed,
    ContextOverflow,
    InferenceError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerError,
)

_OVERFLOW = re.compile(
    r"exceed_context_size_error|context_length_exceeded|maximum context length"
    r"|exceeds the available context size|inputs tokens \+ max_new_tokens",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model\b.*\b(not found|does not exist|not served)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Complaint:
    """What an error body says, whatever its shape."""

    message: str
    kind: str = ""
    prompt_tokens: int | None = None
    context_tokens: int | None = None


def error_from_reply(
    status: int, body: bytes, *, headers: Mapping[str, str], endpoint: str, model_id: str
) -> InferenceError:
    """The error that a reply with this status and body means.

    Args:
        status: HTTP status; 200 for an error inside a stream that had begun.
        body: JSON in any of the four shapes, or anything else.
        headers: Of the reply, with lower-case names.
        endpoint: Tag of the endpoint.
        model_id: The model that was asked for.
    """
    complaint = _read(body)
    said = complaint.message or f"HTTP {status} without a message"
    if _OVERFLOW.search(f"{complaint.kind} {said}"):
        return ContextOverflow(
            f"{said}. Shorten the prompt, lower max_output_tokens, or serve a longer context",
            endpoint=endpoint,
            prompt_tokens=complaint.prompt_tokens,
            context_tokens=complaint.context_tokens,
        )
    if status in {401, 403}:
        return AuthenticationFailed(
            f"the server refused the credentials ({said}); set the endpoint's api_key_env to the "
            "name of the variable that holds the key",
            endpoint=endpoint,
        )
    if status == 404 or _NO_MODEL.search(said):
        return ModelNotFound(
            f"the server does not serve '{model_id}' ({said}); set the endpoint's model_id to a "
            "name that its /v1/models lists",
            endpoint=endpoint,
        )
    if status == 429:
        return RateLimited(said, endpoint=endpoint, retry_after_s=_retry_after_s(headers))
    if status == 503:
        return Overloaded(said, endpoint=endpoint, retry_after_s=_retry_after_s(headers))
    return ServerError(f"HTTP {status}: {said}", endpoint=endpoint, status=status)


def _read(body: bytes) -> _Complaint:
    try:
        value = orjson.loads(body)
        if isinstance(value, str):
            value = orjson.loads(value)  # MLC encodes its error twice
    except orjson.JSONDecodeError:
        return _Complaint(message=body.decode("utf-8", "replace").strip()[:500])
    if not isinstance(value, dict):
        return _Complaint(message=str(value)[:500])
    inner = value.get("error", value)
    if not isinstance(inner, dict):
        return _Complaint(message=str(inner))
    return _Complaint(
        message=str(inner.get("message") or inner.get("detail") or "")[:500],
        kind=f"{inner.get('type', '')} {inner.get('code', '')}",
        prompt_tokens=_whole(inner.get("n_prompt_tokens")),
        context_tokens=_whole(inner.get("n_ctx")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None  # absent, or an HTTP date, which model servers do not send
