"""The meter: reserves a call's highest use, counts it, refuses calls over a limit.

It is a tree of scopes, as Inspect AI's tree of limits is: a session and its tenants, a run, a
command that makes a part of it, loops. A call counts in the innermost scope that it is made in, and
in every scope around it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal, NamedTuple

from harness.errors import CallTimeout, ContextOverflow, LimitReached, RunLimitReached
from harness.inference.completion import Completion, Embeddings, Ranking
from harness.inference.endpoint import Endpoint
from harness.inference.health import was_connected, was_refused
from harness.inference.limits import FIELD_OF, LEAST_S, NOTHING, LimitName, Limits, Spent, refusal
from harness.inference.request import (
    ChatRequest,
    EmbedRequest,
    Request,
    most_prompt_tokens,
    most_tokens_in,
)
from harness.trace import Clock, Tracer, events

_QUIET_TURNS = 5  # of the event loop, until no more calls are expected just now
_AMPLE = 8_192
"""More tokens than almost any reply has. Servers refuse a room beyond their context, so a larger
share is not sent; and no more than this is reserved."""
_OF_USE = 256  # tokens, some 190 words. Where an equal share would be less, fewer calls go at once.
_PER_TEXT = 4  # tokens that an embedder adds to a text

Whose = Literal["session", "tenant", "run", "command", "loop"]
_RAISED_BY: dict[Whose, str] = {
    "session": "harness.open(limits=...)",
    "tenant": "harness.open(tenants=...)",
    "run": "limits= of the run or of its Pipeline, or [limits] in harness.toml",
}
"""Where a limit is set."""

_innermost: ContextVar[Meter | None] = ContextVar("harness_meter", default=None)
"""The scope that calls of this context are made in, of whatever run."""


@dataclass(kw_only=True, eq=False, repr=False)
class Meter:
    """Counts what the calls of a scope take, and refuses those beyond a limit.

    A call that would fit if less were under way waits for what that takes, first come first served:
    many calls at once cannot overrun a limit together, and none is refused for tokens that others
    reserved and did not need.

    A call reserves an estimate from above, and is settled with its server's count. Where that is
    more, the limit is overrun by the calls under way when it was reached, and no more. Every
    request counts: schema probes, retries and fallbacks too.
    """

    limits: Limits
    prices: Mapping[str, TokenPrice] = field(default_factory=dict)
    """By the endpoint's tag; they go before what a reply says that it cost."""
    clock: Clock
    began_ns: int
    tracer: Tracer
    before: Spent = NOTHING
    """What earlier parts of the run took."""
    whose: Whose = "run"
    title: str = ""
    around: Meter | None = None

    def __post_init__(self) -> None:
        around = self.around
        self.title = self.title or f"the {self.whose}"
        self._is_limited = self.limits != Limits()
        self.chain: tuple[Meter, ...] = (self, *(around.chain if around else ()))
        """This scope, and those around it."""
        self._charges: _Charges = around._charges if around else _Charges(self.prices)
        self._ended: asyncio.Event = around._ended if around else asyncio.Event()
        self._laps = self.before
        self._lap = NOTHING
        self._lap_began_ns = self.began_ns
        # What requests that are under way take at most.
        self._under_way = NOTHING
        # The same of calls that were admitted, and have sent nothing yet.
        self._awaited = NOTHING
        # And of calls that come later, for which the present ones leave room.
        self._kept = NOTHING
        # How many calls wait to be admitted.
        self._ready = 0
        # The call that has its turn is admitted next, or sent, as soon as there is room for it.
        self._turn = asyncio.Lock()
        self._turn_to_send = asyncio.Lock()

    def inside(self, limits: Limits, *, whose: Whose, title: str = "") -> Meter:
        """A scope in this one, whose time begins now; `title` is for messages."""
        return Meter(
            limits=limits,
            clock=self.clock,
            began_ns=self.clock(),
            tracer=self.tracer,
            whose=whose,
            title=title,
            around=self,
        )

    @contextmanager
    def loop(self, limits: Limits) -> Iterator[Meter]:
        """A scope in the innermost of this meter's that is open; has all calls of the block."""
        before = _innermost.get()
        inner = self._scope.inside(limits, whose="loop")
        _innermost.set(inner)  # for tasks that begin inside the block, too
        try:
            yield inner
        finally:
            _innermost.set(before)  # not by a token, which is valid only in its own context

    @asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[Admission]:
        """Begins when there is room for the call; ends with it, or when the time is over.

        Raises `LimitReached` if there is no room for it, or it was not waited for to its end:
        `RunLimitReached` for the limits of the run or the command.
        """
        scope = self._scope
        # 1. Wait for what is under way, if that may leave enough.
        scope._add(ready=1)
        try:
            sized, need = await scope._wait(request)
        finally:
            scope._add(ready=-1)
        # 2. No other call comes between the decision and this: there is no await.
        room = None
        # Another request: a limit has decided its room.
        if isinstance(sized, ChatRequest) and sized is not request:
            room = sized.max_output_tokens
        call = Admission(request=sized, scope=scope, need=need, room=room)
        scope._add(awaited=need)
        rest = scope.left("time")
        left_s = None if rest is None else rest.amount
        if left_s is not None:
            timeout_s = min(left_s, request.timeout_s or left_s)
            call.request = replace(call.request, timeout_s=timeout_s)
        try:
            # Waits for a place, a model that loads, further attempts: they all end here too.
            async with asyncio.timeout(left_s) as over:
                yield call
        except (TimeoutError, CallTimeout) as error:
            time_left = scope.left("time")
            is_over = time_left is not None and time_left.amount < LEAST_S
            if rest is None or not (over.expired() or is_over):
                raise
            message = f"{rest.limit} were over before '{request.model}' had answered"
            raise rest.scope._reached("time", message, need) from error
        finally:
            scope._add(awaited=-call.need)
            self._ended.set()

    @property
    def of_run(self) -> Meter:
        """The scope of the run that this one is in, or is."""
        return next(scope for scope in self.chain if scope.whose == "run")

    @property
    def spent(self) -> Spent:
        """The use so far, earlier parts included."""
        return self._laps + self._open_lap

    def lap(self) -> Spent:
        """The use since the last lap; begins another."""
        lap = self._open_lap
        self._laps += lap
        self._lap, self._lap_began_ns = NOTHING, self.clock()
        return lap

    def go_on_from(self, spent: Spent) -> None:
        """Adds the use of an earlier loop that this one continues."""
        self._laps += spent

    @contextmanager
    def holding(self, room: Spent) -> Iterator[None]:
        """Inside the block, keeps room for calls that come after it."""
        self._kept += room
        try:
            yield
        finally:
            self._kept += -room

    def left(self, limit: LimitName) -> Rest | None:
        """The least that this scope and those around it have left of a limit; None without one."""
        rests = list[Rest]()
        for scope, reserve in self._limited():
            amount = scope.limits.left(limit, scope.spent + reserve)
            if amount is not None:
                whose = "" if scope is self else f"{scope.title}'s "
                rests.append(Rest(amount, whose + scope.limits.said(limit), scope))
        return min(rests, key=lambda rest: rest.amount, default=None)

    def check_room(self, tokens: int, *, what: str) -> None:
        """Raises `LimitReached` unless calls that need each other, `what`, fit together."""
        rest = self.left("tokens")
        if rest is not None and tokens > rest.amount:
            enough = (rest.scope.limits.max_tokens or 0) + tokens - rest.amount
            message = (
                f"{what} may take {tokens} tokens, and of {rest.limit} there are {rest.amount} "
                f"left; max_tokens = {enough} has room"
            )
            raise rest.scope._reached("tokens", message, Spent(input_tokens=tokens))

    @property
    def _scope(self) -> Meter:
        """The innermost open scope of this meter."""
        inner = _innermost.get()
        return inner if inner is not None and self in inner.chain else self

    @property
    def _open_lap(self) -> Spent:
        return replace(self._lap, time_ns=self.clock() - self._lap_began_ns)

    async def _wait(
        self, request: Request, *, call: Admission | None = None
    ) -> tuple[Request, Spent]:
        """The request with the room for its reply, and its highest use, once that fits.

        `call` is None for one that is not admitted yet.
        """
        sized, need = self._sized(request, call)
        turns = [scope._turn if call is None else scope._turn_to_send for scope in self.chain]
        # A turn that is taken: others wait, and come first.
        is_late = any(turn.locked() for turn in turns) or not self._fits(sized, need, call)
        if not is_late and not self._is_shared(request):
            return sized, need
        async with AsyncExitStack() as stack:
            if is_late:
                stack.enter_context(self.tracer.span(events.WaitForRoom()))
            # A call that waits for room in a loop keeps none waiting that are outside it.
            for inner, turn in enumerate(turns, start=1):
                await stack.enter_async_context(turn)
                if inner == len(turns):
                    await self._gathered(request)
                sized, need = self._sized(request, call)
                while not self._fits(sized, need, call, among=inner):
                    self._ended.clear()
                    await self._ended.wait()
                    sized, need = self._sized(request, call)
        return sized, need

    def _fits(
        self, request: Request, need: Spent, call: Admission | None, *, among: int | None = None
    ) -> bool:
        """Whether there is room now, in so many of the scopes, this one first.

        Raises `LimitReached` if there would not be even with nothing under way.
        """
        fits = True
        for scope, reserve in self._limited(among):
            used = scope.spent + reserve
            # Refused beside what is under way, it waits; refused without it, it never fits.
            for busy in (used + scope._held(call), used):
                refused = refusal(scope.limits, model=request.model, need=need, used=busy)
                fits = fits and not refused
                if refused is None:
                    break
            else:
                assert refused is not None
                raise scope._reached(*refused, need)
        return fits

    def _sized(self, request: Request, call: Admission | None) -> tuple[Request, Spent]:
        """The request with the present room for its reply, and its highest use."""
        charges, granted = self._charges, None if call is None else call.room
        # A room that its caller stated stays; one that a limit gave is computed anew.
        if isinstance(request, ChatRequest) and request.max_output_tokens in (None, granted):
            rooms = [] if granted is None else [granted]
            for scope, reserve in self._limited():
                room = charges.room(
                    request,
                    tokens=scope.limits.left("tokens", scope.spent + reserve),
                    usd=scope.limits.left("cost", scope.spent + reserve),
                    among=max(1, scope._ready) if granted is None else 1,
                    beside=scope._held(call),
                )
                rooms += [] if room is None else [room]
            request = charges.within_context(request, min(rooms, default=None))
        return request, charges.most(request)

    def _is_shared(self, request: Request) -> bool:
        """Whether the room for a call's reply is a share of what is left of a limit."""
        if isinstance(request, EmbedRequest) or request.max_output_tokens:
            return False
        return bool(self.left("tokens") or self.left("cost"))

    async def _gathered(self, request: Request) -> None:
        """Returns when all imminent calls wait here, if they share the rest of a limit."""
        if not self._is_shared(request):
            return
        ready, quiet = self._ready, 0
        # Nodes that begin together ask within a few turns of the event loop.
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            ready, quiet = self._ready, quiet + 1 if ready == self._ready else 0

    def _limited(self, among: int | None = None) -> list[tuple[Meter, Spent]]:
        """The innermost `among` scopes that have limits, and what a call must leave in each."""
        reserve = accumulate(scope._kept for scope in self.chain)
        scopes = zip(self.chain[:among], reserve, strict=False)
        return [(scope, reserve) for scope, reserve in scopes if scope._is_limited]

    def _held(self, call: Admission | None) -> Spent:
        """What calls take at most that this one waits for."""
        # One that was admitted does not wait for others that were: they may wait for it, as for a
        # probe of the model that they ask, too.
        return self._under_way if call else self._under_way + self._awaited

    def _add(
        self,
        *,
        ready: int = 0,
        awaited: Spent = NOTHING,
        under_way: Spent = NOTHING,
        taken: Spent = NOTHING,
    ) -> None:
        """Counts it here and in all scopes around."""
        for scope in self.chain:
            scope._ready += ready
            scope._lap += taken
            # In floats, a + b - a - b need not be 0.
            scope._awaited += awaited
            scope._awaited = scope._awaited if scope._awaited.calls else NOTHING
            scope._under_way += under_way
            scope._under_way = scope._under_way if scope._under_way.calls else NOTHING

    def _reached(self, limit: LimitName, message: str, need: Spent) -> LimitReached:
        field = FIELD_OF[limit]
        if self.whose == "loop":
            return LimitReached(message, limit=limit)
        if self.whose == "command":
            option = f"--{field.replace('_', '-')}"
            message = f"{message} ({option}); the next command has a limit of its own"
        else:
            enough: dict[LimitName, str] = {
                "tokens": f"at least {self.spent.tokens + need.tokens}",
                "calls": f"at least {self.spent.calls + need.calls}",
            }
            message += (
                f"; to go on it needs {field} to be {enough.get(limit, 'more')} "
                f"({_RAISED_BY[self.whose]})"
            )
        return RunLimitReached(f"{self.title} is at its limit: {message}", limit=limit)


