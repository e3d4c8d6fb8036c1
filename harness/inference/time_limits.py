"""Time limits of a call: its deadline, and the limits of each of its requests."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from harness.errors import CallTimeout, TimeLimit
from harness.inference.endpoint import Endpoint
from harness.trace import Clock

_MEANINGS: dict[TimeLimit, str] = {
    "connect_timeout_s": "no connection",
    "first_token_timeout_s": "nothing of the reply",
    "between_tokens_timeout_s": "the reply began, and then nothing more came",
    "timeout_s": "no whole reply",
}


@dataclass(slots=True)
class Deadline:
    """When a call must be over, from its first sending on; at the latest with `outer`."""

    seconds: float
    clock: Clock = field(kw_only=True)
    outer: Deadline | None = field(default=None, kw_only=True)
    began_ns: int | None = field(default=None, init=False)

    def begin(self, *, again: bool = False) -> None:
        """Something is sent now; the first time counts, or this one: after an outage."""
        if self.outer is not None:
            self.outer.begin(again=again)
        if self.began_ns is None or again:
            self.began_ns = self.clock()

    @property
    def left_s(self) -> float:
        """What is left, in seconds; less than 0 when it is over."""
        outer_s = math.inf if self.outer is None else self.outer.left_s
        if self.began_ns is None:
            return min(outer_s, self.seconds)
        return min(outer_s, self.seconds - (self.clock() - self.began_ns) / 1e9)


class TimeLimits:
    """The block in which one request has to come to its end; raises `CallTimeout` on leaving it.

    `timeout_s` is the call's own limit for the whole of it, where that is shorter.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float | None = None) -> None:
        self._endpoint = endpoint
        self._total_s = min(endpoint.timeout_s, timeout_s or endpoint.timeout_s)
        self._next: TimeLimit = "timeout_s"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time() + self._total_s
        self._timeout = asyncio.timeout_at(self._last)
        await self._timeout.__aenter__()
        # The first token, if it is to have a time of its own; then each next one.
        self._await_next("first_token_timeout_s", self._endpoint.first_token_timeout_s)
        return self

    def token_arrived(self) -> None:
        """Something of the reply is here; from now on the next of it is awaited."""
        self._await_next("between_tokens_timeout_s", self._endpoint.between_tokens_timeout_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise timed_out(self._next, self._endpoint, total_s=self._total_s) from error

    def _await_next(self, limit: TimeLimit, seconds: float | None) -> None:
        if seconds is None and self._next == "timeout_s":
            return  # as it is already: this comes once for every token
        at = self._last if seconds is None else self._loop.time() + seconds
        self._next = limit if at < self._last else "timeout_s"
        # One that has expired cannot be moved: the block is about to end.
        if not self._timeout.expired():
            self._timeout.reschedule(min(at, self._last))


def timed_out(limit: TimeLimit, endpoint: Endpoint, *, total_s: float | None = None) -> CallTimeout:
    """The error of a limit that was over; `total_s` is what was left, if less."""
    seconds = total_s if limit == "timeout_s" and total_s is not None else getattr(endpoint, limit)
    return CallTimeout(
        f"{_MEANINGS[limit]} within {limit} = {seconds:.3g} s", endpoint=endpoint.tag, limit=limit
    )
