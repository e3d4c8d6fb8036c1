"""The use of calls: a high estimate of a request before it is sent, the use of an answer after it.

It learns of models how much their prompts exceed the estimate, and how long their contexts are;
else it is pure arithmetic. The `Meter` decides by these figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from harness.inference.completion import Completion, Embeddings, Ranking
from harness.inference.endpoint import Endpoint
from harness.inference.health import was_refused
from harness.inference.limits import Spent
from harness.inference.request import ChatRequest, Request, most_prompt_tokens, most_tokens_in

# More than almost any reply has. No larger room is sent: servers refuse any beyond their context.
_AMPLE_TOKENS = 8_192
# Some 190 words. Where an equal share would be less, fewer calls go at once.
_USEFUL_TOKENS = 256
_TOKENS_PER_TEXT = 4  # so many an embedder adds to a text


class Charges:
    """Computes the use of calls; uncounted tokens get a high estimate from their length."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints  # by tag
        # The endpoint's tag → the highest ratio so far of the server's count to our estimate.
        self._prompt_factors: dict[str, float] = {}
        # The endpoint's tag → its model's context in tokens, once a call has overrun it.
        self._contexts: dict[str, int] = {}

    def most(self, request: Request) -> Spent:
        """The most that a request is expected to take."""
        prompt_tokens = self._prompt_tokens(request)
        written = 0
        if isinstance(request, ChatRequest):
            written = request.max_output_tokens or _AMPLE_TOKENS
        usd = self._cost_usd(request.model, prompt_tokens, written)
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
        """The room for the reply of a request that states none, in tokens; None if unlimited.

        It is one of `among` equal shares of the `tokens` and dollars that are left, less what the
        calls `beside` it have reserved.
        """
        prompt_tokens = self._prompt_tokens(request)
        per_token_usd = self._cost_usd(request.model, 0, 1)
        # The room if no other call were under way, and the room as a share beside the others.
        alone = shared = math.inf
        if tokens is not None:
            alone = tokens - prompt_tokens
            shared = (tokens - beside.tokens) / among - prompt_tokens
        if usd is not None and per_token_usd:
            prompt_usd = self._cost_usd(request.model, prompt_tokens, 0) or 0.0
            share_usd = (usd - (beside.cost_usd or 0.0)) / among
            alone = min(alone, (usd - prompt_usd) / per_token_usd)
            shared = min(shared, (share_usd - prompt_usd) / per_token_usd)
        if alone == math.inf:
            return None
        # A call whose share is of no use gets a useful room, for which it waits.
        return max(1, int(max(shared, min(alone, _USEFUL_TOKENS))))

    def within_context(self, request: ChatRequest, room: int | None) -> ChatRequest:
        """The request with this room for its reply, as far as its model's context has it."""
        if room is None:
            return request
        prompt_tokens = self._prompt_tokens(request)
        context_tokens = self._contexts.get(request.model, math.inf)
        if context_tokens < prompt_tokens + room:
            room = max(1, int(context_tokens) - prompt_tokens)
        # An ample room is not stated: without one, the reply has all that the context leaves.
        return request if room > _AMPLE_TOKENS else replace(request, max_output_tokens=room)

    def is_full(self, request: Request) -> bool:
        """Whether a call takes up the whole context of its model, as far as that is known."""
        context = self._contexts.get(request.model)
        return context is not None and self.most(request).tokens >= context

    def learn_context(self, request: Request, context_tokens: int) -> int:
        """Notes the size of a model's context; returns the room that it leaves for the reply."""
        self._contexts[request.model] = context_tokens
        return max(1, context_tokens - self._prompt_tokens(request))

    def taken(self, request: Request, answer: Completion | Embeddings | Ranking) -> Spent:
        """The use of an answered request; learns how far its prompt exceeded the estimate."""
        estimated = most_input_tokens(request)
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
        # A later prompt may exceed its estimate as much as any earlier one did.
        factor = max(self._prompt_factors.get(request.model, 1.0), prompt_tokens / estimated)
        self._prompt_factors[request.model] = factor
        # A fallback's reply has the fallback's price.
        priced_usd = self._cost_usd(endpoint or request.model, prompt_tokens, answered)
        cost = reported_usd if priced_usd is None else priced_usd
        return _of_call(prompt_tokens, answered, cost, is_estimated=counted is None)

    def taken_by_failure(self, request: Request, error: BaseException, *, pieces: int) -> Spent:
        """The use of a request that failed or was abandoned after `pieces` pieces of its reply."""
        if was_refused(error) and not pieces:
            return Spent(calls=1)
        # Its prompt was probably read, and each piece of its reply is at least a token.
        tokens = most_input_tokens(request)
        cost = self._cost_usd(request.model, tokens, pieces)
        return _of_call(tokens, pieces, cost, is_estimated=True)

    def _prompt_tokens(self, request: Request) -> int:
        return math.ceil(most_input_tokens(request) * self._prompt_factors.get(request.model, 1.0))

    def _cost_usd(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        if (endpoint := self._endpoints.get(model)) is None:
            return None
        input_usd = endpoint.usd_per_million_input_tokens
        output_usd = endpoint.usd_per_million_output_tokens
        # One of the two alone is ignored: its sum would pass for the whole.
        if input_usd is None or output_usd is None:
            return None
        return (input_tokens * input_usd + output_tokens * output_usd) / 1e6


def _of_call(read: int, written: int, cost: float | None, *, is_estimated: bool) -> Spent:
    return Spent(
        calls=1,
        input_tokens=read,
        output_tokens=written,
        cost_usd=cost,
        estimated_calls=int(is_estimated),
        unpriced_calls=int(cost is None),
    )


def most_input_tokens(request: Request) -> int:
    """A high estimate of the tokens that a model reads for a request."""
    if isinstance(request, ChatRequest):
        return most_prompt_tokens(request)
    # A model that ranks reads the question with each text.
    added = _TOKENS_PER_TEXT + most_tokens_in(getattr(request, "query", ""))
    return sum(most_tokens_in(text) + added for text in request.texts)
