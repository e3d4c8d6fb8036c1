"""The keep-alive budget: which models are in memory, and whose turn it is."""

from harness.residency.budget import Host, KeepAliveBudget, Tenant
from harness.residency.leased import Leased
from harness.residency.ledger import Decision, Grant, Ledger, Load, Resident, Wait, admit

__all__ = [
    "Decision",
    "Grant",
    "Host",
    "KeepAliveBudget",
    "Leased",
    "Ledger",
    "Load",
    "Resident",
    "Tenant",
    "Wait",
    "admit",
]
