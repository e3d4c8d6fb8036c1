"""What a person writes of an endpoint, and which backend it becomes."""

import asyncio
from pathlib import Path

import pytest
from clients import client_of
from pydantic import ValidationError

from harness.errors import ConfigurationInvalid
from harness.inference import ChatRequest, Endpoint, ScriptedBackend, as_messages
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.inference.providers.litellm import LiteLLMBackend
from harness.inference.providers.llama_cpp_python import LlamaCppPython
from harness.inference.providers.model_files import gpu_fields
from harness.inference.providers.ollama import OllamaWire
from harness.inference.providers.openai_wire import OpenAIWire
from harness.inference.providers.registry import connect
from harness.inference.providers.triton import TritonWire
from harness.session import load_settings

EXAMPLE = Path(__file__).parents[2] / "examples/endpoints.toml"
URL = "http://127.0.0.1:9/v1"
GGUF = "missing.gguf"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"url": None}, "endpoint.url-missing"),
        ({"backend": "embedded"}, "endpoint.path-missing"),
        ({"path": GGUF, "url": URL}, "endpoint.url-and-path"),
        ({"path": GGUF, "url": URL, "backend": "vllm"}, "endpoint.stray-setting"),
        ({"url": "127.0.0.1:8000/v1"}, "endpoint.url-invalid"),
        ({"url": "ftp://h/v1"}, "endpoint.url-invalid"),
        ({"url": "http://h:port/v1"}, "endpoint.url-invalid"),
        ({"url": "http://h:70000/v1"}, "endpoint.url-invalid"),
        ({"url": "http://h/v1\n"}, "endpoint.url-invalid"),
        ({"url": URL, "backend": "triton"}, "endpoint.template-missing"),
        ({"url": URL, "fallback": ["small"]}, "endpoint.own-fallback"),
        ({"url": URL, "backend": "vllm", "slots": 9}, "endpoint.stray-setting"),
        ({"url": URL, "context_tokens": 8192}, "endpoint.stray-setting"),
        ({"backend": "litellm", "keep_alive": 60}, "endpoint.stray-setting"),
        *(
            (
                {"url": URL, "backend": "ollama", "keep_alive": text},
                "endpoint.keep-alive-not-a-time",
            )
            for text in ("ten minutes", "1h30", "")
        ),
        ({"url": URL, "backend": "ollma"}, "endpoint.backend-unknown"),
        ({"url": URL, "modelid": "x"}, "extra_forbidden"),
        ({"url": URL, "timeout_s": 0}, "greater_than"),
        ({"url": URL, "device": "auto"}, "endpoint.device-of-server"),
        ({"url": URL, "device": ["gpu0", "gpu1"]}, "endpoint.device-of-server"),
        *(
            ({"path": GGUF, "device": device}, "endpoint.device-unknown")
            for device in (
                "gpu",
                "a100",
                "",
                [],
                ["gpu0", "machine"],
                ["auto", "gpu1"],
                ["gpu0", 1],
            )
        ),
        (
            {"path": GGUF, "gpu_layers": 9, "device": ["gpu0", "gpu1"]},
            "endpoint.gpu-layers-of-several",
        ),
    ],
    ids=str,
)
def test_a_mistake_is_told(fields, code):
    with pytest.raises(ValidationError) as caught:
        Endpoint.model_validate({"tag": "small", **fields})

    (error,) = caught.value.errors()
    mistake = error.get("ctx", {}).get("error")
    assert (mistake.code if mistake else error["type"]) == code


@pytest.mark.parametrize(
    ("fields", "backend", "connected"),
    [
        ({"url": URL}, "openai", OpenAIWire),
        ({"url": "http://[::1]:8080", "path": None}, "openai", OpenAIWire),
        ({"url": URL, "backend": "vllm"}, "vllm", OpenAIWire),
        ({"url": URL, "backend": "ollama"}, "ollama", OllamaWire),
        ({"url": URL, "backend": "triton", "prompt_template": "plain"}, "triton", TritonWire),
        ({"path": GGUF}, "embedded", EmbeddedLlamaCpp),
        ({"path": GGUF, "backend": "llama-cpp-python"}, "llama-cpp-python", LlamaCppPython),
        ({"backend": "litellm", "url": URL}, "litellm", LiteLLMBackend),
    ],
    ids=str,
)
def test_what_is_left_out_follows_and_its_backend_connects_to_nothing_yet(
    fields, backend, connected
):
    endpoint = Endpoint.model_validate({"tag": "small", **fields})

    assert (endpoint.backend, endpoint.model_id) == (backend, "small")
    assert type(connect(endpoint)) is connected


