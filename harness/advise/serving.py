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

from harness.advise.data_tables import rows
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
    quantization: str | None = None
    """To pack 16-bit weights in as they are loaded; None to leave them as they are."""
    on_gpu: bool = True
    tensor_parallel: int = 1
    stages: int = 1
    copies: int = 1
    gpu_share: float | None = None
    """Of the GPU's memory, from 0 to 1, for each server; None for its default."""
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
    """A server on this machine; its command and flags are in the table `flags`."""

    packing: Packing
    """Of the models that it takes."""
    port: int
    path: str = "/v1"
    """Of an endpoint's url."""


SERVERS: Final[Mapping[BackendName, Server]] = {
    "llamacpp": Server("gguf", 8080),
    "vllm": Server("safetensors", 8000),
    "sglang": Server("safetensors", 30000),
    "ollama": Server("gguf", 11434, ""),
}


def command_of(backend: BackendName, serving: Serving) -> list[Setting]:
    """The command line that starts the server: joined by spaces, one for a shell."""
    server, parts = SERVERS[backend], list[Setting]()
    gpus, first = serving.tensor_parallel * serving.stages, serving.first_gpu
    for copy in range(serving.copies):
        seen = range((first or 0) + copy * gpus, (first or 0) + (copy + 1) * gpus)
        values: dict[str, object] = {
            "command": True,
            "model": quoted(serving.model),
            "all_tokens": serving.context_tokens * serving.sequences,
            "cache_type": CACHE_TYPES[serving.kv_bits],
            "gpus": serving.on_gpu and first is not None and ",".join(map(str, seen)),
            "context_tokens": serving.context_tokens,
            "sequences": serving.sequences,
            "kv_bits": serving.kv_bits % 16,
            "quantization": serving.quantization,
            "gpu_layers": "all" if serving.on_gpu else "0",
            "tensor_parallel": serving.tensor_parallel > 1 and serving.tensor_parallel,
            "stages": serving.stages > 1 and serving.stages,
            "gpu_share": serving.gpu_share,
            "port": (serving.port or copy) and (serving.port or server.port) + copy,
        }
        settings = [
            Setting(row[backend].format(**values), row["meaning"].format(**values))
            for row in rows("flags")
            if row[backend] and values[row["name"]]
        ]
        parts += [Setting("&", "and beside it")] if copy else []
        # Variables, the program, its flags.
        parts += sorted(settings, key=lambda one: (one.text[:2] == "--", not one.text[0].isupper()))
    return parts


def endpoint_of(backend: BackendName, serving: Serving) -> list[str]:
    """The lines of `harness.toml` under the head of the endpoint that calls the server."""
    server, model = SERVERS[backend], serving.model
    first = serving.port or server.port
    urls = [f"http://127.0.0.1:{first + copy}{server.path}" for copy in range(serving.copies)]
    lines = [
        f"backend = {toml(backend)}",
        f"urls = {toml(urls)}" if len(urls) > 1 else f"url = {toml(urls[0])}",
        f"model_id = {toml(name_of(model) if model.endswith('.gguf') else model)}",
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
