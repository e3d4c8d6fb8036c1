"""What servers say they serve, and what is made of it."""

import asyncio
from typing import get_args

import pytest
from servers.pages import Pages

from harness.inference import Endpoint, ModelMetadata
from harness.inference.endpoint import WireName
from harness.inference.model_identity import model_identity, relation_of
from harness.inference.providers import PROVIDERS
from harness.inference.providers.registry import served_metadata

DIGEST = "sha256-" + "5e" * 32
ADAPTER = "sha256-" + "a7" * 32


async def word_of(server, backend, model_id="judge", timeout_s=10.0):
    endpoint = Endpoint.model_validate(
        {"tag": "e", "backend": backend, "url": f"{server.root}/v1", "model_id": model_id}
    )
    return await served_metadata(endpoint, api_key="sk-1", timeout_s=timeout_s)


def told_by(pages, backend, *, model_id="judge"):
    async def ask():
        async with Pages(pages=pages) as server:
            return await word_of(server, backend, model_id)

    return asyncio.run(ask())


def asked_of(pages, backend):
    async def ask():
        async with Pages(pages=pages) as server:
            await word_of(server, backend)
            return server.asked

    return asyncio.run(ask())


def listing(*rows):
    return {"object": "list", "data": list(rows)}


def shown(modelfile="", **details):
    """What Ollama shows of a model that was made by hand of Qwen2.5."""
    return {
        "modelfile": f'# FROM judge:latest\n\nFROM {modelfile}\nTEMPLATE "{{{{ .Prompt }}}}"\n',
        "details": {"format": "gguf", "families": None, **details},
        "model_info": {
            "general.architecture": "qwen2",
            "general.basename": "Qwen2.5",
            "general.finetune": "Instruct",
            "general.size_label": "7B",
            "general.parameter_count": 7615616512,
            "tokenizer.ggml.tokens": None,
        },
    }


# --- by kind of server -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "pages", "told"),
    [
        pytest.param(
            "llamacpp",
            {"/props": {"model_path": "/m/Qwen2.5-7B.gguf", "model_ftype": "Q4_K - Medium"}},
            ModelMetadata(path="/m/Qwen2.5-7B.gguf", quantization="Q4_K_M"),
            id="llama-server",
        ),
        pytest.param(
            "llamacpp",
            {
                "/props": 400,
                "/v1/models": listing(
                    {"id": "writer", "path": "/cache/other.gguf"},
                    {"id": "judge", "path": "/cache/qwen.gguf", "meta": None},
                ),
            },
            ModelMetadata(path="/cache/qwen.gguf"),
            id="llama-server's router",
        ),
        pytest.param(
            "vllm",
            {
                "/v1/models": listing(
                    {"id": "writer", "root": "Qwen/Qwen3-8B", "parent": None},
                    {"id": "judge", "root": "/models/Llama-3.1-8B", "parent": None},
                )
            },
            ModelMetadata(path="/models/Llama-3.1-8B"),
            id="vLLM",
        ),
        pytest.param(
            "vllm",
            {
                "/v1/models": listing(
                    {"id": "base", "root": "Qwen/Qwen3-8B", "parent": None},
                    {"id": "judge", "root": "/adapters/strict", "parent": "base"},
                )
            },
            ModelMetadata(path="/adapters/strict", base_models=("Qwen/Qwen3-8B",)),
            id="an adapter in vLLM",
        ),
        pytest.param(
            "sglang",
            {"/model_info": {"model_path": "Qwen/Qwen3-8B", "is_generation": True}},
            ModelMetadata(path="Qwen/Qwen3-8B"),
            id="SGLang",
        ),
        pytest.param(
            "tgi",
            {"/info": {"model_id": "Qwen/Qwen3-8B", "model_sha": "9c925d6"}},
            ModelMetadata(path="Qwen/Qwen3-8B", fingerprint="9c925d6"),
            id="TGI",
        ),
        pytest.param(
            "tabbyapi",
            {"/v1/model": {"id": "Qwen3-8B-exl3-4.0bpw", "parameters": {}}},
            ModelMetadata(path="Qwen3-8B-exl3-4.0bpw"),
            id="TabbyAPI",
        ),
        pytest.param(
            "lmstudio",
            {"/api/v0/models": listing({"id": "judge", "arch": "qwen2", "quantization": "4bit"})},
            ModelMetadata(architecture="qwen2", quantization="4BIT"),
            id="LM Studio",
        ),
        pytest.param(
            "ollama",
            {
                "/api/show": shown(
                    f"/usr/share/ollama/.ollama/models/blobs/{DIGEST}",
                    quantization_level="Q4_K_M",
                    parent_model="qwen2.5:7b",
                )
            },
            ModelMetadata(
                names=("Qwen2.5-7B-Instruct",),
                base_models=("qwen2.5:7b",),
                architecture="qwen2",
                quantization="Q4_K_M",
                fingerprint=DIGEST,
            ),
            id="Ollama",
        ),
        pytest.param(
            "ollama",
            {"/api/show": shown(f"/blobs/{DIGEST}\nADAPTER /blobs/{ADAPTER}")},
            ModelMetadata(
                base_models=("Qwen2.5-7B-Instruct",),
                architecture="qwen2",
                fingerprint=f"{DIGEST} {ADAPTER}",
            ),
            id="an adapter in Ollama",
        ),
    ],
)
def test_every_server_tells_it_in_its_own_way(backend, pages, told):
    assert told_by(pages, backend) == told


