"""How to serve a model, independent of the server; providers turn it into their command lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from harness.hardware.quantization import CACHE_TYPES, KvBits

_MEANINGS: Final[Mapping[str, str]] = {
    "context_tokens": "{context_tokens} tokens for a prompt and its reply",
    "sequences": "{sequences} at once, while other calls wait",
    "kv_bits": "{kv_bits} bits for each element of the KV cache, in place of 16",
    "on_gpu": "the model on the processor",
    "gpu_layers": "{gpu_layers} layers on the GPU, the others on the processor",
    "tensor_parallel": "each layer divided over {tensor_parallel} GPUs",
    "replicas": "{replicas} copies of the model",
    "gpu_share": "{gpu_share} of the GPU's memory for this server",
    "port": "an address of its own: port {port}",
}
"""The request of each field of `Serving`, in words: a setting's reason, or a missing feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The settings to start a server with."""

    model: str
    """Its file, folder or name, as the server takes it."""
    context_tokens: int
    """Of one sequence: its prompt and its reply."""
    sequences: int = 1
    """Answered at once by one replica."""
    kv_bits: KvBits = 16
    """Of each element of the KV cache."""
    on_gpu: bool = True
    gpu_layers: int | None = None
    """Layers on the GPU, the others being the processor's; None for all."""
    tensor_parallel: int = 1
    """GPUs that each layer is divided over."""
    replicas: int = 1
    gpu_share: float | None = None
    """Of the GPU's memory that the server may take, from 0 to 1; None for its default."""
    port: int | None = None
    """None for the server's usual one."""


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
    """Joined by spaces it is a shell command; empty if nothing is started by hand. Variables of the
    environment come first, as `NAME=value`."""
    endpoint: tuple[Setting, ...]
    """Lines of `harness.toml` under the endpoint's head."""
    missing: tuple[str, ...] = ()
    """Requests without a setting of the server, a phrase for each."""


def program(
    command: str,
    *also: Setting,
    backend: str,
    usual_port: int,
    path: str = "/v1",
    calls: str = "{name}",
    **flags: str,
) -> Callable[[Serving], Launch]:
    """Makes the command line of a server on this machine, and the endpoint that calls it.

    In all texts `{model}` stands for the model as a shell takes it, `{name}` for its name,
    `{all_tokens}` for the tokens of all sequences, `{cache_type}` for llama.cpp's word for the bits
    of the KV cache, and other names for the fields of `Serving`.

    Args:
        command: The program and the model.
        also: Flags and variables that no field asks for.
        backend: The endpoint's.
        usual_port: Of the server.
        path: Of the endpoint's url.
        calls: The model in calls.
        flags: By the field of `Serving` that each carries out; empty where the server does it
            unasked. What is asked for and not here is missing.
    """

    def launched(serving: Serving) -> Launch:
        values = {field: getattr(serving, field) for field in _MEANINGS} | {
            "model": quoted(serving.model),
            "name": quoted(name_of(serving.model)),
            "all_tokens": serving.context_tokens * serving.sequences,
            "cache_type": CACHE_TYPES[serving.kv_bits],
        }
        set_by = {field: _filled(flag, values) for field, flag in flags.items()}
        settings, missing = _carried_out(serving, set_by)
        copies = 1 if "replicas" in flags else serving.replicas
        ports = [(serving.port or usual_port) + number for number in range(copies)]
        urls = [f"http://127.0.0.1:{port}{path}" for port in ports]
        where = Setting(f"url = {toml(urls[0])}", "where it listens")
        if copies > 1:
            where = Setting(f"urls = {toml(urls)}", "a server for each copy of the model")
        at_once = serving.sequences * serving.replicas // copies
        model_id = _filled(calls, {"name": name_of(serving.model), "model": serving.model})
        lines = [
            Setting(f"backend = {toml(backend)}", "the server's dialect, counters and times"),
            where,
            Setting(f"model_id = {toml(model_id)}", "how the server calls the model"),
            Setting(f"max_parallel = {at_once}", "further calls would only wait in the server"),
        ]
        settings += [Setting(_filled(one.text, values), one.reason) for one in also]
        # The shell takes variables before the program.
        before = [one for one in settings if one.text[0].isupper()]
        after = [one for one in settings if one not in before]
        started = Setting(_filled(command, values), "the server and its model")
        parts = (*before, started, *after)
        if copies > 1:
            gpus = serving.tensor_parallel if serving.on_gpu else 0
            parts = _beside_each_other(parts, ports, set_by["port"], gpus=gpus)
        return Launch(command=parts, endpoint=tuple(lines), missing=missing)

    return launched


def _filled(text: str, values: Mapping[str, object]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), text)


def _beside_each_other(
    command: Sequence[Setting], ports: Sequence[int], flag: str, *, gpus: int
) -> tuple[Setting, ...]:
    """The command once for each port, each on GPUs of its own; `flag` ends with any port."""
    found: list[Setting] = []
    for number, port in enumerate(ports):
        listens = Setting(re.sub(r"\w+$", str(port), flag), f"an address of its own: port {port}")
        seen = ",".join(str(number * gpus + own) for own in range(gpus))
        gpu = Setting(f"CUDA_VISIBLE_DEVICES={seen}", "all that it sees")
        one = [*([gpu] if gpus else []), *(part for part in command if part.text != flag)]
        one.insert(0 if flag[0].isupper() else len(one), listens)  # a variable, or a flag
        found += [*([Setting("&", "and beside it")] if number else []), *one]
    return tuple(found)


def configured(serving: Serving, *also: Setting, slots: str = "") -> Launch:
    """The endpoint of a model that harness loads from a file.

    `slots` is its line for calls at once, where the engine has one.
    """
    kind = toml(CACHE_TYPES[serving.kv_bits])
    lines = {
        "context_tokens": f"context_tokens = {serving.context_tokens}",
        "kv_bits": f"cache_type_k = {kind}\ncache_type_v = {kind}",
        "on_gpu": "",
        "gpu_layers": f"gpu_layers = {serving.gpu_layers}",
        "port": "",
    }
    settings, missing = _carried_out(serving, lines | ({"sequences": slots} if slots else {}))
    file = Setting(f"path = {toml(serving.model)}", "the model's file")
    gpu = [Setting('device = "gpu0"', "the GPU that computes it")] if serving.on_gpu else []
    return Launch(command=(), endpoint=(file, *also, *gpu, *settings), missing=missing)


def _carried_out(
    serving: Serving, flags: Mapping[str, str]
) -> tuple[list[Setting], tuple[str, ...]]:
    """Each setting with its reason, and what has none."""
    default = Serving(model="", context_tokens=0)
    values = {name: getattr(serving, name) for name in _MEANINGS}
    reasons = {name: meaning.format_map(values) for name, meaning in _MEANINGS.items()}
    asked = [name for name in reasons if values[name] != getattr(default, name)]
    # Few servers have as many places by default.
    settings = [
        Setting(flags[name], reasons[name])
        for name in reasons
        if flags.get(name) and (name in asked or name == "sequences")
    ]
    # Replicas without a flag are servers of their own.
    missing = [one for one in asked if one not in flags and one != "replicas"]
    return settings, tuple(reasons[name] for name in missing)


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
