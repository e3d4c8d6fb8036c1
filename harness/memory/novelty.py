"""Novelty: how much of a batch of texts says what is not known yet, from 0 to 10."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput

THRESHOLD = 3.0
"""Below it the Novelty Gate leaves a batch out."""


def novelty(nearest: NDArray[np.float32], *, unrelated: float) -> float:
    """10 x the mean of min(1, (1 - cosine) / (1 - unrelated)).

    A text that is known word for word adds 0. One that is no nearer to anything known than texts
    about different things are to each other adds all it can: further away is not newer, and a
    batch of such texts has 10. So does any batch when nothing is known; one without texts has 0.

    Args:
        nearest: For each text of the batch, its greatest cosine to what is known, (n,); -1 where
            nothing is.
        unrelated: The cosine above which two texts have something to do with each other.

    Raises:
        InvalidInput: `unrelated` is not a cosine that leaves room above it.
    """
    if not -1 <= unrelated < 1:
        raise InvalidInput(
            f"unrelated is {unrelated}; it must be at least -1, and below 1",
            code="memory.unrelated-out-of-range",
        )
    if not len(nearest):
        return 0.0
    # Both ends: rounding takes the cosine of equal texts a little above 1.
    distance = np.clip((1 - nearest.astype(np.float64)) / (1 - unrelated), 0, 1)
    return float(10 * distance.mean())


def nearest(batch: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each text's greatest cosine to what is known: (n, d) and (m, d) of unit length to (n,).

    A text without content has a vector of zeros, and 1 here: it says nothing new.
    """
    found = np.full(len(batch), -1, dtype=np.float32)
    if len(known):
        found = (batch @ known.T).max(axis=1)
    found[~batch.any(axis=1)] = 1
    return found
