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
from harness.trace import Clock, Tracer, events, monotonic

_QUIET_TURNS = 5  # so many turns of the event loop without a further call end a wait for more

Whose = Literal["session", "tenant", "run", "command", "loop"]
# The scope that has a limit → where the limit is set.
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

    A call reserves an estimate from above, and is settled with its server's count. One that would
    fit without the calls under way waits for them, first come first served. So many calls at once
    cannot overrun a limit together, and none is refused for tokens that others reserved and did not
    need. If a server counts more than was reserved, the limit is overrun by the calls that were
    under way when it was reached, and no more. Schema probes, retries and fallbacks count too.
    """

    limits: Limits
    # By the endpoint's tag. A price decides the cost of a reply, whatever the reply reports.
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
        # This scope, and those around it, the innermost first.
        self.chain: tuple[Meter, ...] = (self, *(around.chain if around else ()))
        self._charges: Charges = around._charges if around else Charges(self.prices)
        self._ended: asyncio.Event = around._ended if around else asyncio.Event()
        self._ended_laps = self.before
        self._lap = NOTHING  # the use since the last call of `lap`, without its time
        self._lap_began_ns = self.began_ns
        # Reserved for the requests under way, for calls that were admitted and have sent nothing
        # yet, and for calls that come later, for which the present ones leave room.
        self._under_way = self._admitted = self._kept_free = NOTHING
        self._asking = 0  # how many calls wait to be admitted
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
        """Opens a scope for all calls of the block, in the innermost scope that is open here."""
        before = _innermost.get()
        inner = self._scope.inside(limits, whose="loop")
        _innermost.set(inner)  # for tasks that begin inside the block, too
        try:
            yield inner
        finally:
            _innermost.set(before)  # not by a token, which is valid only in its own context

    @asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[Admission]:
        """Waits for room for the call, which is made in the block.

        Raises `LimitReached` if there is no room for it, or if the time is over before it ends:
        `RunLimitReached` for the limits of the run or the command.
        """
        scope = self._scope
        # 1. Wait for the calls under way, if they may leave enough.
        for outer in scope.chain:
            outer._asking += 1
        try:
            sized, need = await scope._wait_for_room(request)
        finally:
            for outer in scope.chain:
                outer._asking -= 1
        # 2. Reserve. There is no await since the decision, so no other call comes between.
        is_stated = isinstance(request, ChatRequest) and request.max_output_tokens is not None
        # A room that the caller did not state was decided by a limit.
        room = sized.max_output_tokens if isinstance(sized, ChatRequest) and not is_stated else None
        call = Admission(request=sized, scope=scope, need=need, room=room)
        scope._add(admitted=need)
        # 3. The time that is left limits all that the call does from now on.
        rest = scope.left("time")
        left_s = None if rest is None else rest.amount
        if left_s is not None:
            timeout_s = min(left_s, request.timeout_s or left_s)
            call.request = replace(call.request, timeout_s=timeout_s)
        try:
            # This also ends waits for a place and for a model that loads, and further attempts.
            async with asyncio.timeout(left_s) as over:
                yield call
        except (TimeoutError, CallTimeout) as error:
            time_left = scope.left("time")
            # A call's own time limit may strike just before ours.
            is_over = time_left is not None and time_left.amount < LEAST_S
            ran_out = over.expired() or is_over
            if rest is None or not ran_out:
                raise
            message = f"{rest.limit} were over before '{request.model}' had answered"
            raise rest.scope._reached("time", message, need) from error
        finally:
            scope._add(admitted=-call.need)
            self._ended.set()

    @property
    def of_run(self) -> Meter:
        """The scope of the run that this one is in, or is."""
        return next(scope for scope in self.chain if scope.whose == "run")

    @property
    def spent(self) -> Spent:
        """The use so far, earlier parts included."""
        return self._ended_laps + self._open_lap

    def lap(self) -> Spent:
        """Ends the lap and returns its use; the next lap begins."""
        lap = self._open_lap
        self._ended_laps += lap
        self._lap = NOTHING
        self._lap_began_ns = self.clock()
        return lap

    def go_on_from(self, spent: Spent) -> None:
        """Adds the use of an earlier loop that this one continues."""
        self._ended_laps += spent

    @contextmanager
    def holding(self, room: Spent) -> Iterator[None]:
        """Inside the block, keeps room for calls that come after it."""
        self._kept_free += room
        try:
            yield
        finally:
            self._kept_free += -room

    def left(self, limit: LimitName) -> Rest | None:
        """What this scope and those around it have left of a limit, at least; None without one."""
        rests = list[Rest]()
        for scope, spent in self._limited():
            amount = scope.limits.left(limit, spent)
            if amount is not None:
                whose = "" if scope is self else f"{scope.title}'s "
                rests.append(Rest(amount, whose + scope.limits.said(limit), scope))
        return min(rests, key=lambda rest: rest.amount, default=None)

    def check_room(self, tokens: int, *, what: str) -> None:
        """Raises `LimitReached` if `what`, calls that need each other, may take too many tokens."""
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
        """The innermost scope that is open in this one; itself if there is none."""
        inner = _innermost.get()
        return inner if inner is not None and self in inner.chain else self

    @property
    def _open_lap(self) -> Spent:
        return replace(self._lap, time_ns=self.clock() - self._lap_began_ns)

    async def _wait_for_room(
        self, request: Request, *, call: Admission | None = None
    ) -> tuple[Request, Spent]:
        """The request with the room for its reply, and its highest use, once that fits.

        Without a `call`, the request is to be admitted; with one, to be sent.
        """
        # 1. It goes at once if it fits and its room is no share that depends on other calls.
        sized, need = self._sized(request, call)
        turns = [scope._turn if call is None else scope._turn_to_send for scope in self.chain]
        # Calls that have a turn already wait, and come first.
        is_late = any(turn.locked() for turn in turns) or not self._fits(sized, need, call)
        if not is_late and not self._is_shared(request):
            return sized, need
        # 2. Else it waits for its turn in each scope, from the innermost outwards: a call that
        #    waits for room in a loop must not keep calls outside the loop waiting.
        async with AsyncExitStack() as stack:
            if is_late:
                stack.enter_context(self.tracer.span(events.WaitForRoom()))
            for innermost, turn in enumerate(turns, start=1):
                await stack.enter_async_context(turn)
                if innermost == len(turns) and self._is_shared(request):
                    await self._wait_for_imminent_calls()
                sized, need = self._sized(request, call)
                while not self._fits(sized, need, call, innermost=innermost):
                    self._ended.clear()
                    await self._ended.wait()
                    sized, need = self._sized(request, call)
        return sized, need

    def _fits(
        self, request: Request, need: Spent, call: Admission | None, *, innermost: int | None = None
    ) -> bool:
        """Whether the `innermost` scopes have room now; raises `LimitReached` if one never has."""
        fits = True
        for scope, spent in self._limited(innermost):
            limits, model = scope.limits, request.model
            if refusal(limits, model=model, need=need, used=spent + scope._reserved_before(call)):
                fits = False
                # Without the calls that it waits for, it may be refused as well: it never fits.
                never = refusal(limits, model=model, need=need, used=spent)
                if never is not None:
                    raise scope._reached(*never, need)
        return fits

    def _sized(self, request: Request, call: Admission | None) -> tuple[Request, Spent]:
        """The request with the present room for its reply, and its highest use."""
        charges, granted = self._charges, None if call is None else call.room
        # A room that the caller stated stays; one that a limit gave is computed again.
        if isinstance(request, ChatRequest) and request.max_output_tokens in (None, granted):
            rooms = [] if granted is None else [granted]
            for scope, spent in self._limited():
                room = charges.room(
                    request,
                    tokens=scope.limits.left("tokens", spent),
                    usd=scope.limits.left("cost", spent),
                    among=max(1, scope._asking) if granted is None else 1,
                    beside=scope._reserved_before(call),
                )
                if room is not None:
                    rooms.append(room)
            request = charges.within_context(request, min(rooms, default=None))
        return request, charges.most(request)

    def _is_shared(self, request: Request) -> bool:
        """Whether the room for a call's reply is a share of what is left of a limit."""
        if isinstance(request, EmbedRequest) or request.max_output_tokens:
            return False
        return bool(self.left("tokens") or self.left("cost"))

    async def _wait_for_imminent_calls(self) -> None:
        # Nodes that begin together make their calls within a few turns of the event loop. Those
        # share what is left of a limit in equal parts.
        quiet_turns = 0
        while quiet_turns < _QUIET_TURNS:
            asking = self._asking
            await asyncio.sleep(0)
            quiet_turns = quiet_turns + 1 if asking == self._asking else 0

    def _limited(self, innermost: int | None = None) -> list[tuple[Meter, Spent]]:
        """The `innermost` scopes, or all, that have limits; each with its use and the kept room."""
        # Room that an inner scope keeps for later calls is kept in those around it, too.
        kept_free = accumulate(scope._kept_free for scope in self.chain)
        scopes = zip(self.chain[:innermost], kept_free, strict=False)
        return [(scope, scope.spent + kept) for scope, kept in scopes if scope._is_limited]

    def _reserved_before(self, call: Admission | None) -> Spent:
        """The reservations of the calls that a call waits for."""
        # An admitted call does not wait for other admitted calls: they may wait for it, as for a
        # probe of the model that they ask, too.
        return self._under_way if call else self._under_way + self._admitted

    def _add(
        self, *, admitted: Spent = NOTHING, under_way: Spent = NOTHING, taken: Spent = NOTHING
    ) -> None:
        for scope in self.chain:
            scope._lap += taken
            scope._admitted = _sum(scope._admitted, admitted)
            scope._under_way = _sum(scope._under_way, under_way)

    def _reached(self, limit: LimitName, message: str, need: Spent) -> LimitReached:
        """The error of this scope's limit, which says how high a limit the call needs."""
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