ONE, MANY = "LLAMA_SPLIT_MODE_NONE", "LLAMA_SPLIT_MODE_LAYER"
DEVICES = {
    "machine": ("machine", {}),
    "auto": ("auto", {}),
    "gpu1": ("gpu1", {"main_gpu": 1, "split_mode": ONE}),
    "one of a list": (["gpu2"], {"main_gpu": 2, "split_mode": ONE}),
    "a list": (
        ["gpu2", "gpu0"],
        {"main_gpu": 2, "split_mode": MANY, "tensor_split": [1.0, 0.0, 1.0]},
    ),
    "shares": (
        {"gpu1": 3, "gpu0": 1},
        {"main_gpu": 1, "split_mode": MANY, "tensor_split": [1.0, 3.0]},
    ),
}


@pytest.mark.parametrize(("device", "fields"), DEVICES.values(), ids=DEVICES)
def test_llama_cpp_is_told_which_gpus_and_how_much_of_the_layers_each_has(device, fields):
    endpoint = Endpoint.model_validate({"tag": "small", "path": GGUF, "device": device})

    assert gpu_fields(endpoint) == fields


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        *((text, text) for text in ("1h30m", "-1m", "1.5h")),
        (300, 300),
        # Without a unit Ollama takes a number, and no text.
        ("300", 300),
        ("-1", -1),
    ],
)
def test_a_model_is_kept_for_a_duration_of_gos_or_for_seconds(written, sent):
    endpoint = Endpoint(tag="small", url="http://h", backend="ollama", keep_alive=written)

    assert endpoint.keep_alive == sent


@pytest.mark.parametrize(
    "fields",
    [
        {"path": GGUF, "context_tokens": 8192, "slots": 2, "threads": 2, "embeddings": True},
        {"path": GGUF, "backend": "llama-cpp-python", "context_tokens": 512, "threads": 2},
        {"path": GGUF, "device": ["gpu0", "gpu1"]},
        {"url": URL, "backend": "ollama", "context_tokens": 8192, "keep_alive": "10m"},
        {"url": URL, "backend": "triton", "prompt_template": "plain", "model_id": "org/Model"},
        {"url": URL, "backend": "vllm", "embeddings": True, "structured": "enforced"},
    ],
    ids=str,
)
def test_a_setting_is_taken_by_the_backends_it_is_for_and_survives_being_written_down(fields):
    endpoint = Endpoint.model_validate({"tag": "small", **fields})

    assert endpoint.model_fields_set >= set(fields)
    assert Endpoint.model_validate_json(endpoint.model_dump_json()) == endpoint


def test_the_example_of_every_server_is_sound():
    settings = load_settings(EXAMPLE, environment={})

    assert settings.endpoints["qwen"].keep_alive == "10m"
    assert settings.endpoints["vectors"].embeddings


def test_a_mistake_in_a_file_has_the_same_code(tmp_path):
    path = tmp_path / "harness.toml"
    path.write_text("[endpoints.small]\nbackend = 'vllm'\n")

    with pytest.raises(ConfigurationInvalid) as caught:
        load_settings(path, environment={})
    assert (caught.value.code, caught.value.line) == ("endpoint.url-missing", 1)


def ask(shim, tag):
    return asyncio.run(shim.chat(ChatRequest(model=tag, messages=as_messages("Write."))))


def test_each_request_goes_to_the_backend_of_its_model():
    shim = client_of(ScriptedBackend(["s"]), tag="small", others={"large": ScriptedBackend(["l"])})

    assert [ask(shim, tag).text for tag in ("large", "small")] == ["l", "s"]


def test_an_unknown_tag_is_told_what_there_is():
    with pytest.raises(ConfigurationInvalid, match=r"'qwen2\.5-7b'") as caught:
        ask(client_of(ScriptedBackend([]), tag="qwen2.5-7b"), "qwen-7b")
    assert caught.value.code == "endpoint.unknown"
