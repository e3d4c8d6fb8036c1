"""The memory store: passages in a primary store, a lexical and a vector index, and their fusion."""

from harness.memory.database import Place, StoreUrl, is_url, place_of
from harness.memory.embedder import Embedder, Vectors, WordLlamaEmbedder
from harness.memory.minilm import MiniLmEmbedder
from harness.memory.passage import Added, Filter, Hit, Hits, Passage, Refusal, Scalar, Turn
from harness.memory.primary import PrimaryStore, Progress, copy
from harness.memory.ranking import Mode
from harness.memory.store import MemoryStore

__all__ = [
    "Added",
    "Embedder",
    "Filter",
    "Hit",
    "Hits",
    "MemoryStore",
    "MiniLmEmbedder",
    "Mode",
    "Passage",
    "Place",
    "PrimaryStore",
    "Progress",
    "Refusal",
    "Scalar",
    "StoreUrl",
    "Turn",
    "Vectors",
    "WordLlamaEmbedder",
    "copy",
    "is_url",
    "place_of",
]
