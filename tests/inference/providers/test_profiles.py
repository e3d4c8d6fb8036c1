"""What is known of each server, held against its emulation; and what it says of itself."""

import asyncio
from dataclasses import replace
from typing import get_args

import pytest
from calls import REQUEST, ask, backend_at
from servers.emulated import Emulated
from servers.openai_dialects import DIALECTS
from servers.openai_server import CONTEXT_TOKENS, MODEL, OpenAIServer
from servers.pages import Pages

from harness.errors import NotOffered
from harness.inference import EmbedRequest, Endpoint
from harness.inference.endpoint import BackendName, WireName
from harness.inference.providers import PROVIDERS
from harness.inference.providers.provider import ALWAYS
from harness.inference.providers.registry import server_facts, slots_source
from harness.inference.providers.server_host import ServerFacts

NAMES = get_args(WireName)
METRICS = {"llamacpp", "vllm", "sglang"}
"""Servers with counters that are read."""
CONTEXT = {"llamacpp", "vllm", "sglang", "tgi", "tabbyapi", "lmstudio"}
"""Servers that tell their context."""
each_server = pytest.mark.parametrize("name", NAMES)


def backends():
    """All names that an endpoint may have for its server."""
    return {*NAMES, *(name for name in get_args(BackendName) if isinstance(name, str))}


def server_of(name, **of_dialect):
    """A server, whose dialect may differ."""
    return OpenAIServer(dialect=replace(DIALECTS[name], **of_dialect))


def test_every_wire_has_a_profile_and_a_dialect_of_its_own():
    on_the_wire = {name for name, provider in PROVIDERS.items() if provider.connect is None}
    assert on_the_wire == set(DIALECTS) == set(NAMES)
    assert set(PROVIDERS) == backends()
    assert {name for name in NAMES if PROVIDERS[name].schema is None} == {"triton-openai"}


@each_server
def test_a_profile_tells_what_a_reply_comes_with_and_no_field_has_to_be_found_out(name):
    profile = PROVIDERS[name]
    sampling = {"seed": 1, "frequency_penalty": 0.5, "stop": ("never",), "temperature": 0.7}
    cutoffs = {"top_p": 0.9, "top_k": 40, "min_p": 0.05}

    completion, server = ask(
        server_of(name), request=replace(REQUEST, **sampling, **cutoffs), backend=name
    )

    assert (set(completion.dropped), len(server.asked)) == (profile.refuses, 1)
    kept = {field: value for field, value in cutoffs.items() if field not in profile.refuses}
    assert {field: server.asked[0].body.get(field) for field in kept} == kept
    assert server.asked[0].body.keys().isdisjoint(profile.refuses)
    # `openai` is any: each place is looked at, and none is promised.
    assert (profile.times is not None) == (profile.timings is not None or name == "openai")
    assert profile.schema is not None or profile.enforces == ALWAYS
    reported = any(phase.source == "reported" for phase in completion.phases)
    assert reported == (profile.timings == ALWAYS)
    said = completion.usage.cached_tokens is not None
    assert said == (profile.cached_tokens == ALWAYS) or name == "openai"


TIMES = {
    "llamacpp": {"beside_usage": {"timings": {"prompt_ms": 30.0, "predicted_ms": 20.0}}},
    "vllm": {"beside_usage": {"metrics": {"queue_time_ms": 5.0, "generation_time_ms": 20.0}}},
    "tabbyapi": {"usage": {"prompt_time": 0.03, "completion_time": 0.02}},
}


@pytest.mark.parametrize("sent_as", TIMES)
@pytest.mark.parametrize("name", [*TIMES, "openai", "lmstudio"])
def test_times_are_read_where_the_servers_row_says_and_nowhere_else(name, sent_as):
    told = {"usage": {}, "beside_usage": {}} | TIMES[sent_as]

    completion, _ = ask(server_of(name, **told), backend=name)

    reported = any(phase.source == "reported" for phase in completion.phases)
    assert reported == (name in {sent_as, "openai"})


@each_server
def test_a_server_that_does_not_embed_says_so(name):
    async def main():
        server = server_of(name, embeds="nothing")
        async with server, backend_at(server, backend=name) as wire:
            with pytest.raises(NotOffered):
                await wire.embed(EmbedRequest(model="judge", texts=("an owl",)))

    asyncio.run(main())
    assert PROVIDERS[name].embeds != ALWAYS or DIALECTS[name].embeds != "nothing"


# --- what a server says of itself ------------------------------------------------------------


async def facts_of(server: Emulated, backend: str, *, path: str = "/v1", **fields) -> ServerFacts:
    values = {"tag": "judge", "model_id": MODEL, "backend": backend, "url": server.root + path}
    return await server_facts(Endpoint.model_validate(values | fields), api_key="sk-1")


