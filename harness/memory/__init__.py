"""The dual store: SQLite as the truth, a BM25 lane, a vector lane, and their fusion."""

from harness.memory.embedder import Embedder, FunctionEmbedder, Vectors, WordLlamaEmbedder
from harness.memory.found import Added, Hit, Hits, Merge, Refusal, Stats
from harness.memory.fusion import Fusion, convex_combination, reciprocal_rank_fusion
from harness.memory.guard import Suspicion, injected_instruction
from harness.memory.novelty import novelty
from harness.memory.passage import Passage, Scalar
from harness.memory.protocol import Mode, PassageStore
from harness.memory.ranking import Ranking
from harness.memory.store import MemoryStore
from harness.memory.truth import FILE_NAME, Merging, Progress
from harness.memory.where import Filter
from harness.memory.words import LANGUAGES

__all__ = [
    "FILE_NAME",
    "LANGUAGES",
    "Added",
    "Embedder",
    "Filter",
    "FunctionEmbedder",
    "Fusion",
    "Hit",
    "Hits",
    "MemoryStore",
    "Merge",
    "Merging",
    "Mode",
    "Passage",
    "PassageStore",
    "Progress",
    "Ranking",
    "Refusal",
    "Scalar",
    "Stats",
    "Suspicion",
    "Vectors",
    "WordLlamaEmbedder",
    "convex_combination",
    "injected_instruction",
    "novelty",
    "reciprocal_rank_fusion",
]
