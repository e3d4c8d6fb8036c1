"""Passages: the memory store of a run, or of a script or command without one.

A run opens the store at its first use and keeps it off the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import tempfile
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np

from harness.compress import passages_of
from harness.errors import ConfigurationInvalid, InferenceError, InvalidInput, Notice, ServerError
from harness.inference import Embeddings, EmbedRequest
from harness.inference.completion import Ranking
from harness.inference.request import RerankRequest, most_tokens_in
from harness.memory import (
    Added,
    Filter,
    Hit,
    Hits,
    MemoryStore,
    Mode,
    Passage,
    Place,
    Progress,
    Scalar,
    Vectors,
)
from harness.session.chat import open_shim
from harness.session.own_loop import in_background
from harness.session.settings import OFFLINE_EMBEDDERS, MemorySettings, Settings
from harness.session.trust import check_store
from harness.threads import to_its_end
from harness.trace import RunTrace, Tracer, events, sha256_of

T = TypeVar("T")

RUN_FIELD = "run"
"""In a passage's metadata: the run that remembered it first."""

_THREADS = 8

Ask = Callable[[EmbedRequest], Awaitable[Embeddings]]

# Makes the vectors of what a run asks of the store.
_asks: ContextVar[Ask | None] = ContextVar("harness_embedding_ask", default=None)
# Texts in one call: servers rarely compute more at once, and some accept at most 100.
_BATCH = 64
_RANKED_PER_HIT, _MOST_RANKED = 4, 100
"""How many hits of a search are ranked again for each that is asked for, and at most."""


class PassageStore:
    """The store of `[memory]`, opened at its first use, and worked with in threads of its own.

    A run without a path for it has one of its own, which is removed with the run. `ask` makes
    vectors for work that no run has asked for.
    """

    def __init__(self, settings: MemorySettings, *, ask: Ask) -> None:
        self.settings = settings
        self._ask = ask
        self._store: MemoryStore | None = None
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()
        # Not the event loop's own threads: all of these may wait for an endpoint's vectors while
        # the loop needs a thread to look up its address.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memory")

    async def in_store(self, work: Callable[[MemoryStore], T], *, tracer: Tracer, ask: Ask) -> T:
        """What work in the store comes to, in a thread; it gets its vectors from `ask`."""
        store = await self._open(tracer)
        # With the context, so that calls for vectors stand under the right span.
        context = contextvars.copy_context()
        context.run(_asks.set, ask)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(context.run, work, store))

    async def aclose(self) -> None:
        """Closes the store, and removes it if it was temporary."""
        await self._opened.aclose()

    async def _open(self, tracer: Tracer) -> MemoryStore:
        async with self._opening:
            if self._store is None:
                async with AsyncExitStack() as stack:
                    with tracer.span(events.OpenMemory(self.settings.is_kept)) as span:
                        store, endpoint = await self._opened_in(stack)
                        span.set(passages=len(store))
                    # A thread may still do the work of a node that was cancelled.
                    stack.push_async_callback(
                        asyncio.to_thread, self._threads.shutdown, wait=True, cancel_futures=True
                    )
                    if endpoint is not None:
                        stack.callback(endpoint.close)
                    self._store, self._opened = store, stack.pop_all()
        return self._store

    async def _opened_in(
        self, stack: AsyncExitStack
    ) -> tuple[MemoryStore, EndpointEmbedder | None]:
        """The store, and what embeds for it; leaving the stack closes the store."""
        settings = self.settings
        path: Place | None = settings.path
        if path is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-memory-")))
        endpoint = None
        if settings.embedder not in OFFLINE_EMBEDDERS:
            endpoint = await EndpointEmbedder.open(settings.embedder, ask=self._ask)

        def opened() -> MemoryStore:
            store = _opened_store(settings, path, endpoint=endpoint)
            # Here, since nobody may wait for it any more.
            stack.push_async_callback(asyncio.to_thread, store.close)
            return store

        stop = (lambda: None) if endpoint is None else endpoint.close
        opening = partial(contextvars.copy_context().run, opened)
        return await to_its_end(opening, thread=self._threads, stop=stop), endpoint


