"""What turns texts into vectors: the protocol, and the one that needs nothing but this package."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

    The weights are read from the installed package at the first call of `embed`, once for all
    embedders of the process.
    """

    name = "wordllama/l2_supercat/256"
    dimensions = 256

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`; any text will do, of any length."""
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        # 1. In pieces: a vector for each token of a text is there at once, in all a thousand
        # bytes for each of its bytes.
        pieces = [_PIECE.findall(text) or [""] for text in texts]
        each = [piece.removesuffix(" ") for some in pieces for piece in some]
        # 2. One by one: a batch is padded to its longest text, which is slower on passages of
        # uneven length.
        means: Vectors = _model().embed(each, norm=False, batch_size=1)
        # 3. Their sum by length is as long as may be: not by norm=True, which divides by zero for
        # a text without tokens.
        lengths = np.array([max(1, len(piece)) for piece in each], dtype=np.float32)
        ends = np.cumsum([len(some) for some in pieces])
        starts = np.concatenate([[0], ends[:-1]])
        return normalised(np.add.reduceat(means * lengths[:, np.newaxis], starts))


# Between words, if there is a blank: the tokenizer begins a text as it begins a word.
_PIECE = re.compile(r".{1,8000}(?: |\Z)|.{1,8000}", re.DOTALL)

_LOADING = Lock()


def _model() -> WordLlamaInference:
    with _LOADING:  # or else two threads could both load it, and mix up the loggers
        return _loaded()


@cache
def _loaded() -> WordLlamaInference:
    # Importing wordllama calls logging.basicConfig(level=INFO), which does nothing where the root
    # logger has a handler. That logger belongs to the application: to put it back afterwards would
    # let other threads log for a moment what nobody asked for, and an import that fails for good.
    last_resort = logging.lastResort or logging.NullHandler()
    logging.root.addHandler(last_resort)
    try:
        import wordllama  # noqa: PLC0415  # 0.2 s
    finally:
        logging.root.removeHandler(last_resort)
    # Told where: its own look-up seeks the tokenizer it ships under another folder's name,
    # misses it, and goes to the network.
    return wordllama.WordLlama.load(
        cache_dir=Path(wordllama.__file__).parent, disable_download=True
    )


class FunctionEmbedder:
    """Any function from texts to vectors.

    Args:
        name: Model and settings. Vectors are kept under this name: give another to a function that
            gives others.
        function: Takes n texts, in any thread, and returns n vectors as an array or lists of
            numbers, of any length but zero: they are brought to unit length here.
        dimensions: d, how many numbers each has.

    Raises:
        InvalidInput: The name is blank, or `dimensions` is not positive.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Sequence[str]], ArrayLike],
        dimensions: int,
    ) -> None:
        if not name.strip():
            raise InvalidInput(
                "an embedder needs a name: its vectors are kept under it", code="embedder.no-name"
            )
        if dimensions < 1:
            raise InvalidInput(
                f"embedder '{name}' has {dimensions} dimensions; it needs some",
                code="embedder.no-dimensions",
            )
        self.name = name
        self.dimensions = dimensions
        self._function = function

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`."""
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        return normalised(np.array(self._function(texts), dtype=np.float32))


def normalised(vectors: Vectors) -> Vectors:
    """The same, each of unit length; one of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


def embed(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """The texts' vectors, checked: they are about to be stored for good.

    Raises `InvalidInput` when they are not an (n, d) array of finite numbers.
    """
    vectors = np.asarray(embedder.embed(texts), dtype=np.float32)
    expected = (len(texts), embedder.dimensions)
    if vectors.shape != expected or not np.isfinite(vectors).all():
        raise InvalidInput(
            f"embedder '{embedder.name}' gave an array of shape {vectors.shape} for "
            f"{len(texts)} texts; it must give {expected}, all finite",
            code="embedder.wrong-vectors",
        )
    return vectors
