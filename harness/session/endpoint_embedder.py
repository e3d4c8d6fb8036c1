"""An embedder that is a model at an endpoint: threads of the store ask, the event loop calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from threading import Lock
from typing import Self

import numpy as np

from harness.errors import InferenceError, ServerError
from harness.inference import Embeddings, EmbedRequest
from harness.memory import Vectors

Ask = Callable[[EmbedRequest], Awaitable[Embeddings]]
"""How a model is called."""

_BATCH = 64
"""Texts in one call. Servers compute few more side by side, and some take no more than 100."""


class EndpointEmbedder:
    """Embeds by calls to one model. An `Embedder`, for use in any thread but the event loop's.

    Args:
        tag: The endpoint's.
        ask: Calls it.
        first: What it once answered: which model it is, and how long its vectors are.
        loop: Where calls are made.
    """

    def __init__(
        self, tag: str, *, ask: Ask, first: Embeddings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._tag = tag
        self._ask = ask
        self._model_id = first.model_id
        self._dimensions = int(first.vectors.shape[1])
        self._loop = loop
        self._lock = Lock()
        self._calls: set[Future[Embeddings]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, tag: str, *, ask: Ask) -> Self:
        """Asks for one vector, since nothing else says how long they are.

        Raises:
            InferenceError: There is none.
        """
        first = await ask(EmbedRequest(model=tag, role="memory", texts=("memory",)))
        return cls(tag, ask=ask, first=first, loop=asyncio.get_running_loop())

    @property
    def name(self) -> str:
        """The endpoint's tag, and the model that its server says it has."""
        return f"{self._tag}/{self._model_id}"

    @property
    def dimensions(self) -> int:
        """Length d of each vector."""
        return self._dimensions

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`; blank texts, which servers refuse, are not sent.

        Raises:
            InferenceError: There are no vectors, they are another model's, or it was closed.
            RunLimitReached: The run's limits leave no room for the call.
        """
        vectors = np.zeros((len(texts), self._dimensions), dtype=np.float32)
        rows = [row for row, text in enumerate(texts) if text.strip()]
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            vectors[batch] = self._vectors_of(tuple(texts[row] for row in batch))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors

    def close(self) -> None:
        """Breaks off what is asked just now, so that no thread waits for a loop that has ended."""
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
            call = asyncio.run_coroutine_threadsafe(self._call(request), self._loop)
            self._calls.add(call)
        try:
            embeddings = call.result()
        except CancelledError as error:
            raise self._over() from error
        finally:
            with self._lock:
                self._calls.discard(call)
        # Behind one address there may come to be another model.
        if (embeddings.model_id, embeddings.vectors.shape[1]) != (self._model_id, self._dimensions):
            raise ServerError(
                f"the server now embeds with '{embeddings.model_id}' "
                f"({embeddings.vectors.shape[1]} numbers), and before with '{self._model_id}' "
                f"({self._dimensions}): their vectors do not compare; run again, and what is "
                "stored is embedded anew",
                endpoint=self._tag,
            )
        return embeddings.vectors

    async def _call(self, request: EmbedRequest) -> Embeddings:
        return await self._ask(request)

    def _over(self) -> InferenceError:
        return InferenceError("the run that wanted vectors is over", endpoint=self._tag)
