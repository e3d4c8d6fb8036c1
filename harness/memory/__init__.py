"""The dual store: passages in a primary store, a lexical and a vector index, and their fusion."""

from harness.memory.embedder import Embedder, Vectors, WordLlamaEmbedder
from harness.memory.passage import (
    Added,
    Filter,
    Hit,
    Hits,
    Merge,
    Passage,
    Refusal,
    Scalar,
)
from harness.memory.place import Place, PostgresUrl, is_url, place_of
from harness.memory.primary import Merging, PrimaryStore, Progress, copy
from harness.memory.ranking import Mode
from harness.memory.sqlite import FILE_NAME
from harness.memory.store import MemoryStore
from harness.memory.terms import LANGUAGES

__all__ = [
    "FILE_NAME",
    "LANGUAGES",
    "Added",
    "Embedder",
    "Filter",
    "Hit",
    "Hits",
    "MemoryStore",
    "Merge",
    "Merging",
    "Mode",
    "Passage",
    "Place",
    "PostgresUrl",
    "PrimaryStore",
    "Progress",
    "Refusal",
    "Scalar",
    "Vectors",
    "WordLlamaEmbedder",
    "copy",
    "is_url",
    "place_of",
]