@pytest.mark.parametrize(
    ("said", "quantization"),
    [
        ("Q4_K - Medium", "Q4_K_M"),
        ("Q8_0 (guessed)", "Q8_0"),
        ("IQ2_XXS - 2.0625 bpw", "IQ2_XXS"),
        ("unknown, may not work", None),
    ],
)
def test_llama_cpps_words_for_a_packing_become_its_label(said, quantization):
    told = told_by({"/props": {"model_path": "m.gguf", "model_ftype": said}}, "llamacpp")
    assert told == ModelMetadata(path="m.gguf", quantization=quantization)


def test_a_router_is_asked_of_the_model_and_told_not_to_start_it():
    (asked, *_) = asked_of({}, "llamacpp")
    assert asked.path == "/props?model=judge&autoload=false"


def test_the_key_is_sent_and_ollama_is_told_the_name():
    (asked,) = asked_of({}, "ollama")
    assert (asked.method, asked.path, asked.body) == ("POST", "/api/show", {"model": "judge"})
    assert asked.headers["authorization"] == "Bearer sk-1"


def test_what_tabbyapi_has_loaded_says_nothing_of_another_that_it_can_load():
    pages = {"/v1/model": {"id": "writer"}, "/v1/models": listing({"id": "writer"})}
    assert told_by(pages, "tabbyapi") == ModelMetadata(path="writer")
    pages["/v1/models"] = listing({"id": "writer"}, {"id": "judge"})
    assert told_by(pages, "tabbyapi") is None


# --- servers that do not tell ----------------------------------------------------------------

TELLING = {name for name, provider in PROVIDERS.items() if provider.served}
PAGES = ("/props", "/v1/models", "/model_info", "/info", "/v1/model", "/api/v0/models", "/api/show")


@pytest.mark.parametrize("backend", sorted(TELLING))
@pytest.mark.parametrize(
    "page", [404, b"<!doctype html>", [], {"data": None}, {"model_path": 7, "id": 7}], ids=repr
)
def test_what_is_refused_or_odd_is_none(backend, page):
    assert told_by(dict.fromkeys(PAGES, page), backend) is None


@pytest.mark.parametrize("backend", sorted(TELLING))
def test_a_server_that_is_silent_costs_the_limit_and_no_more(backend):
    async def ask():
        async with Pages("silent") as server, asyncio.timeout(30):
            return await word_of(server, backend, timeout_s=0.05)

    assert asyncio.run(ask()) is None


def test_a_key_that_no_header_can_hold_is_none():
    endpoint = Endpoint(tag="e", backend="vllm", url="http://127.0.0.1:1/v1")
    assert asyncio.run(served_metadata(endpoint, api_key="ключ")) is None


@pytest.mark.parametrize("backend", sorted(set(get_args(WireName)) - TELLING))
def test_other_servers_are_not_asked(backend):
    assert asked_of({}, backend) == []


# --- what it makes of an endpoint ------------------------------------------------------------


def known(model_id, told, *, port=1):
    url = f"http://127.0.0.1:{port}/v1"
    return model_identity(Endpoint(tag="e", url=url, model_id=model_id), told)


def test_an_alias_does_not_go_beside_the_servers_word():
    identity = known("gpt-4", ModelMetadata(path="/models/Qwen2.5-7B-Instruct-AWQ"))
    assert (identity.weights, identity.family) == ("qwen-2.5-7b-instruct", "qwen")
    assert (identity.quantization, identity.source) == ("AWQ", "server")
    other = known("gpt-4", ModelMetadata(path="meta-llama/Llama-3.1-8B-Instruct"), port=2)
    assert relation_of(identity, other) == "different"


def test_where_the_servers_word_says_nothing_the_name_stands():
    identity = known("qwen2.5:7b", ModelMetadata(path="/models/model.gguf", quantization="Q8_0"))
    assert (identity.weights, identity.quantization) == ("qwen-2.5-7b", "Q8_0")


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/home/ann/secret plans/Qwen2.5-7B-Q4_0.gguf", "Qwen2.5-7B-Q4_0.gguf"),
        (r"C:\Users\ann\models\judge.gguf", "judge.gguf"),
        ("/hub/models--Qwen--Qwen3-8B/snapshots/9c925d64d72725edaf899c6cb9c377fd", "qwen-3-8b"),
    ],
)
def test_a_reader_is_not_told_where_it_lies(path, served):
    assert known("judge", ModelMetadata(path=path)).served == served


@pytest.mark.parametrize(
    ("one", "other", "ports", "relation"),
    [
        pytest.param("/a/our-model.gguf", "/b/our-model.gguf", (1, 2), "same", id="one file name"),
        pytest.param("/a/model.gguf", "/a/model.gguf", (1, 1), "same", id="one path, one address"),
        pytest.param("/a/model.gguf", "/a/model.gguf", (1, 2), "unknown", id="a name of nothing"),
        pytest.param("/a/model.gguf", "/b/model.gguf", (1, 1), "unknown", id="a router's two"),
    ],
)
def test_two_made_up_names_are_one_model_when_their_servers_say_so(one, other, ports, relation):
    writer = known("writer", ModelMetadata(path=one), port=ports[0])
    judge = known("judge", ModelMetadata(path=other), port=ports[1])
    assert relation_of(writer, judge) == relation