class PassageLibrary:
    """Remembers documents for a run, and recalls passages that answer a question.

    `ask` makes vectors and `rank` ranks hits within the run's limits.
    """

    def __init__(
        self,
        store: PassageStore,
        *,
        tracer: RunTrace,
        ask: Ask,
        rank: Callable[[RerankRequest], Awaitable[Ranking]],
        warn: Callable[[Notice], None],
    ) -> None:
        self._shared = store
        self._settings = store.settings
        self._tracer = tracer
        self._ask = ask
        self._rank = rank
        self._warn = warn

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
        """Splits a Markdown document into passages, and keeps the new ones.

        Returns:
            The passages as kept, in order, without refused ones.
        """
        created, digest = created or datetime.now(UTC), sha256_of(document)
        clean = self._tracer.redactor.clean
        arguments = document, title, source, metadata or {}
        document, title, source = map(clean, (document, title, source))
        metadata = {k: clean(v) if isinstance(v, str) else v for k, v in arguments[-1].items()}
        if (document, title, source, metadata) != arguments:
            message = f"a secret in a document is replaced before it is remembered ('{source}')"
            self._warn(Notice(code="memory.secret-replaced", message=message))
        if RUN_FIELD in metadata:
            raise InvalidInput(
                f"metadata '{RUN_FIELD}' is reserved for the run; choose another name",
                code="memory.metadata-reserved",
            )
        passages = [
            Passage(
                text=excerpt.text,
                title=excerpt.title or title,
                source=source,
                quality=quality,
                created=created,
                metadata={**metadata, RUN_FIELD: self._tracer.run_id},
            )
            for excerpt in passages_of(document)
        ]

        def add(store: MemoryStore) -> tuple[Added, list[Passage | None]]:
            added = store.add(passages)
            merged_into = {merge.id: merge.into for merge in added.merged}
            ids = [merged_into.get(passage.id, passage.id) for passage in passages]
            return added, [store.get(id_) for id_ in ids]

        is_kept = self._settings.is_kept
        remember = events.Remember(
            source=source,
            title=self._tracer.excerpt(title),
            quality=quality,
            metadata=self._tracer.excerpt(dict(metadata)),
            created=created.isoformat(),
            chars=len(document),
            # A resumed run needs the text again if its node is not called again.
            document_sha256=None if is_kept else self._tracer.content(document),
            # The digest of the text before secrets are taken out.
            digest=None if is_kept else self._tracer.excerpt(digest),
        )
        with self._tracer.span(remember) as span:
            added, stored = await self._in_store(add)
            span.set(
                passages=len(passages),
                added=len(added.new),
                known=len(added.known),
                merged=[{"id": merge.id, "into": merge.into} for merge in added.merged],
            )
            for refusal in added.refused:
                excerpts = map(self._tracer.excerpt, (refusal.title, refusal.reason))
                self._tracer.instant(events.Refused(refusal.id, *excerpts))
                self._warn(
                    Notice(
                        code="memory.passage-refused",
                        message=f"passage {refusal.id} is not remembered: it holds "
                        "invisible characters; 'refused' in the trace says which",
                    )
                )
        return tuple(passage for passage in stored if passage is not None)

    async def recall(
        self,
        query: str,
        *,
        limit: int,
        mode: Mode = "hybrid",
        where: Filter | None = None,
        half_life_days: float | None = None,
        budget_tokens: int | None = None,
    ) -> Hits:
        """The passages most relevant to a question, best first; whole ones within the budget."""
        recall = events.Recall(
            query=self._tracer.excerpt(query),
            limit=limit,
            mode=mode,
            where=self._tracer.excerpt(_as_json(where)),
        )
        with self._tracer.span(recall) as span:
            candidates = limit
            if self._settings.rerank is not None and isinstance(limit, int):
                candidates = max(limit, min(_RANKED_PER_HIT * limit, _MOST_RANKED))

            def search(store: MemoryStore) -> tuple[Hits, int | None]:
                hits = store.search(
                    query, limit=candidates, mode=mode, where=where, half_life_days=half_life_days
                )
                return hits, store.behind

            hits, behind = await self._in_store(search)
            await self._rerank(query, hits, limit=limit)
            if budget_tokens is not None:
                hits[:] = _within(budget_tokens, hits)
            titles = [self._tracer.excerpt(hit.title) for hit in hits]
            span.set(
                fallback=hits.fallback,
                behind=behind,
                hits=[
                    {**_hit_as_json(hit), "title": title}
                    for hit, title in zip(hits, titles, strict=True)
                ],
            )
        return hits

    async def _rerank(self, query: str, hits: Hits, *, limit: int) -> None:
        """Leaves the best `limit` by the reranker; by the search, without one or if it fails."""
        tag = self._settings.rerank
        if tag is not None and hits:
            request = RerankRequest(
                model=tag, role="memory", query=query, texts=tuple(hit.text for hit in hits)
            )
            try:
                scores = (await self._rank(request)).scores
            except InferenceError as error:
                self._warn(
                    Notice(
                        code="memory.not-reranked",
                        message=f"hits stay in the order of the search: {error}",
                    )
                )
            else:
                # Hits with equal scores stay in the order of the search.
                scored = sorted(zip(hits, scores, strict=True), key=lambda pair: -pair[1])
                hits[:] = [
                    replace(hit, rank=rank, reranked=score)
                    for rank, (hit, score) in enumerate(scored, start=1)
                ]
        del hits[limit:]

    async def neighbors(self, passage: Passage, *, count: int) -> list[Passage]:
        """See `MemoryStore.neighbors`."""
        return await self._in_store(lambda store: store.neighbors(passage, count=count))

    async def novelty(self, texts: Sequence[str]) -> float:
        """How new these texts are to the store, 0 to 10."""
        with self._tracer.span(events.Novelty(len(texts))) as span:
            novelty = await self._in_store(lambda store: store.novelty(texts))
            span.set(novelty=novelty)
        return novelty

    async def _in_store(self, work: Callable[[MemoryStore], T]) -> T:
        return await self._shared.in_store(work, tracer=self._tracer, ask=self._ask)


