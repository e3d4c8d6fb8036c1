"""Passages: the memory store, used by a run, or by a script or command without a run.

A run opens the store at its first use, and works with it in threads, off the event loop.
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
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, replace
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
"""The key in a passage's metadata for the run that remembered it first."""

_THREADS = 8

Ask = Callable[[EmbedRequest], Coroutine[Any, Any, Embeddings]]

# Makes the vectors for the run whose work a thread does.
_ask_of_run: ContextVar[Ask | None] = ContextVar("harness_embedding_ask", default=None)
_BATCH = 64  # texts in one call: servers rarely compute more at once, and some accept at most 100
# A reranker ranks so many hits of a search for each that is asked for, and at most so many.
_RANKED_PER_HIT, _MOST_RANKED = 4, 100


class PassageStore:
    """The store of `[memory]`, opened at its first use, and worked with in threads of its own.

    Without a path in the settings, the store is temporary and removed with the run. `ask` makes
    vectors for work that no run has asked for.
    """

    def __init__(self, settings: MemorySettings, *, ask: Ask) -> None:
        self.settings = settings
        self._ask = ask
        self._store: MemoryStore | None = None
        self._opening = asyncio.Lock()
        self._closers = AsyncExitStack()
        # Not the event loop's own threads: all of these may wait for an endpoint's vectors while
        # the loop needs a thread to look up its address.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memory")

    async def in_store(self, work: Callable[[MemoryStore], T], *, tracer: Tracer, ask: Ask) -> T:
        """Does `work` with the store in a thread, and returns its result; `ask` makes vectors."""
        store = await self._open(tracer)
        # The context has the current span, under which calls for vectors are recorded.
        context = contextvars.copy_context()
        context.run(_ask_of_run.set, ask)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(context.run, work, store))

    async def aclose(self) -> None:
        """Closes the store, and removes it if it was temporary."""
        await self._closers.aclose()

    async def _open(self, tracer: Tracer) -> MemoryStore:
        async with self._opening:
            if self._store is None:
                async with AsyncExitStack() as stack:
                    with tracer.span(events.OpenMemory(self.settings.is_kept)) as span:
                        store, endpoint = await self._make_store(stack)
                        span.set(passages=len(store))
                    # Waits for threads, which may still work for a node that was cancelled.
                    stack.push_async_callback(
                        asyncio.to_thread, self._threads.shutdown, wait=True, cancel_futures=True
                    )
                    if endpoint is not None:
                        stack.callback(endpoint.close)
                    self._store, self._closers = store, stack.pop_all()
        return self._store

    async def _make_store(
        self, stack: AsyncExitStack
    ) -> tuple[MemoryStore, EndpointEmbedder | None]:
        """The store, and the endpoint that embeds for it; the stack closes the store."""
        settings = self.settings
        path: Place | None = settings.path
        if path is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-memory-")))
        endpoint = None
        if settings.embedder not in OFFLINE_EMBEDDERS:
            endpoint = await EndpointEmbedder.open(settings.embedder, ask=self._ask)

        def make_in_thread() -> MemoryStore:
            store = _opened_store(settings, path, endpoint=endpoint)
            # Noted in the thread, since a cancelled caller would not learn of the open store.
            stack.push_async_callback(asyncio.to_thread, store.close)
            return store

        stop = (lambda: None) if endpoint is None else endpoint.close
        call = partial(contextvars.copy_context().run, make_in_thread)
        return await to_its_end(call, thread=self._threads, stop=stop), endpoint


