"""The meter: what a loop's calls to models took, and which call does not fit any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.errors import CallTimeout, LimitReached
from harness.inference import ChatRequest, Completion, most_prompt_tokens, most_tokens_in
from harness.rubric import Ask
from harness.trace import Clock
from harness.wiggum.policy import LoopLimits
from harness.wiggum.spent import Spent

_LEAST_S = 0.05
"""With less time left no call is sent: the clocks of timeouts and ours may differ by so much."""


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


class Meter:
    """Passes calls on, counts what they took, and refuses those that the limits leave no room for.

    One meter is for one loop. Its time runs from when it is made.

    Args:
        ask: Reaches the models.
        limits: Of the loop.
        clock: In nanoseconds.
        prices: By the endpoint's tag; they go before what a reply says that it cost.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        limits: LoopLimits,
        clock: Clock,
        prices: Mapping[str, TokenPrice] | None = None,
    ) -> None:
        self.limits = limits
        self._ask = ask
        self._clock = clock
        self._prices = dict(prices or {})
        self._laps = Spent()
        self._lap = Spent()
        self._lap_began_ns = clock()
        # What calls that are under way, and calls still to come, take at most.
        self._held_tokens = 0
        self._held_usd = 0.0
        self._held_s = 0.0

    async def ask(self, request: ChatRequest) -> Completion:
        """The reply to a call.

        Raises:
            LimitReached: There is no room for it; it was not sent, or not waited for to its end.
            InferenceError: As whoever is asked raises it.
        """
        estimate = most_prompt_tokens(request)
        usd = self._priced(request.model, estimate, request.max_output_tokens) or 0.0
        left_s = self._check(request.model, estimate + request.max_output_tokens, usd)
        if left_s is not None:
            request = replace(request, timeout_s=min(left_s, request.timeout_s or left_s))
        with self.holding(tokens=estimate + request.max_output_tokens, usd=usd):
            try:
                completion = await self._ask(request)
            except BaseException as error:
                # What became of it nobody knows; that the prompt was read is likely.
                self._lap += Spent(
                    calls=1, input_tokens=estimate, estimated_calls=1, unpriced_calls=1
                )
                if isinstance(error, CallTimeout) and self._is_out_of_time:
                    raise LimitReached(
                        f"max_seconds = {self.limits.max_seconds:g} were over: {error}",
                        limit="time",
                    ) from error
                raise
            self._count_reply(request, completion, estimate)
        return completion

    def check_room(self, tokens: int, *, what: str) -> None:
        """That calls which are of no use without each other fit together, before the first is sent.

        Args:
            tokens: What they take at most.
            what: They are, as the beginning of a message.

        Raises:
            LimitReached: They may not.
        """
        limit, needed = self.limits.max_tokens, self.spent.tokens + tokens
        if limit is not None and needed > limit:
            raise LimitReached(
                f"{what} may take {tokens} tokens, and max_tokens = {limit} has no room for that; "
                f"max_tokens = {needed} has",
                limit="tokens",
            )

    @property
    def spent(self) -> Spent:
        """What was taken so far."""
        return self._laps + self._open_lap

    def lap(self) -> Spent:
        """What was taken since the lap before; begins another."""
        lap = self._open_lap
        self._laps += lap
        self._lap, self._lap_began_ns = Spent(), self._clock()
        return lap

    def go_on_from(self, spent: Spent) -> None:
        """Counts what an earlier loop took that this one goes on with."""
        self._laps += spent

    @contextmanager
    def holding(self, *, tokens: int = 0, usd: float = 0.0, seconds: float = 0.0) -> Iterator[None]:
        """Keeps room, inside the block, for calls that are to come after those made in it."""
        self._held_tokens += tokens
        self._held_usd += usd
        self._held_s += seconds
        try:
            yield
        finally:
            self._held_tokens -= tokens
            self._held_usd -= usd
            self._held_s -= seconds

    def _check(self, model: str, tokens: int, usd: float) -> float | None:
        """How long the call may last, in seconds; None for as long as it likes."""
        limits, spent = self.limits, self.spent
        if limits.max_tokens is not None:
            left = limits.max_tokens - spent.tokens - self._held_tokens
            if tokens > left:
                kept = f", beside {self._held_tokens} kept" if self._held_tokens else ""
                raise LimitReached(
                    f"a call to '{model}' may take {tokens} tokens, and of "
                    f"max_tokens = {limits.max_tokens} there are {max(left, 0)} left{kept}",
                    limit="tokens",
                )
        if limits.max_cost_usd is not None:
            left_usd = limits.max_cost_usd - (spent.cost_usd or 0.0) - self._held_usd
            # Without a price in the settings a call's cost is known only afterwards.
            if left_usd <= 0 or usd > left_usd:
                raise LimitReached(
                    f"a call to '{model}' may cost {usd:.4g} dollars, and of "
                    f"max_cost_usd = {limits.max_cost_usd:g} there are {max(left_usd, 0):.4g} left",
                    limit="cost",
                )
        if self._is_out_of_time:
            raise LimitReached(
                f"max_seconds = {limits.max_seconds:g} are over; '{model}' is not called",
                limit="time",
            )
        return self._left_s

    def _count_reply(self, request: ChatRequest, completion: Completion, estimate: int) -> None:
        if completion.from_cache:
            self._lap += Spent(calls=1)  # no model was asked
            return
        usage = completion.usage
        written = completion.text + completion.reasoning
        asked = usage.input_tokens if usage else estimate
        answered = usage.output_tokens if usage else most_tokens_in(written)
        priced = self._priced(request.model, asked, answered)
        cost = completion.cost_usd if priced is None else priced
        self._lap += Spent(
            calls=1,
            input_tokens=asked,
            output_tokens=answered,
            cost_usd=cost,
            estimated_calls=int(usage is None),
            unpriced_calls=int(cost is None),
        )

    def _priced(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        price = self._prices.get(model)
        return None if price is None else price.of(input_tokens, output_tokens)

    @property
    def _open_lap(self) -> Spent:
        return replace(self._lap, time_ns=self._clock() - self._lap_began_ns)

    @property
    def _left_s(self) -> float | None:
        """What is left of the time; None without a limit."""
        if self.limits.max_seconds is None:
            return None
        return self.limits.max_seconds - self.spent.seconds - self._held_s

    @property
    def _is_out_of_time(self) -> bool:
        return self._left_s is not None and self._left_s < _LEAST_S
