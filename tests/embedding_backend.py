"""A model that embeds, for tests of what is around it: the same words, the same direction."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness import ScriptedBackend
from harness.errors import InferenceError
from harness.inference import Embeddings, EmbedRequest

DIMENSIONS = 64


def vectors_by_words(texts: Sequence[str], *, length: float = 3.0) -> NDArray[np.float32]:
    """Each word points one way, and a text as its words do. None of the vectors has length 1."""
    vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.casefold().split():
            vectors[row, zlib.crc32(word.encode()) % DIMENSIONS] += length
    return vectors


class EmbeddingBackend(ScriptedBackend):
    """Answers calls to embed; has no replies.

    Attributes:
        model_id: What it says it is.
        error: Raised in place of an answer, if there is one.
        embedded: The texts of each call, in order.
    """

    def __init__(self, model_id: str = "by-words", *, uses_threads: bool = False) -> None:
        super().__init__([])
        self.model_id = model_id
        self.error: InferenceError | None = None
        self.embedded: list[tuple[str, ...]] = []
        self._uses_threads = uses_threads

    async def embed(self, request: EmbedRequest) -> Embeddings:
        if self.error is not None:
            raise self.error
        self.embedded.append(request.texts)
        if self._uses_threads:
            # As the look-up of a server's address does.
            await asyncio.to_thread(len, request.texts)
        return Embeddings(
            vectors=vectors_by_words(request.texts),
            input_tokens=len(request.texts),
            model_id=self.model_id,
        )
