"""The run's meter: counts what model calls take, and refuses those beyond a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from harness.errors import ContextOverflow, Notice, RunLimitReached
from harness.inference import ChatRequest, Completion, Embeddings, EmbedRequest, Endpoint
from harness.rubric import Ask
from harness.session.casting import Casting
from harness.trace import Clock, Tracer
from harness.wiggum import (
    FIELD_OF,
    NOTHING,
    Charges,
    LimitName,
    Limits,
    LoopLimits,
    Refusal,
    Room,
    Spent,
    TokenPrice,
    left_of,
    refusal,
    seconds_left,
)

N = TypeVar("N", int, float)
R = TypeVar("R", ChatRequest, EmbedRequest)
A = TypeVar("A", Completion, Embeddings)

Around = Callable[[], AbstractContextManager[object]]

_QUIET_TURNS = 5
"""Of the event loop, until no more calls are expected to be made just now."""


@dataclass(slots=True)
class _Call:
    """A call that was let in."""

    need: Room
    """For what; nothing any more once it has sent something."""
    sending: Around
    """See `Spending.chat`."""
    room: int | None
    """For its reply, where a limit decided that."""


class Spending:
    """Passes a run's calls on, counts what they took, and refuses those beyond a limit.

    A call that would fit if less were under way waits for what that takes, first come first
    served: many calls at once cannot overrun a limit together, and none is refused for tokens that
    others reserved and did not need. A reply from the cache takes nothing.

    A call reserves an estimate from above, and is settled with its server's count. Where that is
    more, the limit is overrun by the calls under way when it was reached, and no more. Every
    request counts: schema probes, retries and fallbacks too.

    Args:
        chat: Reaches the models.
        embed: Reaches those that embed.
        limits: Of the whole run, over all its parts.
        prices: By the endpoint's tag; they go before what a reply says that it cost.
        before: What earlier parts of the run took.
        clock: In nanoseconds.
        began_ns: When this part of the run began, by that clock.
        tracer: Sees the waits.
    """

    def __init__(
        self,
        chat: Ask,
        embed: Callable[[EmbedRequest], Awaitable[Embeddings]],
        *,
        limits: Limits,
        prices: Mapping[str, TokenPrice],
        before: Spent,
        clock: Clock,
        began_ns: int,
        tracer: Tracer,
    ) -> None:
        self.limits = limits
        self._chat = chat
        self._embed = embed
        self._charges = Charges(prices)
        self._taken = before
        self._clock = clock
        self._began_ns = began_ns
        self._tracer = tracer
        # What requests that are under way take at most.
        self._under_way = Room()
        # The same of calls that were let in, and have sent nothing yet.
        self._awaited = Room()
        # How many calls wait to be let in.
        self._ready = 0
        # Whoever has its turn is let in next, or sent, as soon as there is room for it.
        self._turn = asyncio.Lock()
        self._turn_to_send = asyncio.Lock()
        self._ended = asyncio.Event()

    async def chat(self, request: ChatRequest, *, sending: Around = nullcontext) -> Completion:
        """The reply to a call.

        Args:
            request: The call.
            sending: What to be in while a request is sent for it and answered.

        Raises:
            RunLimitReached: There is no room for it; it was not sent, or not waited for to its end.
            InferenceError: As whoever is asked raises it.
        """
        try:
            async with self._let_in(request, sending) as let_in:
                completion = await self._chat(let_in)
        except ContextOverflow as error:
            if request.max_output_tokens or not self._charges.has_less_room(let_in, error):
                raise
            return await self.chat(request, sending=sending)
        if completion.finish_reason != "length" or _room_given(request, let_in) is None:
            return completion
        if self._charges.is_full(let_in):
            return completion
        return replace(completion, cut_by="cost" if self.limits.max_tokens is None else "tokens")

    async def embed(self, request: EmbedRequest, *, sending: Around = nullcontext) -> Embeddings:
        """Vectors, counted and limited as a reply is; see `chat`."""
        async with self._let_in(request, sending) as let_in:
            return await self._embed(let_in)

    @property
    def spent(self) -> Spent:
        """What the run took so far, earlier parts included."""
        took_ns = self._clock() - self._began_ns
        return replace(self._taken, time_ns=self._taken.time_ns + took_ns)

    @property
    def deadline_ns(self) -> int | None:
        """When the run's time is over, by the clock; None without a limit."""
        if self.limits.max_seconds is None:
            return None
        return self._began_ns - self._taken.time_ns + round(self.limits.max_seconds * 1e9)

    def tightened(self, limits: LoopLimits, *, before: Spent = NOTHING) -> LoopLimits:
        """A loop's limits, nowhere more than the run has left.

        So the loop sees the end coming, and begins nothing that would be broken off. Of what the
        run has nothing left, its first call is refused here, with more to say.

        Args:
            limits: Its own.
            before: What the loop took in rounds that it only goes on behind.
        """
        run, spent = self.limits, self.spent
        usd = (before.cost_usd or 0.0) - (spent.cost_usd or 0.0)
        left = Limits(
            max_tokens=_left(run.max_tokens, before.tokens - spent.tokens),
            max_cost_usd=_left(run.max_cost_usd, usd),
            max_seconds=_left(run.max_seconds, before.seconds - spent.seconds),
        )
        return limits.within(left)

    @asynccontextmanager
    async def _let_in(self, request: R, sending: Around) -> AsyncIterator[R]:
        """Begins when there is room for the call, and ends with it, or when the time is over.

        Gives the call as it is to be sent: with its room, where it stated none.
        """
        # 1. Wait for what is under way, if that may leave enough.
        self._ready += 1
        try:
            let_in, need = await self._wait(
                self._turn, request, held=lambda: self._under_way + self._awaited
            )
        finally:
            self._ready -= 1
        self._tracer.flush()
        self._tracer.check_written()
        # 2. Nobody else comes between the decision and this: there is no await.
        call = _Call(need, sending, room=_room_given(request, let_in))
        self._awaited += need
        left_s = seconds_left(self.limits, spent=self.spent, held=Room())
        try:
            # Waits for a place, a model that loads, further attempts: they all end here too.
            async with asyncio.timeout(left_s) as over:
                yield replace(let_in, gate=partial(self._send, call))
        except TimeoutError as error:
            if not over.expired():
                raise
            message = f"{self.limits.said('time')} were over before '{request.model}' had answered"
            raise self._reached(Refusal(limit="time", message=message), need) from error
        finally:
            self._await_no_more(call)
            self._ended.set()

    async def _send(self, call: _Call, request: R, send: Callable[[Any], Awaitable[A]]) -> A:
        """Sends a request for a call that was let in. Not only the first needs room.

        Calls that were let in and have sent nothing do not keep it waiting: they may wait for it,
        as for a probe of the model that they ask too.
        """
        self._await_no_more(call)
        request, need = await self._wait(
            self._turn_to_send, request, held=lambda: self._under_way, given=call.room
        )
        self._under_way += need
        pieces = 0
        on_piece: Callable[[], None] | None = getattr(request, "on_piece", None)

        def arrived() -> None:
            nonlocal pieces
            pieces += 1
            if on_piece:
                on_piece()

        if isinstance(request, ChatRequest):
            request = replace(request, on_piece=arrived)
        try:
            with call.sending():
                answer = await send(request)
            self._taken += self._charges.taken(request, answer)
        except BaseException:
            self._taken += self._charges.lost(request, pieces=pieces)
            raise
        finally:
            self._under_way = _without(self._under_way, need)
            self._ended.set()
        return answer

    async def _wait(
        self,
        turn: asyncio.Lock,
        request: R,
        *,
        held: Callable[[], Room],
        given: int | None = None,
    ) -> tuple[R, Room]:
        """The call with the room that its reply has, and all that it takes at most, when that fits.

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
        """Returns when all calls that are about to be made wait here, if they share what is left.

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

    def _await_no_more(self, call: _Call) -> None:
        """A call that was let in sends something now, or will not."""
        self._awaited = _without(self._awaited, call.need)
        call.need = Room()

    def _sized(self, request: R, held: Room, given: int | None) -> tuple[R, Room]:
        """The call with the room that its reply has now, and what it takes at most."""
        tokens, usd = left_of(self.limits, spent=self.spent, held=Room())
        among = max(1, self._ready) if given is None else 1
        request = self._charges.sized(
            request, tokens=tokens, usd=usd, among=among, beside=held, given=given
        )
        return request, self._charges.most(request)

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


