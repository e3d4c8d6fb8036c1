"""When a call that waits for a model can be put off no longer."""

from __future__ import annotations

from collections.abc import Sequence

from harness.residency.state import State, WaitingCall


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
    latest_ns = state.now_ns + state.max_wait_ns
    ahead_ns = 0
    for call in oldest:
        tenant = state.tenants[call.model]
        latest_ns = min(latest_ns, call.since_ns + state.max_wait_ns - ahead_ns)
        ahead_ns += round((tenant.load_s + tenant.call_s) * 1e9)
    under_way = [
        state.tenants[one.model].call_s for one in state.ledger.residents.values() if one.leases
    ]
    return latest_ns - round(max(under_way, default=0.0) * 1e9)
