"""Error replies of model servers, in the four shapes they come in, as this package's errors."""

from __future__ import annotations

import math
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
    r"|exceeds the available context size|exceeds the context length|prompt is too long"
    r"|context size has been exceeded|longer than the maximum model length"  # llama-server; vLLM
    r"|`inputs` tokens \+ `max_new_tokens`|`inputs` must have less than"  # TGI
    r"|longer than the model's context length"  # SGLang
    r"|should not exceed max_(?:num_tokens|seq_len)"  # TensorRT-LLM
    r"|larger than the model input length limit"  # MLC
    r"|\bn_keep\b|when context the overflows",  # LM Studio
    re.IGNORECASE,
)
# Not vLLM's "your prompt contains at least …": there it has stopped counting.
_PROMPT_TOKENS = re.compile(
    r"(?:your request has |resulted in |requested \d+ tokens \("  # older vLLM, OpenAI
    r"|input \(|requested a total of \d+ tokens: "  # SGLang
    r"|prompt has |prompt length \(?|Given: |n_keep\W+|prompt is too long: )(\d+)",
    re.IGNORECASE,
)
_CONTEXT_TOKENS = re.compile(
    r"(?:maximum context length (?:is|of) |model's context length \(|must be <= |length limit "
    r"|context size of |max_num_tokens \(|n_ctx\W+|\d tokens > )(\d+)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"unknown model\b|invalid model identifier|model\b.*\b(not found|does not exist|not served)",
    re.IGNORECASE,
)
_FULL = re.compile(r"model is overloaded|exceeds maximum queue size", re.IGNORECASE)
"""TGI's, which comes with 429, or in a stream with 422; and Triton's, which comes with 500."""


SHORTEN = "Shorten the prompt, lower max_output_tokens, or serve a longer context"
"""What mends an overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Complaint:
    """What an error body says, whatever its shape."""

    message: str
    kind: str = ""
    status: int | None = None
    prompt_tokens: int | None = None
    context_tokens: int | None = None


def error_from_reply(
    status: int, body: bytes, *, headers: Mapping[str, str], endpoint: str, model_id: str
) -> InferenceError:
    """The error that a reply with this status and body means.

    Args:
        status: HTTP status; 200 for an error inside a stream that had begun, which then may name
            a status of its own.
        body: JSON in any of the four shapes, or anything else.
        headers: Of the reply, with lower-case names.
        endpoint: Tag of the endpoint.
        model_id: The model that was asked for.
    """
    complaint = _read(body)
    if status == 200 and complaint.status is not None:
        status = complaint.status
    said = complaint.message or f"HTTP {status} without a message"
    everything = f"{complaint.kind} {said}"
    if _OVERFLOW.search(everything):
        return ContextOverflow(
            f"{said}. {SHORTEN}",
            endpoint=endpoint,
            prompt_tokens=complaint.prompt_tokens or _number(_PROMPT_TOKENS, said),
            context_tokens=complaint.context_tokens or _number(_CONTEXT_TOKENS, said),
        )
    if status in {401, 403}:
        return AuthenticationFailed(
            f"the server refused the credentials ({said}); set the endpoint's api_key_env to the "
            "name of the variable that holds the key",
            endpoint=endpoint,
        )
    # Before the model's absence: Triton says that it does not know a model that it is loading.
    if status in {503, 529} or _FULL.search(said):
        return Overloaded(
            f"the server is loading or full ({said}); try again later",
            endpoint=endpoint,
            retry_after_s=_retry_after_s(headers),
        )
    if _NO_MODEL.search(said) or (status == 404 and "model" in everything.lower()):
        return ModelNotFound(
            f"the server does not serve '{model_id}' ({said}); set the endpoint's model_id to a "
            f"name that it does: harness endpoints check {endpoint} lists them",
            endpoint=endpoint,
        )
    if status == 429:
        return RateLimited(
            f"the account is at its limit ({said}); wait, or make fewer calls side by side",
            endpoint=endpoint,
            retry_after_s=_retry_after_s(headers),
        )
    return _server_error(status, said, endpoint=endpoint)


def _server_error(status: int, said: str, *, endpoint: str) -> ServerError:
    if status == 200:
        return ServerError(f"the server sent an error for a reply: {said}", endpoint=endpoint)
    if status == 404:
        said += "; is the endpoint's url right? That of an OpenAI-compatible server ends in /v1"
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
    inner = value.get("error") or value
    if isinstance(inner, str) and inner.startswith("{"):
        return _read(inner.encode())  # Ollama passes on its llama-server's error as text
    if not isinstance(inner, dict):
        return _Complaint(message=str(inner)[:500], kind=str(value.get("error_type", "")))
    return _Complaint(
        message=str(inner.get("message") or inner.get("detail") or "")[:500],
        kind=f"{inner.get('type', '')} {inner.get('code', '')}",
        status=_whole(inner.get("code")) or _whole(inner.get("http_status_code")),
        prompt_tokens=_whole(inner.get("n_prompt_tokens")),
        context_tokens=_whole(inner.get("n_ctx")),
    )


def _number(pattern: re.Pattern[str], said: str) -> int | None:
    found = pattern.search(said)
    return int(found[1]) if found else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, ValueError):
        return None  # absent, or an HTTP date, which model servers do not send
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
