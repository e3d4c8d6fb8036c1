"""The result of a call to a model: text or vectors, usage, and where the time went."""

from __future__ import annotations

import math
import re
import statistics
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from textwrap import shorten
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import Notice, ServerError
from harness.inference.marks import mark_in
from harness.inference.request import ChatRequest, Message, ToolCall

A = TypeVar("A", "Completion", "Embeddings", "Ranking")

PhaseName = Literal["overhead", "queue", "load", "prefill", "decode"]
"""`overhead`: around the engine (client, network, the server's front end); `queue`: the wait for a
place; `load`: loading the model; `prefill`: reading the prompt; `decode`: writing the reply."""

PhaseSource = Literal["measured", "reported", "derived"]
"""`measured` by our clock, `reported` by the server, or `derived` as the difference of the two."""

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]
"""`stop`: the model was done; `length`: the token limit cut it; `content_filter`: the provider cut
it; `tool_calls`: the model calls tools."""

StructuredMode = Literal["enforced", "advisory", "ignored"]
"""How a reply's schema was treated. `enforced`: by the server; `advisory`: the model read it in the
prompt, or the server enforces only JSON; `ignored`: it had no effect."""

ToolMode = Literal["native", "typed"]
"""How tools were offered: `native`, by the server, or `typed`, as a type of the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a call."""

    name: PhaseName
    start_ns: int
    """On the caller's clock, as `end_ns`."""
    end_ns: int
    source: PhaseSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call."""

    input_tokens: int
    """The whole prompt, cached part included."""
    output_tokens: int
    """The reply, reasoning included."""
    cached_tokens: int | None
    """Prompt tokens read from the server's cache; None, which is not 0, if unreported."""
    reasoning_tokens: int | None = None
    """Tokens of reasoning in the reply; None if the server does not report it."""
    draft_tokens: int | None = None
    """Tokens that a draft model proposed (speculative decoding); None if not reported."""
    accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenLatency:
    """The waits between the pieces of a streamed reply (ITL); most servers send a token a piece."""

    mean_ns: int
    p95_ns: int
    """The wait that 95 of 100 do not exceed."""
    p99_ns: int
    max_ns: int
    """The longest: a hole in the stream, which a mean hides."""


