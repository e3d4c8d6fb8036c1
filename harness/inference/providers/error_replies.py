"""Turns error replies of model servers, in all their shapes, into this package's errors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from harness.errors import (
    AuthenticationFailed,
    ContextOverflow,
    InferenceError,
    ModelNotFound,
    NotOffered,
    Overloaded,
    RateLimited,
    ServerError,
)
from harness.inference.json_text import at, parsed, text_at, whole

_OVERFLOW = re.compile(
    r"exceed_context_size_error|context_length_exceeded|maximum context length"
    r"|exceeds the available context size|exceeds the context length|prompt is too long"
    r"|context size has been exceeded|longer than the maximum model length"  # llama-server; vLLM
    r"|`inputs` tokens \+ `max_new_tokens`|`inputs` must have less than"  # TGI
    r"|longer than the model's context length"  # SGLang
    r"|should not exceed max_(?:num_tokens|seq_len)"  # TensorRT-LLM
    r"|larger than the model input length limit"  # MLC
    r"|exceed context limit"  # Anthropic, of the prompt and max_tokens together
    r"|\bn_keep\b|when context the overflows",  # LM Studio
    re.IGNORECASE,
)
# With status 429 these words mean a rate, with others that there is no room for the reply.
_NO_ROOM = re.compile(
    r"input.{0,40}max_(?:new_)?tokens.{0,80}(?:exceed|context)",  # Together, with 403
    re.IGNORECASE,
)
# Without vLLM's "your prompt contains at least …", where it has stopped counting.
_PROMPT_TOKENS = re.compile(
    r"(?:your request has |resulted in |requested (?:about )?\d+ tokens \("  # older vLLM, OpenAI
    r"|input \(|requested a total of \d+ tokens: "  # SGLang
    r"|prompt has |prompt length \(?|Given: |n_keep\W+|prompt is too long: "
    r"|exceed context limit: )(\d+)",
    re.IGNORECASE,
)
_CONTEXT_TOKENS = re.compile(
    r"(?:maximum context length (?:is|of) |model's context length \(|must be <= |length limit "
    r"|context size of |max_num_tokens \(|n_ctx\W+|\d tokens > |\d \+ \d+ > )(\d+)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"unknown model\b|invalid model identifier|model\b.*\b(not found|does not exist|not served)",
    re.IGNORECASE,
)
# The words of TGI, with status 429 or in a stream 422, and of Triton, with status 500.
_FULL = re.compile(r"model is overloaded|exceeds maximum queue size", re.IGNORECASE)
_TAKES_NO_IMAGES = re.compile(
    r"image input is not supported|not a multimodal model|At most 0 image"  # llama-server; vLLM
    r"|(?:not|n't) support (?:image|vision)",
    re.IGNORECASE,
)
# Statuses of mistakes in a request, and 200 of a stream, which says nothing about the kind. With
# any other, "not found" may be about a library that the server's model needs.
_OF_THE_REQUEST = frozenset({200, 400, 403, 404, 422})


def error_from_reply(  # noqa: PLR0911 - one for each kind of error
    status: int, body: bytes, *, headers: Mapping[str, str], endpoint: str, model_id: str
) -> InferenceError:
    """The error that a reply with this status and body, JSON or not, means."""
    complaint = _complaint(body)
    if status == 200:
        # The error came inside a stream that had begun, and may name a status of its own.
        status = whole(complaint.get("code")) or whole(complaint.get("http_status_code")) or 200
    text = _message(complaint) or f"HTTP {status} without a message"
    kind_and_text = f"{complaint.get('type', '')} {complaint.get('code', '')} {text}"
    is_about_request = status in _OF_THE_REQUEST
    wait_s = _retry_after_s(headers)
    wait = "" if wait_s is None else f"; it says to wait {wait_s:g} s"
    if _OVERFLOW.search(kind_and_text) or (is_about_request and _NO_ROOM.search(text)):
        return context_overflow(
            text,
            endpoint=endpoint,
            prompt_tokens=whole(complaint.get("n_prompt_tokens")),
            context_tokens=whole(complaint.get("n_ctx")),
        )
    if status in {401, 403}:
        return AuthenticationFailed(
            f"the server refused the credentials ({text}); set the endpoint's api_key_env to the "
            "name of the variable that holds the key"
        )
    if status == 402 or "insufficient_quota" in kind_and_text:
        return AuthenticationFailed(
            f"the account has nothing left to spend ({text}); top it up, or use another endpoint",
            code="call.quota-spent",
        )
    # This goes before the next check, since Triton says that it does not know a model while it is
    # loading it. A gateway's 502 or 504 with a time to wait means that the server is not up yet; a
    # 500 does not.
    is_temporary = status in {503, 529} or (status > 500 and wait_s is not None)
    if is_temporary or _FULL.search(text):
        return Overloaded(
            f"the server is loading or full ({text}); try again later{wait}", retry_after_s=wait_s
        )
    is_unknown_model = is_about_request and _NO_MODEL.search(text)
    if is_unknown_model or (status == 404 and "model" in kind_and_text.lower()):
        return ModelNotFound(
            f"the server does not serve '{model_id}' ({text}); set the endpoint's model_id to a "
            f"name that it does: harness endpoints check {endpoint} lists them"
        )
    if status == 429:
        return RateLimited(
            f"the account is at its limit ({text}); make fewer calls at once (max_parallel), or "
            f"shorter ones, or set a fallback to another endpoint{wait}",
            retry_after_s=wait_s,
        )
    if _TAKES_NO_IMAGES.search(text):
        return NotOffered(
            f"the model takes no images as it is served ({text}); use one trained on images"
        )
    if status == 200:
        return ServerError(f"the server sent an error in place of a reply: {text}")
    if status == 404:
        text += "; is the endpoint's url right? That of an OpenAI-compatible server ends in /v1"
    return ServerError(f"HTTP {status}: {text}", status=status)


def message_in(body: bytes) -> str:
    """The message of an error reply, in any of its shapes."""
    return _message(_complaint(body)) or body.decode("utf-8", "replace").strip()[:500]


def context_overflow(
    text: str, *, endpoint: str, prompt_tokens: int | None = None, context_tokens: int | None = None
) -> ContextOverflow:
    """The error of a message about an overflow; lengths that are None are read from it."""
    return ContextOverflow(
        f"{text}. Shorten the prompt, lower max_output_tokens, or serve a longer context: "
        f"context_tokens under [endpoints.{endpoint}] where it is loaded by harness or Ollama, "
        "else the server's own setting",
        prompt_tokens=prompt_tokens or _number(_PROMPT_TOKENS, text),
        context_tokens=context_tokens or _number(_CONTEXT_TOKENS, text),
    )


def _complaint(body: bytes) -> Mapping[str, Any]:
    """The fields of the error in a body of any shape; `message` has the text of another body."""
    value = parsed(body)
    if isinstance(value, str):
        value = parsed(value.encode())  # MLC encodes its error twice
    if isinstance(value, list) and value:
        value = value[0]  # Gemini sends a list
    fields = at(value, "error") or value
    if isinstance(fields, str) and fields.startswith("{"):
        return _complaint(fields.encode())  # Ollama passes on its llama-server's error as text
    if isinstance(fields, Mapping):
        return fields
    text = body.decode("utf-8", "replace").strip() if fields is None else str(fields)
    return {"message": text, "type": text_at(value, "error_type")}


def _message(complaint: Mapping[str, Any]) -> str:
    return str(complaint.get("message") or complaint.get("detail") or "")[:500]


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long to wait: seconds or a date (RFC 9110, 10.2.3), or OpenAI's milliseconds."""
    for name, units_per_second in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            wait = float(headers.get(name, ""))
            if math.isfinite(wait) and wait >= 0:
                return wait / units_per_second
    end = _date(headers.get("retry-after", ""))
    if end is None:
        return None
    # By the server's clock, if the reply has its date: the clock here may be minutes off.
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (end - now).total_seconds())


def _date(header: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
