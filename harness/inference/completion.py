"""What a call to a model gives back: text, usage, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PhaseName = Literal["queue", "load", "prefill", "decode"]
"""Waiting for a place, loading the model, reading the prompt, writing the reply."""

PhaseSource = Literal["measured", "reported", "derived"]
"""By our clock, by the server's word, or by subtraction of the two."""

FinishReason = Literal["stop", "length", "content_filter"]
"""The model was done, the token limit cut it, or the provider did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a call."""

    name: PhaseName
    """What was going on."""
    start_ns: int
    """On the caller's clock."""
    end_ns: int
    """On the caller's clock."""
    source: PhaseSource
    """How it is known."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole reply."""

    text: str
    """The answer, without reasoning."""
    reasoning: str
    """What the model thought aloud, where the server keeps it apart; else empty."""
    finish_reason: FinishReason
    """Why generation ended."""
    usage: Usage
    """Tokens in and out."""
    sent_ns: int
    """When the request was sent, on the caller's clock."""
    first_token_ns: int | None
    """When the first token arrived; None for an empty reply or an engine that cannot say."""
    phases: tuple[Phase, ...]
    """In order, not overlapping, between the request and the last token."""
    model_id: str
    """The model's name as the server gave it."""
