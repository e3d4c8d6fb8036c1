"""An endpoint's health: what follows a failed call, and how long its server is left alone.

Pure functions of errors and counts. `Client.call` repeats a call; the gate keeps the state of each
server, and the calls that wait for it.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    HarnessError,
    ModelNotFound,
    NotOffered,
    Overloaded,
    QueueFull,
    RateLimited,
    ServerError,
    StreamCut,
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_PROBE_PAUSE_S = 1.0, 60.0, 15.0
_MOST_DOUBLINGS = 60  # a float has no room for 2.0 ** 1024
_AT_WORK = frozenset({408, 424})
"""Statuses that may come after the prompt was read: too slow, or (TGI) failed while answering."""

OutageReason = Literal["unreachable", "unavailable", "cut"]
"""How a server shows that it is down: nobody listens; it is loading, or a proxy before it says so;
connections are closed before a reply begins, as by a tunnel whose other end is gone."""


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
    if the wait would use up `left_s`, the rest of the call's time. `attempt` counts from 1;
    `jitter` is drawn from [0, 1).
    """
    if attempt >= policy.max_attempts or not _may_pass(error):
        return None
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        delay_s = error.retry_after_s
    else:
        bound_s = policy.base_s * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
        delay_s = jitter * min(policy.cap_s, bound_s)
    return delay_s if delay_s < left_s else None


def turn_delay_s(error: HarnessError, *, waited_s: float, jitter: float) -> float | None:
    """A call's next wait for a turn at a full server, after `waited_s` of it; None if not full."""
    asked_s = error.retry_after_s if isinstance(error, Overloaded) else None
    # A proxy's 503 without a wait may mean that this very call breaks the server behind it.
    if asked_s is None and not isinstance(error, RateLimited):
        return None
    # Calls refused together must not come back together; those that have waited long come seldom.
    spread_s = min(_LONGEST_PROBE_PAUSE_S, max(_FIRST_PAUSE_S, waited_s))
    return (asked_s or 0.0) + jitter * spread_s


def another_may_answer(error: HarnessError) -> bool:
    """Whether the endpoint was unable to answer, rather than asked or set up wrongly."""
    match error:
        case EndpointUnreachable() | Overloaded() | StreamCut() | CallTimeout() | QueueFull():
            return True
        case ServerError():
            # A request that came too late, too early, or beside another is none that is wrong.
            return error.status is None or error.status >= 500 or error.status in {408, 409, 425}
        # A person has to see and correct a mistake: another model's answer must not hide it.
        case _:
            return False


def is_replicas_fault(error: HarnessError) -> bool:
    """Whether another replica may do better than the one that failed with this error."""
    # A call that used up all its time does not show that the replica is slower than others.
    used_up = isinstance(error, CallTimeout) and error.limit == "timeout_s"
    return another_may_answer(error) and not used_up


def was_connected(error: BaseException) -> bool:
    """Whether a server can have read the request that failed with this error."""
    timed_out = isinstance(error, CallTimeout) and error.limit == "connect_timeout_s"
    return not (timed_out or isinstance(error, EndpointUnreachable))


def was_refused(error: BaseException) -> bool:
    """Whether a server refused the request, before it did any work for it."""
    match error:
        case Overloaded() | AuthenticationFailed() | ModelNotFound() | ContextOverflow():
            return True
        case ServerError(status=int() as status):
            return 400 <= status < 500 and status not in _AT_WORK
    return isinstance(error, NotOffered)


def outage_of(error: HarnessError) -> OutageReason | None:
    """The kind of outage that an error is a sign of; None if it concerns the call alone."""
    match error:
        # By its code: a refused certificate (`call.certificate-refused`) is no outage.
        case (
            EndpointUnreachable(code=EndpointUnreachable.code)
            | CallTimeout(limit="connect_timeout_s")
        ):
            return "unreachable"
        case StreamCut(has_begun=False):
            return "cut"
        # Overloaded are 503, 529, and an account at its limit (429), whose calls would else use up
        # their attempts within seconds.
        case ServerError(status=502 | 504) | Overloaded():
            return "unavailable"
    return None


def pause_s(
    failures: int, *, is_outage: bool = False, jitter: float = 0.0, asked_s: float = 0.0
) -> float:
    """How long a server gets no calls after `failures` in a row; at least `asked_s`, its wish."""
    # A server that is down is tried sooner than one that fails calls: no call is lost by a try.
    longest_s = _LONGEST_PROBE_PAUSE_S if is_outage else _LONGEST_PAUSE_S
    bound_s = min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    # `jitter`, in [0, 1), takes away up to half, so that programs do not try a server all at once.
    return max(asked_s, float(bound_s * (1 - jitter / 2)))


def _may_pass(error: HarnessError) -> bool:
    """Whether the same endpoint may answer soon."""
    match error:
        case EndpointUnreachable():
            return outage_of(error) is not None
        # Any other time limit may leave some of the call's time.
        case CallTimeout(limit="timeout_s") | QueueFull() | ServerError(status=None):
            return False
    return another_may_answer(error)
