"""When a call that waits for a model can be put off no longer."""

from __future__ import annotations

from collections.abc import Sequence

from harness.residency.state import State, WaitingCall

_EARNED_BY = 10
"""So many times as long as its load took a model is kept, where not all can be served in time."""


def latest_switch_ns(oldest: Sequence[WaitingCall], state: State) -> int:
    """The last moment at which room must begin to be made, so that nobody waits too long.

    The models are taken to be loaded one after another, the one that was waited for longest first,
    each answering one call of its length before it makes way for the next. Counted back from every
    model's own deadline, the earliest moment decides:

        min over k of (deadline_k - sum over j < k of (load_j + call_j)) - what calls under way take

    Kept as far as calls take no longer than is known of them, and as there is time enough for all.
    Where there is not, and somebody is late already, to switch for whoever is latest would make all
    of them later: then a model that is still called keeps its room until its load is no more than a
    tenth of the time that it was there.

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
    if oldest and oldest[0].since_ns + state.max_wait_ns >= state.now_ns:
        return latest_ns
    called = {call.model for call in state.waiting}
    earned = [
        one.since_ns + round(_EARNED_BY * state.tenants[one.model].load_s * 1e9)
        for one in residents.values()
        if one.model in called
    ]
    return max([latest_ns, *earned])
