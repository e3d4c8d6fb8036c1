"""A run's passages: the memory store, opened at its first use and kept off the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.compress import passages_of
from harness.errors import InvalidInput, Notice
from harness.memory import Filter, Hit, Hits, MemoryStore, Mode, Passage, Scalar
from harness.residency import KeepAliveBudget
from harness.session.endpoint_embedder import Ask, EndpointEmbedder
from harness.session.open_store import opened_store
from harness.session.settings import WORDLLAMA, MemorySettings
from harness.trace import RunTrace, sha256_of

T = TypeVar("T")

RUN_FIELD = "run"
"""In a passage's metadata: the run that remembered it first."""

_THREADS = 8


class PassageLibrary:
    """Remembers documents and recalls what bears on a question.

    Args:
        settings: Where and how passages are kept; in a temporary directory, gone with the run, when
            they name none.
        tracer: The run's, which passages get the name of.
        ask: Calls the model that embeds, if that is an endpoint's.
        warn: Told of passages that were refused.
        budget: Where the vectors are a guest; they stay in memory when None.
    """

    def __init__(
        self,
        settings: MemorySettings,
        *,
        tracer: RunTrace,
        ask: Ask,
        warn: Callable[[Notice], None],
        budget: KeepAliveBudget | None = None,
    ) -> None:
        self._settings = settings
        self._tracer = tracer
        self._ask = ask
        self._warn = warn
        self._budget = budget
        self._store: MemoryStore | None = None
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()
        # Not the event loop's own threads: these here may all wait for an endpoint's vectors, and
        # the loop may need a thread to look up its address.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memory")

    @property
    def model(self) -> str | None:
        """Tag of the endpoint that makes its vectors; None where they are made here."""
        return None if self._settings.embedder == WORDLLAMA else self._settings.embedder

    @property
    def is_kept(self) -> bool:
        """Whether the passages outlive the run."""
        return self._settings.path is not None

    async def remember(
        self,
        document: str,
        *,
        title: str,
        source: str,
        quality: float | None = None,
        metadata: Mapping[str, Scalar] | None = None,
        created: datetime | None = None,
    ) -> tuple[Passage, ...]:
        """Splits a Markdown document into passages, and keeps those that are new.

        Returns:
            Its passages as they are kept, in order; without those that were refused.
        """
        created = created or datetime.now(UTC)
        passages = [
            Passage(
                text=excerpt.text,
                title=excerpt.title or title,
                source=source,
                quality=quality,
                created=created,
                metadata=self._with_run(metadata or {}),
            )
            for excerpt in passages_of(document)
        ]
        with self._tracer.span(
            "remember",
            source=source,
            title=self._tracer.excerpt(title),
            quality=quality,
            metadata=self._tracer.excerpt(dict(metadata or {})),
            created=created.isoformat(),
            chars=len(document),
            # A run that is resumed has to know again what nodes remembered that are not called
            # again.
            document_sha256=None if self.is_kept else self._tracer.content(document),
            # Of the text before secrets are taken out of it.
            digest=None if self.is_kept else self._tracer.excerpt(sha256_of(document)),
        ) as span:
            store = await self._open()
            added = await self._in_thread(partial(store.add, passages))
            self._recount()
            span.set(
                passages=len(passages),
                added=len(added.new),
                known=len(added.known),
                merged=[{"id": one.id, "into": one.into, "rule": one.rule} for one in added.merged],
            )
            for refusal in added.refused:
                self._tracer.instant(
                    "refused",
                    id=refusal.id,
                    title=self._tracer.excerpt(refusal.title),
                    detail=self._tracer.excerpt(refusal.reason),
                )
                self._warn(
                    Notice(
                        code="memory.passage-refused",
                        message=f"passage {refusal.id} is not remembered: it looks like "
                        "instructions to a model; 'refused' in the trace says why",
                    )
                )
            now = {one.id: one.into for one in added.merged}
            ids = [now.get(passage.id, passage.id) for passage in passages]
            kept = await self._in_thread(lambda: [store.get(one) for one in ids])
        return tuple(passage for passage in kept if passage is not None)

    async def recall(
        self, query: str, *, limit: int, mode: Mode = "hybrid", where: Filter | None = None
    ) -> Hits:
        """The passages nearest to a question, best first."""
        with self._tracer.span(
            "recall",
            query=self._tracer.excerpt(query),
            limit=limit,
            mode=mode,
            where=self._tracer.excerpt(_as_json(where)),
        ) as span:
            store = await self._open()
            hits = await self._in_thread(
                partial(store.search, query, limit=limit, mode=mode, where=where)
            )
            self._recount()
            titles = [self._tracer.excerpt(hit.title) for hit in hits]
            span.set(
                fallback=hits.fallback,
                hits=[
                    {**_hit_as_json(hit), "title": title}
                    for hit, title in zip(hits, titles, strict=True)
                ],
            )
        return hits

    async def novelty(self, texts: Sequence[str]) -> float:
        """How much of what these texts say is not kept yet, 0 to 10."""
        with self._tracer.span("novelty", texts=len(texts)) as span:
            store = await self._open()
            novelty = await self._in_thread(partial(store.novelty, texts))
            span.set(novelty=novelty)
        return novelty

    async def aclose(self) -> None:
        """Closes the store, and removes it if it was the run's own."""
        await self._opened.aclose()

    async def _open(self) -> MemoryStore:
        async with self._opening:
            if self._store is None:
                async with AsyncExitStack() as stack:
                    with self._tracer.span("open memory", kept=self.is_kept) as span:
                        self._store = await self._opened_in(stack)
                        span.set(passages=len(self._store))
                    self._opened = stack.pop_all()
        return self._store

    async def _opened_in(self, stack: AsyncExitStack) -> MemoryStore:
        """The store; leaving the stack closes it, and all that belongs to it."""
        settings = self._settings
        path = settings.path
        if path is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-memory-")))
        embedder = None
        if settings.embedder != WORDLLAMA:
            embedder = await EndpointEmbedder.open(settings.embedder, ask=self._ask)
        store = await self._in_thread(partial(opened_store, settings, path, embedder=embedder))
        stack.push_async_callback(asyncio.to_thread, store.close)
        # What a node that was cancelled has begun, a thread still does.
        stack.push_async_callback(
            asyncio.to_thread, self._threads.shutdown, wait=True, cancel_futures=True
        )
        if embedder is not None:
            stack.callback(embedder.close)
        if self._budget is not None:
            self._budget.admit_guest(store.vector_lane)
            stack.push_async_callback(self._budget.dismiss_guest, store.vector_lane)
        return store

    def _recount(self) -> None:
        """The vectors may take more than before."""
        if self._budget is not None:
            self._budget.recount_guests()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # With the context, so that calls for vectors stand under the span that wanted them.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(context.run, work))

    def _with_run(self, metadata: Mapping[str, Scalar]) -> dict[str, Scalar]:
        if RUN_FIELD in metadata:
            raise InvalidInput(
                f"metadata '{RUN_FIELD}' is for the run that remembers; call yours otherwise",
                code="memory.metadata-reserved",
            )
        return {**metadata, RUN_FIELD: self._tracer.run_id}


def _as_json(where: Filter | None) -> dict[str, object] | None:
    """A filter as the trace has it: what holds several values is a list there."""
    if where is None:
        return None
    return {
        name: wanted if isinstance(wanted, str | int | float) else list(wanted)
        for name, wanted in where.items()
    }


def _hit_as_json(hit: Hit) -> dict[str, object]:
    created = hit.passage.created
    return {
        "id": hit.id,
        "source": hit.passage.source,
        "run": hit.passage.metadata.get(RUN_FIELD),
        "created": None if created is None else created.isoformat(),
        "rank": hit.rank,
        "score": hit.score,
        "fused": hit.fused,
        "lexical": hit.lexical,
        "vector": hit.vector,
    }
