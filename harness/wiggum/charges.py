"""What one call takes: at most, before it is sent, and as far as it is known, afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.errors import ContextOverflow
from harness.inference import (
    ChatRequest,
    Completion,
    Embeddings,
    EmbedRequest,
    most_prompt_tokens,
    most_tokens_in,
)
from harness.inference.limits import Room, Spent

R = TypeVar("R", ChatRequest, EmbedRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """What an endpoint's tokens cost."""

    usd_per_million_input_tokens: float
    """Of prompts."""
    usd_per_million_output_tokens: float
    """Of replies."""

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """Dollars."""
        return (
            input_tokens * self.usd_per_million_input_tokens
            + output_tokens * self.usd_per_million_output_tokens
        ) / 1e6


_AMPLE = 8_192
"""More tokens than almost any reply has. Servers refuse a room beyond their context, so a larger
share is not sent; and no more than this is reserved."""
_OF_USE = 256
"""Tokens, some 190 words. Where an equal share would be less, fewer calls go at once."""
_PER_TEXT = 4
"""What an embedder puts around a text."""
_NOTHING_HELD = Room()


class Charges:
    """Tells what calls take. What nobody counted is estimated from its length, from above.

    Args:
        prices: By the endpoint's tag; they go before what a reply says that it cost.
    """

    def __init__(self, prices: Mapping[str, TokenPrice]) -> None:
        self._prices = dict(prices)
        # By the endpoint's tag: how many times the estimate a prompt was, by the server's count.
        self._longer: dict[str, float] = {}
        # Likewise: the model's context, where a call that was given its room has overrun it.
        self._contexts: dict[str, int] = {}

    def most(self, request: ChatRequest | EmbedRequest) -> Room:
        """What a call takes at most."""
        asked = self._most_asked(request)
        written = (request.max_output_tokens or _AMPLE) if isinstance(request, ChatRequest) else 0
        usd = self._priced(request.model, asked, written) or 0.0
        return Room(tokens=asked + written, usd=usd, calls=1)

    def sized(
        self,
        request: R,
        *,
        tokens: float | None,
        usd: float | None,
        among: int = 1,
        beside: Room = _NOTHING_HELD,
        given: int | None = None,
    ) -> R:
        """The call, with its room as stated, or else with its share of what is left, at least 1.

        This is where the room of a call is decided under a limit. Without one, or where the share
        is ample, it stays unstated, and is what the model's context leaves.

        Args:
            request: The call.
            tokens: Left; None without a limit.
            usd: Likewise.
            among: How many calls share it. A share that is of no use goes to fewer.
            beside: Of what is left, that which others hold. It is not shared; but a call that has
                no room of use beside it is given what has to be waited for.
            given: The room that was decided for it before: it may be less now, and not more.
        """
        if not isinstance(request, ChatRequest) or request.max_output_tokens not in (None, given):
            return request
        asked, price = self._most_asked(request), self._prices.get(request.model)
        rooms: list[float] = []
        if tokens is not None:
            rooms = [tokens - asked, (tokens - beside.tokens) / among - asked]
        if usd is not None and price is not None and price.usd_per_million_output_tokens:
            per_token = price.usd_per_million_output_tokens / 1e6
            shares = (usd, (usd - beside.usd) / among)
            paid_for = [(share - price.of(asked, 0)) / per_token for share in shares]
            rooms = list(map(min, rooms or paid_for, paid_for))
        if not rooms:
            return request
        alone, shared = rooms
        room = max(1, int(min(given or math.inf, max(shared, min(alone, _OF_USE)))))
        if self._contexts.get(request.model, math.inf) < asked + room:
            room = max(1, self._contexts[request.model] - asked)
        return request if room > _AMPLE else replace(request, max_output_tokens=room)

    def is_full(self, request: ChatRequest) -> bool:
        """Whether a call has all the room that its model's context leaves, as far as is known."""
        context = self._contexts.get(request.model)
        return context is not None and self.most(request).tokens >= context

    def has_less_room(self, sized: ChatRequest, error: ContextOverflow) -> bool:
        """Whether a call that was too long for its model's context is shorter if sized again."""
        if error.context_tokens is None or sized.max_output_tokens is None:
            return False
        self._contexts[sized.model] = error.context_tokens
        return max(1, error.context_tokens - self._most_asked(sized)) < sized.max_output_tokens

    def taken(self, request: ChatRequest | EmbedRequest, answer: Completion | Embeddings) -> Spent:
        """What a call took that was answered by a model."""
        estimated = _most_input_tokens(request)
        if isinstance(answer, Completion):
            usage, endpoint = answer.usage, answer.endpoint
            counted = None if usage is None else usage.input_tokens
            written = answer.text + answer.reasoning
            answered = most_tokens_in(written) if usage is None else usage.output_tokens
            told = answer.cost_usd
        else:
            counted, answered, endpoint, told = answer.input_tokens, 0, None, None
        asked = estimated if counted is None else counted
        longest = max(self._longer.get(request.model, 1.0), asked / estimated)
        self._longer[request.model] = longest
        # Of a stand-in's reply, the stand-in's price.
        priced = self._priced(endpoint or request.model, asked, answered)
        cost = told if priced is None else priced
        return Spent(
            calls=1,
            input_tokens=asked,
            output_tokens=answered,
            cost_usd=cost,
            estimated_calls=int(counted is None),
            unpriced_calls=int(cost is None),
        )

    def lost(self, request: ChatRequest | EmbedRequest, *, pieces: int = 0) -> Spent:
        """What a call took that failed, or was not waited for.

        What became of it nobody knows; that the prompt was read is likely, and of the reply the
        pieces that came are a token each, or more.
        """
        asked = _most_input_tokens(request)
        estimated = Spent(calls=1, estimated_calls=1, unpriced_calls=1)
        return replace(estimated, input_tokens=asked, output_tokens=pieces)

    def _most_asked(self, request: ChatRequest | EmbedRequest) -> int:
        return math.ceil(_most_input_tokens(request) * self._longer.get(request.model, 1.0))

    def _priced(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        price = self._prices.get(model)
        return None if price is None else price.of(input_tokens, output_tokens)


def _most_input_tokens(request: ChatRequest | EmbedRequest) -> int:
    if isinstance(request, ChatRequest):
        return most_prompt_tokens(request)
    return sum(most_tokens_in(text) + _PER_TEXT for text in request.texts)
