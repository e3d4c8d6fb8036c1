"""The result of a call to a model: text or vectors, usage, and where the time went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import shorten
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import ServerError
from harness.inference.request import ToolCall

PhaseName = Literal["overhead", "queue", "load", "prefill", "decode"]
"""Around the engine (client, network, the server's front end), waiting for a place, loading the
model, reading the prompt, writing the reply."""

PhaseSource = Literal["measured", "reported", "derived"]
"""By our clock, by the server's word, or by subtraction of the two."""

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]
"""The model was done, the token limit cut it, the provider did, or the model calls tools."""

StructuredMode = Literal["enforced", "advisory", "ignored"]
"""How a reply's schema was treated: the server enforced it; the model was told of it, in the prompt
or by a server that enforces only JSON; or the server ignored it."""


ToolMode = Literal["native", "typed"]
"""How a model was offered tools: by the server's own support, or as a type of its reply."""


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
    """Prompt tokens read from the server's cache; None if the server does not report it, which is
    not the same as 0."""
    reasoning_tokens: int | None = None
    """Tokens of reasoning in the reply; None if the server does not report it."""
    draft_tokens: int | None = None
    """Tokens that a draft model proposed (speculative decoding); None if not reported."""
    accepted_tokens: int | None = None
    """Proposed tokens that the model accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely a token of the reply was."""

    token: str
    logprob: float
    """Natural logarithm of its probability."""
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens in its place, itself perhaps among them, with theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenLatency:
    """The waits between the pieces of a streamed reply (ITL); most servers send a token a piece."""

    mean_ns: int
    p95_ns: int
    """The wait that 95 of 100 do not exceed."""
    p99_ns: int
    max_ns: int
    """The longest: a hole in the stream, which means hide."""


def inter_token_latency(token_ns: Sequence[int]) -> InterTokenLatency | None:
    """The latency of a reply whose pieces came at these times; None for fewer than two."""
    waits = sorted(later - earlier for earlier, later in pairwise(token_ns))
    if not waits:
        return None
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
    """How much the provider's prompt cache saved; negative if writing to it cost more. None if it
    reported no cache."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """For every token of the reply, if requested and supported."""
    structured: StructuredMode | None = None
    """How the reply's schema was treated; None without a schema."""
    dropped: tuple[str, ...] = ()
    """Fields of the request that were left out, since the model or its server refuses them."""
    endpoint: str | None = None
    """Tag of the endpoint that answered, if not the requested one."""
    attempts: int = 1
    """Requests sent: more than one if a field was refused, or if the server had closed the
    connection."""
    cut_by: Literal["tokens", "cost"] | None = None
    """The run's limit that decided where the reply was cut; None if the call set it."""
    from_cache: bool = False
    """Whether the reply was reused from an earlier call, without asking a model."""

    def __repr__(self) -> str:
        """The main figures, for display."""
        text = shorten(self.text, 80, placeholder=" …")
        tokens = None if self.usage is None else self.usage.output_tokens
        return (
            f"Completion({text!r}, finish_reason={self.finish_reason!r}, output_tokens={tokens}, "
            f"model_id={self.model_id!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Texts as vectors."""

    vectors: NDArray[np.float32]
    """One row per text, in their order: `(n, d) float32`."""
    input_tokens: int | None
    """Of all texts together; None if the server does not report it."""
    model_id: str
    """The model's name as the server gave it."""


def as_vectors(
    rows: Sequence[Sequence[float]], *, endpoint: str, count: int
) -> NDArray[np.float32]:
    """The rows as `(count, d) float32`, with `d` at least 1 and nothing in it but finite numbers.

    Raises:
        ServerError: They are something else.
    """
    if len(rows) != count:
        raise _odd(f"{len(rows)} embeddings of {count} texts", endpoint)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise _odd(f"embeddings of different lengths ({lengths[0]} to {lengths[-1]})", endpoint)
    if not all(lengths):
        raise _odd("embeddings with no numbers in them", endpoint)
    with np.errstate(over="ignore"):  # what float32 has no room for is found below
        vectors = np.array(rows, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise _odd("embeddings with numbers that are not finite in float32", endpoint)
    return vectors


def _odd(came: str, endpoint: str) -> ServerError:
    return ServerError(f"the server was asked for embeddings and sent {came}", endpoint=endpoint)
