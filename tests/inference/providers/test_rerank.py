"""Texts that a server ranks: each shape of a request and a reply, by provider.

Replies are those of llama-server (b11434), Text Embeddings Inference (1.8), Cohere's API (v2, 2026)
and vLLM (0.32), whose shape Jina's is.
"""

import asyncio
import json

import pytest
from calls import backend_at
from clients import client_of
from loopback import Loopback, Reply, error_reply

from harness.errors import NotOffered, ServerError
from harness.inference import ScriptedBackend
from harness.inference.request import RerankRequest

TEXTS = ("Let the dough rise.", "Steep green tea for three minutes.", "Tea is a drink.")
REQUEST = RerankRequest(model="judge", query="how long does tea steep", texts=TEXTS)
SCORES = (-9.5, 4.25, 0.0)


def reply(said):
    kind = ("content-type", "application/json")
    return Reply(headers=(kind,), steps=(json.dumps(said).encode(),))


def rows(name, **more):
    """Best first, as servers have them."""
    order = sorted(range(3), key=lambda number: -SCORES[number])
    return [{"index": number, name: SCORES[number], **more} for number in order]


LLAMA = reply(
    {
        "model": "bge",
        "object": "list",
        "usage": {"prompt_tokens": 41, "total_tokens": 41},
        "results": rows("relevance_score"),
    }
)
VLLM = reply(
    {
        "id": "rerank-1",
        "model": "bge",
        "usage": {"total_tokens": 41},
        "results": rows("relevance_score", document={"text": "…"}),
    }
)
COHERE = reply(
    {
        "id": "1",
        "results": rows("relevance_score"),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
)
TEI = reply(rows("score"))
NO_PAGE = error_reply(404, None, raw=b"")
NO_TEXTS = Reply(
    status=422,
    headers=(("content-type", "text/plain; charset=utf-8"),),
    steps=(b"Failed to deserialize the JSON body into the target type: missing field `texts`",),
)
SWITCHED_OFF = error_reply(
    501,
    {
        "error": {
            "code": 501,
            "message": "This server does not support reranking. Start it with `--reranking`",
            "type": "not_supported_error",
        }
    },
)

ROWS = {
    "llama-server": ("llamacpp", "/v1", [LLAMA], [("/v1/rerank", "documents")], 41),
    "llama-server without /v1": ("llamacpp", "", [LLAMA], [("/rerank", "documents")], 41),
    "vLLM": ("vllm", "/v1", [VLLM], [("/v1/rerank", "documents")], 41),
    "Jina": ("openai", "/v1", [VLLM], [("/v1/rerank", "documents")], 41),
    "Cohere": ("openai", "/v2", [COHERE], [("/v2/rerank", "documents")], None),
    "Text Embeddings Inference": (
        "openai",
        "",
        [NO_TEXTS, TEI],
        [("/rerank", "documents"), ("/rerank", "texts")],
        None,
    ),
    "Text Embeddings Inference by its /v1": (
        "openai",
        "/v1",
        [NO_PAGE, NO_PAGE, NO_TEXTS, TEI],
        [(at, name) for at in ("/v1/rerank", "/rerank") for name in ("documents", "texts")],
        None,
    ),
}


def ranked(backend, path, replies, *, calls=1):
    server = Loopback(replies)

    async def main():
        async with (
            server,
            backend_at(f"{server.root}{path}", backend=backend, api_key="sk-1") as opened,
        ):
            for _ in range(calls):
                ranking = await opened.rerank(REQUEST)
            return ranking

    try:
        return asyncio.run(main()), server.asked
    except ServerError as error:
        return error, server.asked


@pytest.mark.parametrize(("backend", "path", "replies", "sent", "tokens"), ROWS.values(), ids=ROWS)
def test_each_server_is_asked_in_its_own_way_and_found_out_once(
    backend, path, replies, sent, tokens
):
    ranking, asked = ranked(backend, path, [*replies, replies[-1]], calls=2)

    assert (ranking.scores, ranking.input_tokens) == (SCORES, tokens)
    texts = [next(name for name in ("documents", "texts") if name in one.body) for one in asked]
    found = [(one.path, name) for one, name in zip(asked, texts, strict=True)]
    assert found == [*sent, sent[-1]]
    assert asked[-1].body == {
        "model": "served-name",
        "query": "how long does tea steep",
        sent[-1][1]: list(TEXTS),
    }
    assert asked[-1].headers["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"results": rows("relevance_score")[:2]}, id="two of three"),
        pytest.param(
            {"results": [{"index": n, "score": "high"} for n in range(3)]}, id="no number"
        ),
        pytest.param({"results": None}, id="nothing"),
        pytest.param({"results": [{"index": [0], "score": 1}]}, id="a list as an index"),
        pytest.param("ranked", id="a text"),
    ],
)
def test_a_reply_without_a_score_for_each_text_is_the_servers_fault(said):
    error, asked = ranked("vllm", "/v1", [reply(said)])

    assert type(error) is ServerError
    assert (len(asked), "no score for each" in str(error)) == (1, True)


def test_of_all_refusals_the_first_is_told():
    long = error_reply(400, {"error": {"message": "input is too large to process"}})
    refused, asked = ranked("llamacpp", "", [long, NO_PAGE])

    assert (type(refused), refused.status, len(asked)) == (ServerError, 400, 2)


def test_what_cannot_rank_says_so():
    server = Loopback([SWITCHED_OFF] * 4)

    async def main():
        async with server, backend_at(server.url, backend="llamacpp") as opened:
            with pytest.raises(NotOffered) as caught:
                await opened.rerank(REQUEST)
            with pytest.raises(NotOffered):
                await client_of(ScriptedBackend([]), tag="judge").rerank(REQUEST)
            return caught.value

    assert "--reranking" in str(asyncio.run(main()))
