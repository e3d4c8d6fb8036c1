"""What loads are still to come, at the least, from here on: a search through the forecast.

Running what is resident costs nothing and stands in nobody's way, so between two loads everything
runs that can; what is left to decide is which model comes next, and which go for it. That is a
shortest path, found by A*: the distance is seconds of loading, and what lies ahead is at least one
load of every model that is still to be used and not resident.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.residency.forecast import Strand
from harness.residency.ledger import Need, Tenant

_MOST_POSITIONS: Final = 300
"""Looked at before the search ends with what it knows: some milliseconds. Pipelines have tens."""
_MOST_WAYS: Final = 16
"""Of making room for one model, that are compared."""
_MOST_VICTIMS: Final = 3
"""Of one load, that are compared with others; beyond it the first that do are taken."""


@dataclass(frozen=True, slots=True)
class Position:
    """A moment of the run, as far as the search tells moments apart."""

    residents: frozenset[str]
    """The models that are in memory."""
    at: tuple[int, ...]
    """How many of its uses each strand has behind it."""


class Lookahead:
    """The ways through one forecast.

    Args:
        strands: What is to come. Those that are alike are looked at once: they go side by side.
        tenants: The models, by tag; uses of others cost nothing.
        rooms: By device, what models may take there.
    """

    def __init__(
        self, strands: Sequence[Strand], tenants: Mapping[str, Tenant], rooms: Mapping[str, int]
    ) -> None:
        self._tenants = tenants
        self._rooms = rooms
        strands = _distinct([_among(strand, tenants) for strand in strands])
        number = {strand.name: index for index, strand in enumerate(strands)}
        self._uses = [strand.uses for strand in strands]
        self._after = [[number[name] for name in s.after if name in number] for s in strands]

    def start(self, residents: Collection[str]) -> Position:
        """The present moment."""
        return Position(frozenset(residents), (0,) * len(self._uses))

    def advance(self, position: Position) -> Position:
        """After everything has run that can be run with what is resident."""
        at = list(position.at)
        moved = True
        while moved:
            moved = False
            for index in self._begun(at):
                uses, old = self._uses[index], at[index]
                while at[index] < len(uses) and uses[at[index]] in position.residents:
                    at[index] += 1
                # Only a strand that has ended lets others begin.
                moved |= at[index] > old and at[index] == len(uses)
        return Position(position.residents, tuple(at))

    def passed(self, before: Position, after: Position) -> frozenset[str]:
        """The models that are used between two moments."""
        return frozenset(
            model
            for uses, first, last in zip(self._uses, before.at, after.at, strict=True)
            for model in uses[first:last]
        )

    def wanted(self, position: Position) -> frozenset[str]:
        """The models that could be used next, were they resident."""
        at = position.at
        return frozenset(
            self._uses[index][at[index]]
            for index in self._begun(at)
            if at[index] < len(self._uses[index])
        )

    def ahead(self, position: Position) -> frozenset[str]:
        """The models that are used at any time from now on."""
        return frozenset(
            model for uses, at in zip(self._uses, position.at, strict=True) for model in uses[at:]
        )

    def ways_to_load(
        self, position: Position, model: str, going: Sequence[str]
    ) -> Iterator[tuple[str, ...]]:
        """What could go so that a model can come: nothing that need not; at most some ways.

        Args:
            position: The moment.
            model: Which is to come.
            going: The residents that may go, those first that are missed least.
        """
        need = self._tenants[model].need
        free = self._free(position.residents)
        if _fits(need, free):
            yield ()
            return
        found: list[set[str]] = []
        for count in range(1, min(_MOST_VICTIMS, len(going)) + 1):
            for victims in itertools.combinations(going, count):
                if any(smaller <= set(victims) for smaller in found):
                    continue
                if _fits(need, self._with_freed(free, victims)):
                    found.append(set(victims))
                    yield victims
                    if len(found) == _MOST_WAYS:
                        return
        if not found:
            for count in range(_MOST_VICTIMS + 1, len(going) + 1):
                if _fits(need, self._with_freed(free, going[:count])):
                    yield tuple(going[:count])
                    return

    def loaded(self, position: Position, model: str, evicted: Collection[str]) -> Position:
        """The moment after a load, when everything has run that then can."""
        residents = (position.residents - frozenset(evicted)) | {model}
        return self.advance(Position(residents, position.at))

    def least_load_s(self, position: Position, staying: Collection[str] = ()) -> float:
        """The seconds of loading that are still to come, at the least.

        Exact where the search comes to its end, which it does but for large forecasts; else what
        cannot be less.

        Args:
            position: The moment, when everything has run that can.
            staying: Models that never go.
        """
        order = itertools.count()
        open_ = [(self._at_least(position), next(order), 0.0, position)]
        best = {position: 0.0}
        at_least = 0.0
        while open_ and len(best) < _MOST_POSITIONS:
            at_least, _, so_far, here = heapq.heappop(open_)
            wanted = self.wanted(here) - here.residents
            if not wanted:
                return at_least
            if so_far > best[here]:
                continue
            going = sorted(here.residents.difference(staying))
            for model in sorted(wanted):
                for victims in self.ways_to_load(here, model, going):
                    there = self.loaded(here, model, victims)
                    cost = so_far + self._tenants[model].load_s
                    if cost < best.get(there, math.inf):
                        best[there] = cost
                        estimate = cost + self._at_least(there)
                        heapq.heappush(open_, (estimate, next(order), cost, there))
        return open_[0][0] if open_ else at_least

    def _at_least(self, position: Position) -> float:
        return sum(
            self._tenants[model].load_s for model in self.ahead(position) - position.residents
        )

    def _begun(self, at: Sequence[int]) -> Iterator[int]:
        for index, before in enumerate(self._after):
            if all(at[other] == len(self._uses[other]) for other in before):
                yield index

    def _free(self, residents: Collection[str]) -> dict[str, int]:
        return {
            device: room - sum(self._tenants[model].need.get(device, 0) for model in residents)
            for device, room in self._rooms.items()
        }

    def _with_freed(self, free: Mapping[str, int], victims: Collection[str]) -> dict[str, int]:
        return {
            device: bytes_ + sum(self._tenants[model].need.get(device, 0) for model in victims)
            for device, bytes_ in free.items()
        }


def _fits(need: Need, free: Mapping[str, int]) -> bool:
    return all(free[device] >= bytes_ for device, bytes_ in need.items())


def _among(strand: Strand, tenants: Mapping[str, Tenant]) -> Strand:
    """The strand without models that nobody loads, and each stretch of one model once."""
    uses = [model for model in strand.uses if model in tenants]
    return Strand(
        name=strand.name,
        uses=tuple(model for model, _ in itertools.groupby(uses)),
        after=strand.after,
    )


def _distinct(strands: Sequence[Strand]) -> list[Strand]:
    """One strand for all that have the same uses after the same others, until no two are alike."""
    while True:
        alike: dict[tuple[tuple[str, ...], frozenset[str]], str] = {}
        for strand in strands:
            alike.setdefault((strand.uses, strand.after), strand.name)
        stands_for = {strand.name: alike[strand.uses, strand.after] for strand in strands}
        kept = [
            Strand(
                name=strand.name,
                uses=strand.uses,
                after=frozenset(stands_for.get(name, name) for name in strand.after),
            )
            for strand in strands
            if stands_for[strand.name] == strand.name
        ]
        if len(kept) == len(strands):
            return kept
        strands = kept
