"""The meter: reserves a call's highest use, counts it, refuses calls over a limit.

It is a tree of scopes, as Inspect AI's tree of limits is: a session and its tenants, a run, a
command that makes a part of it, loops. A call counts in the innermost scope that it is made in, and
in every scope around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal, NamedTuple

from harness.errors import CallTimeout, ContextOverflow, LimitReached, RunLimitReached
from harness.inference.charges import Charges, TokenPrice
from harness.inference.completion import Completion, Embeddings, Ranking
from harness.inference.health import was_connected
from harness.inference.limits import FIELD_OF, LEAST_S, NOTHING, LimitName, Limits, Spent, refusal
from harness.inference.request import ChatRequest, EmbedRequest, Request
from harness.trace import Clock, Tracer, events

_QUIET_TURNS = 5  # of the event loop, until no more calls are expected just now

Whose = Literal["session", "tenant", "run", "command", "loop"]
# Where a limit is set.
_RAISED_BY: dict[Whose, str] = {
    "session": "harness.open(limits=...)",
    "tenant": "harness.open(tenants=...)",
    "run": "limits= of the run or of its Pipeline, or [limits] in harness.toml",
}

# The scope that calls of this context are made in, of whatever run.
_innermost: ContextVar[Meter | None] = ContextVar("harness_meter", default=None)


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
    # By the endpoint's tag; they go before what a reply says that it cost.
    prices: Mapping[str, TokenPrice] = field(default_factory=dict)
    clock: Clock
    began_ns: int
    tracer: Tracer
    before: Spent = NOTHING  # what earlier parts of the run took
    whose: Whose = "run"
    title: str = ""
    around: Meter | None = None

    def __post_init__(self) -> None:
        around = self.around
        self.title = self.title or f"the {self.whose}"
        self._is_limited = self.limits != Limits()
        # This scope, and those around it.
        self.chain: tuple[Meter, ...] = (self, *(around.chain if around else ()))
        self._charges: Charges = around._charges if around else Charges(self.prices)
        self._ended: asyncio.Event = around._ended if around else asyncio.Event()
        self._laps = self.before
        self._lap = NOTHING
        self._lap_began_ns = self.began_ns
        # The most that the requests under way may take.
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
        for outer in scope.chain:
            outer._ready += 1
        try:
            sized, need = await scope._wait(request)
        finally:
            for outer in scope.chain:
                outer._ready -= 1
        # 2. Reserve. No other call comes between the decision and this: there is no await.
        room = None
        # Another request: a limit has decided its room.
        if isinstance(sized, ChatRequest) and sized is not request:
            room = sized.max_output_tokens
        call = Admission(request=sized, scope=scope, need=need, room=room)
        scope._add(awaited=need)
        # 3. The time that is left limits all that the call does from now on.
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
        """The request with the room for its reply, and its highest use, once that fits."""
        # 1. At once, if it fits and its room is no share that depends on other calls. Without a
        #    `call`, it is not admitted yet.
        sized, need = self._sized(request, call)
        turns = [scope._turn if call is None else scope._turn_to_send for scope in self.chain]
        # A turn that is taken: others wait, and come first.
        is_late = any(turn.locked() for turn in turns) or not self._fits(sized, need, call)
        if not is_late and not self._is_shared(request):
            return sized, need
        # 2. Else in line at each scope, from the innermost outwards: a call that waits for room in
        #    a loop keeps none waiting that are outside it.
        async with AsyncExitStack() as stack:
            if is_late:
                stack.enter_context(self.tracer.span(events.WaitForRoom()))
            for scopes, turn in enumerate(turns, start=1):
                await stack.enter_async_context(turn)
                if scopes == len(turns):
                    await self._gathered(request)
                sized, need = self._sized(request, call)
                while not self._fits(sized, need, call, among=scopes):
                    self._ended.clear()
                    await self._ended.wait()
                    sized, need = self._sized(request, call)
        return sized, need

    def _fits(
        self, request: Request, need: Spent, call: Admission | None, *, among: int | None = None
    ) -> bool:
        """Whether there is room now, in so many of the scopes; raises `LimitReached` if never."""
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
        # Nodes that begin together ask within a few turns of the event loop.
        quiet_turns = 0
        while quiet_turns < _QUIET_TURNS:
            ready = self._ready
            await asyncio.sleep(0)
            quiet_turns = quiet_turns + 1 if ready == self._ready else 0

    def _limited(self, among: int | None = None) -> list[tuple[Meter, Spent]]:
        """The innermost `among` scopes that have limits, and what a call must leave in each."""
        reserve = accumulate(scope._kept for scope in self.chain)
        scopes = zip(self.chain[:among], reserve, strict=False)
        return [(scope, reserve) for scope, reserve in scopes if scope._is_limited]

    def _held(self, call: Admission | None) -> Spent:
        """The most that the calls take that this one waits for."""
        # An admitted call does not wait for other admitted calls: they may wait for it, as for a
        # probe of the model that they ask, too.
        return self._under_way if call else self._under_way + self._awaited

    def _add(
        self, *, awaited: Spent = NOTHING, under_way: Spent = NOTHING, taken: Spent = NOTHING
    ) -> None:
        for scope in self.chain:
            scope._lap += taken
            scope._awaited = _sum(scope._awaited, awaited)
            scope._under_way = _sum(scope._under_way, under_way)

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


def _sum(reserved: Spent, change: Spent) -> Spent:
    total = reserved + change
    # In floats, a + b - a - b need not be 0.
    return total if total.calls else NOTHING


class Rest(NamedTuple):
    """What is left of a limit, by a message's name of it: `the run's max_tokens = 4000`."""

    amount: float
    limit: str
    scope: Meter


@dataclass(slots=True, kw_only=True)
class Admission:
    """A call that the meter let in."""

    request: Request  # the call, with the room that a limit gave it if it stated none
    scope: Meter  # the innermost that it is made in
    need: Spent  # the reserved use; nothing once it has sent a request
    room: int | None  # for its reply, if a limit decided that

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
