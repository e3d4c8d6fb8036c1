"""The keep-alive budget: which models are in memory, and whose turn it is."""

from harness.residency.budget import MAX_WAIT_S, KeepAliveBudget
from harness.residency.fit import check_fits
from harness.residency.forecast import NOTHING_KNOWN, Forecast, Strand
from harness.residency.guest import Guest
from harness.residency.host import Host, HostReport
from harness.residency.keep_alive import ObservedGaps
from harness.residency.leased import Leased
from harness.residency.ledger import Device, GuestEntry, Ledger, Need, Resident, Tenant
from harness.residency.noting_gaps import NotingGaps
from harness.residency.policy import decide
from harness.residency.state import Decision, Grant, Load, State, Unload, Wait, WaitingCall

__all__ = [
    "MAX_WAIT_S",
    "NOTHING_KNOWN",
    "Decision",
    "Device",
    "Forecast",
    "Grant",
    "Guest",
    "GuestEntry",
    "Host",
    "HostReport",
    "KeepAliveBudget",
    "Leased",
    "Ledger",
    "Load",
    "Need",
    "NotingGaps",
    "ObservedGaps",
    "Resident",
    "State",
    "Strand",
    "Tenant",
    "Unload",
    "Wait",
    "WaitingCall",
    "check_fits",
    "decide",
]