def unlimited() -> Meter:
    """A meter without limits, for calls outside of runs and sessions."""
    return Meter(limits=Limits(), clock=monotonic, began_ns=monotonic(), tracer=Tracer())


def _sum(reserved: Spent, change: Spent) -> Spent:
    total = reserved + change
    # In floats, a + b - a - b need not be 0. Without calls, nothing is reserved.
    return total if total.calls else NOTHING


class Rest(NamedTuple):
    """What is left of a limit of a scope."""

    amount: float
    limit: str  # the limit as messages name it: `the run's max_tokens = 4000`
    scope: Meter


@dataclass(slots=True, kw_only=True)
class Admission:
    """A call that the meter let in."""

    request: Request  # the call, with the room that a limit gave it if it stated none
    scope: Meter  # the innermost scope that it is made in
    need: Spent  # the reserved use; `NOTHING` once it has sent a request
    room: int | None  # the room for its reply, if a limit decided that

    @asynccontextmanager
    async def sending(self, request: Request) -> AsyncIterator[Sending]:
        """Waits for room for one request of the call, sent in the block; raises as `admitted`."""
        scope, charges = self.scope, self.scope._charges
        # From its first request on, each request reserves for itself.
        scope._add(admitted=-self.need)
        self.need = NOTHING
        request, need = await scope._wait_for_room(request, call=self)
        scope._add(under_way=need)
        sending = Sending(request)
        try:
            yield sending
            if sending.answer is not None:
                scope._add(taken=charges.taken(request, sending.answer))
        except BaseException as error:
            if sending.has_left and was_connected(error):
                scope._add(taken=charges.taken_by_failure(request, error, pieces=sending.pieces))
            raise
        finally:
            scope._add(under_way=-need)
            scope._ended.set()

    def has_less_room(self, error: ContextOverflow) -> bool:
        """Notes the context of the model that refused the call; True if the room gets smaller."""
        # A room that the caller stated is not changed.
        if self.room is None or error.context_tokens is None:
            return False
        return self.scope._charges.learn_context(self.request, error.context_tokens) < self.room

    def cut(self, reply: Completion) -> Completion:
        """The reply, with the limit of the run that decided where it was cut, if one did."""
        scope = self.scope
        is_cut = reply.finish_reason == "length" and self.room is not None
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
