"""What a node asks of models: by role, in order, as far as it is known before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.session.roles import EVALUATOR, PRODUCER

MEMORY = "memory"
"""The role of calls for the vectors of passages; wordllama makes them unless an endpoint does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Calls in roles that come again and again.

    Of one role: any number of calls, before another role's turn. Of several: one after the other,
    unknown how often, as a loop or side-by-side calls of one function make them.
    """

    roles: tuple[str, ...]
    """Each once, in the order in which they are asked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A revise loop: producer and evaluator, by turns."""

    max_rounds: int = 3
    """Evaluations at most."""
    has_draft: bool = False
    """Whether it is given a draft, so that the evaluator comes first."""
    rubric: str | None = None
    """The rubric's name; None where that cannot be told."""

    @property
    def roles(self) -> tuple[str, ...]:
        """In the order in which they are asked first."""
        return (EVALUATOR, PRODUCER) if self.has_draft else (PRODUCER, EVALUATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUses:
    """What one call of a node asks."""

    uses: tuple[Turn | Loop, ...] = ()
    """In order. Of branches, all: which is taken, nobody knows."""
    is_all: bool = True
    """Whether it asks in no role beside these."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Each once, in the order in which they are asked first."""
        return roles_of(self.uses)


def roles_of(uses: Iterable[Turn | Loop]) -> tuple[str, ...]:
    """The roles of several uses: each once, in the order in which they are asked first."""
    return tuple(dict.fromkeys(role for use in uses for role in use.roles))
