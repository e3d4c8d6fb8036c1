"""What calls take: a high estimate of a request before it is sent, the use of an answer after it.

Pure arithmetic, but for what it learns of models: by how much their prompts exceed the estimate,
and how long their contexts are. The `Meter` decides by these figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.inference.completion import Completion, Embeddings, Ranking
from harness.inference.endpoint import Endpoint
from harness.inference.health import was_refused
from harness.inference.limits import Spent
from harness.inference.request import ChatRequest, Request, most_prompt_tokens, most_tokens_in

# More tokens than almost any reply has. Servers refuse a room beyond their context, so a larger
# share is not sent; and no more than this is reserved.
_AMPLE_TOKENS = 8_192
# Some 190 words. Where an equal share would be less, fewer calls go at once.
_USEFUL_TOKENS = 256
_TOKENS_PER_TEXT = 4  # that an embedder adds to a text


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """The price of an endpoint's tokens."""

    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """The cost of a call, in dollars."""
        return (
            input_tokens * self.usd_per_million_input_tokens
            + output_tokens * self.usd_per_million_output_tokens
        ) / 1e6


class Charges:
    """Computes the use of calls; uncounted tokens get a high estimate from their length."""

    def __init__(self, prices: Mapping[str, TokenPrice]) -> None:
        self._prices = dict(prices)
        # By the endpoint's tag: how many times the estimate a prompt was, by the server's count.
        self._longer: dict[str, float] = {}
        # Likewise: the model's context, where a call that was given its room has overrun it.
        self._contexts: dict[str, int] = {}

    def most(self, request: Request) -> Spent:
        """The most that a request takes."""
        prompt_tokens = self._most_asked(request)
        written = 0
        if isinstance(request, ChatRequest):
            written = request.max_output_tokens or _AMPLE_TOKENS
        usd = self._priced(request.model, prompt_tokens, written)
        return Spent(calls=1, input_tokens=prompt_tokens, output_tokens=written, cost_usd=usd)

    def room(
        self,
        request: ChatRequest,
        *,
        tokens: float | None,
        usd: float | None,
        among: int,
        beside: Spent,
    ) -> int | None:
        """The room for a reply that states none, in tokens; None if nothing limits it.

        It is one of `among` equal shares of the `tokens` and the dollars left, less what the calls
        `beside` it have reserved.
        """
        prompt_tokens, price = self._most_asked(request), self._prices.get(request.model)
        rooms: list[float] = []
        if tokens is not None:
            # With nothing else under way, and its share beside what is. What others hold is not
            # shared, but a call without useful room beside it gets room that it has to wait for.
            rooms = [tokens - prompt_tokens, (tokens - beside.tokens) / among - prompt_tokens]
        if usd is not None and price is not None and price.usd_per_million_output_tokens:
            per_token = price.usd_per_million_output_tokens / 1e6
            shares = (usd, (usd - (beside.cost_usd or 0.0)) / among)
            paid_for = [(share - price.of(prompt_tokens, 0)) / per_token for share in shares]
            rooms = list(map(min, rooms or paid_for, paid_for))
        if not rooms:
            return None
        alone, shared = rooms
        return max(1, int(max(shared, min(alone, _USEFUL_TOKENS))))

    def within_context(self, request: ChatRequest, room: int | None) -> ChatRequest:
        """The call with this room, or with the part of it that its model's context has."""
        if room is None:
            return request
        prompt_tokens = self._most_asked(request)
        context_tokens = self._contexts.get(request.model, math.inf)
        if context_tokens < prompt_tokens + room:
            room = max(1, int(context_tokens) - prompt_tokens)
        # An ample room stays unstated: it is what the model's context leaves.
        return request if room > _AMPLE_TOKENS else replace(request, max_output_tokens=room)

    def is_full(self, request: Request) -> bool:
        """Whether a call has all the room that its model's context leaves, as far as is known."""
        context = self._contexts.get(request.model)
        return context is not None and self.most(request).tokens >= context

    def learn_context(self, request: Request, context_tokens: int) -> int:
        """Keeps the size of a model's context; the room that it has beside this call's prompt."""
        self._contexts[request.model] = context_tokens
        return max(1, context_tokens - self._most_asked(request))

    def taken(self, request: Request, answer: Completion | Embeddings | Ranking) -> Spent:
        """The use of an answered request; learns how far its prompt exceeded the estimate."""
        estimated = _most_input_tokens(request)
        if isinstance(answer, Completion):
            usage, endpoint = answer.usage, answer.endpoint
            counted = None if usage is None else usage.input_tokens
            written = answer.text + answer.reasoning
            answered = most_tokens_in(written) if usage is None else usage.output_tokens
            reported_usd = answer.cost_usd
        else:
            counted, answered = answer.input_tokens, 0
            endpoint = reported_usd = None
        prompt_tokens = estimated if counted is None else counted
        # Later prompts are taken to be as much longer than their estimate as any was.
        longest = max(self._longer.get(request.model, 1.0), prompt_tokens / estimated)
        self._longer[request.model] = longest
        # A fallback's reply has the fallback's price.
        priced = self._priced(endpoint or request.model, prompt_tokens, answered)
        cost = reported_usd if priced is None else priced
        return Spent(
            calls=1,
            input_tokens=prompt_tokens,
            output_tokens=answered,
            cost_usd=cost,
            estimated_calls=int(counted is None),
            unpriced_calls=int(cost is None),
        )

    def lost(self, request: Request, error: BaseException, *, pieces: int) -> Spent:
        """The use of a call that failed or was abandoned."""
        if was_refused(error) and not pieces:
            return Spent(calls=1)
        # Its prompt was probably read, and each piece of its reply is at least a token.
        tokens = _most_input_tokens(request)
        return Spent(
            calls=1, input_tokens=tokens, output_tokens=pieces, estimated_calls=1, unpriced_calls=1
        )

    def _most_asked(self, request: Request) -> int:
        return math.ceil(_most_input_tokens(request) * self._longer.get(request.model, 1.0))

    def _priced(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        price = self._prices.get(model)
        return None if price is None else price.of(input_tokens, output_tokens)


def _most_input_tokens(request: Request) -> int:
    if isinstance(request, ChatRequest):
        return most_prompt_tokens(request)
    # A model that ranks reads the question with each text.
    beside = _TOKENS_PER_TEXT + most_tokens_in(getattr(request, "query", ""))
    return sum(most_tokens_in(text) + beside for text in request.texts)


def token_prices(endpoints: Mapping[str, Endpoint]) -> dict[str, TokenPrice]:
    """The prices in the settings, by the endpoint's tag."""
    # One of the two prices alone is ignored: its sum would pass for the whole.
    return {
        tag: TokenPrice(usd_per_million_input_tokens=prompt, usd_per_million_output_tokens=reply)
        for tag, endpoint in endpoints.items()
        if (prompt := endpoint.usd_per_million_input_tokens) is not None
        and (reply := endpoint.usd_per_million_output_tokens) is not None
    }
