"""The keep-alive budget: which models are in memory, and whose turn it is."""

from harness.residency.budget import Host, KeepAliveBudget, Tenant
from harness.residency.guest import Guest
from harness.residency.leased import Leased
from harness.residency.ledger import (
    Decision,
    Grant,
    GuestEntry,
    Ledger,
    Load,
    Resident,
    Wait,
    admit,
    outgrown,
    returning,
)

__all__ = [
    "Decision",
    "Grant",
    "Guest",
    "GuestEntry",
    "Host",
    "KeepAliveBudget",
    "Leased",
    "Ledger",
    "Load",
    "Resident",
    "Tenant",
    "Wait",
    "admit",
    "outgrown",
    "returning",
]
