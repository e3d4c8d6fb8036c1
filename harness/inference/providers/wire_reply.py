"""A reply on the OpenAI chat wire, read key by key.

A field of an unexpected shape does not cost the reply. A reply counts once its finish reason has
come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from harness.errors import InferenceError, StreamCut
from harness.inference.completion import Completion, FinishReason, Usage
from harness.inference.json_text import at, rows, text_at, whole
from harness.inference.reply_in_progress import CallPiece, ReplyInProgress, ServerTimings, as_count


class WireReply:
    """One reply of this wire: its text goes into `progress`, all else waits for `completion`."""

    def __init__(self, progress: ReplyInProgress, *, model_id: str) -> None:
        self._progress = progress
        self._model_id = model_id
        self._is_refusal = False
        self.finish_word: str | None = None  # the server's own word for how it ended
        # Fields of the reply with these names, each from the last chunk that had it.
        self.usage: Mapping[str, Any] | None = None
        self.timings: Mapping[str, Any] = {}
        self.metrics: Mapping[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self.has_begun = False
        self.came_whole = False  # whether it was one document, even if a stream was requested
        # For `_check_alone`:
        self._was_unfinished = False  # whether a piece came without a finish reason
        self._is_over = False  # whether a finish reason came after such a piece
        self._has_others = False  # whether a chunk had several replies

    @property
    def is_whole(self) -> bool:
        """Whether its usage and its finish reason have come, the last things that count."""
        return None not in (at(self.usage, "prompt_tokens"), finish_reason(self.finish_word or ""))

    def add(self, chunk: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> bool:
        """Adds a chunk with its `first_choices`; returns whether it was a whole reply."""
        # 1. The fields beside the text: the last value of each counts.
        self._model_id = text_at(chunk, "model") or self._model_id
        # Kimi puts the usage into the reply, Groq into a field of its own.
        places = (chunk, *choices, chunk.get("x_groq"))
        usages = (_mapping(at(place, "usage")) for place in places)
        if usage := next(filter(None, usages), None):
            # Some servers end with zeros: they take back nothing that was counted.
            counted = {name: count for name, count in usage.items() if count}
            self.usage = {**usage, **(self.usage or {}), **counted}
        self.timings = _mapping(chunk.get("timings")) or self.timings
        self.metrics = _mapping(chunk.get("metrics")) or self.metrics
        if not choices:
            return False
        # 2. The text, the reasoning and the calls, wherever servers put them.
        choice = choices[0]
        message, delta = choice.get("message"), _mapping(choice.get("delta"))
        # Some servers answer a call that asks for a stream with one document.
        self.came_whole = isinstance(message, dict) and not delta and not self.has_begun
        self.has_begun = True
        part = _mapping(message) if self.came_whole else delta
        text, reasoning = divided(part.get("content"))
        reasoning += next(filter(None, (text_in(part.get(name)) for name in _REASONING)), "")
        refusal, calls = text_in(part.get("refusal")), call_pieces(part)
        # 3. The end.
        finish_word = text_at(choice, "finish_reason")
        if (text or reasoning or calls) and not self.came_whole:
            self._check_alone(len(choices))
            self._was_unfinished |= not finish_word
        if finish_word:
            # Some servers send a finish reason with every piece, or with every piece of reasoning.
            # So it ends the reply only if an earlier piece came without one.
            self._is_over |= self._was_unfinished
            self._progress.end()
        self._is_refusal = self._is_refusal or bool(refusal)
        self._progress.add(
            text + refusal, reasoning=reasoning, calls=calls, is_whole=self.came_whole
        )
        self._extra = joined(self._extra, extra_of(part))
        self.finish_word = later_end(self.finish_word, finish_word)
        return self.came_whole

    def _check_alone(self, replies: int) -> None:
        """Raises `InferenceError` if a chunk's content may belong to another reply.

        `replies` is the number of replies in the chunk whose index is 0.
        """
        # With `n` in extra_body, all may be 0: sgl-project/sglang#2912, BerriAI/litellm#5236.
        if self._is_over or (self._has_others and replies == 1):
            raise InferenceError(
                "it sends several replies at once, and gives all the index 0; have it make one",
                code="call.several-replies",
            )
        self._has_others |= replies > 1

    def completion(self, *, reported: ServerTimings | None = None) -> Completion:
        """The completion; raises `StreamCut` unless the reply came to a known end."""
        if self.finish_word is None:
            raise StreamCut("the reply came without its finish reason")
        reason = proper_end(self.finish_word)
        return self._progress.completion(
            finish_reason="content_filter" if self._is_refusal else reason,
            usage=_usage_of(self.usage, self.timings),
            model_id=self._model_id,
            reported=reported,
            extra=self._extra,
        )


def _usage_of(usage: Mapping[str, Any] | None, timings: Mapping[str, Any]) -> Usage | None:
    """Tokens in and out, from all the places where servers put them."""
    input_tokens = as_count(at(usage, "prompt_tokens"))
    output_tokens = as_count(at(usage, "completion_tokens"))
    # One count alone would pass for a call that is counted: the call is estimated.
    if usage is None or input_tokens is None or output_tokens is None:
        return None
    details = usage.get("completion_tokens_details")
    cached_tokens = as_count(at(usage, "prompt_tokens_details", "cached_tokens"))
    if cached_tokens is None:
        cached_tokens = as_count(usage.get("prompt_cache_hit_tokens"))  # DeepSeek
    # Anthropic's count of a prompt, which gateways pass on, is without what its cache had.
    read = as_count(usage.get("cache_read_input_tokens")) or 0
    if input_tokens < read:
        input_tokens += read + (as_count(usage.get("cache_creation_input_tokens")) or 0)
        cached_tokens = read
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        reasoning_tokens=as_count(at(_mapping(details) or usage, "reasoning_tokens")),
        # llama-server counts speculative decoding among its timings.
        draft_tokens=whole(timings.get("draft_n")),
        accepted_tokens=whole(timings.get("draft_n_accepted")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- the end of a reply ---------------------------------------------------------------------------

# In lower case. Left out on purpose: `abort` and `error` (vLLM, SGLang, MLC), `timeout` and
# `cancelled` (TensorRT-LLM), `insufficient_system_resource` (DeepSeek), `network_error` (GLM).
_FINISH_WORDS: Mapping[FinishReason, str] = {
    "stop": "stop eos eos_token stop_sequence end_turn complete",  # Together, TGI, Claude, Cohere
    # Anthropic, mlx-lm, FastFlowLM, QwQ, and the older form.
    "tool_calls": "tool_calls tool_use tool_call tool_calling function_calls function_call",
    # Mistral, OpenAI's responses, Anthropic.
    "length": "length max_tokens model_length max_output_tokens model_context_window_exceeded",
    # Anthropic, GLM, Gemini.
    "content_filter": "content_filter refusal sensitive safety recitation prohibited_content "
    "blocklist spii",
}
_REASONS = {word: reason for reason, words in _FINISH_WORDS.items() for word in words.split()}


def finish_reason(word: str) -> FinishReason | None:
    """The finish reason of a server's word for it; None if the word is not known."""
    return _REASONS.get(word.lower())


