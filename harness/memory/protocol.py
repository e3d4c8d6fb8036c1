"""What a pipeline needs of a store: the seam for one that several machines share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from harness.memory.found import Added, Hits
from harness.memory.passage import Passage
from harness.memory.where import Filter

Mode = Literal["hybrid", "lexical", "vector"]
"""By words and meaning, by words, by meaning."""


class PassageStore(Protocol):
    """Passages go in, the best few for a query come out. May be called from any thread."""

    def add(self, passages: Iterable[Passage]) -> Added:
        """Stores passages, durably once this returns: all of them or, when it raises, none."""
        ...

    def search(
        self, query: str, *, limit: int = 4, mode: Mode = "hybrid", where: Filter | None = None
    ) -> Hits:
        """The best `limit` passages for a query, best first; fewer when fewer are relevant."""
        ...

    def novelty(self, texts: Iterable[str]) -> float:
        """How much of what these texts say is not stored yet, 0 to 10."""
        ...

    def close(self) -> None:
        """Gives files and threads back."""
        ...
