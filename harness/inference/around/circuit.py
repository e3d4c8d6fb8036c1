"""Not asking a server that cannot be reached (Nygard 2007, "Release It!", circuit breaker).

Pure: a circuit and what happened in, the circuit afterwards out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import CallTimeout, EndpointUnreachable, InferenceError, NotOffered


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPolicy:
    """When calls are refused, and for how long."""

    failures: int = 3
    """Attempts in a row that get no answer before further ones are refused."""
    pause_s: float = 5.0
    """How long they are refused the first time; each next time is twice the last."""
    longest_pause_s: float = 60.0
    """Where that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Calls go through."""

    failures: int = 0
    """Those that have not reached the server since the last that did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Calls are refused; from `until_ns` on, the next one is the probe."""

    since_ns: int
    """When the server was given up."""
    until_ns: int
    """When it may be asked again."""
    pause_ns: int
    """How long that is from the last failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen:
    """The probe is on its way; other calls are refused."""

    since_ns: int
    """When the server was given up."""
    probe_ns: int
    """When the probe was sent."""
    pause_ns: int
    """How long calls were refused before it."""


Circuit = Closed | Open | HalfOpen

Outcome = Literal["reached", "unreachable", "unknown"]
"""What a call tells of its server."""


def admit(circuit: Circuit, *, now_ns: int) -> Circuit | None:
    """The circuit with one more call on its way; None if the call is refused."""
    match circuit:
        case Closed():
            return circuit
        case Open() if now_ns >= circuit.until_ns:
            return HalfOpen(since_ns=circuit.since_ns, probe_ns=now_ns, pause_ns=circuit.pause_ns)
        case _:
            return None


def after(
    circuit: Circuit, outcome: Outcome, *, sent_ns: int, now_ns: int, policy: CircuitPolicy
) -> Circuit:
    """The circuit when a call is over.

    Args:
        circuit: As it is by now; it may have changed since the call was let through.
        outcome: What the call told.
        sent_ns: When it was let through.
        now_ns: When it was over.
        policy: The limits.
    """
    match circuit, outcome:
        case _, "reached":
            return Closed()
        case Closed(), "unreachable" if circuit.failures + 1 < policy.failures:
            return Closed(failures=circuit.failures + 1)
        case Closed(), "unreachable":
            pause_ns = round(policy.pause_s * 1e9)
            return Open(since_ns=now_ns, until_ns=now_ns + pause_ns, pause_ns=pause_ns)
        # Only the probe counts: calls that had been sent before it may fail late.
        case HalfOpen(), "unreachable" if sent_ns >= circuit.probe_ns:
            pause_ns = min(2 * circuit.pause_ns, round(policy.longest_pause_s * 1e9))
            return Open(since_ns=circuit.since_ns, until_ns=now_ns + pause_ns, pause_ns=pause_ns)
        case HalfOpen(), "unknown" if sent_ns >= circuit.probe_ns:
            return Open(since_ns=circuit.since_ns, until_ns=now_ns, pause_ns=circuit.pause_ns)
        case _:
            return circuit


def outcome_of(error: BaseException | None) -> Outcome:
    """What a call tells that ended in this; None is a reply."""
    match error:
        case EndpointUnreachable():
            return "unreachable"
        case CallTimeout(limit="connect_timeout_s" | "first_token_timeout_s"):
            return "unreachable"  # something may listen there, but nobody answers
        case NotOffered():
            return "unknown"  # many backends know that without asking
        case None | InferenceError():
            return "reached"
        case _:
            return "unknown"
