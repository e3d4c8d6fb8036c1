"""The ledger: which models are resident, what they take, and whether another may come.

Pure: state in, decision out. The policy is the simplest that is right: room is made by evicting
idle models, the longest unused first; a model in use is never evicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.errors import DoesNotFit
from harness.hardware import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that is in memory."""

    model: str
    """The endpoint's tag."""
    need_bytes: int
    """What it takes: weights, KV cache and compute buffers."""
    leases: int
    """Calls that are using it now."""
    last_used: int
    """Ticks up with every use; the smallest is the longest unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """It is resident: go ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load it, after evicting these."""

    evict: tuple[str, ...]
    """Idle models, the longest unused first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """There will be room when a model that is in use becomes idle."""


Decision = Grant | Load | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the budget holds."""

    capacity_bytes: int
    """All that models may take together."""
    residents: tuple[Resident, ...] = ()
    """In no particular order."""

    @property
    def resident_bytes(self) -> int:
        """What the resident models take together."""
        return sum(resident.need_bytes for resident in self.residents)

    def find(self, model: str) -> Resident | None:
        """The entry of a model, if it is resident."""
        return next((r for r in self.residents if r.model == model), None)

    def with_resident(self, resident: Resident) -> Ledger:
        """A ledger in which this entry stands in place of the model's earlier one."""
        return replace(self, residents=(*self.without(resident.model).residents, resident))

    def without(self, model: str) -> Ledger:
        """A ledger without this model."""
        return replace(self, residents=tuple(r for r in self.residents if r.model != model))


def admit(ledger: Ledger, model: str, need_bytes: int) -> Decision:
    """What must happen before a model can be used.

    Raises:
        DoesNotFit: It is larger than the whole budget.
    """
    if ledger.find(model) is not None:
        return Grant()
    if need_bytes > ledger.capacity_bytes:
        raise DoesNotFit(
            f"model '{model}' needs {format_bytes(need_bytes)} and the whole budget is "
            f"{format_bytes(ledger.capacity_bytes)}; lower its context_tokens or slots, use a "
            "smaller quantisation, or raise [budget] capacity",
            model=model,
            need_bytes=need_bytes,
            capacity_bytes=ledger.capacity_bytes,
        )
    free_bytes = ledger.capacity_bytes - ledger.resident_bytes
    evict = []
    for resident in sorted(ledger.residents, key=lambda r: r.last_used):
        if free_bytes >= need_bytes:
            break
        if resident.leases == 0:
            evict.append(resident.model)
            free_bytes += resident.need_bytes
    return Load(evict=tuple(evict)) if free_bytes >= need_bytes else Wait()
