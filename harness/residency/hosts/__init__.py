"""What loads models and lets them go, a host for each kind of server and engine: a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.errors import ConfigurationInvalid
from harness.inference import Backend, EmbeddedLlamaCpp, Endpoint, LlamaCppPython
from harness.inference.endpoint import FILE_BACKENDS, BackendName
from harness.inference.wire.connection import bearer
from harness.residency.host import Host
from harness.residency.hosts.engine import EngineHost
from harness.residency.hosts.ollama import OllamaHost
from harness.residency.hosts.router import RouterHost
from harness.residency.hosts.sglang import SglangHost
from harness.residency.hosts.tabbyapi import TabbyApiHost
from harness.residency.hosts.tensorrt_llm import TensorRtLlmHost
from harness.residency.hosts.triton import TritonHost, TritonOpenAIHost
from harness.residency.hosts.vllm import VllmHost

__all__ = ["OllamaHost", "host_of"]

Key = str | None

_SERVERS: Mapping[BackendName, Callable[[Endpoint, Key, Key], Host]] = {
    "llamacpp": lambda at, key, _: RouterHost(at, api_key=key),
    "vllm": lambda at, key, _: VllmHost(at, api_key=key),
    "sglang": lambda at, key, control: SglangHost(at, api_key=key, control_key=control),
    "tensorrt-llm": lambda at, key, control: TensorRtLlmHost(at, api_key=key, control_key=control),
    "tabbyapi": lambda at, key, control: TabbyApiHost(at, api_key=key, control_key=control),
    "triton": lambda at, key, _: TritonHost(at, api_key=key),
    "triton-openai": lambda at, key, _: TritonOpenAIHost(at, api_key=key),
}
"""From an endpoint, its key, and the key to load and unload, the host."""


def host_of(
    endpoint: Endpoint,
    backend: Backend,
    *,
    api_key: str | None,
    control_key: str | None,
    keep_alive: Callable[[], float | None] | None = None,
) -> Host:
    """What loads an endpoint's model; connects to nothing yet.

    Args:
        endpoint: One with a file, or whose server is managed.
        backend: What answers its calls; a model in this process is loaded by it.
        api_key: The endpoint's.
        control_key: The key that loading and unloading need, if it is another.
        keep_alive: The seconds for which calls ask Ollama to keep the model.

    Raises:
        ConfigurationInvalid: Nothing can load it as it is written down, or a key cannot be sent.
    """
    if endpoint.backend in FILE_BACKENDS:
        assert isinstance(backend, EmbeddedLlamaCpp | LlamaCppPython)
        return EngineHost(backend)
    if endpoint.backend == "ollama":
        return OllamaHost(endpoint, api_key=api_key, keep_alive=keep_alive)
    make = _SERVERS.get(endpoint.backend)
    if make is None:
        raise ConfigurationInvalid(
            f"endpoint '{endpoint.tag}': backend '{endpoint.backend}' cannot be told to load a "
            "model or to let it go; set manage to false",
            code="endpoint.not-manageable",
        )
    return make(endpoint, api_key, bearer(control_key, endpoint=endpoint.tag))
