"""The official Python client as the reference caller: what it sends, and what it understands."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from servers.emulated import JSON_TEXT, TEXT, THOUGHT
from servers.ollama import CRASHED, FULL, OllamaServer

from harness.inference import ChatRequest, EmbedRequest, Endpoint, Message
from harness.inference.wire.ollama import OllamaWire

ollama = pytest.importorskip("ollama", reason="the official client of Ollama is not installed")

SCHEMA = {"type": "object", "properties": {"owls": {"type": "integer"}}}
MESSAGES = [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "Grüße 🦉"}]
REQUEST = ChatRequest(
    model="judge",
    messages=tuple(Message(**message) for message in MESSAGES),
    max_output_tokens=64,
    temperature=0.7,
    frequency_penalty=0.5,
    seed=7,
    stop=("END",),
    reply_schema=SCHEMA,
    top_logprobs=2,
)
SAME_CHAT = {
    "model": "m:1b",
    "messages": MESSAGES,
    "options": ollama.Options(
        temperature=0.7, frequency_penalty=0.5, seed=7, num_predict=64, stop=["END"], num_ctx=8192
    ),
    "format": SCHEMA,
    "keep_alive": "10m",
    "logprobs": True,
    "top_logprobs": 2,
}


@asynccontextmanager
async def both(scenario="reply", *, stream=True):
    """A server, our wire to it, and the official client of it."""
    async with OllamaServer(scenario) as server:
        endpoint = Endpoint(
            tag="judge",
            backend="ollama",
            url=server.root,
            model_id="m:1b",
            stream=stream,
            keep_alive="10m",
            context_tokens=8192,
        )
        wire = OllamaWire(endpoint)
        async with official(server) as client:
            try:
                yield server, wire, client
            finally:
                await wire.aclose()


def official(server):
    # A proxy from the environment must not stand between it and this machine.
    return ollama.AsyncClient(host=server.root, trust_env=False)


async def whole(client, *, stream, **chat):
    """Text, thoughts and log probabilities that the official client was told, and its last part."""
    if not stream:
        parts = [await client.chat(**chat)]
    else:
        parts = [part async for part in await client.chat(**chat, stream=True)]
    return (
        "".join(part.message.content or "" for part in parts),
        "".join(part.message.thinking or "" for part in parts),
        [(one.token, one.logprob) for part in parts for one in part.logprobs or ()],
        parts[-1],
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_is_asked_for_as_the_official_client_asks_but_for_what_must_not_be_cut(stream):
    async def main():
        async with both(stream=stream) as (server, wire, client):
            await wire.chat(REQUEST)
            await whole(client, stream=stream, **SAME_CHAT)
            return server.asked

    ours, theirs = asyncio.run(main())

    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    # It has no tools to offer either, and says so; it cannot forbid Ollama to cut a chat.
    assert theirs.body.pop("tools") == []
    assert ours.body == theirs.body | {"truncate": False, "shift": False}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("keep_alive", ["24h", 300, -1, 0, 1.5])
def test_how_long_the_model_is_kept_is_said_as_the_official_client_says_it(keep_alive, stream):
    async def main():
        async with OllamaServer() as server, official(server) as client:
            endpoint = Endpoint(
                tag="judge", backend="ollama", url=server.root, keep_alive=keep_alive
            )
            wire = OllamaWire(endpoint)
            await wire.chat(REQUEST)
            await wire.aclose()
            await whole(client, stream=stream, **SAME_CHAT | {"keep_alive": keep_alive})
            return [asked.body["keep_alive"] for asked in server.asked]

    ours, theirs = asyncio.run(main())

    assert ours == theirs
    assert type(ours) is type(theirs)


def test_embeddings_are_asked_for_and_read_as_the_official_client_does():
    async def main():
        async with both() as (server, wire, client):
            texts = ("a", "four")
            read = await wire.embed(EmbedRequest(model="judge", texts=texts))
            theirs = await client.embed(
                model="m:1b",
                input=list(texts),
                truncate=False,
                keep_alive="10m",
                options={"num_ctx": 8192},
            )
            return server.asked, read, theirs

    (ours, theirs), read, reference = asyncio.run(main())

    assert (ours.path, ours.body) == (theirs.path, theirs.body)
    np.testing.assert_allclose(read.vectors, reference.embeddings, rtol=1e-6)
    assert read.input_tokens == reference.prompt_eval_count


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("scenario", "text", "thought"),
    [
        ("reply", JSON_TEXT, ()),
        ("thinking", JSON_TEXT, THOUGHT),
        ("length", JSON_TEXT, ()),
        ("empty", (), ()),
    ],
)
def test_a_reply_is_read_as_the_official_client_reads_it(scenario, text, thought, stream):
    async def main():
        async with both(scenario, stream=stream) as (_, wire, client):
            return await wire.chat(REQUEST), await whole(client, stream=stream, **SAME_CHAT)

    completion, (their_text, their_thought, their_logprobs, last) = asyncio.run(main())

    assert completion.text == their_text == "".join(text)
    assert completion.reasoning == their_thought == "".join(thought)
    assert [(one.token, one.logprob) for one in completion.logprobs] == their_logprobs
    assert last.done
    assert completion.finish_reason == last.done_reason
    assert completion.usage.input_tokens == last.prompt_eval_count
    assert completion.usage.output_tokens == last.eval_count
    assert completion.model_id == last.model


@pytest.mark.parametrize("stream", [True, False])
def test_the_emulated_server_escapes_what_a_client_that_splits_text_would_split_at(stream):
    async def main():
        async with OllamaServer() as server, official(server) as client:
            return await whole(client, stream=stream, model="m:1b", messages=MESSAGES)

    text, *_ = asyncio.run(main())

    assert text == "".join(TEXT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("scenario", "status", "error"),
    [
        ("unknown model", 404, "model 'm:1b' not found"),
        ("overload", 503, FULL),
        ("late error", 500, CRASHED),
    ],
)
def test_the_official_client_understands_the_emulated_servers_refusals(
    scenario, status, error, stream
):
    async def main():
        async with both(scenario, stream=stream) as (_, _, client):
            await whole(client, stream=stream, **SAME_CHAT)

    with pytest.raises(ollama.ResponseError) as caught:
        asyncio.run(main())

    assert caught.value.error == error
    # In the middle of a stream there is no status any more.
    assert caught.value.status_code == (-1 if stream and scenario == "late error" else status)


def test_the_official_client_is_not_told_that_its_prompt_was_cut():
    async def main():
        async with both("overflow") as (_, _, client):
            return await whole(client, stream=True, **SAME_CHAT)

    text, *_ = asyncio.run(main())

    assert text == "".join(JSON_TEXT)
