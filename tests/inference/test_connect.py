from pathlib import Path

import pytest

from harness.errors import ConfigurationInvalid
from harness.inference import (
    EmbeddedLlamaCpp,
    Endpoint,
    LlamaCppPython,
    OllamaWire,
    OpenAIWire,
    TritonWire,
    connect,
)
from harness.inference.managed.litellm_backend import LiteLLMBackend
from harness.trace import monotonic

URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (Endpoint(tag="m", url=URL), OpenAIWire),
        (Endpoint(tag="m", url=URL, backend="vllm"), OpenAIWire),
        (Endpoint(tag="m", url=URL, backend="llamacpp"), OpenAIWire),
        (Endpoint(tag="m", url=URL, backend="ollama"), OllamaWire),
        (Endpoint(tag="m", url=URL, backend="triton", prompt_template="chatml"), TritonWire),
        (Endpoint(tag="m", path=Path("missing.gguf")), EmbeddedLlamaCpp),
        (
            Endpoint(tag="m", path=Path("missing.gguf"), backend="llama-cpp-python"),
            LlamaCppPython,
        ),
        (Endpoint(tag="m", backend="litellm"), LiteLLMBackend),
    ],
    ids=lambda value: value.backend if isinstance(value, Endpoint) else "",
)
def test_each_way_has_its_backend_which_connects_to_nothing_yet(endpoint, expected):
    assert type(connect(endpoint, api_key=None, clock=monotonic)) is expected


def test_a_scripted_endpoint_is_handed_over_in_python():
    with pytest.raises(ConfigurationInvalid, match="endpoint 'm' is scripted; hand its backend"):
        connect(Endpoint(tag="m", backend="scripted"), api_key=None, clock=monotonic)
