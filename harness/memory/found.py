"""What a search gives back, and what becomes of passages that are added."""

from __future__ import annotations

from dataclasses import dataclass

from harness.memory.passage import Passage
from harness.memory.reading import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One passage that a search found."""

    passage: Passage
    """What was found."""
    rank: int
    """Place among the hits, from 1."""
    score: float
    """What it was ranked by, 0 to 1: how relevant it is, and how good."""
    fused: float
    """How relevant, 0 to 1: both lanes' scores as one; in a search of one lane, that lane's."""
    lexical: float | None
    """BM25 score; None when the lexical lane was not asked, or did not propose it."""
    vector: float | None
    """Cosine to the query, -1 to 1; None when the vector lane was not asked, or could not say."""
    fallback: str | None = None
    """Why the vector lane was not asked although it should have been, and words alone decided."""

    @property
    def id(self) -> str:
        """The passage's."""
        return self.passage.id

    @property
    def text(self) -> str:
        """The passage's."""
        return self.passage.text

    @property
    def title(self) -> str:
        """The passage's."""
        return self.passage.title


class Hits(list[Hit]):
    """The hits of a search, best first.

    Attributes:
        fallback: Why the vector lane was not asked although it should have been; None when all is
            well. Here too, since there may be no hit to say so.
    """

    def __init__(self, hits: list[Hit], *, fallback: str | None = None) -> None:
        super().__init__(hits)
        self.fallback = fallback


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A passage that says what another already says."""

    passage: Passage
    """The one that came. It is kept beside the store's passages, and can be split off again."""
    into: str
    """Id of the passage that was there, and stays as it is."""
    rule: Rule
    """`same`: equal but for white space and Unicode's forms of a letter; `near`: also but for
    typographic signs and what else `harness.memory.reading` lists."""

    @property
    def id(self) -> str:
        """Of the passage that came."""
        return self.passage.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A passage that was not stored."""

    id: str
    """Of the passage."""
    title: str
    """Of the passage."""
    code: str
    """Which kind of instruction it looks like; see `Suspicion`."""
    reason: str
    """What it looks like, with the words that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What became of passages that were to be added, each in one of four ways."""

    new: tuple[str, ...] = ()
    """Ids of those that are stored now."""
    known: tuple[str, ...] = ()
    """Ids of those that were there, or came twice: nothing has changed."""
    merged: tuple[Merge, ...] = ()
    """Those that say the same as one that was there."""
    refused: tuple[Refusal, ...] = ()
    """Those that look like instructions to a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a store holds, and how its lanes are."""

    passages: int
    """How many."""
    sequence: int
    """How many writes there have been, ever."""
    language: str
    """Whose words the lexical lane knows."""
    embedder: str
    """The name of the embedder it was opened with."""
    dimensions: int
    """Of its vectors."""
    unembedded: int
    """Passages that have no vector of this embedder yet."""
    vector_lane: str
    """`exact`, `hnsw`, or why it is not in use."""
    vector_bytes: int
    """What the vector lane takes in memory."""
    disk_bytes: int
    """Of all files in the directory."""
    last_written: str | None
    """When the last passage was stored, as ISO 8601; None for an empty store."""
    merges: tuple[Merge, ...]
    """Passages that became one with others, in the order in which they came."""
