"""Decides what follows a failed call: another attempt, another endpoint, or its error.

Pure functions of the error and the attempt. `Client.call` waits and repeats.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import (
    CallTimeout,
    EndpointUnreachable,
    HarnessError,
    Overloaded,
    QueueFull,
    ServerError,
    StreamCut,
)


class RetryPolicy(BaseModel):
    """How often a call is attempted, and how long the waits between attempts are."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_attempts: int = Field(default=4, ge=1)
    """Attempts in all, the first included."""
    base_s: float = Field(default=0.5, ge=0)
    """Upper bound of the first wait; each next bound is twice the last."""
    cap_s: float = Field(default=8.0, ge=0)
    """Upper bound of any wait, unless the server asks for longer."""


def retry_delay_s(
    error: HarnessError,
    *,
    attempt: int,
    policy: RetryPolicy,
    jitter: float,
    left_s: float = math.inf,
) -> float | None:
    """How long to wait before the next attempt, in seconds; None to give up.

    Full jitter (Brooker 2015, "Exponential Backoff And Jitter"): the wait is drawn evenly from zero
    to the bound. A server that says how long to wait is obeyed instead. There is no further attempt
    if the wait would use up the call's time. `attempt` counts from 1, `jitter` is drawn from [0,
    1), and `left_s` is what is left of the call's time.
    """
    if attempt >= policy.max_attempts or not _may_pass(error):
        return None
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        delay_s = error.retry_after_s
    else:
        delay_s = jitter * min(policy.cap_s, policy.base_s * 2.0 ** (attempt - 1))
    return delay_s if delay_s < left_s else None


def another_may_answer(error: HarnessError) -> bool:
    """Whether the endpoint was unable to answer, rather than asked or set up wrongly.

    A mistake that a person has to correct must be seen, not covered up by another model's answer.
    """
    match error:
        case EndpointUnreachable() | Overloaded() | StreamCut() | CallTimeout() | QueueFull():
            return True
        case ServerError():
            return error.status is None or error.status >= 500
        case _:
            return False


def _may_pass(error: HarnessError) -> bool:
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
