"""The keep-alive budget: which models are in memory, and whose turn it is."""

from harness.inference import Host, HostReport
from harness.residency.budget import MAX_WAIT_S, KeepAliveBudget, most_kv_tokens
from harness.residency.ledger import (
    NOTHING_KNOWN,
    Decision,
    Device,
    Forecast,
    Grant,
    Ledger,
    Load,
    Need,
    Resident,
    State,
    Strand,
    Tenant,
    Unload,
    Wait,
    WaitingCall,
    check_fits,
)
from harness.residency.load_policy import decide, planned_loads

__all__ = [
    "MAX_WAIT_S",
    "NOTHING_KNOWN",
    "Decision",
    "Device",
    "Forecast",
    "Grant",
    "Host",
    "HostReport",
    "KeepAliveBudget",
    "Ledger",
    "Load",
    "Need",
    "Resident",
    "State",
    "Strand",
    "Tenant",
    "Unload",
    "Wait",
    "WaitingCall",
    "check_fits",
    "decide",
    "most_kv_tokens",
    "planned_loads",
]