def facts_from(server, backend, **fields):
    """The facts, and what the server was asked."""

    async def main():
        async with server:
            return await facts_of(server, backend, **fields), server.asked

    return asyncio.run(main())


@pytest.mark.parametrize("backend", sorted(DIALECTS.keys() - {"openai"}))
def test_every_server_is_asked_in_its_own_way(backend):
    facts, asked = facts_from(server_of(backend), backend)

    assert facts.models == (MODEL,)
    assert facts.context_tokens == (CONTEXT_TOKENS if backend in CONTEXT else None)
    assert facts.slots == (4 if backend == "llamacpp" else None)
    assert facts.reachable
    # No emulated one has its counters on.
    assert facts.metrics == (False if backend in METRICS else None)
    assert {one.headers["authorization"] for one in asked} == {"Bearer sk-1"}


@pytest.mark.parametrize(
    ("backend", "fields", "slots"),
    [("llamacpp", {}, 4), ("llamacpp", {"manage": True}, None), ("vllm", {}, None)],
    ids=["it says so", "a router would load the model", "it does not say"],
)
def test_a_server_is_asked_for_its_slots_where_it_tells_them(backend, fields, slots):
    async def main():
        async with server_of(backend) as server:
            url = f"{server.root}/v1"
            endpoint = Endpoint(tag="judge", model_id=MODEL, backend=backend, url=url, **fields)
            source = slots_source(endpoint)
            return None if source is None else await source()

    assert asyncio.run(main()) == slots


@pytest.mark.parametrize(("backend", "path"), [("llamacpp", "/metrics"), ("sglang", "/metrics")])
def test_counters_that_are_on_are_found(backend, path):
    server = server_of(backend, pages=DIALECTS[backend].pages | {path: None})

    assert facts_from(server, backend)[0].metrics is True


TAGS = {"models": [{"name": "served-name:latest"}, {"name": "qwen3:8b"}]}


@pytest.mark.parametrize("path", ["", "/v1/"])
def test_ollama_is_asked_beside_its_v1(path):
    loaded = {"models": [{"name": "other", "context_length": 1}]}
    server = Pages(pages={"/": {}, "/api/tags": TAGS, "/api/ps": loaded})

    assert facts_from(server, "ollama", path=path)[0] == ServerFacts(
        reachable=True, models=("served-name:latest", "qwen3:8b")
    )


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_ollama_tells_the_context_of_a_loaded_model(name):
    lengths = {"other": 1, name: 8192}
    loaded = [{"name": name, "context_length": length} for name, length in lengths.items()]

    facts, _ = facts_from(Pages(pages={"/api/ps": {"models": loaded}}), "ollama")

    assert facts.context_tokens == 8192


def test_triton_lists_what_is_ready():
    server = Pages(pages={"/v2/repository/index": [{"name": MODEL, "state": "READY"}]})

    facts, asked = facts_from(server, "triton", path="/", prompt_template="chatml")

    assert facts == ServerFacts(reachable=True, models=(MODEL,))
    assert asked[-1].body == {"ready": True}


@pytest.mark.parametrize(
    ("listed", "tokens"),
    [
        pytest.param({"other": 1, MODEL: 2}, 2, id="its own"),
        pytest.param({"other": 1}, 1, id="the only one"),
        pytest.param({"other": 1, "another": 2}, None, id="none of several others"),
    ],
)
def test_the_context_is_that_of_the_endpoints_model(listed, tokens):
    data = [{"id": name, "max_model_len": length} for name, length in listed.items()]

    facts, _ = facts_from(Pages(pages={"/v1/models": {"data": data}}), "vllm")

    assert (facts.context_tokens, facts.models) == (tokens, tuple(listed))


def test_a_router_is_told_of_which_model():
    _, asked = facts_from(server_of("llamacpp"), "llamacpp", model_id="a b")

    paths = ["/v1/models", "/metrics?model=a+b", "/props?model=a+b"]
    assert [one.path for one in asked] == paths


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(401, id="refused"),
        pytest.param(b"<h1>It works!</h1>", id="a web page"),
        pytest.param({"data": "none", "models": 3}, id="other shapes"),
        pytest.param({"data": [3, None], "models": [3, None]}, id="other rows"),
        pytest.param({"data": [{"id": 3, "max_model_len": "4k"}]}, id="other values"),
    ],
)
@pytest.mark.parametrize("backend", ["vllm", "llamacpp", "ollama", "triton"])
def test_what_is_not_told_as_expected_is_not_known(backend, page):
    paths = ("/v1/models", "/props", "/api/tags", "/api/ps", "/v2/repository/index")
    template = {"prompt_template": "chatml"} if backend == "triton" else {}

    facts, _ = facts_from(Pages(pages=dict.fromkeys(paths, page)), backend, **template)

    assert not facts.models
    assert (facts.context_tokens, facts.slots) == (None, None)
