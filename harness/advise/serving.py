"""How to serve a model, and the command lines that start servers so.

Servers whose commands were never run here have none.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from harness.advise.model_shape import Packing
from harness.hardware.quantization import CACHE_TYPES, KvBits
from harness.inference.endpoint import BackendName

_MEANINGS: Final[Mapping[str, str]] = {
    "context_tokens": "{context_tokens} tokens for a prompt and its reply",
    "sequences": "{sequences} at once, while other calls wait",
    "kv_bits": "{kv_bits} bits for each element of the KV cache, in place of 16",
    "quantization": "16-bit weights packed as {quantization} when they are loaded",
    "on_gpu": "the model on the processor",
    "tensor_parallel": "each layer divided over {tensor_parallel} GPUs",
    "stages": "the layers divided over {stages} GPUs, one after the other",
    "gpu_share": "{gpu_share} of the GPU's memory for this server",
    "port": "an address of its own: port {port}",
}
"""What each field of `Serving` asks for, in words: the reason of a flag."""


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


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag of a command line or one line of `harness.toml`, and its reason."""

    text: str
    """`--max-num-seqs 16`; of a command's first setting, the program and the model."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server's command line, and the endpoint that calls it."""

    command: tuple[Setting, ...]
    """Joined by spaces it is a shell command, with variables first, as `NAME=value`."""
    endpoint: tuple[Setting, ...]
    """Lines of `harness.toml` under the endpoint's head."""


def program(
    command: str, *, backend: str, usual_port: int, path: str = "/v1", **flags: str
) -> Callable[[Serving], Launch]:
    """Makes the command line of a server on this machine, and the endpoint that calls it.

    In all texts `{model}` stands for the model as a shell takes it, `{all_tokens}` for the tokens
    of all sequences, `{cache_type}` for llama.cpp's word for the bits of the KV cache, and other
    names for the fields of `Serving`.

    Args:
        command: The program and the model.
        backend: The endpoint's.
        usual_port: Of the server.
        path: Of the endpoint's url.
        flags: By the field of `Serving` that each carries out; none where a server does it unasked.
    """

    def launched(serving: Serving) -> Launch:
        ports = [(serving.port or usual_port) + number for number in range(serving.copies)]
        parts: list[Setting] = []
        for number, port in enumerate(ports):
            parts += [Setting("&", "and beside it")] if number else []
            parts += _command(serving, command, flags, copy=number, port=port)
        urls = [f"http://127.0.0.1:{port}{path}" for port in ports]
        where = Setting(f"url = {toml(urls[0])}", "where it listens")
        if serving.copies > 1:
            where = Setting(f"urls = {toml(urls)}", "a server for each copy of the model")
        at_once = serving.sequences * serving.copies
        model = name_of(serving.model) if serving.model.endswith(".gguf") else serving.model
        lines = (
            Setting(f"backend = {toml(backend)}", "the server's dialect, counters and times"),
            where,
            Setting(f"model_id = {toml(model)}", "how the server calls the model"),
            Setting(f"max_parallel = {at_once}", "further calls would only wait in the server"),
        )
        return Launch(command=tuple(parts), endpoint=lines)

    return launched


def _command(
    serving: Serving, command: str, flags: Mapping[str, str], *, copy: int, port: int
) -> list[Setting]:
    """Of one copy, with the flags for all that differs from a server's usual behaviour."""
    values: dict[str, object] = {name: getattr(serving, name) for name in _MEANINGS} | {
        "model": quoted(serving.model),
        "all_tokens": serving.context_tokens * serving.sequences,
        "cache_type": CACHE_TYPES[serving.kv_bits],
        "port": port if serving.port or copy else None,
    }
    usual = Serving(model="", context_tokens=0)
    settings = [
        Setting(_filled(flags[name], values), _filled(meaning, values))
        for name, meaning in _MEANINGS.items()
        # Few servers have as many places by default.
        if flags.get(name) and (values[name] != getattr(usual, name) or name == "sequences")
    ]
    if serving.first_gpu is not None and serving.on_gpu:
        gpus = serving.tensor_parallel * serving.stages
        seen = ",".join(str(serving.first_gpu + copy * gpus + number) for number in range(gpus))
        settings.insert(0, Setting(f"CUDA_VISIBLE_DEVICES={seen}", "the GPUs that it sees"))
    variables = [one for one in settings if one.text[0].isupper()]
    started = Setting(_filled(command, values), "the server and its model")
    return [*variables, started, *(one for one in settings if one not in variables)]


def _filled(text: str, values: Mapping[str, object]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), text)


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


# --- servers --------------------------------------------------------------------------------------


def _llama_server(serving: Serving) -> Launch:
    made = program(
        "llama-server --model {model}" + (" --gpu-layers all" if serving.on_gpu else ""),
        backend="llamacpp",
        usual_port=8080,
        context_tokens="--ctx-size {all_tokens}",
        sequences="--parallel {sequences}",
        kv_bits="--cache-type-k {cache_type} --cache-type-v {cache_type} --flash-attn on",
        on_gpu="--gpu-layers 0",
        port="--port {port}",
    )
    return made(serving)


_OLLAMA: Final = program(
    "ollama serve",
    backend="ollama",
    usual_port=11434,
    path="",
    context_tokens="OLLAMA_CONTEXT_LENGTH={context_tokens}",
    sequences="OLLAMA_NUM_PARALLEL={sequences}",
    kv_bits="OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
    port="OLLAMA_HOST=127.0.0.1:{port}",
)


def _ollama(serving: Serving) -> Launch:
    made = _OLLAMA(serving)
    context = Setting(f"context_tokens = {serving.context_tokens}", "with another, it loads anew")
    return replace(made, endpoint=(*made.endpoint, context))


_VLLM: Final = program(
    "vllm serve {model} --host 127.0.0.1",  # its default lets other machines in
    backend="vllm",
    usual_port=8000,
    context_tokens="--max-model-len {context_tokens}",
    sequences="--max-num-seqs {sequences}",
    kv_bits="--kv-cache-dtype fp8",
    quantization="--quantization {quantization}",
    tensor_parallel="--tensor-parallel-size {tensor_parallel}",
    stages="--pipeline-parallel-size {stages}",
    gpu_share="--gpu-memory-utilization {gpu_share}",
    port="--port {port}",
)

_SGLANG: Final = program(
    "python -m sglang.launch_server --model-path {model}",
    backend="sglang",
    usual_port=30000,
    context_tokens="--context-length {context_tokens}",
    sequences="--max-running-requests {sequences}",
    kv_bits="--kv-cache-dtype fp8_e4m3",
    quantization="--quantization {quantization}",
    on_gpu="--device cpu",
    tensor_parallel="--tp-size {tensor_parallel}",
    stages="--pp-size {stages}",
    gpu_share="--mem-fraction-static {gpu_share}",
    port="--port {port}",
)

LAUNCHES: Final[Mapping[BackendName, tuple[Packing, Callable[[Serving], Launch]]]] = {
    "llamacpp": ("gguf", _llama_server),
    "vllm": ("safetensors", _VLLM),
    "sglang": ("safetensors", _SGLANG),
    "ollama": ("gguf", _ollama),
}
"""By backend, the packing of the models that its server takes, and how it is started."""
