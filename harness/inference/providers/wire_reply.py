"""A reply on the OpenAI chat wire, read key by key.

A field of an unexpected shape does not cost the reply. It counts once its finish reason has come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from harness.errors import InferenceError, StreamCut
from harness.inference.call_pieces import CallPiece
from harness.inference.completion import Completion, FinishReason, Usage
from harness.inference.json_text import at, rows, text_at, whole
from harness.inference.reply_in_progress import ReplyInProgress, ServerTimings, as_count


class WireReply:
    """One reply of this wire: its text goes into `progress`, all else waits for `completion`."""

    def __init__(self, progress: ReplyInProgress, *, model_id: str) -> None:
        self._progress = progress
        self._model_id = model_id
        self._is_refusal = False
        self.finish_word: str | None = None  # the server's own word for how it ended
        self.usage: Mapping[str, Any] | None = None
        self.timings: Mapping[str, Any] = {}
        self.metrics: Mapping[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self.has_begun = False
        self.came_whole = False  # whether it was not streamed, even if a stream was asked for
        # For `_check_alone`:
        self._was_unfinished = False  # whether a piece came without a finish reason
        self._is_over = False  # whether a finish reason came after such a piece
        self._has_others = False  # whether a chunk had several replies

    @property
    def is_whole(self) -> bool:
        """Whether its usage and its finish reason have come, the last things that count."""
        is_counted = self.usage is not None and self.usage.get("prompt_tokens") is not None
        return is_counted and finish_reason(self.finish_word or "") is not None

    def add(self, chunk: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> bool:
        """Adds a chunk with its `first_choices`; returns whether it was a whole reply."""
        # 1. The fields beside the text: the last value of each counts.
        model = chunk.get("model")
        self._model_id = model if isinstance(model, str) and model else self._model_id
        self.usage = _mapping(chunk.get("usage")) or self.usage
        self.timings = _mapping(chunk.get("timings")) or self.timings
        self.metrics = _mapping(chunk.get("metrics")) or self.metrics
        if not choices:
            return False
        # 2. The text, the thought and the calls, wherever servers put them.
        choice = choices[0]
        message, delta = choice.get("message"), _mapping(choice.get("delta"))
        # Some servers answer a call that asks for a stream with one document.
        self.came_whole = isinstance(message, dict) and not delta and not self.has_begun
        self.has_begun = True
        part = _mapping(message) if self.came_whole else delta
        text, thought = divided(part.get("content"))
        thought += next(filter(None, (text_in(part.get(name)) for name in _THOUGHTS)), "")
        refusal = text_in(part.get("refusal"))
        calls = call_pieces(part)
        # 3. The end.
        word = text_at(choice, "finish_reason")
        if (text or thought or calls) and not self.came_whole:
            self._check_alone(len(choices))
            self._was_unfinished |= not word
        if word:
            # Some servers send a finish reason with every piece, or with every thought. So it ends
            # the reply only if an earlier piece came without one.
            self._is_over |= self._was_unfinished
            self._progress.end()
        self._is_refusal = self._is_refusal or bool(refusal)
        text += refusal
        self._progress.add(text, reasoning=thought, calls=calls, is_whole=self.came_whole)
        if extra := extra_of(part):
            self._extra = joined(self._extra, extra)
        self.finish_word = word or self.finish_word
        return self.came_whole

    def _check_alone(self, replies: int) -> None:
        """Raises `InferenceError` if this content may be another reply's, with the same index."""
        # With `n` in extra_body: sgl-project/sglang#2912, BerriAI/litellm#5236.
        if self._is_over or (self._has_others and replies == 1):
            raise InferenceError(
                "it sends several replies at once, and gives all the index 0; have it make one",
                code="call.several-replies",
            )
        self._has_others |= replies > 1

    def completion(
        self, *, reported: ServerTimings | None = None, cost_usd: float | None = None
    ) -> Completion:
        """The completion; raises `StreamCut` unless the reply came to a known end."""
        if self.finish_word is None:
            raise StreamCut("the reply came without its finish reason")
        ended = proper_end(self.finish_word)
        return self._progress.completion(
            finish_reason="content_filter" if self._is_refusal else ended,
            # Speculative decoding is counted among llama-server's timings.
            usage=_usage_of(self.usage, self.timings),
            model_id=self._model_id,
            reported=reported,
            cost_usd=cost_usd,
            extra=self._extra,
        )


