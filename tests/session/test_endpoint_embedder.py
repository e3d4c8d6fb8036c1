"""An endpoint's model as the embedder of a store: called from threads, answered by the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest
from embedding_backend import DIMENSIONS, EmbeddingBackend, vectors_by_words

from harness.errors import InferenceError, ServerError
from harness.inference import Embeddings, EmbedRequest
from harness.memory import Vectors
from harness.session.endpoint_embedder import EndpointEmbedder
from harness.trace import Tracer

T = TypeVar("T")


def with_embedder(backend: EmbeddingBackend, work: Callable[[EndpointEmbedder], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work(await EndpointEmbedder.open("tag", ask=backend.embed))

    return asyncio.run(main())


def embedded(backend: EmbeddingBackend, texts: Sequence[str]) -> Vectors:
    async def work(embedder: EndpointEmbedder) -> Vectors:
        return await asyncio.to_thread(embedder.embed, texts)

    return with_embedder(backend, work)


def test_it_is_called_by_its_tag_and_by_what_the_server_says_it_is() -> None:
    async def work(embedder: EndpointEmbedder) -> tuple[str, int]:
        return embedder.name, embedder.dimensions

    assert with_embedder(EmbeddingBackend("e5-small"), work) == ("tag/e5-small", DIMENSIONS)


def test_vectors_come_in_the_texts_order_and_with_unit_length() -> None:
    texts = [f"text {number} of many" for number in range(150)]
    backend = EmbeddingBackend()
    vectors = embedded(backend, texts)
    raw = vectors_by_words(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-6)
    assert [len(call) for call in backend.embedded[1:]] == [64, 64, 22], "and no call is too large"


def test_a_blank_text_is_not_sent_and_has_no_direction() -> None:
    backend = EmbeddingBackend()
    vectors = embedded(backend, ["owl", " \n", ""])
    assert np.linalg.norm(vectors, axis=1).tolist() == pytest.approx([1, 0, 0])
    assert backend.embedded[1:] == [("owl",)]


def test_no_texts_are_no_call() -> None:
    backend = EmbeddingBackend()
    assert embedded(backend, []).shape == (0, DIMENSIONS)
    assert len(backend.embedded) == 1, "the one that it was opened with"


def test_vectors_of_another_model_are_refused() -> None:
    backend = EmbeddingBackend("before")

    async def work(embedder: EndpointEmbedder) -> None:
        backend.model_id = "after"
        await asyncio.to_thread(embedder.embed, ["owl"])

    with pytest.raises(ServerError, match=r"now embeds with 'after'.*before with 'before'"):
        with_embedder(backend, work)


def test_an_error_of_the_call_reaches_the_thread() -> None:
    backend = EmbeddingBackend()

    async def work(embedder: EndpointEmbedder) -> None:
        backend.error = ServerError("out of order", endpoint="tag")
        await asyncio.to_thread(embedder.embed, ["owl"])

    with pytest.raises(ServerError, match="out of order"):
        with_embedder(backend, work)


def test_closing_breaks_off_what_is_asked_and_refuses_what_comes_later() -> None:
    asked = asyncio.Event()

    async def ask(request: EmbedRequest) -> Embeddings:
        if request.texts == ("for ever",):
            asked.set()
            await asyncio.Event().wait()
        return await EmbeddingBackend().embed(request)

    async def main() -> list[BaseException | Vectors]:
        embedder = await EndpointEmbedder.open("tag", ask=ask)
        waiting = asyncio.create_task(asyncio.to_thread(embedder.embed, ["for ever"]))
        await asked.wait()
        embedder.close()
        later = asyncio.to_thread(embedder.embed, ["owl"])
        return await asyncio.gather(waiting, later, return_exceptions=True)

    for error in asyncio.run(main()):
        assert isinstance(error, InferenceError)
        assert str(error) == "tag: the run that wanted vectors is over"


def test_calls_stand_under_the_span_that_wanted_them() -> None:
    tracer = Tracer()
    under: list[int | None] = []

    async def ask(request: EmbedRequest) -> Embeddings:
        under.append(tracer.current_id)
        return await EmbeddingBackend().embed(request)

    async def main() -> int | None:
        embedder = await EndpointEmbedder.open("tag", ask=ask)
        with tracer.span("recall") as span:
            await asyncio.to_thread(embedder.embed, ["owl"])
            return span.id

    wanted = asyncio.run(main())
    assert wanted is not None
    assert under == [None, wanted]