def _as_json(where: Filter | None) -> dict[str, object] | None:
    """A filter for the trace, with lists for several values."""
    if where is None:
        return None
    return {
        name: condition if isinstance(condition, str | int | float | Mapping) else list(condition)
        for name, condition in where.items()
    }


def _within(budget_tokens: int, hits: Iterable[Hit]) -> Iterator[Hit]:
    for hit in hits:
        # One without room does not end it: a shorter one may follow.
        tokens = most_tokens_in(hit.passage.searchable)
        if tokens <= budget_tokens:
            budget_tokens -= tokens
            yield hit


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
        "reranked": hit.reranked,
    }


@contextmanager
def open_store(
    settings: Settings, *, progress: Progress | None = None, make: bool = True
) -> Iterator[MemoryStore]:
    """The store of `[memory]`, open inside the block, for code that has no run.

    Raises:
        ConfigurationInvalid: It has no path, or its embedder is not a usable endpoint.
        InvalidInput: There is no store, and `make` is False.
        NotTrusted: Credentials may not be sent to its server.
        MemoryStoreFailed: The store cannot be read or made.
        InferenceError: The endpoint that embeds does not answer.
    """
    memory = settings.memory
    if memory.path is None:
        raise ConfigurationInvalid(
            "there is no store; say where: --store DIR, or path under [memory] in harness.toml",
            code="memory.no-store",
        )
    check_store(memory.path, written_in=memory.written_in, environment=os.environ)
    with ExitStack() as stack:
        endpoint = None
        if memory.embedder not in OFFLINE_EMBEDDERS:
            endpoint = stack.enter_context(in_background(_embedder_of(settings))).served
            stack.callback(endpoint.close)
        yield stack.enter_context(
            _opened_store(memory, memory.path, endpoint=endpoint, progress=progress, make=make)
        )


