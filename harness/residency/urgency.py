"""When a call that waits for a model can be put off no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness.residency.state import State, WaitingCall

_LONGEST_TURN: Final = 2
"""How many times the longest wait a model stays at most, while others are waited for too long."""


def makes_way(call: WaitingCall, due: WaitingCall, state: State) -> bool:
    """Whether a call is not lent its model any more, since that must go for one that is due.

    Not if it could not wait for its model to come back either: it would be due as soon as the other
    has come, and models would go for each other after every call. But no turn lasts for ever.

    Args:
        call: Which waits for a model that is resident.
        due: Which has been waiting for longer, for one that is not.
        state: Tells how long loads and calls take.
    """
    own, other = state.tenants[call.model], state.tenants[due.model]
    back_ns = state.now_ns + round((other.load_s + other.call_s + own.load_s) * 1e9)
    turn_ns = state.now_ns - state.ledger.residents[call.model].since_ns
    can_wait = back_ns <= call.since_ns + state.max_wait_ns
    return can_wait or turn_ns >= _LONGEST_TURN * state.max_wait_ns


def latest_switch_ns(oldest: Sequence[WaitingCall], state: State) -> int:
    """The last moment at which room must begin to be made, so that nobody waits too long.

    The models are taken to be loaded one after another, the one that was waited for longest first,
    each answering one call of its length before it makes way for the next. Counted back from every
    model's own deadline, the earliest moment decides:

        min over k of (deadline_k - sum over j < k of (load_j + call_j)) - what calls under way take

    Kept as far as calls take no longer than is known of them, and as there is time enough for all.

    Args:
        oldest: The oldest call of each model that is not resident, the oldest first.
        state: Tells how long loads and calls take.
    """
    residents = state.ledger.residents
    latest_ns = state.now_ns + state.max_wait_ns
    ahead_ns = 0
    for call in oldest:
        tenant = state.tenants[call.model]
        latest_ns = min(latest_ns, call.since_ns + state.max_wait_ns - ahead_ns)
        ahead_ns += round((tenant.load_s + tenant.call_s) * 1e9)
    under_way = [state.tenants[one.model].call_s for one in residents.values() if one.leases]
    latest_ns -= round(max(under_way, default=0.0) * 1e9)
    return latest_ns
