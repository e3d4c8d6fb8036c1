"""A run's passages: the memory store, opened at its first use and kept off the event loop."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from harness.compress import passages_of
from harness.memory import Hit, MemoryStore, Passage
from harness.trace import Tracer, sha256_of


class PassageLibrary:
    """Remembers documents and recalls what bears on a question.

    Args:
        path: The store's directory; a temporary one, gone with the run, when None.
        tracer: Sees what is added and searched.
    """

    def __init__(self, path: Path | None, *, tracer: Tracer) -> None:
        self._path = path
        self._tracer = tracer
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._store: MemoryStore | None = None
        self._opening = asyncio.Lock()

    @property
    def is_kept(self) -> bool:
        """Whether the passages outlive the run."""
        return self._path is not None

    async def remember(self, document: str, *, title: str, source: str) -> tuple[Passage, ...]:
        """Splits a Markdown document into passages, and keeps those that are new."""
        with self._tracer.span(
            "remember",
            source=source,
            title=self._tracer.excerpt(title),
            chars=len(document),
            # A run that is resumed has to know again what nodes remembered that are not called
            # again.
            document_sha256=None if self.is_kept else self._tracer.content(document),
            # Of the text before secrets are taken out of it.
            digest=None if self.is_kept else self._tracer.excerpt(sha256_of(document)),
        ) as span:
            passages = tuple(
                Passage(text=excerpt.text, title=excerpt.title or title, source=source)
                for excerpt in passages_of(document)
            )
            store = await self._open()
            added = await asyncio.to_thread(store.add, passages)
            span.set(passages=len(passages), added=added)
        return passages

    async def recall(self, query: str, *, limit: int) -> list[Hit]:
        """The passages nearest to a question, best first."""
        with self._tracer.span("recall", query=self._tracer.excerpt(query), limit=limit) as span:
            store = await self._open()
            hits = await asyncio.to_thread(store.search, query, limit=limit)
            span.set(
                hits=[
                    {
                        "id": hit.passage.id,
                        "title": self._tracer.excerpt(hit.passage.title),
                        "score": hit.score,
                    }
                    for hit in hits
                ]
            )
        return hits

    async def aclose(self) -> None:
        """Closes the store, and removes it if it was the run's own."""
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        if self._temporary is not None:
            self._temporary.cleanup()

    async def _open(self) -> MemoryStore:
        async with self._opening:
            if self._store is None:
                if self._path is None:
                    self._temporary = tempfile.TemporaryDirectory(prefix="harness-memory-")
                path = self._path or Path(self._temporary.name if self._temporary else "")
                with self._tracer.span("open memory", kept=self._path is not None):
                    self._store = await asyncio.to_thread(MemoryStore.open, path)
        return self._store
