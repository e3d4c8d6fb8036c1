"""Time limits of a call: its deadline, and the limits of each of its requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

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
        """The time that is left, in seconds; below 0 when it is over."""
        outer_s = math.inf if self.outer is None else self.outer.left_s
        if self.began_ns is None:
            return min(outer_s, self.seconds)
        return min(outer_s, self.seconds - (self.clock() - self.began_ns) / 1e9)


@asynccontextmanager
async def time_limits(
    endpoint: Endpoint, *, timeout_s: float | None = None
) -> AsyncIterator[Callable[[], None]]:
    """The block in which one request has to come to its end; raises `CallTimeout` on leaving it.

    `timeout_s` is the call's own limit for the whole of it, where that is shorter. The function is
    to be called whenever something of the reply is here.
    """
    clock = asyncio.get_running_loop().time
    total_s = min(endpoint.timeout_s, timeout_s or endpoint.timeout_s)
    last = clock() + total_s
    awaited: TimeLimit = "timeout_s"

    def await_next(limit: TimeLimit, seconds: float | None) -> None:
        nonlocal awaited
        if seconds is None and awaited == "timeout_s":
            return  # as it is already: this comes once for every token
        at = last if seconds is None else clock() + seconds
        awaited = limit if at < last else "timeout_s"
        # One that has expired cannot be moved: the block is about to end.
        if not timeout.expired():
            timeout.reschedule(min(at, last))

    try:
        async with asyncio.timeout_at(last) as timeout:
            # The first token, if it is to have a time of its own; then each next one.
            await_next("first_token_timeout_s", endpoint.first_token_timeout_s)
            yield partial(await_next, "between_tokens_timeout_s", endpoint.between_tokens_timeout_s)
    except TimeoutError as error:
        if not timeout.expired():
            raise  # the block's own
        raise timed_out(awaited, endpoint, total_s=total_s) from error


def timed_out(limit: TimeLimit, endpoint: Endpoint, *, total_s: float | None = None) -> CallTimeout:
    """The error of a limit that was over; `total_s` is what was left, if less."""
    seconds = total_s if limit == "timeout_s" and total_s is not None else getattr(endpoint, limit)
    return CallTimeout(
        f"{_MEANINGS[limit]} within {limit} = {seconds:.3g} s", endpoint=endpoint.tag, limit=limit
    )
