"""The meter of a run: reserves a call's highest use, counts it, refuses calls over a limit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from harness.errors import ContextOverflow, RunLimitReached
from harness.inference.completion import Completion, Embeddings
from harness.inference.endpoint import Endpoint
from harness.inference.limits import (
    FIELD_OF,
    NOTHING,
    LimitName,
    Limits,
    Refusal,
    Room,
    Spent,
    left_of,
    refusal,
    seconds_left,
)
from harness.inference.request import ChatRequest, EmbedRequest, most_prompt_tokens, most_tokens_in
from harness.trace import Clock, Tracer

N = TypeVar("N", int, float)
R = TypeVar("R", ChatRequest, EmbedRequest)

_QUIET_TURNS = 5
"""Of the event loop, until no more calls are expected just now."""
_AMPLE = 8_192
"""More tokens than almost any reply has. Servers refuse a room beyond their context, so a larger
share is not sent; and no more than this is reserved."""
_OF_USE = 256
"""Tokens, some 190 words. Where an equal share would be less, fewer calls go at once."""
_PER_TEXT = 4
"""Tokens that an embedder adds to a text."""
_NOTHING_HELD = Room()


class Meter:
    """Counts what calls take, and refuses those beyond a limit.

    A call that would fit if less were under way waits for what that takes, first come first
    served: many calls at once cannot overrun a limit together, and none is refused for tokens that
    others reserved and did not need. A reply from the cache takes nothing.

    A call reserves an estimate from above, and is settled with its server's count. Where that is
    more, the limit is overrun by the calls under way when it was reached, and no more. Every
    request counts: schema probes, retries and fallbacks too. `prices` are by the endpoint's tag,
    and go before what a reply says that it cost. `before` is what earlier parts of the run took.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        prices: Mapping[str, TokenPrice],
        before: Spent = NOTHING,
        clock: Clock,
        began_ns: int,
        tracer: Tracer,
    ) -> None:
        self.limits = limits
        self.charges = Charges(prices)
        self._taken = before
        self._clock = clock
        self._began_ns = began_ns
        self._tracer = tracer
        # What requests that are under way take at most.
        self._under_way = Room()
        # The same of calls that were admitted, and have sent nothing yet.
        self._awaited = Room()
        # How many calls wait to be admitted.
        self._ready = 0
        # The call that has its turn is admitted next, or sent, as soon as there is room for it.
        self._turn = asyncio.Lock()
        self._turn_to_send = asyncio.Lock()
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def admitted(self, request: R) -> AsyncIterator[Admission[R]]:
        """Begins when there is room for the call; ends with it, or when the time is over.

        Raises:
            RunLimitReached: There is no room for it; it was not sent, or not waited for to its end.
        """
        # 1. Wait for what is under way, if that may leave enough.
        self._ready += 1
        try:
            sized, need = await self._wait(
                self._turn, request, held=lambda: self._under_way + self._awaited
            )
        finally:
            self._ready -= 1
        self._tracer.flush()
        self._tracer.check_written()
        # 2. No other call comes between the decision and this: there is no await.
        call = Admission(sized, need=need, room=_room_given(request, sized))
        self._awaited += need
        left_s = seconds_left(self.limits, spent=self.spent, held=Room())
        try:
            # Waits for a place, a model that loads, further attempts: they all end here too.
            async with asyncio.timeout(left_s) as over:
                yield call
        except TimeoutError as error:
            if not over.expired():
                raise
            message = f"{self.limits.said('time')} were over before '{request.model}' had answered"
            raise self._reached(Refusal(limit="time", message=message), need) from error
        finally:
            self._await_no_more(call)
            self._ended.set()

    @asynccontextmanager
    async def sending(self, call: Admission[R], request: R) -> AsyncIterator[Sending[R]]:
        """Around one request of an admitted call. Not only the first needs room.

        Calls that were admitted and have sent nothing do not keep it waiting: they may wait for it,
        as for a probe of the model that they ask too.

        Raises:
            RunLimitReached: There is no room for it.
        """
        self._await_no_more(call)
        request, need = await self._wait(
            self._turn_to_send, request, held=lambda: self._under_way, given=call.room
        )
        self._under_way += need
        sending = Sending(request)
        try:
            yield sending
            if sending.answer is not None:
                self._take(self.charges.taken(request, sending.answer), call)
        except BaseException:
            self._take(self.charges.lost(request, pieces=sending.pieces), call)
            raise
        finally:
            self._under_way = _without(self._under_way, need)
            self._ended.set()

    def has_less_room(self, call: Admission[R], error: ContextOverflow) -> bool:
        """Whether a call that a limit gave more room than its context has gets less when repeated.

        A room that the caller stated is not changed.
        """
        return (
            call.room is not None
            and isinstance(call.request, ChatRequest)
            and self.charges.has_less_room(call.request, error)
        )

    def cut_by(self, call: Admission[ChatRequest], reply: Completion) -> Completion:
        """The reply, with the limit that decided where it was cut, if one did."""
        is_cut = reply.finish_reason == "length" and call.room is not None
        if not is_cut or self.charges.is_full(call.request):
            return reply
        return replace(reply, cut_by="cost" if self.limits.max_tokens is None else "tokens")

    @property
    def spent(self) -> Spent:
        """The use of the run so far, earlier parts included."""
        took_ns = self._clock() - self._began_ns
        return replace(self._taken, time_ns=self._taken.time_ns + took_ns)

    @property
    def deadline_ns(self) -> int | None:
        """The end of the run's time, by the clock; None without a limit."""
        if self.limits.max_seconds is None:
            return None
        return self._began_ns - self._taken.time_ns + round(self.limits.max_seconds * 1e9)

    def left_beside(self, before: Spent) -> Limits:
        """The rest of the limits for a part that continues after the earlier use.

        A used-up limit is left out: this meter refuses the next call with the reason.
        """
        limits, spent = self.limits, self.spent
        usd = (before.cost_usd or 0.0) - (spent.cost_usd or 0.0)
        return Limits(
            max_tokens=_left(limits.max_tokens, before.tokens - spent.tokens),
            max_cost_usd=_left(limits.max_cost_usd, usd),
            max_seconds=_left(limits.max_seconds, before.seconds - spent.seconds),
        )

    async def _wait(
        self,
        turn: asyncio.Lock,
        request: R,
        *,
        held: Callable[[], Room],
        given: int | None = None,
    ) -> tuple[R, Room]:
        """The call with the room for its reply, and its highest use, once that fits.

        Raises:
            RunLimitReached: It would not even if nothing were held.
        """
        sized, need = self._sized(request, held(), given)
        has_to_wait = turn.locked() or self._refusal(sized.model, need, held=held())
        with self._tracer.span("wait for room") if has_to_wait else nullcontext():
            async with turn:
                await self._gathered(request)
                sized, need = self._sized(request, held(), given)
                while self._refusal(sized.model, need, held=held()):
                    if refused := self._refusal(sized.model, need, held=Room()):
                        raise self._reached(refused, need)
                    self._ended.clear()
                    await self._ended.wait()
                    sized, need = self._sized(request, held(), given)
        return sized, need

    async def _gathered(self, request: ChatRequest | EmbedRequest) -> None:
        """Returns when all imminent calls wait here, if they share the rest of a limit.

        Nodes that begin together ask within a few turns of the event loop.
        """
        limits = self.limits
        is_shared = limits.max_tokens is not None or limits.max_cost_usd is not None
        if isinstance(request, EmbedRequest) or request.max_output_tokens or not is_shared:
            return
        ready, quiet = self._ready, 0
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            ready, quiet = self._ready, quiet + 1 if ready == self._ready else 0

    def _take(self, spent: Spent, call: Admission[R]) -> None:
        self._taken += spent
        if isinstance(call.request, ChatRequest) and call.request.on_taken:
            call.request.on_taken(spent)

    def _await_no_more(self, call: Admission[R]) -> None:
        """An admitted call sends something now, or will not."""
        self._awaited = _without(self._awaited, call.need)
        call.need = Room()

    def _sized(self, request: R, held: Room, given: int | None) -> tuple[R, Room]:
        """The call with the present room for its reply, and its highest use."""
        tokens, usd = left_of(self.limits, spent=self.spent, held=Room())
        among = max(1, self._ready) if given is None else 1
        request = self.charges.sized(
            request, tokens=tokens, usd=usd, among=among, beside=held, given=given
        )
        return request, self.charges.most(request)

    def _refusal(self, model: str, need: Room, *, held: Room) -> Refusal | None:
        return refusal(self.limits, model=model, need=need, spent=self.spent, held=held)

    def _reached(self, refused: Refusal, need: Room) -> RunLimitReached:
        field = FIELD_OF[refused.limit]
        enough: dict[LimitName, str] = {
            "tokens": f"at least {self._taken.tokens + need.tokens}",
            "calls": f"at least {self._taken.calls + need.calls}",
        }
        return RunLimitReached(
            f"the run is at its limit: {refused.message}; to go on it needs {field} to be "
            f"{enough.get(refused.limit, 'more')} (--{field.replace('_', '-')}, "
            "Pipeline(limits=...), or [limits] in harness.toml)",
            limit=refused.limit,
        )


