"""The ledger: what is resident, what it takes, and whether another model may come.

Pure: state in, decision out. The policy is the simplest that is right. Room is made by evicting
guests, the largest first, since a guest is back in a tenth of a second and a model in seconds; then
idle models, the longest unused first. A model in use is never evicted. Guests come back into what
room is left; no model goes for a guest.
"""

from __future__ import annotations

from collections.abc import Iterable
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
class GuestEntry:
    """A guest, as it was when it was last looked at: they grow by themselves."""

    name: str
    """The guest's."""
    resident_bytes: int
    """What it takes; 0 when it is out."""
    needed_bytes: int
    """What it will take when it is back."""
    is_out: bool = False
    """Whether it was evicted, and is to come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """It is resident: go ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load it, after evicting these."""

    evict: tuple[str, ...]
    """Idle models, the longest unused first."""
    guests: tuple[str, ...] = ()
    """Guests, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """There will be room when a model that is in use becomes idle."""


Decision = Grant | Load | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the budget holds."""

    capacity_bytes: int
    """All that models and guests may take together."""
    residents: tuple[Resident, ...] = ()
    """Models, in no particular order."""
    guests: tuple[GuestEntry, ...] = ()
    """In the order they were admitted, also those that are out."""

    @property
    def resident_bytes(self) -> int:
        """What the resident models and the guests take together."""
        return self.model_bytes + _taken_by(self.guests)

    @property
    def model_bytes(self) -> int:
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
    # 1. The models that have to go although every guest does.
    room_bytes = ledger.capacity_bytes - ledger.model_bytes
    evict = []
    for resident in sorted(ledger.residents, key=lambda r: r.last_used):
        if room_bytes >= need_bytes:
            break
        if resident.leases == 0:
            evict.append(resident.model)
            room_bytes += resident.need_bytes
    if room_bytes < need_bytes:
        return Wait()
    # 2. The guests that have to go although those models do.
    return Load(
        evict=tuple(evict), guests=_too_many(ledger.guests, room_bytes=room_bytes - need_bytes)
    )


def outgrown(ledger: Ledger) -> tuple[str, ...]:
    """The guests that must go since what is resident has grown beyond the capacity."""
    room_bytes = ledger.capacity_bytes - ledger.model_bytes
    return _too_many(ledger.guests, room_bytes=room_bytes)


def returning(ledger: Ledger) -> tuple[str, ...]:
    """The guests that may come back, the smallest first: as many as there is room for."""
    room_bytes = ledger.capacity_bytes - ledger.resident_bytes
    names = []
    out = [guest for guest in ledger.guests if guest.is_out]
    for guest in sorted(out, key=lambda g: (g.needed_bytes, g.name)):
        room_bytes -= guest.needed_bytes
        if room_bytes < 0:
            break
        names.append(guest.name)
    return tuple(names)


def _too_many(guests: Iterable[GuestEntry], *, room_bytes: int) -> tuple[str, ...]:
    """Those that go so that the others fit into the room, the largest first: as few as need be."""
    there = sorted((g for g in guests if not g.is_out), key=lambda g: (-g.resident_bytes, g.name))
    taken_bytes = _taken_by(there)
    names = []
    for guest in there:
        if taken_bytes <= room_bytes:
            break
        names.append(guest.name)
        taken_bytes -= guest.resident_bytes
    return tuple(names)


def _taken_by(guests: Iterable[GuestEntry]) -> int:
    return sum(guest.resident_bytes for guest in guests)
