"""The forecast: which models will be called, in which order, as far as that is known beforehand.

It may be wrong. What it promises too much costs a model's stay for some seconds, what it leaves out
a load that was not prepared.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """Uses of models that come one after another, such as those of one node's call."""

    name: str
    """No other strand of the forecast has it."""
    uses: tuple[str, ...]
    """Tags of models, the present or next one first; however many calls are made of it before the
    next one's turn, it stands here once."""
    after: frozenset[str] = frozenset()
    """Names of the strands that must have ended before this one begins; those that are not in the
    forecast have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is still to come."""

    strands: tuple[Strand, ...] = ()
    """In no particular order; side by side but for what they come after."""
    is_complete: bool = False
    """Whether no other model will be called than stands here, so that the others can go."""

    @property
    def models(self) -> frozenset[str]:
        """Those that are still to be called."""
        return frozenset(itertools.chain.from_iterable(strand.uses for strand in self.strands))

    def expects(self, model: str) -> bool:
        """Whether it is one of those; cheaper, and asked at every call."""
        return any(model in strand.uses for strand in self.strands)


NOTHING_KNOWN = Forecast()
"""Where nobody says what comes."""
