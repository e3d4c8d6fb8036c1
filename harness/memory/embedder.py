"""What turns texts into vectors: the protocol, and the one that needs nothing but this package."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput

if TYPE_CHECKING:
    from wordllama import WordLlamaInference

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Anything that embeds texts, always the same text as the same vector."""

    @property
    def name(self) -> str:
        """Model and settings: two embedders share a name only if their vectors compare."""

    @property
    def dimensions(self) -> int:
        """Length d of each vector."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, d) float32, each row of unit length, or all zeros for a text without content."""


class WordLlamaEmbedder:
    """Averaged token vectors of wordllama: offline, no torch, 5,000 passages a second a core.

    The weights are read from the installed package at the first call of `embed`.
    """

    name = "wordllama/l2_supercat/256"
    dimensions = 256

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`; any text will do, of any length."""
        # One by one: a batch is padded to its longest text, which is slower on passages of
        # uneven length, and out of memory when one of them is a book.
        vectors: Vectors = self._model.embed(list(texts), norm=False, batch_size=1)
        # Not by norm=True, which divides by zero for a text without tokens.
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors

    @cached_property
    def _model(self) -> WordLlamaInference:
        # Importing wordllama calls logging.basicConfig(level=INFO). The root logger belongs to
        # the application: put it back as it was.
        root = logging.getLogger()
        level, handlers = root.level, list(root.handlers)
        import wordllama  # noqa: PLC0415  # 0.2 s

        root.setLevel(level)
        root.handlers[:] = handlers
        # Told where: its own look-up seeks the tokenizer it ships under another folder's name,
        # misses it, and goes to the network.
        return wordllama.WordLlama.load(
            cache_dir=Path(wordllama.__file__).parent, disable_download=True
        )


def embed(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """The texts' vectors, checked: they are about to be stored for good.

    Raises `InvalidInput` when they are not an (n, d) array of finite numbers.
    """
    vectors = np.asarray(embedder.embed(texts), dtype=np.float32)
    expected = (len(texts), embedder.dimensions)
    if vectors.shape != expected or not np.isfinite(vectors).all():
        raise InvalidInput(
            f"embedder '{embedder.name}' gave an array of shape {vectors.shape} for "
            f"{len(texts)} texts; it must give {expected}, all finite"
        )
    return vectors