class Rest(NamedTuple):
    """What is left of a limit, by a message's name of it: `the run's max_tokens = 4000`."""

    amount: float
    limit: str
    scope: Meter


@dataclass(slots=True, kw_only=True)
class Admission:
    """A call that the meter let in."""

    request: Request
    """The call, with the room that a limit gave it if it stated none."""
    scope: Meter
    """The innermost that it is made in."""
    need: Spent
    """The reserved use; nothing once it has sent a request."""
    room: int | None
    """For its reply, if a limit decided that."""

    @asynccontextmanager
    async def sending(self, request: Request) -> AsyncIterator[Sending]:
        """Around one request of the call, which needs room too; raises as `admitted`."""
        scope, charges = self.scope, self.scope._charges
        # From its first request on, each request reserves for itself.
        scope._add(awaited=-self.need)
        self.need = NOTHING
        request, need = await scope._wait(request, call=self)
        scope._add(under_way=need)
        sending = Sending(request)
        try:
            yield sending
            if sending.answer is not None:
                scope._add(taken=charges.taken(request, sending.answer))
        except BaseException as error:
            if sending.has_left and was_connected(error):
                scope._add(taken=charges.lost(request, error, pieces=sending.pieces))
            raise
        finally:
            scope._add(under_way=-need)
            scope._ended.set()

    def has_less_room(self, error: ContextOverflow) -> bool:
        """Whether the call gets less room if it is repeated: a limit gave it more than there is."""
        # A room that the caller stated is not changed.
        if self.room is None or error.context_tokens is None:
            return False
        return self.scope._charges.learn_context(self.request, error.context_tokens) < self.room

    def cut(self, reply: Completion) -> Completion:
        """The reply, with the limit of the run that decided where it was cut, if one did."""
        scope, is_cut = self.scope, reply.finish_reason == "length" and self.room is not None
        if not is_cut or scope.whose == "loop" or scope._charges.is_full(self.request):
            return reply
        return replace(reply, cut_by="tokens" if scope.left("tokens") else "cost")


