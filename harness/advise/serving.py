"""How to serve a model, and the command lines that start servers so.

Servers whose commands were never run here have none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple

from harness.advise.model_shape import Packing
from harness.hardware.quantization import CACHE_TYPES, KvBits
from harness.inference.endpoint import BackendName


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The settings to start a server with."""

    model: str
    """Its file, folder or name, as the server takes it."""
    context_tokens: int
    """Of one sequence: its prompt and its reply."""
    sequences: int = 1
    """Answered at once by one copy."""
    kv_bits: KvBits = 16
    """Of each element of the KV cache."""
    quantization: str | None = None
    """To pack 16-bit weights in as they are loaded; None to leave them as they are."""
    on_gpu: bool = True
    tensor_parallel: int = 1
    """GPUs that each layer is divided over."""
    stages: int = 1
    """GPUs, or groups of them, that have some layers each."""
    copies: int = 1
    """Servers of their own."""
    gpu_share: float | None = None
    """Of the GPU's memory that the server may take, from 0 to 1; None for its default."""
    port: int | None = None
    """None for the server's usual one."""
    first_gpu: int | None = None
    """The number of the first that it uses; None if it is to use all that there are."""


class Setting(NamedTuple):
    """A part of a command line, and its reason."""

    text: str
    """`--max-num-seqs 16`; first variables, then the program and the model."""
    reason: str


class Server(NamedTuple):
    """A server on this machine. `{model}` stands for the model as a shell takes it."""

    packing: Packing
    """Of the models that it takes."""
    command: str
    port: int
    path: str
    """Of an endpoint's url."""
    flags: Mapping[str, str]
    """By what they set, as `_MEANINGS` has it; none where a server does it unasked."""


_MEANINGS: Final = {
    "gpus": "the GPUs that it sees",
    "context_tokens": "{context_tokens} tokens for a prompt and its reply",
    "sequences": "{sequences} at once, while other calls wait",
    "kv_bits": "{kv_bits} bits for each element of the KV cache, in place of 16",
    "quantization": "16-bit weights packed as {quantization} when they are loaded",
    "gpu_layers": "layers on the GPU",
    "tensor_parallel": "each layer divided over {tensor_parallel} GPUs",
    "stages": "the layers divided over {stages} GPUs, one after the other",
    "gpu_share": "{gpu_share} of the GPU's memory for this server",
    "port": "an address of its own: port {port}",
}
"""What each flag is for."""

SERVERS: Final[Mapping[BackendName, Server]] = {
    "llamacpp": Server(
        "gguf",
        "llama-server --model {model}",
        8080,
        "/v1",
        {
            "context_tokens": "--ctx-size {all_tokens}",
            "sequences": "--parallel {sequences}",
            "kv_bits": "--cache-type-k {cache_type} --cache-type-v {cache_type} --flash-attn on",
            "gpu_layers": "--gpu-layers {gpu_layers}",
            "port": "--port {port}",
        },
    ),
    "vllm": Server(
        "safetensors",
        "vllm serve {model} --host 127.0.0.1",  # its default lets other machines in
        8000,
        "/v1",
        {
            "context_tokens": "--max-model-len {context_tokens}",
            "sequences": "--max-num-seqs {sequences}",
            "kv_bits": "--kv-cache-dtype fp8",
            "quantization": "--quantization {quantization}",
            "tensor_parallel": "--tensor-parallel-size {tensor_parallel}",
            "stages": "--pipeline-parallel-size {stages}",
            "gpu_share": "--gpu-memory-utilization {gpu_share}",
            "port": "--port {port}",
        },
    ),
    "sglang": Server(
        "safetensors",
        "python -m sglang.launch_server --model-path {model}",
        30000,
        "/v1",
        {
            "context_tokens": "--context-length {context_tokens}",
            "sequences": "--max-running-requests {sequences}",
            "kv_bits": "--kv-cache-dtype fp8_e4m3",
            "quantization": "--quantization {quantization}",
            "tensor_parallel": "--tp-size {tensor_parallel}",
            "stages": "--pp-size {stages}",
            "gpu_share": "--mem-fraction-static {gpu_share}",
            "port": "--port {port}",
        },
    ),
    "ollama": Server(
        "gguf",
        "ollama serve",
        11434,
        "",
        {
            "context_tokens": "OLLAMA_CONTEXT_LENGTH={context_tokens}",
            "sequences": "OLLAMA_NUM_PARALLEL={sequences}",
            "kv_bits": "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
            "port": "OLLAMA_HOST=127.0.0.1:{port}",
        },
    ),
}


def command_of(backend: BackendName, serving: Serving) -> list[Setting]:
    """The command line that starts the server: joined by spaces, one for a shell."""
    server, parts = SERVERS[backend], list[Setting]()
    gpus = serving.tensor_parallel * serving.stages
    for copy in range(serving.copies):
        is_chosen = serving.on_gpu and serving.first_gpu is not None
        first = (serving.first_gpu or 0) + copy * gpus
        values: dict[str, object] = {
            "model": quoted(serving.model),
            "all_tokens": serving.context_tokens * serving.sequences,
            "cache_type": CACHE_TYPES[serving.kv_bits],
            "gpus": is_chosen and ",".join(str(first + n) for n in range(gpus)),
            "context_tokens": serving.context_tokens,
            "sequences": serving.sequences,
            "kv_bits": serving.kv_bits != 16 and serving.kv_bits,
            "quantization": serving.quantization,
            "gpu_layers": "all" if serving.on_gpu else "0",
            "tensor_parallel": serving.tensor_parallel > 1 and serving.tensor_parallel,
            "stages": serving.stages > 1 and serving.stages,
            "gpu_share": serving.gpu_share,
            "port": (serving.port or copy) and (serving.port or server.port) + copy,
        }
        flags = {"gpus": "CUDA_VISIBLE_DEVICES={gpus}", **server.flags}
        settings = [
            Setting(flags[name].format(**values), meaning.format(**values))
            for name, meaning in _MEANINGS.items()
            if name in flags and values[name]
        ]
        settings.append(Setting(server.command.format(**values), "the server and its model"))
        parts += [Setting("&", "and beside it")] if copy else []
        # Variables, the program, its flags.
        parts += sorted(settings, key=lambda one: (one.text[:2] == "--", not one.text[0].isupper()))
    return parts


def endpoint_of(backend: BackendName, serving: Serving) -> list[str]:
    """The lines of `harness.toml` under the head of the endpoint that calls the server."""
    server = SERVERS[backend]
    ports = [(serving.port or server.port) + copy for copy in range(serving.copies)]
    urls = [f"http://127.0.0.1:{port}{server.path}" for port in ports]
    model = name_of(serving.model) if serving.model.endswith(".gguf") else serving.model
    lines = [
        f"backend = {toml(backend)}",
        f"urls = {toml(urls)}" if len(urls) > 1 else f"url = {toml(urls[0])}",
        f"model_id = {toml(model)}",
        f"max_parallel = {serving.sequences * serving.copies}",
    ]
    return lines + [f"context_tokens = {serving.context_tokens}"] * (backend == "ollama")


def toml(value: object) -> str:
    """A text or a list of texts as TOML has it."""
    return json.dumps(value, ensure_ascii=False)


def quoted(path: str) -> str:
    """As a shell takes it; a `~` at its beginning stays the home folder."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def name_of(model: str) -> str:
    """The last part of a path on this machine; any other name as it is."""
    is_path = model.startswith(("/", ".", "~")) or model.endswith(".gguf")
    return PurePath(model).name.removesuffix(".gguf") if is_path else model
