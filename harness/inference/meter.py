"""The meter: reserves a call's highest use, counts it, refuses calls over a limit.

It is a tree of scopes, as Inspect AI's tree of limits is: a session and its tenants, a run, a
command that makes a part of it, loops. A call counts in the innermost scope that it is made in, and
in every scope around it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeGuard

from harness.errors import CallTimeout, ContextOverflow, LimitReached, RunLimitReached
from harness.inference.charges import Charges
from harness.inference.completion import Completion, Embeddings, Ranking
from harness.inference.endpoint import Endpoint
from harness.inference.health import was_connected
from harness.inference.limits import FIELD_OF, LEAST_S, NOTHING, LimitName, Limits, Spent, refusal
from harness.inference.request import ChatRequest, Request
from harness.trace import Tracer, events

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
    # By tag. A price decides the cost of a reply, whatever the reply reports.
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    tracer: Tracer
    began_ns: int | None = None  # on the tracer's clock; None for now
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
        self._charges: Charges = around._charges if around else Charges(self.endpoints)
        self._ended: asyncio.Event = around._ended if around else asyncio.Event()
        self._ended_laps = self.before
        self._lap = NOTHING  # the use since the last call of `lap`, without its time
        self._lap_began_ns = self.tracer.now_ns() if self.began_ns is None else self.began_ns
        # For requests that have their room, and for later ones, for which the present leave room.
        self._reserved = self._kept_free = NOTHING
        self._asking = 0  # how many requests wait for room
        # The request that has its turn is sent next, as soon as there is room for it.
        self._turn = asyncio.Lock()

    def inside(self, limits: Limits, *, whose: Whose, title: str = "") -> Meter:
        """A scope in this one, whose time begins now; `title` is for messages."""
        return Meter(limits=limits, tracer=self.tracer, whose=whose, title=title, around=self)

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
    async def in_time(self, request: Request) -> AsyncIterator[Request]:
        """The call, made in the block, with the time that is left as its time limit.

        Raises `LimitReached` if the time is over before the block ends, `RunLimitReached` for a
        limit of the run or the command, as `sending` does.
        """
        scope = self._scope
        rest = scope.left("time")
        if rest is None:
            yield request
            return
        left_s = rest.amount
        if left_s < LEAST_S:
            message = f"time limit reached ({rest.limit}); '{request.model}' was not called"
            raise rest.scope._reached("time", message)
        try:
            # This also ends waits for room, for a place and for a model that loads.
            async with asyncio.timeout(left_s) as over:
                yield replace(request, timeout_s=min(left_s, request.timeout_s or left_s))
        except (TimeoutError, CallTimeout) as error:
            time_left = scope.left("time")
            # A call's own time limit may strike just before ours.
            is_over = time_left is not None and time_left.amount < LEAST_S
            if not (over.expired() or is_over):
                raise
            message = f"{rest.limit} were over before '{request.model}' had answered"
            raise rest.scope._reached("time", message) from error

    @asynccontextmanager
    async def sending(self, request: Request) -> AsyncIterator[Sending]:
        """Waits for room for one request of a call, which is sent in the block.

        Raises `LimitReached` if there will be no room for it.
        """
        scope, charges = self._scope, self._charges
        # 1. Wait for the requests under way, if they may leave enough.
        for outer in scope.chain:
            outer._asking += 1
        try:
            sized, need = await scope._wait_for_room(request)
        finally:
            for outer in scope.chain:
                outer._asking -= 1
        # 2. Reserve. There is no await since the decision, so no other request comes between.
        scope._add(reserved=need)
        room = None
        if isinstance(sized, ChatRequest) and sized is not request:
            room = sized.max_output_tokens
        sending = Sending(request=sized, scope=scope, need=need, room=room)
        try:
            yield sending
            if sending.answer is not None:
                scope._add(taken=charges.taken(sized, sending.answer))
        except BaseException as error:
            if sending.has_left and was_connected(error):
                scope._add(taken=charges.taken_by_failure(sized, error, pieces=sending.pieces))
            raise
        finally:
            sending.release()

    def check(self, request: Request) -> None:
        """Raises as `sending` does: before a call that never fits has probes sent for it."""
        self._scope._fits(*self._scope._sized(request))

    def leaves_less(self, room: int | None, request: Request, error: ContextOverflow) -> bool:
        """Notes the context that a request exceeds; whether it has less than a limit's `room`."""
        # A room that the caller stated is not changed.
        if room is None or error.context_tokens is None:
            return False
        return self._charges.learn_context(request, error.context_tokens) < room

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
        self._lap_began_ns = self.tracer.now_ns()
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
                f"{what} may take {tokens} tokens, and of {rest.limit} there are "
                f"{max(rest.amount, 0):.0f} left; max_tokens = {enough} has room"
            )
            raise rest.scope._reached("tokens", message, Spent(input_tokens=tokens))

    @property
    def _scope(self) -> Meter:
        """The innermost scope that is open in this one; itself if there is none."""
        inner = _innermost.get()
        return inner if inner is not None and self in inner.chain else self

    @property
    def _open_lap(self) -> Spent:
        return replace(self._lap, time_ns=self.tracer.now_ns() - self._lap_began_ns)

    async def _wait_for_room(self, request: Request) -> tuple[Request, Spent]:
        """The request with the room for its reply, and its highest use, once that fits."""
        # 1. It goes at once if it fits and its room is no share that depends on other requests.
        sized, need = self._sized(request)
        is_shared = _leaves_room_open(request) and bool(self.left("tokens") or self.left("cost"))
        # Requests that have a turn already wait, and come first.
        is_late = any(scope._turn.locked() for scope in self.chain) or not self._fits(sized, need)
        if not is_late and not is_shared:
            return sized, need
        # 2. Else it waits for its turn in each scope, from the innermost outwards: a request that
        #    waits for room in a loop must not keep those outside the loop waiting.
        async with AsyncExitStack() as stack:
            if is_late:
                stack.enter_context(self.tracer.span(events.WaitForRoom()))
            for innermost, scope in enumerate(self.chain, start=1):
                await stack.enter_async_context(scope._turn)
                if innermost == len(self.chain) and is_shared:
                    await self._wait_for_imminent_requests()
                sized, need = self._sized(request)
                while not self._fits(sized, need, innermost=innermost):
                    self._ended.clear()
                    await self._ended.wait()
                    sized, need = self._sized(request)
        return sized, need

    def _fits(self, request: Request, need: Spent, *, innermost: int | None = None) -> bool:
        """Whether the `innermost` scopes have room now; raises `LimitReached` if one never has."""
        fits = True
        for scope, spent in self._limited(innermost):
            limits, model = scope.limits, request.model
            if refusal(limits, model=model, need=need, used=spent + scope._reserved):
                fits = False
                # Without the requests that it waits for, it may be refused as well: it never fits.
                never = refusal(limits, model=model, need=need, used=spent)
                if never is not None:
                    raise scope._reached(*never, need)
        return fits

    def _sized(self, request: Request) -> tuple[Request, Spent]:
        """The request with the present room for its reply, and its highest use."""
        charges = self._charges
        if _leaves_room_open(request):
            rooms = []
            for scope, spent in self._limited():
                room = charges.room(
                    request,
                    tokens=scope.limits.left("tokens", spent),
                    usd=scope.limits.left("cost", spent),
                    among=max(1, scope._asking),
                    beside=scope._reserved,
                )
                if room is not None:
                    rooms.append(room)
            request = charges.within_context(request, min(rooms, default=None))
        return request, charges.most(request)

    async def _wait_for_imminent_requests(self) -> None:
        # Nodes that begin together call within a few turns of the loop, and share what is left.
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

    def _add(self, *, reserved: Spent = NOTHING, taken: Spent = NOTHING) -> None:
        for scope in self.chain:
            scope._lap += taken
            total = scope._reserved + reserved
            # In floats, a + b - a - b need not be 0. Without requests, nothing is reserved.
            scope._reserved = total if total.calls else NOTHING

    def _reached(self, limit: LimitName, message: str, need: Spent = NOTHING) -> LimitReached:
        """The error of this scope's limit, which says how high a limit the call needs."""
        field = FIELD_OF[limit]
        if self.whose == "loop":
            return LimitReached(message, limit=limit)
        option = f"--{field.replace('_', '-')}"
        is_command = self.whose == "command"
        whole = need if is_command else self.spent + need  # what the next command has to have
        enough = {"tokens": f"at least {whole.tokens}", "calls": f"at least {whole.calls}"}
        if need.cost_usd:
            enough["cost"] = f"at least {math.ceil((whole.cost_usd or 0) * 1e4) / 1e4:.10g}"
        if not is_command:
            message += (
                f"; to go on it needs {field} to be {enough.get(limit, 'more')} "
                f"({_RAISED_BY[self.whose]})"
            )
        elif refusal(self.limits, model="", need=need, used=NOTHING) is None:
            message += f" ({option}); the next command goes on, with a limit of its own"
        else:
            message += f"; none fits this limit: {option} has to be {enough[limit]}"
        return RunLimitReached(f"{self.title} is at its limit: {message}", limit=limit)


