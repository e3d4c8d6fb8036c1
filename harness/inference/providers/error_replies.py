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
# There is no room for the reply, or a rate was exceeded: with status 429, it is the rate.
_NO_ROOM = re.compile(
    r"input.{0,40}max_(?:new_)?tokens.{0,80}(?:exceed|context)",  # Together, with 403
    re.IGNORECASE,
)
# Not vLLM's "your prompt contains at least …": there it has stopped counting.
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
# TGI's, which comes with 429, or in a stream with 422; and Triton's, which comes with 500.
_FULL = re.compile(r"model is overloaded|exceeds maximum queue size", re.IGNORECASE)
_BLIND = re.compile(
    r"image input is not supported|not a multimodal model|At most 0 image"  # llama-server; vLLM
    r"|(?:not|n't) support (?:image|vision)",
    re.IGNORECASE,
)
# What a 429 counts, by its words and the names of its spent counters; the first that matches.
_LIMITS = (
    # As "tokens per day (TPD)" of Groq, and Gemini's GenerateRequestsPerDayPerProjectPerModel.
    (
        re.compile(r"per[ _-]?day|remaining-\w+-day|\bdaily\b|\b[rt]pd\b", re.IGNORECASE),
        "the limit is by the day: wait until it renews, or set a fallback to another endpoint",
    ),
    (
        re.compile(r"concurren|parallel|simultaneous|at (?:once|the same time)", re.IGNORECASE),
        "make fewer calls at once (max_parallel)",
    ),
    (
        re.compile(
            r"tokens?[ _-]?per|\btpm\b|token rate limit|remaining-\w*-?tokens|tokens-remaining",
            re.IGNORECASE,
        ),
        "the limit is of tokens over time: make prompts shorter, or lower max_output_tokens",
    ),
    (
        re.compile(
            r"per[ _-]?(?:sec|min|hour)|/ ?min\b|\brp[ms]\b|remaining-requests|requests-remaining",
            re.IGNORECASE,
        ),
        "the limit is of calls over time: make fewer, or slow them (a lower max_parallel)",
    ),
)
_ANY_LIMIT = "make fewer calls at once (max_parallel), or fewer and shorter ones a minute"
# Statuses of what is wrong with a request, and that of a stream, which tells nothing. By any other
# a library may be "not found" that the server's model needs.
_OF_THE_REQUEST = frozenset({200, 400, 403, 404, 422})


def error_from_reply(  # noqa: PLR0911 - one for each kind of error
    status: int, body: bytes, *, headers: Mapping[str, str], endpoint: str, model_id: str
) -> InferenceError:
    """The error that a reply with this status and body, JSON or not, means."""
    complaint = _read(body)
    if status == 200:  # inside a stream that had begun; the error may name a status of its own
        codes = whole(complaint.get("code")), whole(complaint.get("http_status_code"))
        status = next(filter(None, codes), status)
    text = _words(complaint) or f"HTTP {status} without a message"
    everything = f"{complaint.get('type', '')} {complaint.get('code', '')} {text}"
    wait_s = _retry_after_s(headers)
    if _OVERFLOW.search(everything) or (status in _OF_THE_REQUEST and _NO_ROOM.search(text)):
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
    if status == 402 or "insufficient_quota" in everything:
        return AuthenticationFailed(
            f"the account has nothing left to spend ({text}); top it up, or use another endpoint",
            code="call.quota-spent",
        )
    # Before the model's absence: Triton says that it does not know a model that it is loading.
    # A gateway's 502 or 504 that says how long to wait is of a server not up yet; a 500 is not.
    wait = "" if wait_s is None else f"; it says to wait {wait_s:g} s"
    later = status in {503, 529} or (status > 500 and wait_s is not None)
    if later or _FULL.search(text):
        return Overloaded(
            f"the server is loading or full ({text}); try again later{wait}", retry_after_s=wait_s
        )
    unknown = status in _OF_THE_REQUEST and _NO_MODEL.search(text)
    if unknown or (status == 404 and "model" in everything.lower()):
        return ModelNotFound(
            f"the server does not serve '{model_id}' ({text}); set the endpoint's model_id to a "
            f"name that it does: harness endpoints check {endpoint} lists them"
        )
    if status == 429:
        remedy = _remedy_of_limit(complaint, headers)
        return RateLimited(
            f"the account is at its limit ({text}); {remedy}{wait}", retry_after_s=wait_s
        )
    if _BLIND.search(text):
        return NotOffered(
            f"the model takes no images as it is served ({text}); use one trained on images"
        )
    if status == 200:
        return ServerError(f"the server sent an error in place of a reply: {text}")
    if status == 404:
        text += "; is the endpoint's url right? That of an OpenAI-compatible server ends in /v1"
    return ServerError(f"HTTP {status}: {text}", status=status)


def _remedy_of_limit(complaint: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    spent = [n for n, left in headers.items() if "ratelimit" in n.lower() and left.strip() == "0"]
    evidence = f"{complaint} {' '.join(spent)}"
    return next((remedy for words, remedy in _LIMITS if words.search(evidence)), _ANY_LIMIT)


def words_of(body: bytes) -> str:
    """The message of an error reply, in any of its shapes."""
    return _words(_read(body)) or body.decode("utf-8", "replace").strip()[:500]


def context_overflow(
    text: str, *, endpoint: str, prompt_tokens: int | None = None, context_tokens: int | None = None
) -> ContextOverflow:
    """The error of a message that tells of an overflow; lengths not given are read from it."""
    return ContextOverflow(
        f"{text}. Shorten the prompt, lower max_output_tokens, or serve a longer context: "
        f"context_tokens under [endpoints.{endpoint}] where it is loaded by harness or Ollama, "
        "else the server's own setting",
        prompt_tokens=prompt_tokens or _number(_PROMPT_TOKENS, text),
        context_tokens=context_tokens or _number(_CONTEXT_TOKENS, text),
    )


def _read(body: bytes) -> Mapping[str, Any]:
    """The complaint in an error body of any shape."""
    value = parsed(body)
    if isinstance(value, str):
        value = parsed(value.encode())  # MLC encodes its error twice
    if isinstance(value, list) and value:
        value = value[0]  # Gemini's
    inner = at(value, "error") or value
    if isinstance(inner, str) and inner.startswith("{"):
        return _read(inner.encode())  # Ollama passes on its llama-server's error as text
    if isinstance(inner, Mapping):
        return inner
    text = body.decode("utf-8", "replace").strip() if inner is None else str(inner)
    return {"message": text, "type": text_at(value, "error_type")}


def _words(complaint: Mapping[str, Any]) -> str:
    return str(complaint.get("message") or complaint.get("detail") or "")[:500]


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long to wait: seconds or a date (RFC 9110, 10.2.3), or OpenAI's milliseconds."""
    for name, per_second in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            wait = float(headers.get(name, ""))
            if math.isfinite(wait) and wait >= 0:
                return wait / per_second
    if (then := _date(headers.get("retry-after", ""))) is None:
        return None
    # By the server's own clock, if it tells: ours may be minutes off.
    present = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (then - present).total_seconds())


def _date(header: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
