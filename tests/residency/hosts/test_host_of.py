import pytest
from server_hosts import KINDS

from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint, connect
from harness.inference.endpoint import FILE_BACKENDS, MANAGED_BACKENDS
from harness.residency.hosts import host_of
from harness.residency.hosts.engine import EngineHost
from harness.residency.hosts.ollama import OllamaHost
from harness.residency.hosts.router import RouterHost
from harness.residency.hosts.sglang import SglangHost
from harness.residency.hosts.tabbyapi import TabbyApiHost
from harness.residency.hosts.tensorrt_llm import TensorRtLlmHost
from harness.residency.hosts.triton import TritonHost, TritonOpenAIHost
from harness.residency.hosts.vllm import VllmHost
from harness.trace import monotonic

HOSTS = {
    "embedded": EngineHost,
    "llama-cpp-python": EngineHost,
    "llamacpp": RouterHost,
    "ollama": OllamaHost,
    "sglang": SglangHost,
    "tabbyapi": TabbyApiHost,
    "tensorrt-llm": TensorRtLlmHost,
    "triton": TritonHost,
    "triton-openai": TritonOpenAIHost,
    "vllm": VllmHost,
}


def made(backend):
    said = {"tag": "m", "backend": backend}
    if backend in FILE_BACKENDS:
        said["path"] = "m.gguf"
    else:
        said["url"] = "http://127.0.0.1:1/v1"
    if backend == "triton":
        said["prompt_template"] = "chatml"
    endpoint = Endpoint.model_validate(said)
    answers = connect(endpoint, api_key=None, clock=monotonic)
    return host_of(endpoint, answers, api_key="key", control_key="control key")


@pytest.mark.parametrize("backend", HOSTS)
def test_every_backend_whose_models_can_be_loaded_has_its_host(backend):
    assert type(made(backend)) is HOSTS[backend]


def test_none_is_missing():
    assert set(HOSTS) == FILE_BACKENDS | MANAGED_BACKENDS
    assert {kind.backend for kind in KINDS.values()} | {"ollama", "llamacpp"} == MANAGED_BACKENDS


@pytest.mark.parametrize("backend", ["openai", "tgi", "mlc"])
def test_a_server_that_cannot_be_told_is_an_error(backend):
    with pytest.raises(ConfigurationInvalid, match="set manage to false"):
        made(backend)
