"""Finding the stored passage that a new one is a near-duplicate of."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.memory.changes import Changes
from harness.memory.duplicates import BANDS, LEAST_SIMILARITY, same_numbers, similarity
from harness.memory.found import Merge
from harness.memory.passage import Passage
from harness.memory.rows import fetch

# Of passages made from one template a great part may share a band. Then only the latest of them
# are looked at, and a near-duplicate may be missed, but adding many does not become quadratic.
_LATEST = 64
_COMPARED = 8

_ONE_BAND = (
    f"SELECT * FROM (SELECT sequence FROM band WHERE band = ? ORDER BY 1 DESC LIMIT {_LATEST})"  # noqa: S608  # a constant
)
_SHARING = (
    f"SELECT sequence FROM ({' UNION ALL '.join([_ONE_BAND] * BANDS)})"  # noqa: S608  # constants
    f" GROUP BY sequence ORDER BY count(*) DESC, sequence LIMIT {_COMPARED}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A stored passage that says what another says."""

    sequence: int
    """Its number."""
    passage: Passage
    """What is stored."""
    similarity: float
    """See `Merge`."""


def near_duplicate(db: sqlite3.Connection, passage: Passage, bands: Sequence[int]) -> Near | None:
    """The stored passage most like this one, the oldest of several; None when none is enough."""
    sharing = [sequence for (sequence,) in db.execute(_SHARING, bands)]
    if not sharing:
        return None
    alike = (
        Near(
            sequence=sequence,
            passage=other,
            similarity=similarity(passage.searchable, other.searchable),
        )
        for sequence, other in sorted(fetch(db, sharing).items())
        if same_numbers(passage.searchable, other.searchable)
    )
    nearest = max(alike, key=lambda near: near.similarity, default=None)
    return nearest if nearest is not None and nearest.similarity >= LEAST_SIMILARITY else None


def merge(changes: Changes, near: Near, passage: Passage) -> Merge:
    """Makes the two one: the stored one gains the better quality, and metadata it did not have."""
    there = near.passage
    judged = [quality for quality in (there.quality, passage.quality) if quality is not None]
    both = replace(
        there,
        quality=max(judged, default=None),
        metadata={**passage.metadata, **there.metadata},
    )
    if both != there:
        changes.replace(near.sequence, there, both)
    return Merge(id=passage.id, into=there.id, similarity=near.similarity)
