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
from harness.memory.primary import FILE_NAME, Merging, Progress
from harness.memory.ranking import Mode
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
    "Progress",
    "Refusal",
    "Scalar",
    "Vectors",
    "WordLlamaEmbedder",
]