class Admission(Generic[R]):
    """A call that the meter let in.

    Attributes:
        request: The call, with the room that a limit gave it if it stated none.
        need: The reserved use; nothing once it has sent a request.
        room: For its reply, if a limit decided that.
    """

    def __init__(self, request: R, *, need: Room, room: int | None) -> None:
        self.request: R = request
        self.need = need
        self.room = room


class Sending(Generic[R]):
    """One request that is with its server.

    Attributes:
        request: What to send.
        answer: Set by the sender.
        pieces: Pieces of a reply that have arrived.
    """

    def __init__(self, request: R) -> None:
        self.request: R = request
        self.answer: Completion | Embeddings | None = None
        self.pieces = 0
        if isinstance(request, ChatRequest):
            self._on_piece = request.on_piece
            self.request = replace(request, on_piece=self._arrived)

    def _arrived(self) -> None:
        self.pieces += 1
        if self._on_piece:
            self._on_piece()


def _without(held: Room, need: Room) -> Room:
    left = held - need
    return left if left.calls else Room()  # in floats, a + b - a - b need not be 0


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
    """Computes the use of calls. Uncounted tokens get a high estimate from their length.

    `prices` are as for `Meter`.
    """

    def __init__(self, prices: Mapping[str, TokenPrice]) -> None:
        self._prices = dict(prices)
        # By the endpoint's tag: how many times the estimate a prompt was, by the server's count.
        self._longer: dict[str, float] = {}
        # Likewise: the model's context, where a call that was given its room has overrun it.
        self._contexts: dict[str, int] = {}

    def most(self, request: ChatRequest | EmbedRequest) -> Room:
        """The highest use of a call."""
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
            among: How many calls share it. If a share is too small to be of use, fewer do.
            beside: The part of what is left that others hold. It is not shared, but a call that has
                no useful room beside it gets room that it has to wait for.
            given: The room that was decided for it before, which it may not exceed.
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
        """Whether a call that overran its model's context gets less room if sized again."""
        if error.context_tokens is None or sized.max_output_tokens is None:
            return False
        self._contexts[sized.model] = error.context_tokens
        return max(1, error.context_tokens - self._most_asked(sized)) < sized.max_output_tokens

    def taken(self, request: ChatRequest | EmbedRequest, answer: Completion | Embeddings) -> Spent:
        """The use of an answered call."""
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
        """The use of a call that failed or was abandoned.

        Its prompt was probably read, and each piece of its reply is at least a token.
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


def _left(limit: N | None, more: N) -> N | None:
    """None without a limit, or when nothing is left of it."""
    return None if limit is None or limit + more <= 0 else limit + more


def _room_given(asked: R, sized: R) -> int | None:
    """The room of a call that states none."""
    if isinstance(asked, EmbedRequest) or isinstance(sized, EmbedRequest):
        return None
    return sized.max_output_tokens if asked.max_output_tokens is None else None


def token_prices(endpoints: Mapping[str, Endpoint]) -> dict[str, TokenPrice]:
    """The prices in the settings, by the endpoint's tag.

    One of the two prices alone is ignored: its sum would pass for the whole.
    """
    return {
        tag: TokenPrice(
            usd_per_million_input_tokens=one.usd_per_million_input_tokens,
            usd_per_million_output_tokens=one.usd_per_million_output_tokens,
        )
        for tag, one in endpoints.items()
        if one.usd_per_million_input_tokens is not None
        and one.usd_per_million_output_tokens is not None
    }
