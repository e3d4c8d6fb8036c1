"""Addresses with a query: where the paths of pages go, and that the query is in every request."""

import asyncio
from dataclasses import replace

import pytest
from calls import ask, backend_at
from servers.anthropic import Anthropic
from servers.ollama import OllamaServer
from servers.openai_api import OpenAIAPI
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer
from servers.pages import Pages
from servers.triton import TritonServer

from harness.inference import EmbedRequest, Endpoint, ScriptedBackend
from harness.inference.providers.registry import (
    host_of,
    metrics_source,
    served_metadata,
    server_facts,
    slots_source,
)

QUERY = "?api_key=a%2Bb%26c&v=2"
CLAUDE = "anthropic/claude-haiku-4-5"


def with_query(server, path=""):
    """The same server at an address with a query."""

    class Asked(type(server)):
        url = property(lambda self: f"{self.root}{path}{QUERY}")

        async def respond(self, asked, answer):
            await super().respond(replace(asked, path=asked.path.partition("?")[0]), answer)

    server.__class__ = Asked
    return server


@pytest.mark.parametrize(
    ("server", "path", "page", "settings"),
    [
        pytest.param(
            OpenAIServer(dialect=DIALECTS["vllm"]),
            "/v1/",
            "/v1/chat/completions",
            {"backend": "vllm"},
            id="OpenAI's protocol",
        ),
        pytest.param(OllamaServer(), "/v1", "/api/chat", {"backend": "ollama"}, id="Ollama"),
        pytest.param(
            TritonServer(),
            "/",
            "/v2/models/served-name/generate_stream",
            {"backend": "triton", "prompt_template": "chatml"},
            id="Triton",
        ),
        pytest.param(
            OpenAIAPI(),
            "/v1",
            "/v1/chat/completions",
            {"backend": "litellm", "model_id": f"openai/{MODEL}"},
            id="litellm to OpenAI",
        ),
        pytest.param(
            Anthropic(),
            "",
            "/v1/messages",
            {"backend": "litellm", "model_id": CLAUDE},
            id="litellm to Anthropic",
        ),
    ],
)
def test_the_path_of_a_call_goes_before_the_query(server, path, page, settings):
    _, asked = ask(with_query(server, path), api_key="sk-1", **settings)

    assert [one.path for one in asked.asked] == [page + QUERY]


def test_the_query_is_in_all_that_a_server_is_asked():
    pages = {"/v1/models": {"data": []}, "/is_sleeping": {"is_sleeping": False}, "/sleep": {}}

    async def main():
        async with Pages(pages=pages) as server:
            fields = {"model_id": MODEL, "url": f"{server.root}/v1{QUERY}", "need": 1}
            for backend in ("llamacpp", "vllm"):
                endpoint = Endpoint(tag="judge", backend=backend, **fields)
                await server_facts(endpoint)
                await served_metadata(endpoint)
                source = metrics_source(endpoint, ScriptedBackend([]))
                await source.read()
                await source.aclose()
            await slots_source(endpoint.model_copy(update={"backend": "llamacpp"}))()
            managed = endpoint.model_copy(update={"manage": True})
            host = host_of(managed, ScriptedBackend([]))
            await host.unload()
            await host.aclose()
            return server.asked

    asked = asyncio.run(main())
    found = {one.path.partition("?")[0] for one in asked}
    assert {"/v1/models", "/metrics", "/props", "/sleep"} <= found
    assert all(QUERY[1:] in one.path for one in asked)
    assert all(one.path.count("?") == 1 for one in asked)


def test_the_query_is_in_embeddings():
    async def main():
        server = with_query(OpenAIServer(dialect=DIALECTS["vllm"]), "/v1")
        async with server, backend_at(server, backend="vllm") as wire:
            await wire.embed(EmbedRequest(model="judge", texts=("an owl",)))
        return [one.path for one in server.asked]

    assert asyncio.run(main()) == [f"/v1/embeddings{QUERY}"]
