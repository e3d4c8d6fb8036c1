"""The meter of a loop: counts the use of its calls, and refuses calls over a limit.

It stands inside the meter of the run (`inference.meter`), which every call passes too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from harness.errors import CallTimeout, ContextOverflow, InvalidInput, LimitReached, RunLimitReached
from harness.inference import ChatRequest, Completion
from harness.inference.limits import (
    FIELD_OF,
    LEAST_S,
    NOTHING,
    LimitName,
    Limits,
    Room,
    Spent,
    left_of,
    refusal,
    seconds_left,
)
from harness.inference.meter import Charges
from harness.rubric import Ask
from harness.trace import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits(Limits):
    """Limits of a loop, which ends with its best draft when more does not fit.

    Its seconds run from the creation of the loop's meter.

    Raises:
        InvalidInput: One of them leaves nothing to be done.
    """

    max_rounds: int = 3
    """Most evaluations, so one revision fewer."""
    of_run: frozenset[LimitName] = frozenset()
    """The limits that come from the rest of the run's own limits, lower than the loop's."""

    def __post_init__(self) -> None:
        if not isinstance(self.max_rounds, int):
            raise InvalidInput(
                f"max_rounds is {self.max_rounds!r:.80}; give a whole number",
                code="loop.limit-wrong-type",
            )
        if self.max_rounds < 1:
            raise InvalidInput(
                f"max_rounds is {self.max_rounds}; at least one round is needed",
                code="loop.rounds-not-positive",
            )
        # Not super(): a class with slots is made twice, and super() means the first.
        Limits.__post_init__(self)

    def said(self, limit: LimitName) -> str:
        """As for any limits; also names the run's."""
        whose = " (all that the run has left)" if limit in self.of_run else ""
        return Limits.said(self, limit) + whose

    def within(self, left: Limits) -> Self:
        """The same limits, capped by the rest of the run's."""
        tighter: set[LimitName] = set()
        for limit, name in FIELD_OF.items():
            own, of_run = getattr(self, name), getattr(left, name)
            if of_run is not None and (own is None or of_run < own):
                tighter.add(limit)
        return replace(
            self,
            of_run=self.of_run | tighter,
            **{FIELD_OF[limit]: getattr(left, FIELD_OF[limit]) for limit in tighter},
        )


class LoopMeter:
    """The meter of one loop inside a run: a call that does not fit is refused, and does not wait.

    Its time runs from its creation. `charges` are shared with the run's meter, with all it has
    learned about the models.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        limits: LoopLimits,
        clock: Clock,
        charges: Charges,
    ) -> None:
        self.limits = limits
        self._ask = ask
        self._clock = clock
        self._charges = charges
        self._laps = Spent()
        self._lap = Spent()
        self._lap_began_ns = clock()
        # What calls that are under way, and calls still to come, take at most.
        self._held = Room()

    async def ask(self, request: ChatRequest) -> Completion:
        """The reply to a call.

        Raises:
            LimitReached: There is no room for it; it was not sent, or not waited for to its end.
                `RunLimitReached` if the run's own limit is the reason.
            InferenceError: Raised by the call itself.
        """
        tokens, usd = left_of(self.limits, spent=self.spent, held=self._held)
        sized = self._charges.sized(request, tokens=tokens, usd=usd)
        try:
            return await self._sent(sized)
        except ContextOverflow as error:
            if request.max_output_tokens or not self._charges.has_less_room(sized, error):
                raise
        return await self.ask(request)

    async def _sent(self, request: ChatRequest) -> Completion:
        need = self._charges.most(request)
        refused = refusal(
            self.limits, model=request.model, need=need, spent=self.spent, held=self._held
        )
        if refused is not None:
            raise self._reached(refused.limit, refused.message)
        if (left_s := self._left_s) is not None:
            request = replace(request, timeout_s=min(left_s, request.timeout_s or left_s))
        # Of each request that the run counts; empty if it counts none, or the reply was kept.
        heard: list[Spent] = []
        with self.holding(need):
            try:
                completion = await self._ask(replace(request, on_taken=heard.append))
            except BaseException as error:
                self._lap += sum(heard, NOTHING) if heard else self._charges.lost(request)
                left_s = self._left_s
                if isinstance(error, CallTimeout) and left_s is not None and left_s < LEAST_S:
                    message = f"{self.limits.said('time')} were over: {error}"
                    raise self._reached("time", message) from error
                raise
            taken = self._charges.taken(request, completion)
            if completion.from_cache:
                taken = Spent(calls=1)  # no model was asked
            self._lap += sum(heard, NOTHING) if heard else taken
        return completion

    def check_room(self, tokens: int, *, what: str) -> None:
        """Checks, before the first is sent, that calls that need each other fit together.

        `what` begins the message.

        Raises:
            LimitReached: They may not.
        """
        limit, needed = self.limits.max_tokens, self.spent.tokens + tokens
        if limit is not None and needed > limit:
            more = (
                f"the run's has to be {needed - limit} more"
                if "tokens" in self.limits.of_run
                else f"max_tokens = {needed} has"
            )
            raise self._reached(
                "tokens",
                f"{what} may take {tokens} tokens, and {self.limits.said('tokens')} has no room "
                f"for that; {more}",
            )

    @property
    def spent(self) -> Spent:
        """The use so far."""
        return self._laps + self._open_lap

    def lap(self) -> Spent:
        """The use since the last lap; begins another."""
        lap = self._open_lap
        self._laps += lap
        self._lap, self._lap_began_ns = Spent(), self._clock()
        return lap

    def go_on_from(self, spent: Spent) -> None:
        """Adds the use of an earlier loop that this one continues."""
        self._laps += spent

    @contextmanager
    def holding(self, room: Room) -> Iterator[None]:
        """Inside the block, keeps room for calls that come after it."""
        self._held += room
        try:
            yield
        finally:
            self._held -= room

    def _reached(self, limit: LimitName, message: str) -> LimitReached:
        kind = RunLimitReached if limit in self.limits.of_run else LimitReached
        return kind(message, limit=limit)

    @property
    def _open_lap(self) -> Spent:
        return replace(self._lap, time_ns=self._clock() - self._lap_began_ns)

    @property
    def _left_s(self) -> float | None:
        return seconds_left(self.limits, spent=self.spent, held=self._held)
