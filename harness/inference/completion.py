"""What a call to a model gives back: text or vectors, usage, and where the time went."""

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
"""What became of a reply's schema: the server lets nothing else be generated; the model was told of
it, in words or by a server that makes sure of JSON alone; or the server took no notice."""


ToolMode = Literal["native", "typed"]
"""How a model was offered tools: by the server's own means, or as a type that its reply has, since
the server has none."""


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
    """Prompt tokens that were not computed again; None when the server does not say, which is
    not the same as 0."""
    reasoning_tokens: int | None = None
    """Of the reply's tokens, those of reasoning; None when the server does not say."""
    draft_tokens: int | None = None
    """Tokens that a draft model proposed (speculative decoding); None when it does not say."""
    accepted_tokens: int | None = None
    """Of those, the ones that the model agreed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely a token of the reply was."""

    token: str
    """As text."""
    logprob: float
    """Natural logarithm of its probability."""
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens in its place, itself perhaps among them, with theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenLatency:
    """The waits between the pieces of a streamed reply (ITL); most servers send a token a piece."""

    mean_ns: int
    """Their mean."""
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
    """What the model thought aloud, where the server or its tags tell it from the answer; else
    empty."""
    finish_reason: FinishReason
    """Why generation ended."""
    usage: Usage | None
    """Tokens in and out; None when the server does not count them."""
    sent_ns: int
    """When the request was sent, on the caller's clock."""
    first_token_ns: int | None
    """When the first token arrived; None for an empty reply or an engine that cannot say."""
    phases: tuple[Phase, ...]
    """In order, not overlapping, between the request and the last token."""
    model_id: str
    """The model's name as the server gave it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What the model asks to be called, in its order; there may be text beside them."""
    tools: ToolMode | None = None
    """How tools were offered; None when there were none."""
    itl: InterTokenLatency | None = None
    """Between the first token and the last; None for replies that came in one piece."""
    cost_usd: float | None = None
    """What the provider charges for the call, where its prices are known."""
    cache_saved_usd: float | None = None
    """How much less that is than without its cache of prompts, by the same prices; negative where
    writing to it cost more. None where it said nothing of a cache."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of every token of the reply, where they were asked for and the server has them."""
    structured: StructuredMode | None = None
    """What became of the reply's schema; None when there was none."""
    dropped: tuple[str, ...] = ()
    """Fields of the request that were not sent, since the model or its server refuses them."""
    endpoint: str | None = None
    """Tag of the endpoint that answered, where it was not the one asked."""
    attempts: int = 1
    """Requests that were sent for it: more than one where a field was refused, or where the server
    had closed the connection that was chosen."""
    cut_by: Literal["tokens", "cost"] | None = None
    """The run's limit that decided where the reply was cut; None where the call said it."""
    from_cache: bool = False
    """Whether an earlier call was answered with it, and no model was asked for this one."""

    def __repr__(self) -> str:
        """What a person wants to see of it."""
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
    """Of all texts together; None when the server does not say."""
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
