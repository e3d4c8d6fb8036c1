"""Turns error replies of model servers, in all their shapes, into this package's errors."""

from __future__ import annotations

import math
import re
import time
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    ReplyInvalid,
    ServerError,
)
from harness.inference.json_text import json_values_in, parsed, rows, whole
from harness.inference.reply_in_progress import as_count

_OVERFLOW = re.compile(
    r"(?i)exceed_context_size_error|context_length_exceeded|maximum context length"
    r"|exceeds the (?:available )?context (?:size|length)|prompt is too long"
    r"|context size has been exceeded|longer than the maximum model length"  # llama-server; vLLM
    r"|`inputs` tokens \+ `max_new_tokens`|`inputs` must have less than"  # TGI
    r"|longer than the model's context length"  # SGLang
    r"|should not exceed max_(?:num_tokens|seq_len)"  # TensorRT-LLM
    r"|larger than the model input length limit"  # MLC
    r"|exceed context limit"  # Anthropic, of the prompt and max_tokens together
    r"|\bn_keep\b|when context the overflows",  # LM Studio
)
# Together's words, with 403. With 429 they mean a rate, with others that the reply has no room.
_NO_ROOM = re.compile(r"(?i)input.{0,40}max_(?:new_)?tokens.{0,80}(?:exceed|context)")
# Without vLLM's "your prompt contains at least …", where it has stopped counting.
_PROMPT_TOKENS = re.compile(
    r"(?i)(?:your request has |resulted in |requested (?:about )?\d+ tokens \("  # vLLM, OpenAI
    r"|input \(|requested a total of \d+ tokens: "  # SGLang
    r"|prompt has |prompt length \(?|Given: |n_keep\W+|prompt is too long: "
    r"|exceed context limit: )(\d+)",
)
_CONTEXT_TOKENS = re.compile(
    r"(?i)(?:maximum context length (?:is|of) |model's context length \(|must be <= |length limit "
    r"|context size of |max_num_tokens \(|n_ctx\W+|\d tokens > |\d \+ \d+ > )(\d+)",
)
_NO_MODEL = re.compile(
    r"(?i)unknown model\b|invalid model identifier"
    r"|model\b.*\b(not found|does not exist|not served)",
)
# The words of TGI, with status 429 or in a stream 422, and of Triton, with status 500.
_FULL = re.compile(r"model is overloaded|exceeds maximum queue size", re.IGNORECASE)
_TAKES_NO_IMAGES = re.compile(
    r"(?i)image input is not supported|not a multimodal model|At most 0 image"  # llama-server; vLLM
    r"|(?:not|n't) support (?:image|vision)",
)
# Statuses of mistakes in a request, and 200 of a stream, which says nothing about the kind. With
# any other, "not found" may be about a library that the server's model needs.
_OF_THE_REQUEST = frozenset({200, 400, 403, 404, 422})
# The codes of MiniMax's `base_resp`, which comes with status 200, as statuses.
_MINIMAX = {1000: 500, 1001: 504, 1002: 429, 1004: 401, 1008: 402, 1013: 500, 1039: 429}


