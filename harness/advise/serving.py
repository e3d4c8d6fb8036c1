"""How to serve a layout: each server's command line, by the table `flags`, and its endpoint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import PurePath
from typing import get_args

from harness.advise.data_tables import DeviceSpec, rows
from harness.advise.layouts import WHOLE_BITS, Layout, Placement, ServingGoal
from harness.advise.model_shape import ModelShape
from harness.hardware.quantization import CACHE_TYPES, KvBits
from harness.inference.endpoint import BackendName


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The settings to start a server with."""

    model: str  # the model's file, folder or name, as the server takes it
    context_tokens: int  # the tokens of one sequence: its prompt and its reply
    sequences: int = 1  # the sequences that one copy answers at once
    kv_bits: KvBits = 16
    quantization: str | None = None  # the format that the server makes of weights as it loads them
    on_gpu: bool = True
    tensor_parallel: int = 1
    stages: int = 1
    copies: int = 1
    gpu_share: float | None = None  # each server's share of a GPU's memory; None for its default
    port: int | None = None  # the first copy's port; None for the server's usual port
    first_gpu: int | None = None  # the number of the first GPU that it uses; None to use all GPUs


Servings = dict[BackendName, Serving]


@cache
def servers() -> dict[BackendName, dict[str, str]]:
    """Backend → its column of the table `flags`: its command, flags, usual port and packing."""
    table = rows("flags")
    # Servers whose commands were never run here have no column.
    return {
        backend: {row["name"]: row[backend] for row in table}
        for backend in get_args(BackendName)
        if backend in table[0]
    }


