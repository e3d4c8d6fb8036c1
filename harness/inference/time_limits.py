"""Time limits of a call: of all its requests together, and of each."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from harness.errors import CallTimeout, TimeLimit
from harness.inference.endpoint import Endpoint

_MEANINGS: dict[TimeLimit, str] = {
    "connect_timeout_s": "no connection",
    "first_token_timeout_s": "nothing of the reply",
    "between_tokens_timeout_s": "the reply began, and then nothing more came",
    "timeout_s": "no whole reply",
}


@dataclass(slots=True)
class CallTime:
    """The time that a call may take at its servers; waits for a place there are no part of it."""

    seconds: float
    outer: CallTime | None = None
    """The time of a call to several endpoints, of which this one's is a part."""
    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        """The time that is left, in seconds; below 0 when more was taken."""
        outer_s = math.inf if self.outer is None else self.outer.left_s
        return min(outer_s, self.seconds - self.spent_s)

    def spend(self, seconds: float) -> None:
        """Takes this much from the time that is left."""
        self.spent_s += seconds
        if self.outer is not None:
            self.outer.spend(seconds)

    def begin_again(self) -> None:
        """Gives the call its whole time again, since its server went down."""
        self.spent_s = 0.0
        if self.outer is not None:
            self.outer.begin_again()


Arrived = Callable[[], None]
"""Called for each piece of a reply."""


@asynccontextmanager
async def time_limits(
    endpoint: Endpoint, *, timeout_s: float | None = None
) -> AsyncIterator[Arrived]:
    """Limits the time of one request, made in the block; raises `CallTimeout` when it is over.

    `timeout_s` limits the whole request, if shorter than the endpoint's. The block calls the
    function that it gets for each piece of the reply.
    """
    clock = asyncio.get_running_loop().time
    pieces = 0
    total_s = min(endpoint.timeout_s, timeout_s or endpoint.timeout_s)
    last = clock() + total_s
    awaited: TimeLimit = "timeout_s"

    def await_next(limit: TimeLimit, seconds: float | None) -> None:
        nonlocal awaited
        if seconds is None and awaited == "timeout_s":
            return  # nothing changes: a quick way, since this is called for every token
        end = last if seconds is None else clock() + seconds
        awaited = limit if end < last else "timeout_s"
        # An expired timeout cannot be moved: the block is about to end.
        if not timeout.expired():
            timeout.reschedule(min(end, last))

    def arrived() -> None:
        nonlocal pieces
        pieces += 1
        await_next("between_tokens_timeout_s", endpoint.between_tokens_timeout_s)

    try:
        async with asyncio.timeout_at(last) as timeout:
            await_next("first_token_timeout_s", endpoint.first_token_timeout_s)
            yield arrived
    except TimeoutError as error:
        if not timeout.expired():
            raise  # it comes from the block itself
        raise timed_out(awaited, endpoint, total_s=total_s, pieces=pieces) from error


def timed_out(
    limit: TimeLimit, endpoint: Endpoint, *, total_s: float | None = None, pieces: int = 0
) -> CallTimeout:
    """The error for a limit that ran out after `pieces` pieces of the reply.

    `total_s` is the value of `timeout_s` if it was less.
    """
    seconds = getattr(endpoint, limit)
    part = ""
    if limit == "timeout_s":
        seconds = total_s or seconds
        if pieces:
            # Servers send a piece for each token, or nearly so.
            part = (
                f"; about {pieces:,} token{'s' * (pieces > 1)} of it came. Give the call a "
                "max_output_tokens, or a lower one, so that the reply ends in time; or raise "
                "timeout_s"
            )
    shown = f"{seconds:.3g}" if seconds < 1_000 else f"{seconds:.0f}"  # not 3.6e+03
    return CallTimeout(
        f"{_MEANINGS[limit]} within {limit} = {shown} s{part}",
        endpoint=endpoint.tag,
        limit=limit,
    )
