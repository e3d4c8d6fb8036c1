"""Embeddings as servers send them, rows of numbers, as one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import ServerError


def as_vectors(
    rows: Sequence[Sequence[float]], *, endpoint: str, count: int
) -> NDArray[np.float32]:
    """The rows as `(count, d) float32`, with `d` at least 1 and nothing in it but finite numbers.

    Args:
        rows: One per text, in the texts' order.
        endpoint: Tag of the endpoint that sent them.
        count: How many texts there were.

    Raises:
        ServerError: They are something else.
    """
    if len(rows) != count:
        raise _odd(f"{len(rows)} embeddings of {count} texts", endpoint)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise _odd(f"embeddings of different lengths ({lengths[0]} to {lengths[-1]})", endpoint)
    if not all(lengths):
        raise _odd("embeddings with no numbers in them", endpoint)
    with np.errstate(over="ignore"):  # what float32 has no room for is found below
        vectors = np.array(rows, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise _odd("embeddings with numbers that are not finite in float32", endpoint)
    return vectors


def _odd(came: str, endpoint: str) -> ServerError:
    return ServerError(f"the server was asked for embeddings and sent {came}", endpoint=endpoint)
