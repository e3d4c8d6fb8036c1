"""Calling again after an error that may pass.

The decision is a function of the error and the attempt; a thin wrapper waits and repeats.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from harness.errors import InferenceError, Overloaded, ServerError, StreamCut
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.request import ChatRequest
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
    error: InferenceError, *, attempt: int, policy: RetryPolicy, jitter: float
) -> float | None:
    """How long to wait before the next attempt, in seconds; None to give up.

    Full jitter (Brooker 2015, "Exponential Backoff And Jitter"): the wait is drawn evenly from
    zero to the bound. A server that says how long to wait is obeyed instead.

    Args:
        error: What the attempt ended in.
        attempt: Which attempt that was, counted from 1.
        policy: The limits.
        jitter: Drawn from [0, 1).
    """
    if attempt >= policy.max_attempts or not _may_pass(error):
        return None
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        return error.retry_after_s
    return jitter * min(policy.cap_s, policy.base_s * 2.0 ** (attempt - 1))


def _may_pass(error: InferenceError) -> bool:
    match error:
        case Overloaded() | StreamCut():
            return True
        case ServerError():
            return error.status is not None and error.status >= 500
        case _:
            return False


class Retrying:
    """A backend behind a retry policy.

    Args:
        backend: Asked once per attempt.
        policy: The limits.
        randomness: Draws the jitter.
        tracer: Sees every wait, and what it is for.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        policy: RetryPolicy,
        randomness: random.Random,
        tracer: Tracer,
    ) -> None:
        self._backend = backend
        self._policy = policy
        self._randomness = randomness
        self._tracer = tracer

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; raises the last attempt's error."""
        attempt = 1
        while True:
            try:
                return await self._backend.chat(request)
            except InferenceError as error:
                delay_s = retry_delay_s(
                    error,
                    attempt=attempt,
                    policy=self._policy,
                    jitter=self._randomness.random(),
                )
                if delay_s is None:
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

    async def aclose(self) -> None:
        """Closes the backend."""
        await self._backend.aclose()