def _opened_store(
    memory: MemorySettings,
    path: Place,
    *,
    endpoint: EndpointEmbedder | None,
    **how: Any,  # noqa: ANN401
) -> MemoryStore:
    """The store at a place, with the embedder of its settings; see `MemoryStore.open`."""
    return MemoryStore.open(
        path,
        embedder=endpoint or OFFLINE_EMBEDDERS[memory.embedder](),
        language=memory.language,
        merge=memory.merge,
        cache=memory.cache,
        **how,
    )


@asynccontextmanager
async def _embedder_of(settings: Settings) -> AsyncIterator[EndpointEmbedder]:
    tag = settings.memory.embedder
    async with open_shim(tag, settings=settings) as shim:
        yield await EndpointEmbedder.open(tag, ask=shim.embed)


class EndpointEmbedder:
    """Embeds by calls to one model. An `Embedder`, for any thread but the event loop's.

    `first` is an answer, which tells the model and the length of its vectors.
    """

    def __init__(
        self, tag: str, *, ask: Ask, first: Embeddings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._tag = tag
        self._ask = ask
        self._model_id = first.model_id
        self.name = f"{tag}/{first.model_id}"
        self.dimensions = int(first.vectors.shape[1])
        self._loop = loop
        self._lock = Lock()
        self._calls: set[Future[Embeddings]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, tag: str, *, ask: Ask) -> Self:
        """Asks for one vector, to learn its length.

        Raises:
            InferenceError: There was no vector.
        """
        first = await ask(EmbedRequest(model=tag, role="memory", texts=("memory",)))
        return cls(tag, ask=ask, first=first, loop=asyncio.get_running_loop())

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`.

        Raises:
            InferenceError: There are no vectors, another model made them, or this is closed.
            RunLimitReached: The run's limits leave no room for the call.
        """
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        # Servers refuse blank texts.
        rows = [row for row, text in enumerate(texts) if text.strip()]
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            vectors[batch] = self._vectors_of(tuple(texts[row] for row in batch))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors

    def close(self) -> None:
        """Cancels pending calls, and refuses further ones."""
        # No thread may wait for a loop that has ended.
        with self._lock:
            self._is_closed = True
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()

    def _vectors_of(self, texts: tuple[str, ...]) -> Vectors:
        request = EmbedRequest(model=self._tag, role="memory", texts=texts)
        with self._lock:
            if self._is_closed:
                raise self._over()
            # A thread of the store asks, and the event loop makes the call.
            call = asyncio.run_coroutine_threadsafe(self._call(request), self._loop)
            self._calls.add(call)
        try:
            embeddings = call.result()
        except CancelledError as error:
            raise self._over() from error
        finally:
            with self._lock:
                self._calls.discard(call)
        # The server may have been given another model.
        if (embeddings.model_id, embeddings.vectors.shape[1]) != (self._model_id, self.dimensions):
            raise ServerError(
                f"the server now embeds with '{embeddings.model_id}' "
                f"({embeddings.vectors.shape[1]} numbers), and before with '{self._model_id}' "
                f"({self.dimensions}): their vectors cannot be compared; run again to embed the "
                "stored passages again",
                endpoint=self._tag,
            )
        return embeddings.vectors

    async def _call(self, request: EmbedRequest) -> Embeddings:
        return await (_asks.get() or self._ask)(request)

    def _over(self) -> InferenceError:
        return InferenceError("the run that asked for these vectors has ended", endpoint=self._tag)