def error_from_reply(  # noqa: PLR0911 - one for each kind of error
    status: int, body: bytes, *, headers: Mapping[str, str], endpoint: str, model_id: str
) -> InferenceError:
    """The error that a reply with this status and body, JSON or not, means."""
    layers = [*_layers(parsed(body))]
    if status == 200:
        # The error came inside a stream that had begun, and may name a status of its own.
        codes = [layer.get(name) for layer in layers for name in ("code", "http_status_code")]
        codes += [_MINIMAX.get(whole(layer.get("status_code")) or 0) for layer in layers]
        status = next((code for code in map(as_count, codes) if code and 400 <= code < 600), 200)
    text = _message(layers, body) or f"HTTP {status} without a message"
    kinds = (layer.get(name) or "" for layer in layers for name in ("type", "code", "error_type"))
    kind_and_text = f"{' '.join(map(str, kinds))} {text}"
    is_about_request = status in _OF_THE_REQUEST
    wait_s, wait = _wait(status, text, headers, layers)
    if _OVERFLOW.search(kind_and_text) or (is_about_request and _NO_ROOM.search(text)):
        return context_overflow(
            text,
            endpoint=endpoint,
            prompt_tokens=whole(ChainMap(*layers).get("n_prompt_tokens")),
            context_tokens=whole(ChainMap(*layers).get("n_ctx")),
        )
    generation = ChainMap(*layers).get("failed_generation")
    if "tool_use_failed" in kind_and_text and isinstance(generation, str):
        # Groq's, of a reply that it cannot read; `ReplyInProgress.refused_calls` may.
        return ReplyInvalid(
            f"the server cannot read the model's calls ({text}). They are: {generation[:160]!r}",
            endpoint=endpoint,
            text=generation,
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
    # Before the next check, since Triton does not know a model while it loads it. A gateway's 502
    # or 504 with a wait means that the server is not up yet; a 500 does not.
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
    return _message([*_layers(parsed(body))], body) or body.decode("utf-8", "replace").strip()[:500]


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


_MESSAGES = ("message", "detail", "msg", "error_message", "error_msg", "status_msg", "raw", "error")
# Fields that may quote the prompt or an answer, or are about another server.
_NOT_THE_ERROR = {"input", "messages", "content", "choices", "request", "previous_errors"}
_NOT_THE_ERROR |= {"failed_generation"}
_MOST_CHARS, _MOST_LAYERS, _DEEPEST = 2_000, 50, 12


def _layers(value: object, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects of an error, outermost first, as gateways put their servers' into theirs."""
    parts: Iterable[object] = rows(value)
    if isinstance(value, dict):
        yield value
        parts = (part for name, part in value.items() if name not in _NOT_THE_ERROR)
    elif isinstance(value, str):
        parts = (part for part, _ in json_values_in(value[: 4 * _MOST_CHARS]))
    for part in parts if depth < _DEEPEST else ():
        yield from _layers(part, depth + 1)


def _message(layers: Sequence[Mapping[str, Any]], body: bytes) -> str:
    """What all layers say; the text of a body that has none."""
    texts: list[str] = []
    for layer in layers[:_MOST_LAYERS]:
        place = "".join(f"{part}." for part in rows(layer.get("loc")))  # FastAPI's, of a field
        values = (part for name in _MESSAGES for part in rows(layer.get(name)) or [layer.get(name)])
        for text in (value for value in values if value and isinstance(value, str)):
            # JSON in a text is a layer of its own.
            is_json = isinstance(parsed(text.encode("utf-8", "replace")), dict | list)
            if not is_json and not any(text in outer for outer in texts):
                texts.append(f"{place.removesuffix('.')}: {text}" if place else text)
    if not layers:
        texts = [str(parsed(body) or body.decode("utf-8", "replace").strip())[:500]]
    return ": ".join(texts)[:_MOST_CHARS].encode("utf-8", "replace").decode()


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


# Headers and fields in lower case, the finest first; the last two are Gemini's and Hugging Face's.
_WAITS = ("retry-after-ms", "retry-after", "retry-after-seconds", "retrydelay", "estimated-time")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PIECE = r"(\d+(?:\.\d+)?)\s*(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?)"
_PIECES = re.compile(rf"{_PIECE}(?![a-z-])[\s,]*(?:and\s+)?", re.IGNORECASE)  # 7h12m3.5s
_WAIT_IN_WORDS = re.compile(
    r"(?i)\b(?:(?:try again|retry|resets?) (?:in|after)|(?:please|must) wait(?: for)?)"
    rf"(?: about| at least)? ((?:{_PIECES.pattern})+)",
)
# `free-models-per-day` (OpenRouter), `GenerateRequestsPerDayPerProject` (Gemini).
_WINDOW = re.compile(
    r"(?:(?<![A-Za-z])[Pp]er[\s_-]+|Per|\b(?=[Dd]aily))(?i:(day|daily)|minute|min\b|sec|hour)"
)


def _wait(
    status: int, text: str, headers: Mapping[str, str], layers: Sequence[Mapping[str, Any]]
) -> tuple[float | None, str]:
    """How long the server wants callers to wait, in seconds and in words; None and "" if unsaid."""
    # OpenAI's and Groq's words, of a request that alone is more than the limit of a minute.
    if status == 429 and "request too large" in text.lower():
        return _UNITS_S["d"], "; the request is larger than the limit, so no wait helps"
    # By the server's clock, if the reply has its date: the clock here may be minutes off.
    date = _date(headers.get("date", ""))
    now_s = time.time() if date is None else date.timestamp()
    waits = [_wait_in(fields, now_s) for fields in (headers, *layers)]
    if told := _WAIT_IN_WORDS.search(text):
        waits.append(_seconds(told[1], now_s))
    wait_s = next((wait_s for wait_s in waits if wait_s is not None), None)
    if wait_s is not None:
        shown = f"{wait_s:g} s" if wait_s <= 3_600 else f"{wait_s / 3_600:.3g} h"
        return wait_s, f"; it says to wait {shown}"
    names = (str(layer[name]) for layer in layers for name in layer if name.startswith("quota"))
    windows = {bool(day) for day in _WINDOW.findall(" ".join((text, *names)))}
    # A quota that is named beside a shorter one may not be the one that is spent.
    if status == 429 and windows == {True}:
        return _UNITS_S["d"], "; the quota is by the day, so this may take 24 h"
    return None, ""


def _wait_in(fields: Mapping[str, Any], now_s: float) -> float | None:
    """The wait that one of these headers names, which gateways pass on as fields."""
    values = {name.lower().replace("_", "-"): value for name, value in fields.items()}
    for name in _WAITS:
        unit_s = _UNITS_S["ms" if name.endswith("-ms") else "s"]
        if (wait_s := _seconds(values.get(name), now_s, unit_s)) is not None:
            return wait_s
    # Of several limits, such as of requests and of tokens, those count of which nothing is left.
    resets = [
        _seconds(value, now_s)
        for name, value in values.items()
        if "reset" in name and str(values.get(name.replace("reset", "remaining"))) == "0"
    ]
    return max((wait_s for wait_s in resets if wait_s is not None), default=None)


def _seconds(value: object, now_s: float, unit_s: float = 1.0) -> float | None:
    """A wait: a number (of seconds since 1970 or milliseconds if large), a duration, or a date."""
    text = str(value).strip()[:64]  # a row of digits takes quadratic time
    if (pieces := _PIECES.findall(text.lower())) and not _PIECES.sub("", text):
        return sum(float(n) * (_UNITS_S.get(unit) or _UNITS_S[unit[0]]) for n, unit in pieces)
    try:
        wait_s = float(text) * unit_s
    except ValueError:
        date = _date(text)
        wait_s = math.nan if date is None else date.timestamp()
    if wait_s >= 1e9:
        wait_s = max(0.0, wait_s / (1 if wait_s < 1e12 else 1_000) - now_s)
    return wait_s if 0 <= wait_s <= 366 * _UNITS_S["d"] else None  # no server means longer


def _date(text: str) -> datetime | None:
    """A time as in HTTP (RFC 9110, 10.2.3), or as Anthropic's headers have it (RFC 3339)."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError):
            date = read(text)
            return date if date.tzinfo else date.replace(tzinfo=UTC)
    return None
