from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.inference import Endpoint
from harness.session import load_settings

EXAMPLE = Path(__file__).parents[2] / "examples/endpoints.toml"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"url": None}, "needs 'url', such as http"),
        ({"backend": "vllm"}, "backend 'vllm' needs 'url'"),
        ({"backend": "embedded"}, "needs 'path', the GGUF file"),
        ({"path": None, "url": "http://h/v1", "backend": "embedded"}, "needs 'path'"),
        ({"path": "m.gguf", "url": "http://h/v1"}, "a model in this process has 'path' alone"),
        ({"path": "m.gguf", "backend": "vllm"}, "'path' is for backend 'embedded'"),
        ({"url": "127.0.0.1:8000/v1"}, "must start with http"),
        ({"url": "ftp://h/v1"}, "must start with http"),
        ({"url": "http://"}, "and a host"),
        ({"url": "http:///v1"}, "and a host"),
        ({"url": "http://h:port/v1"}, "is not an address: Invalid port"),
        ({"url": "http://h:65536/v1"}, "ports end at 65535"),
        ({"url": "http://h/v1\n"}, "is not an address"),
        ({"url": "http://h/v1", "backend": "ollma"}, "'llamacpp', 'vllm', 'sglang'"),
        ({"url": "http://h/v1", "modelid": "x"}, "Extra inputs are not permitted"),
        ({"url": "http://h/v1", "timeout_s": 0}, "greater than 0"),
        ({"url": "http://h/v1", "tag": ""}, "at least 1 character"),
        ({"path": "m.gguf", "context_tokens": 255}, "greater than or equal to 256"),
        ({"path": "m.gguf", "slots": 0}, "greater than or equal to 1"),
        ({"path": "m.gguf", "slots": 65}, "less than or equal to 64"),
        ({"path": "m.gguf", "threads": 0}, "greater than or equal to 1"),
        (
            {"url": "http://h/v1", "backend": "vllm", "slots": 9},
            "'slots' is for backend 'embedded', and would do nothing for 'vllm'; leave it out, or",
        ),
        (
            {"url": "http://h/v1", "context_tokens": 8192},
            "'context_tokens' is for backend 'embedded', 'llama-cpp-python' or 'ollama'",
        ),
        ({"url": "http://h", "backend": "ollama", "threads": 2}, "'threads' is for backend"),
        ({"url": "http://h/v1", "keep_alive": "10m"}, "or set it where that server is started"),
        ({"path": "m.gguf", "prompt_template": "llama3"}, "'triton', .* 'embedded'; leave it out"),
        ({"path": "m.gguf", "backend": "llama-cpp-python", "slots": 2}, "'slots' is for backend"),
        ({"backend": "litellm", "keep_alive": 60}, r"nothing for 'litellm'; leave it out \["),
        *(
            ({"url": "http://h", "backend": "ollama", "keep_alive": text}, f"'{text}' is no time")
            for text in ("ten minutes", "10 m", "1h30", "5d", "", "m")
        ),
    ],
    ids=str,
)
def test_a_mistake_is_told(fields, says):
    with pytest.raises(ValidationError, match=says):
        Endpoint.model_validate({"tag": "small", **fields})


@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        ({"url": "http://h/v1"}, "openai"),
        ({"url": "HTTPS://h:65535/v1"}, "openai"),
        ({"url": "http://[::1]:8080"}, "openai"),
        ({"url": "http://h/v1", "path": None}, "openai"),
        ({"path": "m.gguf"}, "embedded"),
        ({"backend": "litellm"}, "litellm"),
        ({"backend": "litellm", "url": "http://h/v1"}, "litellm"),
        ({"backend": "scripted"}, "scripted"),
    ],
    ids=str,
)
def test_what_is_left_out_follows_from_the_rest(fields, backend):
    endpoint = Endpoint.model_validate({"tag": "small", **fields})

    assert endpoint.backend == backend
    assert endpoint.model_id == "small"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("10m", "10m"),
        ("1h30m", "1h30m"),
        ("-1m", "-1m"),
        ("1.5h", "1.5h"),
        ("0", "0"),
        (300, 300),
        (-1, -1),
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
        {"path": "m.gguf", "context_tokens": 8192, "slots": 2, "threads": 2, "embeddings": True},
        {"path": "m.gguf", "backend": "llama-cpp-python", "context_tokens": 512, "threads": 2},
        {"url": "http://h", "backend": "ollama", "context_tokens": 8192, "keep_alive": "10m"},
        {"url": "http://h", "backend": "triton", "prompt_template": "plain"},
        {"url": "http://h/v1", "backend": "vllm", "embeddings": True, "structured": "enforced"},
    ],
    ids=str,
)
def test_a_setting_is_taken_by_the_backends_it_is_for(fields):
    endpoint = Endpoint.model_validate({"tag": "small", **fields})

    assert endpoint.model_fields_set >= set(fields)


def test_the_example_of_every_server_is_sound():
    settings = load_settings(EXAMPLE, environment={})

    assert settings.endpoints["qwen"].keep_alive == "10m"
    assert settings.endpoints["vectors"].embeddings


def test_a_served_name_may_differ_from_the_tag():
    assert Endpoint(tag="small", url="http://h/v1", model_id="org/Model").model_id == "org/Model"


def test_an_endpoint_survives_being_written_down():
    for endpoint in (
        Endpoint(tag="a", path=Path("m.gguf"), threads=2),
        Endpoint(tag="b", url="http://h/v1", backend="vllm", api_key_env="KEY"),
    ):
        assert Endpoint.model_validate_json(endpoint.model_dump_json()) == endpoint
