"""Why a call waits, in words: for the trace."""

from __future__ import annotations

from harness.residency.ledger import Resident
from harness.residency.state import State, WaitingCall


def why_it_waits(call: WaitingCall, state: State) -> str:
    """What stands between a call and its model now."""
    ledger = state.ledger
    resident = ledger.residents.get(call.model)
    if resident is not None:
        return _why_it_waits_for(resident, call, state)
    if ledger.moving is not None:
        return f"'{ledger.moving.model}' is on the move"
    in_use = [f"'{one.model}'" for one in ledger.residents.values() if one.leases]
    if in_use:
        return f"no room until calls to {', '.join(in_use)} end"
    return "what is in memory is about to be used again"


def _why_it_waits_for(resident: Resident, call: WaitingCall, state: State) -> str:
    """The same of a model that is there."""
    model, tenant = call.model, state.tenants[call.model]
    if tenant.slots is not None and resident.leases >= tenant.slots:
        return f"slots: all {tenant.slots} of '{model}' are taken"
    if tenant.kv_tokens is not None and resident.kv_tokens + call.kv_tokens > tenant.kv_tokens:
        return f"KV cache: that of '{model}' is full"
    if any(one.model == model and one.id < call.id for one in state.waiting):
        return f"KV cache: an earlier call waits for room in that of '{model}'"
    return f"'{model}' makes way for a model that was waited for longer"
