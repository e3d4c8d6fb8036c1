"""A case: a draft before its judges, and all that each of them is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.rubric.draft import Draft
from harness.rubric.judging.scoring import Held
from harness.rubric.judging.shown import Shown
from harness.rubric.rubric import Dimension, Rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A draft before its judges."""

    rubric: Rubric
    """What it is judged by."""
    draft: Draft
    """What is judged."""
    shown: Shown
    """What is shown of it."""
    dimensions: tuple[Dimension, ...]
    """What it is judged on; at least one."""
    held: Mapping[str, tuple[Held, ...]]
    """By dimension, the caps that a check has already found to apply."""

    @property
    def calls(self) -> tuple[tuple[Dimension, ...], ...]:
        """The dimensions that each call asks for."""
        if self.rubric.judge == "joint":
            return (self.dimensions,)
        return tuple((dimension,) for dimension in self.dimensions)
