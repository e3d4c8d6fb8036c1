"""Embedders, which turn texts into vectors, and the similarity that one gives unrelated texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigurationInvalid, InvalidInput

if TYPE_CHECKING:
    from wordllama import WordLlamaInference

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Anything that embeds texts; equal texts must get equal vectors.

    With a true attribute `in_background`, a store adds more than 16 passages without waiting for
    their vectors.
    """

    @property
    def name(self) -> str:
        """Model and settings: two embedders share a name only if their vectors compare."""

    @property
    def dimensions(self) -> int:
        """The length d of each vector, the same for all texts."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, d) numbers, of which a store makes unit length; zeros for a text without content."""


class WordLlamaEmbedder:
    """Averaged token vectors of wordllama: offline, no torch, 5,000 passages a second a core.

    The weights are read from the installed package at the first call of `embed`, once for all
    embedders of the process. Raises `ConfigurationInvalid` if it is not installed.
    """

    name = "wordllama/l2_supercat/256"
    dimensions = 256

    def __init__(self) -> None:
        if not has_wordllama():
            raise ConfigurationInvalid(
                "the embedder wordllama is not installed: it has no build for Python 3.14 and "
                "later, nor for ARM; use 'minilm', or an endpoint that embeds",
                code="memory.no-wordllama",
            )

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`. Texts may be of any length."""
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        # 1. Cut texts into pieces, since all token vectors of a text are in memory at once, a
        #    thousand bytes for each byte of text.
        pieces: list[str] = []
        starts: list[int] = []  # of each text, the index of its first piece
        for text in texts:
            starts.append(len(pieces))
            pieces += [piece.removesuffix(" ") for piece in _PIECE.findall(text) or [""]]
        # 2. Embed piece by piece: a batch is padded to its longest text, which is slower on
        #    passages of uneven length.
        means: Vectors = _model().embed(pieces, norm=False, batch_size=1)
        # 3. Add up each text's pieces, weighted by length. Normalized here, since norm=True divides
        #    by zero for a text without tokens.
        lengths = np.array([max(1, len(piece)) for piece in pieces], dtype=np.float32)
        return normalized(np.add.reduceat(means * lengths[:, np.newaxis], starts))


@cache
def has_wordllama() -> bool:
    """Whether wordllama is installed: its wheels are for x86-64, and Python 3.13 and older."""
    return find_spec("wordllama") is not None


# Texts are cut at a blank if there is one: the tokenizer begins a text as it begins a word.
_PIECE = re.compile(r".{1,8000}(?: |\Z)|.{1,8000}", re.DOTALL)

_LOADING = Lock()


def _model() -> WordLlamaInference:
    with _LOADING:  # otherwise two threads could both load it, and mix up the loggers
        return _loaded()


@cache
def _loaded() -> WordLlamaInference:
    # Importing wordllama calls logging.basicConfig(level=INFO), which would change the root logger
    # of the application. It does nothing if that logger has a handler. If the logger was restored
    # afterwards instead, other threads would log unwanted lines meanwhile, and for good if the
    # import failed.
    last_resort = logging.lastResort or logging.NullHandler()
    logging.root.addHandler(last_resort)
    try:
        import wordllama  # noqa: PLC0415  # 0.2 s
    finally:
        logging.root.removeHandler(last_resort)
    # Without the folder, wordllama misses the tokenizer that it ships, and asks the network for it.
    return wordllama.WordLlama.load(
        cache_dir=Path(wordllama.__file__).parent, disable_download=True
    )


def normalized(vectors: Vectors) -> Vectors:
    """The vectors with unit length; zeros stay zeros."""
    # Scaled first, since squares may be beyond float32; by a power of 2, which rounds nothing.
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    scaled = np.ldexp(vectors, -np.frexp(largest)[1])
    lengths = np.linalg.norm(scaled, axis=-1, keepdims=True)
    # With a type, since the stubs of numpy 2.3 and 2.4 infer different ones.
    unit: Vectors = np.divide(scaled, np.where(lengths, lengths, 1), dtype=np.float32)
    return unit


def embed(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """The texts' vectors in unit length. Raises `InvalidInput` unless they are (n, d), finite."""
    expected = (len(texts), embedder.dimensions)
    # Not asked about no texts, of which some make an array without columns.
    reply = embedder.embed(texts) if texts else np.empty(expected)
    with np.errstate(over="ignore"):  # a number that is too large becomes infinite
        vectors = np.asarray(reply, dtype=np.float32)
    if vectors.shape != expected or not np.isfinite(vectors).all():
        beyond = "nan or numbers beyond 3.4e38"
        fault = beyond if vectors.shape == expected else f"shape {vectors.shape}"
        raise InvalidInput(
            f"embedder '{embedder.name}' gave an array with {fault} for {len(texts)} texts; it "
            f"must give one of shape {expected}, all finite",
            code="embedder.wrong-vectors",
        )
    return normalized(vectors)


_DEVIATIONS = 2

# Needed for an embedder that finds all texts alike: cosines above the limit must be possible.
_HIGHEST_LIMIT = 0.99

# One text from each of many fields, with the length and tone of questions and passages.
_TEXTS = (
    "Knead the dough for ten minutes and let it rise under a damp cloth.",
    "The goalkeeper saved a penalty in the last minute of the final.",
    "A patient with chest pain needs an electrocardiogram without delay.",
    "Interest rates rose again, and mortgages became more expensive.",
    "How do I prune roses so that they flower in the following summer?",
    "The violin concerto was first performed in Vienna in 1806.",
    "Tectonic plates drift a few centimetres a year.",
    "To change a bicycle's tyre, begin on the side away from the valve.",
    "The tenant may give three months' notice in writing.",
    "Penguins take turns to warm the egg through the winter.",
    "An index makes a query faster and every insertion slower.",
    "Her novel follows three sisters through the siege of their town.",
    "Which vaccines does a traveller need for the tropics?",
    "Sand the wood along the grain before you put on the varnish.",
    "The airline cancelled all flights because of fog.",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "The senate rejected the bill by two votes.",
    "Medieval monks copied manuscripts by hand on parchment.",
    "A kitten should be fed four times a day with small portions.",
    "The telescope saw a galaxy whose light is twelve billion years old.",
    "Prime numbers are infinite in number, as Euclid proved.",
    "The dress is of silk, with embroidered sleeves and a high collar.",
    "Steel rusts where salt water reaches it and the paint is gone.",
    "Children learn the rules of their language without being taught.",
    "The winery harvests its grapes at night, while they are cool.",
    "How many people lived in Rome under the emperor Augustus?",
    "The lawyer advised her client to say nothing.",
    "Chess players castle early to bring the king into safety.",
)


class UnrelatedCosines(NamedTuple):
    """The cosines that an embedder gives texts that have nothing to do with each other."""

    mean: float
    limit: float  # texts with a greater cosine are related; at most 0.99


def unrelated_cosines(embedder: Embedder) -> UnrelatedCosines:
    """Measures the cosines of unrelated texts by an embedder, over all pairs of 28 texts.

    Raises:
        InvalidInput: The embedder did not return vectors.
    """
    # Cosines of different embedders do not compare: some put unrelated texts at 0.1, others at 0.7.
    # With `WordLlamaEmbedder` mean and limit are 0.02 and 0.16, as between Cranfield's questions,
    # which are about flight, and 7,710 passages of SQLite's documents.
    vectors = embed(embedder, _TEXTS)
    cosines = (vectors @ vectors.T)[np.triu_indices(len(_TEXTS), k=1)].astype(np.float64)
    mean = min(_HIGHEST_LIMIT, float(cosines.mean()))
    limit = min(_HIGHEST_LIMIT, mean + _DEVIATIONS * float(cosines.std()))
    return UnrelatedCosines(mean, limit)
