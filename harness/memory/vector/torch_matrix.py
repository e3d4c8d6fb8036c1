"""Vectors in the memory of a GPU, by torch: the same results, to 1e-6, at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from harness.errors import InvalidInput
from harness.memory.embedder import Vectors
from harness.memory.vector.matrix import Rows, grown

if TYPE_CHECKING:
    import torch


def check(device: str) -> None:
    """Raises `InvalidInput` when there is no torch, or no such device."""
    try:
        import torch  # noqa: PLC0415  # optional, and slow
    except ImportError as error:
        raise InvalidInput(
            f"device '{device}' needs torch, which is not installed; pip install torch, or leave "
            "the device out",
            code="memory.torch-missing",
        ) from error
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(
            "device 'cuda': torch sees no GPU here; leave the device out", code="memory.no-gpu"
        )


def give_back() -> None:
    """Returns what torch keeps for later to the GPU, where models wait for it."""
    import torch  # noqa: PLC0415  # optional, and slow

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class TorchBlock:
    """See `matrix.Block`.

    Args:
        buffer: (capacity, d) float32, written to beyond the block's end as it is extended.
        count: n, how many rows are in use.
    """

    def __init__(self, buffer: torch.Tensor, count: int) -> None:
        self._buffer = buffer
        self._vectors = buffer[:count]

    @classmethod
    def of(cls, vectors: Vectors, *, device: str) -> Self:
        """These vectors (n, d), on a device that torch knows."""
        import torch  # noqa: PLC0415  # optional, and slow

        return cls(torch.from_numpy(vectors).to(device), len(vectors))

    def with_room(self, rows: int) -> Self:
        """See `Block`."""
        buffer = self._buffer.new_empty((rows, self._buffer.shape[1]))
        buffer[: len(self._vectors)] = self._vectors
        return type(self)(buffer, len(self._vectors))

    def extended(self, vectors: Vectors) -> Self:
        """See `Block`."""
        count = len(self._vectors)
        total = count + len(vectors)
        if total > len(self._buffer):
            return self.with_room(grown(total)).extended(vectors)
        self._buffer[count:total] = self._there(vectors)
        return type(self)(self._buffer, total)

    def taken(self, rows: Rows) -> Self:
        """See `Block`."""
        return type(self)(self._vectors[self._there(rows)], len(rows))

    def cosines(self, query: Vectors, rows: Rows) -> Vectors:
        """See `Block`."""
        return self._here(self._vectors[self._there(rows)] @ self._there(query))

    def best(self, query: Vectors, limit: int, *, dead: Rows) -> tuple[Rows, Vectors]:
        """See `Block`."""
        scores = self._vectors @ self._there(query)
        if len(dead):
            scores[self._there(dead)] = -np.inf
        best = scores.topk(limit)
        return best.indices.cpu().numpy(), self._here(best.values)

    @property
    def nbytes(self) -> int:
        """See `Block`."""
        return int(self._buffer.nbytes)

    def _there(self, array: Rows | Vectors) -> torch.Tensor:
        import torch  # noqa: PLC0415  # optional, and slow

        return torch.from_numpy(array).to(self._buffer.device)

    @staticmethod
    def _here(tensor: torch.Tensor) -> Vectors:
        array: Vectors = tensor.cpu().numpy()
        return array