def _room_given(asked: ChatRequest | EmbedRequest, sized: ChatRequest | EmbedRequest) -> int | None:
    """The room that a call has, where it stated none."""
    if isinstance(asked, EmbedRequest) or isinstance(sized, EmbedRequest):
        return None
    return sized.max_output_tokens if asked.max_output_tokens is None else None


def _without(held: Room, need: Room) -> Room:
    """What is held when that is not any more."""
    left = held - need
    return left if left.calls else Room()  # in floats, a + b - a - b need not be 0


def _left(limit: N | None, more: N) -> N | None:
    """What is left of a limit; None without one, or when nothing is."""
    return None if limit is None or limit + more <= 0 else limit + more


def token_prices(endpoints: Mapping[str, Endpoint]) -> dict[str, TokenPrice]:
    """What the settings say that tokens cost, by the endpoint's tag.

    One price of the two alone tells nothing: what it gives would pass for the whole.
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


def warn_of_no_price(limits: Limits, spent: Spent, *, casting: Casting, tracer: Tracer) -> None:
    """Says, once, that a limit to the cost was none, since no price was known."""
    if limits.max_cost_usd is None or spent.cost_usd is not None or not spent.unpriced_calls:
        return
    notice = Notice(
        code="limits.cost-unbounded",
        message=f"{limits.said('cost')} bounded nothing: no call's price is known; "
        "write usd_per_million_input_tokens and usd_per_million_output_tokens under "
        "the endpoints",
    )
    if notice not in casting.warnings:
        casting.warn(notice, tracer)