def _leaves_room_open(request: Request) -> TypeGuard[ChatRequest]:
    """Whether a request leaves it to the limits how long its reply may be."""
    return isinstance(request, ChatRequest) and request.max_output_tokens is None


class Rest(NamedTuple):
    """What is left of a limit of a scope."""

    amount: float
    limit: str  # the limit as messages name it: `the run's max_tokens = 4000`
    scope: Meter


class RoomTaken(Exception):
    """Other requests took the room that a request had released: it has to wait for room again."""


@dataclass(slots=True, kw_only=True)
class Sending:
    """One request; its sender says when it has left, counts pieces, and sets the answer."""

    request: Request  # with the room that a limit gave it if it stated none
    scope: Meter  # the innermost scope that it is made in
    need: Spent  # its highest use
    room: int | None  # the room for its reply, if a limit decided that
    has_left: bool = False
    answer: Completion | Embeddings | Ranking | None = None
    pieces: int = 0
    is_reserved: bool = True  # whether `need` is kept free of other requests

    def release(self) -> None:
        """Gives its room to others, at its end or while its server is down."""
        if self.is_reserved:
            self.is_reserved = False
            self.scope._add(reserved=-self.need)
            self.scope._ended.set()

    def check_reserved(self) -> None:
        """Reserves room that was released once more; raises `RoomTaken` if it is gone."""
        if self.is_reserved:
            return
        with suppress(LimitReached):  # raised again if no smaller room will do
            if self.scope._fits(self.request, self.need):
                self.is_reserved = True
                self.scope._add(reserved=self.need)
                return
        raise RoomTaken

    def cut(self, answer: Any) -> Any:  # noqa: ANN401 - as the call
        """The answer, with the limit of the run that decided where it was cut, if one did."""
        scope = self.scope
        if self.room is None or not isinstance(answer, Completion):
            return answer
        is_cut = answer.finish_reason == "length" and not scope._charges.is_full(self.request)
        if not is_cut or scope.whose == "loop":
            return answer
        return replace(answer, cut_by="tokens" if scope.left("tokens") else "cost")