def _usage_of(usage: Mapping[str, Any] | None, timings: Mapping[str, Any]) -> Usage | None:
    """Tokens in and out, from all the places where servers put them."""
    input_tokens = as_count(at(usage, "prompt_tokens"))
    if usage is None or input_tokens is None:
        return None
    details = usage.get("completion_tokens_details")
    return Usage(
        input_tokens=input_tokens,
        output_tokens=as_count(usage.get("completion_tokens")) or 0,
        cached_tokens=as_count(at(usage, "prompt_tokens_details", "cached_tokens")),
        reasoning_tokens=as_count(at(_mapping(details) or usage, "reasoning_tokens")),
        draft_tokens=whole(timings.get("draft_n")),
        accepted_tokens=whole(timings.get("draft_n_accepted")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- the end of a reply ---------------------------------------------------------------------------

# In lower case. Left out on purpose: `abort` and `error` (vLLM, SGLang, MLC), `timeout` and
# `cancelled` (TensorRT-LLM), `insufficient_system_resource` (DeepSeek), `network_error` (GLM).
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",  # Together
    "eos_token": "stop",  # TGI
    "stop_sequence": "stop",  # TGI, Anthropic
    "end_turn": "stop",  # Anthropic
    "complete": "stop",  # Cohere
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",  # Anthropic
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",  # Anthropic, Cohere, Gemini
    "model_length": "length",  # Mistral
    "model_context_window_exceeded": "length",  # Anthropic
    "content_filter": "content_filter",
    "refusal": "content_filter",  # Anthropic
    "safety": "content_filter",  # Gemini
    "sensitive": "content_filter",  # GLM
}


def finish_reason(word: str) -> FinishReason | None:
    """What a server's word means; None if it is not known to stand for a proper end."""
    return _FINISH_REASONS.get(word.lower())


def proper_end(word: str) -> FinishReason:
    """What a server's word means; raises `StreamCut` if it is not known to be a proper end."""
    ended = finish_reason(word)
    if ended is None:
        raise StreamCut(f"the server broke the generation off (finish reason '{word}')")
    return ended


# --- parts of replies --------------------------------------------------------------------------

# The fields with reasoning: vLLM's; that of llama-server and most; OpenRouter's, in parts.
_THOUGHTS = ("reasoning", "reasoning_content", "reasoning_details")
_THOUGHT = re.compile("think|thought|reason")  # in the type of a part
# The fields of a part that may have its text, or parts again.
_TEXTS = ("text", "thinking", "content", "summary", "refusal", "reasoning")


def text_in(content: object) -> str:
    """The text of a content: a text, a part, or parts; "" for parts of any other kind."""
    match content:
        case str():
            return content
        case list():
            return "".join(map(text_in, content))
        case dict():
            return next(filter(None, (text_in(content.get(name)) for name in _TEXTS)), "")
    return ""


def divided(content: object) -> tuple[str, str]:
    """The answer and the reasoning of a content. Mistral and Databricks put both into parts."""
    if isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    thoughts = [part for part in parts if _THOUGHT.search(str(at(part, "type")))]
    return text_in([part for part in parts if part not in thoughts]), text_in(thoughts)


def call_pieces(part: object) -> list[CallPiece]:
    """What a part of a reply adds to its calls; some servers send the arguments as an object."""
    pieces = []
    calls = rows(at(part, "tool_calls"))
    older_call = at(part, "function_call")  # the older form, of which a reply has at most one
    if older_call and not calls:
        calls = [{"index": 0, "function": older_call}]
    for call in calls:
        arguments = at(call, "function", "arguments") or ""
        if not isinstance(arguments, str):
            arguments = orjson.dumps(arguments).decode()
        id_, name = text_in(at(call, "id")), text_in(at(call, "function", "name"))
        pieces.append(CallPiece(whole(at(call, "index")), id_, name, arguments, extra_of(call)))
    return pieces


def extra_of(part: object) -> dict[str, Any]:
    """The fields to send back with a turn or a call: reasoning, and all that are not known."""
    fields = _mapping(part).items()
    return {name: value for name, value in fields if name not in _READ and value not in (None, "")}


_READ = {"role", "content", "refusal", "tool_calls", "function_call", "index", "id", "type"}
_READ |= {"function"}
"""The fields of turns and calls that have a place of their own."""


def first_choices(chunk: object) -> list[Mapping[str, Any]]:
    """The replies of a chunk with the first one's index: a second one was not asked for."""
    choices = (choice for choice in rows(at(chunk, "choices")) if isinstance(choice, dict))
    return [choice for choice in choices if str(choice.get("index") or 0) == "0"]


def joined(field: Any, piece: Any, name: str = "") -> Any:  # noqa: ANN401 - JSON
    """A field of a streamed reply with what another chunk adds: texts grow, and so do lists."""
    if isinstance(field, dict) and isinstance(piece, dict):
        both = {key: joined(field[key], piece[key], key) for key in field.keys() & piece.keys()}
        return {**field, **piece, **both}
    if isinstance(field, list) and isinstance(piece, list):
        items = [*field]
        for item in piece:
            place = next((n for n, old in enumerate(items) if _goes_on(old, item)), None)
            if place is None:
                items.append(item)
            else:
                items[place] = joined(items[place], item)
        return items
    if isinstance(field, str) and isinstance(piece, str) and name not in _NAMING:
        return field + piece
    return field if piece is None else piece


# Texts that name the object they are in: each of its pieces repeats them, so they do not grow.
_NAMING = {"type", "format", "id", "index", "role", "name"}


def _goes_on(begun: Any, item: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether an item of a list is a further piece of another: of reasoning, mostly."""
    if not (isinstance(begun, dict) and isinstance(item, dict)):
        return False
    # OpenRouter numbers its items.
    if "index" in item or "index" in begun:
        return begun.get("index") == item.get("index") and begun.get("type") == item.get("type")
    # litellm does not number them; an item ends with its signature.
    is_over = begun.get("signature") or "data" in begun or "thinking" not in begun
    return begun.get("type") == item.get("type") and not is_over