def inter_token_latency(token_ns: Sequence[int]) -> InterTokenLatency | None:
    """The latency of a reply whose pieces came at these times; None for fewer than two."""
    waits = sorted(later - earlier for earlier, later in pairwise(token_ns))
    if not waits:
        return None
    # By nearest rank, so that each percentile is a wait that occurred.
    p95_ns, p99_ns = (waits[-(-percent * len(waits) // 100) - 1] for percent in (95, 99))
    return InterTokenLatency(
        mean_ns=round(statistics.fmean(waits)), p95_ns=p95_ns, p99_ns=p99_ns, max_ns=waits[-1]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole reply."""

    text: str
    """The answer, without reasoning."""
    reasoning: str
    """The model's reasoning, if the server or its tags separate it from the answer; else empty."""
    finish_reason: FinishReason
    usage: Usage | None
    """Tokens in and out; None if the server does not count them."""
    sent_ns: int
    """When the request was sent, on the caller's clock."""
    first_token_ns: int | None
    """When the first token arrived; None if the reply is empty or the engine does not tell."""
    phases: tuple[Phase, ...]
    """In order, not overlapping, between the request and the last token."""
    model_id: str
    """The model's name as the server gave it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the model asks for, in its order; there may be text beside them."""
    tools: ToolMode | None = None
    """How tools were offered; None without tools."""
    itl: InterTokenLatency | None = None
    """Between the first token and the last; None for a reply in one piece."""
    cost_usd: float | None = None
    """The provider's charge for the call; None if its prices are unknown."""
    cache_saved_usd: float | None = None
    """What the provider's prompt cache saved, less the cost of writing; None if unreported."""
    structured: StructuredMode | None = None
    """How the reply's schema was treated; None without a schema."""
    dropped: tuple[str, ...] = ()
    """Fields of the request that were left out, since the model or its server refuses them."""
    endpoint: str | None = None
    """Tag of the endpoint that answered, if not the requested one."""
    attempts: int = 1
    """Requests sent: more than one after a refused field, or a connection closed by the server."""
    connecting_ns: int | None = None
    """For a new connection; None of one that was kept open."""
    cut_by: Literal["tokens", "cost"] | None = None
    """The run's limit that decided where the reply was cut; None if the call set it."""
    from_cache: bool = False
    """Whether the reply was reused from an earlier call, without asking a model."""
    extra: Mapping[str, object] = field(default_factory=dict, hash=False)
    """The fields that the server wants back with the reply as a turn; see `Message.extra`."""
    source: str | None = None
    """The server, so that it alone gets `extra` back; None without `extra`."""

    @property
    def message(self) -> Message:
        """The reply as a turn of its conversation."""
        return Message(
            "assistant", self.text, tool_calls=self.tool_calls, extra=self.extra, source=self.source
        )

    def __repr__(self) -> str:
        text = shorten(self.text, 80, placeholder=" …")
        tokens = None if self.usage is None else self.usage.output_tokens
        return (
            f"Completion({text!r}, finish_reason={self.finish_reason!r}, output_tokens={tokens}, "
            f"model_id={self.model_id!r})"
        )


_FENCE_ALONE = re.compile(r"\s*(`{3,}|~{3,})[\w+-]*[^\S\n]*(?:\n\s*(?:\1\s*)?)?")
_BLANK_KINDS = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp", "Mn", "Mc", "Me"})
_BLANK_LETTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Fillers and the empty Braille cell: letters and signs by category, but nothing is seen."""


def is_visible(text: str) -> bool:
    """Whether a text shows anything."""
    # Space, controls, zero-width and combining marks show nothing; nor does an empty fence.
    shows = any(
        unicodedata.category(letter) not in _BLANK_KINDS and letter not in _BLANK_LETTERS
        for letter in text
    )
    return shows and not _FENCE_ALONE.fullmatch(text)


def why_no_text(reply: Completion) -> str:
    """Why a reply has no text, in words: what came in place of an answer."""
    tokens = "" if reply.usage is None else f" ({reply.usage.output_tokens} tokens)"
    if reply.tool_calls:
        return "it was calling a tool" if reply.tools else "it calls tools, and none was offered"
    if reply.reasoning.strip() or (reply.usage and reply.usage.reasoning_tokens):
        is_cut = reply.finish_reason == "length"
        return f"reasoning{tokens} {'used up its room' if is_cut else 'is all that it holds'}"
    return f"nothing visible came{tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Texts as vectors."""

    vectors: NDArray[np.float32]
    """One row per text, in their order: `(n, d) float32`."""
    input_tokens: int | None
    """The sum over all texts; None if the server does not report it."""
    model_id: str
    """The model's name as the server gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Texts by how well they answer a question; all but the scores as in `Embeddings`."""

    scores: tuple[float, ...]
    """One per text, in their order, on the model's own scale; the highest is the best."""
    input_tokens: int | None
    model_id: str


# Ten times the longest context that there is: only a broken counter reports more.
_MOST_TOKENS = 100_000_000


def possible(answer: A) -> tuple[A, str]:
    """The answer without counts that are impossible, and these in words; "" if all are possible."""
    if isinstance(answer, Completion):
        return _possible_completion(answer)
    count = _at_most(answer.input_tokens)
    problem = "" if count == answer.input_tokens else f"{answer.input_tokens!s:.20} tokens in"
    return replace(answer, input_tokens=count), problem


def _possible_completion(reply: Completion) -> tuple[Completion, str]:
    usage, usd = reply.usage, reply.cost_usd
    problem = ""
    if usage is not None:
        read, written = usage.input_tokens, usage.output_tokens
        # Prompt and text take tokens: only a server that does not count reports zeros.
        is_uncounted = reply.text.strip() and 0 in (read, written)
        if is_uncounted or None in (_at_most(read), _at_most(written)):
            problem = f"{read!s:.20} tokens in, {written!s:.20} out"
            usage = None
        else:
            usage = _possible_usage(usage)
    if not problem and usd is not None and not 0 <= usd < math.inf:
        problem = f"{usd} dollars"
    if problem:
        # The costs were computed from the counts.
        return replace(reply, usage=usage, cost_usd=None, cache_saved_usd=None), problem
    return (reply if usage == reply.usage else replace(reply, usage=usage)), ""


def _possible_usage(usage: Usage) -> Usage:
    """The usage without impossible counts beside those of the prompt and the reply."""
    reasoning = _at_most(usage.reasoning_tokens)
    written = usage.output_tokens
    if reasoning is not None and reasoning > written:
        written += reasoning  # some servers count reasoning beside the reply
    return replace(
        usage,
        output_tokens=written,
        cached_tokens=_at_most(usage.cached_tokens, usage.input_tokens),
        reasoning_tokens=reasoning,
        draft_tokens=_at_most(usage.draft_tokens),
        accepted_tokens=_at_most(usage.accepted_tokens),
    )


def _at_most(count: int | None, highest: int = _MOST_TOKENS) -> int | None:
    return None if count is None or not 0 <= count <= highest else count


_LEAST_SHARE = 0.7  # tokens per word of a text: some tokenizers join two common words to one
_FEWEST_TO_JUDGE = 500  # words of a prompt: hardly a server has so short a context


def doubts(request: ChatRequest, reply: Completion) -> Iterator[Notice]:
    """Signs in a reply that its server silently ignored a part of the request."""
    # A seed that was ignored is not among them: it cannot be seen in one reply.
    tag = request.model
    prompt = "\n".join(message.content for message in request.messages)
    # In scripts without blanks between words, hardly any token has more than 16 letters.
    beyond_ascii = len(prompt.encode("utf-8", "replace")) - len(prompt)
    fewest = len(prompt.split()) + beyond_ascii // 32  # tokens
    read = None if reply.usage is None else reply.usage.input_tokens
    # Some servers count the cached part beside the prompt.
    cached = (reply.usage and reply.usage.cached_tokens) or 0
    if read is not None and fewest > _FEWEST_TO_JUDGE and read + cached < _LEAST_SHARE * fewest:
        yield Notice(
            code="call.prompt-cut",
            message=f"'{tag}' read {read} tokens of a prompt that has {fewest} or more: it was cut "
            "to fit the context, or a part came from a cache and was not counted; shorten the "
            "prompt, or serve a longer context",
        )
    text = reply.text.rstrip()
    # A stop text at the very end is one at which the server stopped, and which it left in.
    passed = [stop for stop in request.stop if stop and stop in text[: -len(stop)]]
    if passed:
        message = f"'{tag}' went on behind the stop text {passed[0]!r}: it does not stop there"
        yield Notice(code="call.stop-ignored", message=message)
    if request.tool_choice == "required" and reply.finish_reason == "stop" and not reply.tool_calls:
        message = f"'{tag}' was told to call a tool (tool_choice) and called none"
        yield Notice(code="call.tool-choice-ignored", message=message)
    mark = mark_in(reply.text, request.tools)
    if mark and mark not in prompt:  # a prompt that speaks of marks may be answered with them
        yield Notice(
            code="call.marks-unknown",
            message=f"'{tag}' answers with {mark!r}, which looks like a mark of its model that the "
            "server left in; start it with the parsers for this model",
        )


def as_vectors(rows: Sequence[object], *, count: int) -> NDArray[np.float32]:
    """The rows as `(count, d) float32`, d >= 1, all finite; raises `ServerError` for others.

    `count` is at least 1.
    """
    lists = [row for row in rows if isinstance(row, list)]
    lengths = {len(row) for row in lists}
    # By type, since numpy would take texts and booleans for numbers, too.
    are_numbers = {type(number) for row in lists for number in row} <= {int, float}
    if len(rows) == len(lists) == count and are_numbers and len(lengths) == 1 and 0 not in lengths:
        # Overflows become infinite, and are refused below; integers beyond any float raise.
        with np.errstate(over="ignore"), suppress(OverflowError):
            vectors = np.array(rows, dtype=np.float32)
            if np.isfinite(vectors).all():
                return vectors
    raise ServerError(
        f"the server was asked for {count} embeddings, lists of equally many finite numbers, and "
        f"sent {len(rows)} values that are not that"
    )
