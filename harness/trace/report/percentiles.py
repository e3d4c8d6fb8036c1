"""Percentiles by nearest rank: each is a value that occurred, never one in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """How long something took, over the times it happened.

    By nearest rank: the smallest value that at least p of 100 values do not exceed. With fewer than
    20 values the 95th is therefore the largest, and with fewer than 100 the 99th.
    """

    count: int
    """How many values they are of."""
    p50_ns: int
    """Half of the values do not exceed it."""
    p95_ns: int
    """95 of 100 do not."""
    p99_ns: int
    """99 of 100 do not."""


def percentiles_of(values_ns: Iterable[int | None]) -> Percentiles | None:
    """Of the values that are known; None when none is."""
    known = sorted(value for value in values_ns if value is not None)
    if not known:
        return None
    return Percentiles(
        count=len(known),
        p50_ns=_nearest_rank(known, 50),
        p95_ns=_nearest_rank(known, 95),
        p99_ns=_nearest_rank(known, 99),
    )


def _nearest_rank(ascending: list[int], percent: int) -> int:
    # The rank rounded up, in whole numbers: 0.95 is no fraction that a float can hold.
    rank = -(-percent * len(ascending) // 100)
    return ascending[rank - 1]
