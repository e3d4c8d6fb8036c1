"""Calling again after an error that may pass.

The decision is a function of the error and the attempt; a thin wrapper waits and repeats.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from harness.errors import (
    CallTimeout,
    InferenceError,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.reply_in_progress import Listener
from harness.inference.request import ChatRequest
from harness.inference.time_limits import Deadline
from harness.trace import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently."""

    max_attempts: int = 4
    """Attempts in all, the first included."""
    base_s: float = 0.5
    """Upper bound of the first wait; each next bound is twice the last."""
    cap_s: float = 8.0
    """Upper bound of any wait, unless the server asks for longer."""


def retry_delay_s(
    error: InferenceError,
    *,
    attempt: int,
    policy: RetryPolicy,
    jitter: float,
    left_s: float = math.inf,
) -> float | None:
    """How long to wait before the next attempt, in seconds; None to give up.

    Full jitter (Brooker 2015, "Exponential Backoff And Jitter"): the wait is drawn evenly from
    zero to the bound. A server that says how long to wait is obeyed instead. When the call's time
    would be over by then, there is no next attempt.

    Args:
        error: What the attempt ended in.
        attempt: Which attempt that was, counted from 1.
        policy: The limits.
        jitter: Drawn from [0, 1).
        left_s: What is left of the call's time.
    """
    if attempt >= policy.max_attempts or not _may_pass(error):
        return None
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        delay_s = error.retry_after_s
    else:
        delay_s = jitter * min(policy.cap_s, policy.base_s * 2.0 ** (attempt - 1))
    return delay_s if delay_s < left_s else None


def _may_pass(error: InferenceError) -> bool:
    match error:
        case Overloaded() | StreamCut():
            return True
        case CallTimeout():
            # Any other limit may leave some of the call's time.
            return error.limit != "timeout_s"
        case ServerError():
            return error.status is not None and error.status >= 500
        case _:
            return False


class Retrying(Wrapper):
    """A backend behind a retry policy.

    Args:
        backend: Asked once per attempt.
        policy: The limits.
        timeout_s: Longest that a call may take with all its attempts and the waits between, unless
            it has a shorter limit of its own.
        randomness: Draws the jitter.
        tracer: Sees every wait, and what it is for; the time is its clock's.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        policy: RetryPolicy,
        timeout_s: float = math.inf,
        randomness: random.Random,
        tracer: Tracer,
    ) -> None:
        super().__init__(backend)
        self._policy = policy
        self._timeout_s = timeout_s
        self._randomness = randomness
        self._tracer = tracer

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`. Whoever has heard a part of one hears no other."""
        listener = Listener(request)
        return await self._insist(
            listener.request, self._backend.chat, may_repeat=lambda: not listener.told
        )

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks until there is an answer or no hope of one; raises the last attempt's error."""
        return await self._insist(request, ask, may_repeat=lambda: True)

    async def _insist(
        self, request: R, ask: Callable[[R], Awaitable[T]], *, may_repeat: Callable[[], bool]
    ) -> T:
        deadline = Deadline(
            min(self._timeout_s, request.timeout_s or math.inf),
            clock=self._tracer.now_ns,
            outer=request.deadline,
        )
        request = replace(request, deadline=deadline)
        attempt = 1
        while True:
            try:
                return await ask(request)
            except InferenceError as error:
                delay_s = retry_delay_s(
                    error,
                    attempt=attempt,
                    policy=self._policy,
                    jitter=self._randomness.random(),
                    left_s=deadline.left_s,
                )
                if delay_s is None or not may_repeat():
                    raise
                self._tracer.instant(
                    "retry",
                    model=request.model,
                    reason=type(error).__name__,
                    detail=self._tracer.excerpt(str(error)),
                    attempt=attempt,
                    delay_s=delay_s,
                )
            await asyncio.sleep(delay_s)
            attempt += 1
