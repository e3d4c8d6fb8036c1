"""The keep-alive budget: which models are in memory, and which is loaded next."""

from harness.inference.providers.provider import HostReport
from harness.residency.budget import MAX_WAIT_S, KeepAliveBudget
from harness.residency.ledger import (
    NOTHING_KNOWN,
    Device,
    Forecast,
    Need,
    Strand,
    Tenant,
    check_fits,
)

__all__ = [
    "MAX_WAIT_S",
    "NOTHING_KNOWN",
    "Device",
    "Forecast",
    "HostReport",
    "KeepAliveBudget",
    "Need",
    "Strand",
    "Tenant",
    "check_fits",
]