def later_end(word: str | None, later: str | None) -> str | None:
    """The word for a reply's end: a cut reply stays cut, though some servers then send `stop`."""
    is_cut = finish_reason(word or "") in {"length", "content_filter"}
    is_whole = finish_reason(later or "") in {"stop", "tool_calls"}
    return word if is_cut and is_whole else later or word


def proper_end(word: str) -> FinishReason:
    """As `finish_reason`; raises `StreamCut` for a word that is not known to be a proper end."""
    reason = finish_reason(word)
    if reason is None:
        raise StreamCut(f"the server broke the generation off (finish reason '{word}')")
    return reason


# --- parts of replies --------------------------------------------------------------------------

# Of vLLM; of llama-server and most others; of OpenRouter, in parts; of gateways, the last two.
_REASONING = ("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_content")
_REASONING_TYPE = re.compile("think|thought|reason")  # in the type of a part
# Fields of a part that may have its text, or parts again.
_TEXTS = ("text", "thinking", "content", "summary", "refusal", "reasoning")


def text_in(content: object) -> str:
    """The text of a content: a text, a part, or parts; "" for parts of any other kind."""
    if isinstance(content, list):
        return "".join(map(text_in, content))
    if isinstance(content, dict):
        return next(filter(None, (text_in(content.get(name)) for name in _TEXTS)), "")
    return content if isinstance(content, str) else ""


