"""From an endpoint as written to a backend that answers: a table, one line per way."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import ConfigurationInvalid
from harness.inference.backend import Backend
from harness.inference.endpoint import Endpoint
from harness.inference.engines.embedded import EmbeddedLlamaCpp
from harness.inference.engines.llama_cpp_python import LlamaCppPython
from harness.inference.managed.litellm_backend import LiteLLMBackend
from harness.inference.wire.ollama import OllamaWire
from harness.inference.wire.openai import OpenAIWire
from harness.inference.wire.triton import TritonWire
from harness.trace import Clock


def connect(
    endpoint: Endpoint,
    *,
    api_key: str | None,
    clock: Clock,
    keep_alive: Callable[[], float | None] | None = None,
    check_address: Callable[[str], None] = lambda _url: None,
) -> Backend:
    """The bare backend of an endpoint; connects to nothing yet.

    Args:
        endpoint: As written down.
        api_key: What it shows its server.
        clock: The caller's.
        keep_alive: The seconds that Ollama is told to keep the model for after each call, where the
            endpoint does not say.
        check_address: Told where litellm is about to send something; raises `NotTrusted` where it
            must not.
    """
    match endpoint.backend:
        case "embedded":
            return EmbeddedLlamaCpp(endpoint, clock=clock)
        case "litellm":
            return LiteLLMBackend(
                endpoint, api_key=api_key, clock=clock, check_address=check_address
            )
        case "ollama":
            return OllamaWire(endpoint, api_key=api_key, clock=clock, keep_alive=keep_alive)
        case "llama-cpp-python":
            return LlamaCppPython(endpoint, clock=clock)
        case "triton":
            return TritonWire(endpoint, api_key=api_key, clock=clock)
        case "scripted":
            raise ConfigurationInvalid(
                f"endpoint '{endpoint.tag}' is scripted; hand its backend over in Python",
                code="endpoint.scripted",
            )
        case _:
            return OpenAIWire(endpoint, api_key=api_key, clock=clock)