@dataclass(slots=True)
class Sending:
    """One request; its sender says when it has left, counts pieces, and sets the answer."""

    request: Request
    has_left: bool = False
    answer: Completion | Embeddings | Ranking | None = None
    pieces: int = 0


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


class _Charges:
    """Computes the use of calls; uncounted tokens get a high estimate from their length."""

    def __init__(self, prices: Mapping[str, TokenPrice]) -> None:
        self._prices = dict(prices)
        # By the endpoint's tag: how many times the estimate a prompt was, by the server's count.
        self._longer: dict[str, float] = {}
        # Likewise: the model's context, where a call that was given its room has overrun it.
        self._contexts: dict[str, int] = {}

    def most(self, request: Request) -> Spent:
        prompt_tokens = self._most_asked(request)
        written = (request.max_output_tokens or _AMPLE) if isinstance(request, ChatRequest) else 0
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
        """The room for a reply that states none: its share of what is left; None if unlimited."""
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
        return max(1, int(max(shared, min(alone, _OF_USE))))

    def within_context(self, request: ChatRequest, room: int | None) -> ChatRequest:
        """The call with this room, or what its model's context has beside the prompt."""
        if room is None:
            return request
        prompt_tokens = self._most_asked(request)
        if self._contexts.get(request.model, math.inf) < prompt_tokens + room:
            room = max(1, self._contexts[request.model] - prompt_tokens)
        # An ample room stays unstated: it is what the model's context leaves.
        return request if room > _AMPLE else replace(request, max_output_tokens=room)

    def is_full(self, request: Request) -> bool:
        """Whether a call has all the room that its model's context leaves, as far as is known."""
        context = self._contexts.get(request.model)
        return context is not None and self.most(request).tokens >= context

    def learn_context(self, request: Request, context_tokens: int) -> int:
        """Keeps the size of a model's context; the room that it has beside this call's prompt."""
        self._contexts[request.model] = context_tokens
        return max(1, context_tokens - self._most_asked(request))

    def taken(self, request: Request, answer: Completion | Embeddings | Ranking) -> Spent:
        estimated = _most_input_tokens(request)
        if isinstance(answer, Completion):
            usage, endpoint = answer.usage, answer.endpoint
            counted = None if usage is None else usage.input_tokens
            written = answer.text + answer.reasoning
            answered = most_tokens_in(written) if usage is None else usage.output_tokens
            reported_usd = answer.cost_usd
        else:
            counted, answered, endpoint, reported_usd = answer.input_tokens, 0, None, None
        prompt_tokens = estimated if counted is None else counted
        # Later prompts are taken to be as much longer than their estimate as any was.
        longest = max(self._longer.get(request.model, 1.0), prompt_tokens / estimated)
        self._longer[request.model] = longest
        # Of a stand-in's reply, the stand-in's price.
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
    beside = _PER_TEXT + most_tokens_in(getattr(request, "query", ""))
    return sum(most_tokens_in(text) + beside for text in request.texts)


def token_prices(endpoints: Mapping[str, Endpoint]) -> dict[str, TokenPrice]:
    """The prices in the settings, by the endpoint's tag."""
    # One of the two prices alone is ignored: its sum would pass for the whole.
    return {
        tag: TokenPrice(usd_per_million_input_tokens=read, usd_per_million_output_tokens=written)
        for tag, endpoint in endpoints.items()
        if (read := endpoint.usd_per_million_input_tokens) is not None
        and (written := endpoint.usd_per_million_output_tokens) is not None
    }