def divided(content: object) -> tuple[str, str]:
    """The answer and the reasoning of a content. Mistral and Databricks put both into parts."""
    if isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    thoughts = [part for part in parts if _REASONING_TYPE.search(str(at(part, "type")))]
    return text_in([part for part in parts if part not in thoughts]), text_in(thoughts)


def call_pieces(part: object) -> list[CallPiece]:
    """The pieces of tool calls in a part of a reply."""
    pieces = []
    calls = rows(at(part, "tool_calls"))
    older_call = at(part, "function_call")  # the older form, of which a reply has at most one
    if older_call and not calls:
        calls = [{"index": 0, "function": older_call}]
    for call in calls:
        arguments = at(call, "function", "arguments") or ""
        # Some servers send an object in place of its text.
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        call_id, name = text_in(at(call, "id")), text_in(at(call, "function", "name"))
        pieces.append(CallPiece(whole(at(call, "index")), call_id, name, text, extra_of(call)))
    return pieces


def extra_of(part: object) -> dict[str, Any]:
    """The fields to send back with a turn or a call: reasoning, and all that are not known."""
    return {
        name: value
        for name, value in _mapping(part).items()
        if name not in _KNOWN_FIELDS and value not in (None, "")
    }


# The fields of turns and calls that are read above.
_KNOWN_FIELDS = {"role", "content", "refusal", "tool_calls", "function_call", "function"}
_KNOWN_FIELDS |= {"index", "id", "type"}


def first_choices(chunk: object) -> list[Mapping[str, Any]]:
    """The replies of a chunk whose index is 0, or missing: no other was requested."""
    choices = (choice for choice in rows(at(chunk, "choices")) if isinstance(choice, dict))
    return [choice for choice in choices if str(choice.get("index") or 0) == "0"]


def joined(field: Any, piece: Any, name: str = "") -> Any:  # noqa: ANN401 - JSON
    """A field of a streamed reply with the piece that another chunk adds.

    Texts and lists grow, and objects are joined key by key; `name` is the field's key.
    """
    if isinstance(field, dict) and isinstance(piece, dict):
        both = {key: joined(field[key], piece[key], key) for key in field.keys() & piece.keys()}
        return {**field, **piece, **both}
    if isinstance(field, list) and isinstance(piece, list):
        items = [*field]
        for item in piece:
            continued = (n for n, earlier in enumerate(items) if _continues(item, earlier))
            n = next(continued, len(items))
            if n == len(items):
                items.append(item)
            else:
                items[n] = joined(items[n], item)
        return items
    if isinstance(field, str) and isinstance(piece, str) and name not in _NAMING:
        return field + piece
    return field if piece is None else piece


# Texts that name the object they are in: each of its pieces repeats them, so they do not grow.
_NAMING = {"type", "format", "id", "index", "role", "name"}


def _continues(item: Any, earlier: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether an item of a list is a further piece of an earlier one: of reasoning, mostly."""
    if not (isinstance(earlier, dict) and isinstance(item, dict)):
        return False
    # OpenRouter numbers its items; litellm does not, and an item ends with its signature.
    is_over = earlier.get("signature") or "data" in earlier or "thinking" not in earlier
    is_numbered = "index" in item or "index" in earlier
    continues = earlier.get("index") == item.get("index") if is_numbered else not is_over
    return bool(continues and earlier.get("type") == item.get("type"))
