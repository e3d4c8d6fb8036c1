"""The dual store: SQLite as the truth, a BM25 lane, a vector lane, and their fusion."""

from harness.memory.embedder import Embedder, WordLlamaEmbedder
from harness.memory.fusion import convex_combination, min_max, reciprocal_rank_fusion
from harness.memory.passage import Hit, Passage
from harness.memory.store import MemoryStore

__all__ = [
    "Embedder",
    "Hit",
    "MemoryStore",
    "Passage",
    "WordLlamaEmbedder",
    "convex_combination",
    "min_max",
    "reciprocal_rank_fusion",
]
