"""Which load costs the least in the end: the one that comes, and those that go for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from harness.residency.forecast import Strand
from harness.residency.ledger import Resident, guests_in_the_way
from harness.residency.lookahead import Lookahead
from harness.residency.state import Load, State

_MOMENT_NS: Final = 50_000_000
"""After a call: soon the one is here that it was made for, and may be for a model that fits beside.
Who chose before that would choose among the others."""


class Choice:
    """Compares the loads that could be made now, by what the rest of the run then takes.

    Args:
        state: The present.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._pinned = {model for model, tenant in state.tenants.items() if tenant.pin}
        self._lookahead = Lookahead(
            [*state.forecast.strands, *_strands_of_calls(state)], state.tenants, _rooms(state)
        )
        residents = state.ledger.residents
        self._now = self._lookahead.start(residents)
        self._later = self._lookahead.advance(self._now)
        self._used_before = self._lookahead.passed(self._now, self._later)
        self._used_after = self._lookahead.ahead(self._later)
        unpinned = [one for one in residents.values() if one.model not in self._pinned]
        self._going = [one.model for one in sorted(unpinned, key=self._missed)]

    @property
    def wanted_next(self) -> list[str]:
        """What could be used next, were it resident."""
        wanted = self._lookahead.wanted(self._later) - self._later.residents
        return sorted(wanted - self._state.failed)

    @property
    def idle(self) -> list[str]:
        """The residents that may go at once, those first that are missed least."""
        residents = self._state.ledger.residents
        return [model for model in self._going if not residents[model].leases]

    def best(
        self, reasons: Mapping[str, str], *, going: Sequence[str] | None = None
    ) -> Load | None:
        """The best load of one of these models; None where none has room beside what is pinned.

        Args:
            reasons: By model, why it should come; of two that are as good the one of higher
                priority is taken, or else the first.
            going: The residents that may go; None for all that are not pinned.
        """
        going = self._going if going is None else going
        best: tuple[tuple[float, bool, int], str, tuple[str, ...]] | None = None
        for model in reasons:
            priority = self._state.tenants[model].priority
            for victims in self._lookahead.ways_to_load(self._later, model, going):
                # How long calls take is not known at first: of equal ways, one that need not wait.
                cost = self._cost_s(model, victims), self._must_wait(victims), -priority
                if best is None or cost < best[0]:
                    best = cost, model, victims
        if best is None:
            return None
        _, model, victims = best
        ledger = self._state.ledger
        for victim in victims:
            ledger = ledger.without(victim)
        return Load(
            model=model,
            evict=victims,
            guests=guests_in_the_way(ledger, self._state.tenants[model].need),
            reason=", ".join([reasons[model], *map(self._why_it_goes, victims)]),
            is_prefetch=all(call.model != model for call in self._state.waiting),
        )

    def stays_until_ns(self, model: str) -> int | None:
        """When a resident may go for another; None where some call must end first.

        One that is about to be used again is kept, though idle: while calls to others are under
        way, which may come before it, and from then on, while nothing happens, for as long as
        loading it again would take. That no call waits too long for it is seen to elsewhere.
        """
        residents, tenants = self._state.ledger.residents, self._state.tenants
        if residents[model].leases:
            return None
        if model not in self._used_before:
            return residents[model].idle_since_ns + _MOMENT_NS
        load_s = tenants[model].load_s
        if any(one.leases for one in residents.values()):
            return None
        idle_since_ns = max(one.idle_since_ns for one in residents.values() if not one.leases)
        return idle_since_ns + round(load_s * 1e9)

    def can_go(self, model: str) -> bool:
        """Whether a resident makes room for what nobody waits for yet: only if it is over."""
        return (
            self._state.forecast.is_complete
            and not self._state.ledger.residents[model].leases
            and not self.is_used_again(model)
        )

    def is_used_again(self, model: str) -> bool:
        """Whether the forecast has a use for it."""
        return model in self._used_before or model in self._used_after

    def _cost_s(self, model: str, victims: Collection[str]) -> float:
        """Seconds of loading from now on, with those until the victims' calls have ended."""
        tenants, residents = self._state.tenants, self._state.ledger.residents
        there = self._lookahead.loaded(self._later, model, victims)
        waits_s = [tenants[victim].call_s for victim in victims if residents[victim].leases]
        return (
            tenants[model].load_s
            + self._lookahead.least_load_s(there, self._pinned)
            + max(waits_s, default=0.0)
        )

    def _must_wait(self, victims: Collection[str]) -> bool:
        return any(self._state.ledger.residents[victim].leases for victim in victims)

    def _missed(self, resident: Resident) -> tuple[int, float, str]:
        """How much it is missed, where the forecast sees no difference; the least goes first.

        What is cheap to load again, large, and long unused: with equal models, the longest unused.
        """
        tenant = self._state.tenants[resident.model]
        idle_ns = 0 if resident.leases else max(self._state.now_ns - resident.idle_since_ns, 0)
        per_byte = tenant.load_s / max(sum(resident.need.values()), 1)
        return tenant.priority, per_byte / (idle_ns + 1), resident.model

    def _why_it_goes(self, model: str) -> str:
        if self.is_used_again(model):
            return f"'{model}' is used again later than others"
        if self._state.forecast.is_complete:
            return f"'{model}' is not used again"
        return f"nothing is left for '{model}'"


def _strands_of_calls(state: State) -> list[Strand]:
    """What waits, as strands of its own: the forecast need not know of every call."""
    models = dict.fromkeys(call.model for call in state.waiting)
    return [Strand(name=f"calls of {model}", uses=(model,)) for model in models]


def _rooms(state: State) -> dict[str, int]:
    return {name: device.room_bytes for name, device in state.ledger.devices.items()}