@dataclass(frozen=True, slots=True)
class PassageLibrary:
    """Remembers documents for a run, and recalls passages that answer a question."""

    store: PassageStore
    _: KW_ONLY
    tracer: RunTrace
    ask: Ask  # makes vectors within the run's limits
    rank: Callable[[RerankRequest], Awaitable[Ranking]]  # ranks hits within the run's limits
    warn: Callable[[Notice], None]

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
        created = created or datetime.now(UTC)
        digest = sha256_of(document)  # of the text before secrets are taken out
        metadata = dict(metadata or {})
        originals = document, title, source, metadata
        clean = self.tracer.redactor.clean
        document, title, source = clean(document), clean(title), clean(source)
        metadata = {k: clean(v) if isinstance(v, str) else v for k, v in metadata.items()}
        if (document, title, source, metadata) != originals:
            message = f"a secret in a document is replaced before it is remembered ('{source}')"
            self.warn(Notice(code="memory.secret-replaced", message=message))
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
                metadata={**metadata, RUN_FIELD: self.tracer.run_id},
            )
            for excerpt in passages_of(document)
        ]

        def add(store: MemoryStore) -> tuple[Added, list[Passage | None]]:
            added = store.add(passages)
            merged_into = {merge.id: merge.into for merge in added.merged}
            ids = [merged_into.get(passage.id, passage.id) for passage in passages]
            return added, [store.get(id_) for id_ in ids]

        is_kept = self.store.settings.is_kept
        remember = events.Remember(
            source=source,
            title=self.tracer.excerpt(title),
            quality=quality,
            metadata=self.tracer.excerpt(metadata),
            created=created.isoformat(),
            chars=len(document),
            # A resumed run remembers the text again from the journal if the store was temporary and
            # the node is not called again.
            document_sha256=None if is_kept else self.tracer.content(document),
            digest=None if is_kept else self.tracer.excerpt(digest),
        )
        with self.tracer.span(remember) as span:
            added, stored = await self._in_store(add)
            span.set(
                passages=len(passages),
                added=len(added.new),
                known=len(added.known),
                merged=[{"id": merge.id, "into": merge.into} for merge in added.merged],
            )
            for refusal in added.refused:
                excerpts = map(self.tracer.excerpt, (refusal.title, refusal.reason))
                self.tracer.instant(events.Refused(refusal.id, *excerpts))
                self.warn(
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
        """The passages most relevant to a question, best first, that fit into `budget_tokens`."""
        recall = events.Recall(
            query=self.tracer.excerpt(query),
            limit=limit,
            mode=mode,
            where=self.tracer.excerpt(_as_json(where)),
        )
        with self.tracer.span(recall) as span:
            candidates = limit
            if self.store.settings.rerank is not None and isinstance(limit, int):
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
            span.set(
                fallback=hits.fallback,
                behind=behind,
                hits=[
                    {**_hit_as_json(hit), "title": self.tracer.excerpt(hit.title)} for hit in hits
                ],
            )
        return hits

    async def _rerank(self, query: str, hits: Hits, *, limit: int) -> None:
        """Reorders `hits` by the reranker, if there is one, and removes all but the first `limit`.

        If the reranker fails, hits stay in the order of the search.
        """
        tag = self.store.settings.rerank
        if tag is not None and hits:
            texts = tuple(hit.text for hit in hits)
            request = RerankRequest(model=tag, role="memory", query=query, texts=texts)
            try:
                ranking = await self.rank(request)
            except InferenceError as error:
                self.warn(
                    Notice(
                        code="memory.not-reranked",
                        message=f"hits stay in the order of the search: {error}",
                    )
                )
            else:
                # Hits with equal scores stay in the order of the search.
                scored = sorted(zip(hits, ranking.scores, strict=True), key=lambda pair: -pair[1])
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
        with self.tracer.span(events.Novelty(len(texts))) as span:
            novelty = await self._in_store(lambda store: store.novelty(texts))
            span.set(novelty=novelty)
        return novelty

    async def _in_store(self, work: Callable[[MemoryStore], T]) -> T:
        return await self.store.in_store(work, tracer=self.tracer, ask=self.ask)


def _as_json(where: Filter | None) -> dict[str, object] | None:
    """A filter for the trace, with lists for several values."""
    if not isinstance(where, Mapping):
        return None
    return {
        name: list(condition) if isinstance(condition, list | tuple | Set) else condition
        for name, condition in where.items()
    }


def _within(budget_tokens: int, hits: Iterable[Hit]) -> Iterator[Hit]:
    tokens_left = budget_tokens
    for hit in hits:
        tokens = most_tokens_in(hit.passage.searchable)
        # No end at the first hit that does not fit, since a shorter one may follow.
        if tokens <= tokens_left:
            tokens_left -= tokens
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
    **options: Any,  # noqa: ANN401
) -> MemoryStore:
    """Opens the store at a path as its settings say; `options` are those of `MemoryStore.open`."""
    return MemoryStore.open(
        path,
        embedder=endpoint or OFFLINE_EMBEDDERS[memory.embedder](),
        language=memory.language,
        merge=memory.merge,
        cache=memory.cache,
        **options,
    )


@asynccontextmanager
async def _embedder_of(settings: Settings) -> AsyncIterator[EndpointEmbedder]:
    tag = settings.memory.embedder
    async with open_shim(tag, settings=settings) as shim:
        yield await EndpointEmbedder.open(tag, ask=shim.embed)


class EndpointEmbedder:
    """An `Embedder` that calls an endpoint; for use in any thread but the event loop's."""

    def __init__(self, tag: str, *, ask: Ask, first: Embeddings) -> None:
        self._tag = tag
        self._ask = ask
        # An answer of the endpoint, which names the model and has vectors of its length.
        self._model_id = first.model_id
        self.name = f"{tag}/{first.model_id}"
        self.dimensions = int(first.vectors.shape[1])
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._calls: set[Future[Embeddings]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, tag: str, *, ask: Ask) -> Self:
        """Asks an endpoint for one vector, to learn its length; raises `InferenceError` without."""
        first = await ask(EmbedRequest(model=tag, role="memory", texts=("memory",)))
        return cls(tag, ask=ask, first=first)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`.

        Raises:
            InferenceError: There are no vectors, another model made them, or `close` was called.
            RunLimitReached: The run's limits leave no room for the call.
        """
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        # Servers refuse blank texts, whose vectors stay zero.
        rows = [row for row, text in enumerate(texts) if text.strip()]
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            vectors[batch] = self._vectors_of(tuple(texts[row] for row in batch))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors

    def close(self) -> None:
        """Cancels pending calls, and refuses further ones."""
        # Else a thread would wait for ever for an event loop that has ended.
        with self._lock:
            self._is_closed = True
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()

    def _vectors_of(self, texts: tuple[str, ...]) -> Vectors:
        request = EmbedRequest(model=self._tag, role="memory", texts=texts)
        with self._lock:
            if self._is_closed:
                raise self._closed()
            # This thread is the store's, and the event loop makes the call.
            ask = _ask_of_run.get() or self._ask
            call = asyncio.run_coroutine_threadsafe(ask(request), self._loop)
            self._calls.add(call)
        try:
            embeddings = call.result()
        except CancelledError as error:
            raise self._closed() from error
        finally:
            with self._lock:
                self._calls.discard(call)
        # The server may have loaded another model meanwhile.
        if (embeddings.model_id, embeddings.vectors.shape[1]) != (self._model_id, self.dimensions):
            raise ServerError(
                f"the server now embeds with '{embeddings.model_id}' "
                f"({embeddings.vectors.shape[1]} numbers), and before with '{self._model_id}' "
                f"({self.dimensions}): their vectors cannot be compared; run again to embed the "
                "stored passages again",
                endpoint=self._tag,
            )
        return embeddings.vectors

    def _closed(self) -> InferenceError:
        return InferenceError("the run that asked for these vectors has ended", endpoint=self._tag)
