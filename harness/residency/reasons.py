"""Why a call waits, in words: for the trace."""

from __future__ import annotations

from harness.residency.state import State, WaitingCall


def why_it_waits(call: WaitingCall, state: State) -> str:
    """What stands between a call and its model now."""
    ledger, tenant = state.ledger, state.tenants[call.model]
    resident = ledger.residents.get(call.model)
    if resident is not None:
        if tenant.slots is not None and resident.leases >= tenant.slots:
            return f"slots: all {tenant.slots} of '{call.model}' are taken"
        if tenant.kv_tokens is not None and resident.kv_tokens + call.kv_tokens > tenant.kv_tokens:
            return f"KV cache: that of '{call.model}' is full"
        if any(one.model == call.model and one.id < call.id for one in state.waiting):
            return f"an earlier call of '{call.model}' waits"
        return f"'{call.model}' makes way for a model that was waited for longer"
    if ledger.moving is not None:
        return f"'{ledger.moving.model}' is on the move"
    in_use = [f"'{one.model}'" for one in ledger.residents.values() if one.leases]
    if in_use:
        return f"no room until calls to {', '.join(in_use)} end"
    return "what is in memory is about to be used again"