def servings(placement: Placement, layout: Layout, device: DeviceSpec) -> Servings:
    """Backend → the settings of its server, for servers that can serve the layout."""
    goal, workload = placement.goal, placement.goal.workload
    share = None
    if placement.models > 1:
        # A hundredth more than needed: rounded down, the server would not start.
        share = round(layout.device_bytes / device.memory_bytes + 0.01, 2)
    names_gpus = device.count > layout.devices or layout.copies > 1
    packed_as = "fp8" if layout.precision == "FP8" and _must_be_made(goal.shape, layout) else None
    by_backend: Servings = {}
    for backend, server in servers().items():
        if not _can_serve(server, goal.shape, layout, device):
            continue
        by_backend[backend] = Serving(
            model=_model_to_load(server, goal, layout),
            context_tokens=workload.context_tokens,
            sequences=min(-(-workload.users // layout.copies), layout.sequences // layout.copies),
            kv_bits=layout.kv_bits,
            quantization=packed_as if server["packing"] == "safetensors" else None,
            on_gpu=device.is_gpu,
            tensor_parallel=layout.tensor_parallel,
            stages=layout.stages,
            copies=layout.copies,
            gpu_share=share,
            port=placement.port,
            first_gpu=placement.first if names_gpus else None,
        )
    return by_backend


def _can_serve(
    server: Mapping[str, str], shape: ModelShape, layout: Layout, device: DeviceSpec
) -> bool:
    """Whether a server, a column of `servers`, can serve the model's layout on the device."""
    if server["packing"] == "safetensors" and not device.is_gpu:
        return False
    # A model without a file is published in both packings; no server of GGUF divides a layer.
    is_in_both = not shape.is_local and _is_published(layout) and layout.tensor_parallel == 1
    if server["packing"] != layout.packing and not is_in_both:
        return False
    if server["packs_loaded"] and _must_be_made(shape, layout):
        # It loads all 16-bit weights first, and quantizes no experts without units for FP8.
        has_room = shape.weight_bytes / (layout.tensor_parallel * layout.stages) < device.room
        return has_room and (shape.expert_share == 1 or device.fp8_flops_per_s is not None)
    return True


def _model_to_load(server: Mapping[str, str], goal: ServingGoal, layout: Layout) -> str:
    """The model as the server takes it, or the name of the file or folder to make of it."""
    model, shape = goal.model, goal.shape
    if server["packing"] == "gguf":
        if shape.is_local and layout.precision == shape.quantization:
            return model
        # A file of the user: `8B-Q6_K.gguf` beside `8B.gguf`, or without the owner's name on a hub.
        name = model if shape.is_local else model.rpartition("/")[2]
        return f"{name.removesuffix('.gguf')}-{layout.precision}.gguf"
    # Servers make FP8 while they load 16-bit weights. Any other format must be made by the user.
    is_made_by_user = layout.precision != "FP8" and _must_be_made(shape, layout)
    return f"{model}-{layout.precision}" if is_made_by_user else model


def _must_be_made(shape: ModelShape, layout: Layout) -> bool:
    # Weights are published in 16 bits or MXFP4, or are this very file. Others must be made first.
    return not (_is_published(layout) or layout.precision == shape.quantization)


def _is_published(layout: Layout) -> bool:
    return layout.bits > WHOLE_BITS or layout.precision == "MXFP4"


def command_of(backend: BackendName, serving: Serving) -> list[tuple[str, str]]:
    """The parts of the command line that starts all copies of the server, each with its reason.

    Joined by spaces they are a line for a shell: variables, the program with its model, its flags.
    """
    parts: list[tuple[str, str]] = []
    for copy in range(serving.copies):
        parts += [("&", "and beside it")] if copy else []
        values = _values_of_copy(serving, copy, usual_port=int(servers()[backend]["usual_port"]))
        settings = [
            (row[backend].format(**values), row["meaning"].format(**values))
            for row in rows("flags")
            if row[backend] and values.get(row["name"])
        ]
        # A shell takes variables (`CUDA_VISIBLE_DEVICES=0`) before the program, flags after it.
        parts += [part for part in settings if part[0][0].isupper()]
        parts += [part for part in settings if part[0][0].islower()]
        parts += [part for part in settings if part[0].startswith("--")]
    return parts


def _values_of_copy(serving: Serving, copy: int, *, usual_port: int) -> dict[str, object]:
    """Name in the table `flags` → the copy's value; a flag whose value is false is left out."""
    gpus = serving.tensor_parallel * serving.stages
    first = (serving.first_gpu or 0) + copy * gpus
    numbers = ",".join(map(str, range(first, first + gpus)))
    # A shell knows `~` as the home folder only outside of quotes.
    home = "~/" if serving.model.startswith("~/") else ""
    return asdict(serving) | {
        "command": True,
        "model": home + shlex.quote(serving.model.removeprefix("~/")),
        "all_tokens": serving.context_tokens * serving.sequences,
        "cache_type": CACHE_TYPES[serving.kv_bits],
        "gpus": serving.on_gpu and serving.first_gpu is not None and numbers,
        "kv_bits": serving.kv_bits if serving.kv_bits != 16 else None,  # every server's default
        "gpu_layers": "all" if serving.on_gpu else "0",
        "tensor_parallel": serving.tensor_parallel if serving.tensor_parallel > 1 else None,
        "stages": serving.stages if serving.stages > 1 else None,
        # Copies after the first cannot have the usual port.
        "port": (serving.port or usual_port) + copy if serving.port or copy else None,
    }


def endpoint_of(backend: BackendName, serving: Serving) -> list[str]:
    """The lines of `harness.toml` under the head of the endpoint that calls the server."""
    server, model = servers()[backend], serving.model
    first = int(serving.port or server["usual_port"])
    urls = [f"http://127.0.0.1:{first + copy}{server['path']}" for copy in range(serving.copies)]
    # llama-server answers to any name; for Ollama this is the name to give to `ollama create`.
    model_id = PurePath(model).stem if model.endswith(".gguf") else model
    lines = [
        f"backend = {toml(backend)}",
        f"urls = {toml(urls)}" if len(urls) > 1 else f"url = {toml(urls[0])}",
        f"model_id = {toml(model_id)}",
        f"max_parallel = {serving.sequences * serving.copies}",
    ]
    # Only Ollama's column has a further line: Ollama takes the context with each call.
    line = server["line"].format(context_tokens=serving.context_tokens)
    return [*lines, line] if line else lines


def toml(value: object) -> str:
    """A text or a list of texts in TOML."""
    return json.dumps(value, ensure_ascii=False)
