"""Which load costs the least in the end: the one that comes, and those that go for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.residency.forecast import Strand
from harness.residency.ledger import Resident, guests_in_the_way
from harness.residency.lookahead import Lookahead
from harness.residency.state import Load, State


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

    def best(self, models: Sequence[str], why: str, *, is_prefetch: bool = False) -> Load | None:
        """The best load of one of these models; None where none has room beside what is pinned.

        Args:
            models: Those that are as good as others come first.
            why: What the reason begins with.
            is_prefetch: What the load is to say of itself.
        """
        best: tuple[float, str, tuple[str, ...]] | None = None
        for model in models:
            for victims in self._lookahead.ways_to_load(self._later, model, self._going):
                cost_s = self._cost_s(model, victims)
                if best is None or cost_s < best[0]:
                    best = cost_s, model, victims
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
            reason=", ".join([why, *map(self._why_it_goes, victims)]),
            is_prefetch=is_prefetch,
        )

    def stays_until_ns(self, model: str) -> int | None:
        """When a resident may go for another; None as long as calls use it.

        One that is about to be used again is kept, though idle, for as long as loading it again
        would take: whatever comes then, no more than that was lost.
        """
        resident = self._state.ledger.residents[model]
        if resident.leases:
            return None
        if model not in self._used_before:
            return 0
        return resident.idle_since_ns + round(self._state.tenants[model].load_s * 1e9)

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

    def _missed(self, resident: Resident) -> tuple[int, float, str]:
        """How much it is missed, where the forecast sees no difference; the least goes first.

        What is cheap to load again, large, and long unused: with equal models, the longest unused.
        """
        tenant = self._state.tenants[resident.model]
        idle_ns = 0 if resident.leases else max(self._state.now_ns - resident.idle_since_ns, 0)
        per_byte = tenant.load_s / max(sum(resident.need.values()), 1)
        return tenant.priority, per_byte / (idle_ns + 1), resident.model

    def _why_it_goes(self, model: str) -> str:
        if model in self._used_after:
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
