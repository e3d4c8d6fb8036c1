"""Devices, models and precisions: of the packaged tables, of this machine, or given by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

from harness.advise import model_shape
from harness.advise.model_shape import ModelShape, Packing, Quantization
from harness.errors import InvalidInput, did_you_mean
from harness.hardware import capacity, machine
from harness.hardware.footprint import parse_bytes
from harness.hardware.machine import read_gpus
from harness.inference.endpoint import MACHINE

# A figure for memory, or for bytes a second, is smaller only if its unit was forgotten.
_LEAST_BYTES: Final = 2**20
_VENDOR: Final = re.compile(r"\b(?:nvidia|geforce|tesla|amd|instinct)\b")
# Endings of names. Variants of a model that differ only in these have the same size.
_VARIANT: Final = re.compile(r"(-(instruct|chat|it|hf|base|v0\.\d|\d{4}))+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One GPU, or the machine's own memory and processor."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float = 0.0  # 0 if unknown
    flops_per_s: float | None = None  # for dense products with 16-bit factors; None if unknown
    fp8_flops_per_s: float | None = None  # with 8-bit factors; None if unknown or without units
    has_int8: bool = False  # whether 8-bit integers multiply twice as fast as 16 bits, if known
    link_bytes_per_s: float = 0.0  # one way to its neighbors, by NVLink or PCIe; 0 if unknown
    usd_per_hour: float | None = None
    room_bytes: int | None = None  # that a budget allows; None for the usual share of all memory
    is_gpu: bool = True
    count: int = 1  # how many devices of this kind the machine has
    source: str  # the source of the figures: `measured`, `nominal`, `by hand`, or a data sheet

    @property
    def room(self) -> int:
        """The bytes that models may take."""
        # 0.92 is vLLM's default share of a GPU.
        share = 0.92 if self.is_gpu else machine.MACHINE_SHARE
        return self.room_bytes or round(self.memory_bytes * share)

    def flops_with(self, quantization: str | None) -> float | None:
        """Operations a second with weights in this quantization; None if unknown."""
        name = (quantization or "").upper()
        if name.startswith("FP8") and self.fp8_flops_per_s:
            return self.fp8_flops_per_s
        # llama.cpp multiplies quantized weights on a GPU as 8-bit integers, in half of the time of
        # 16 bits (its pull requests 7676 and 7860). Others are unpacked to 16.
        is_integer = self.has_int8 and re.match(r"I?Q\d|MXFP4_MOE", name) is not None
        return self.flops_per_s and self.flops_per_s * (1 + is_integer)


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a packaged table."""
    return list(csv.DictReader(io.StringIO(_text(f"{table}.csv"))))


def _text(name: str) -> str:
    return files("harness.advise").joinpath("tables", name).read_text(encoding="utf-8")


@cache
def known_devices() -> dict[str, DeviceSpec]:
    """Name → device of the table."""
    return {
        row["name"]: DeviceSpec(
            name=row["name"],
            memory_bytes=round(float(row["memory_gib"]) * 2**30),
            memory_bytes_per_s=float(row["bandwidth_gb_s"]) * 1e9,
            flops_per_s=float(row["tflops"]) * 1e12,
            fp8_flops_per_s=float(row["fp8_tflops"] or 0) * 1e12 or None,
            has_int8=True,  # as all GPUs of the table have
            link_bytes_per_s=float(row["link_gb_s"]) * 1e9,
            usd_per_hour=float(row["usd_per_hour"] or 0) or None,
            source=f"{row['source']}, {row['date']}" + _rent(row),
        )
        for row in rows("devices")
    }


def _rent(row: Mapping[str, str]) -> str:
    price = row["usd_per_hour"]
    source = f"{row['price_source']}, {row['price_date']}"
    return f"; ${price} an hour: {source}" if price else "; no rent is known"


def known_device(name: str) -> DeviceSpec:
    """A device of the table, by its name in any spelling; raises `InvalidInput` for another."""
    devices = known_devices()
    plain = _VENDOR.sub("", name.lower())
    spelled = (spec for known, spec in devices.items() if _letters(known) == _letters(plain))
    device = next(spelled, None) or product(name)
    if device is None:
        problem = f"'{name}' is not in the table of devices (of others, give --memory and "
        problem += f"--bandwidth); {did_you_mean(name, devices)}"
        raise InvalidInput(problem, code="advise.device-unknown")
    return device


def _letters(name: str) -> str:
    """The name's letters and digits alone, so that `RTX 4090` equals `rtx-4090`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def this_machine() -> DeviceSpec:
    """The machine's own memory and processor; measuring takes half a second, once a process."""
    return DeviceSpec(
        name=MACHINE,
        memory_bytes=capacity.memory_bytes(),
        memory_bytes_per_s=machine.memory_bytes_per_s(),
        # Measured with f32: kernels for quantized weights reach about as many operations.
        flops_per_s=machine.flops_per_s(),
        is_gpu=False,
        source="measured",
    )


def this_gpu(name: str) -> DeviceSpec:
    """A GPU of this machine; raises `InvalidInput` if it is missing or its figures are unknown."""
    gpus = {gpu.name: gpu for gpu in read_gpus()}
    if gpu := gpus.get(name):
        spec = product(gpu.product) or DeviceSpec(name=name, memory_bytes=0, source="")
        # The driver's figures go first: it knows this card, and the table only its kind.
        memory_bytes = gpu.capacity_bytes or spec.memory_bytes
        speed = gpu.memory_bytes_per_s or spec.memory_bytes_per_s
        count = sum(alike.product == gpu.product for alike in gpus.values())
        if memory_bytes and speed:
            spec = replace(spec, memory_bytes=memory_bytes, memory_bytes_per_s=speed)
            return replace(spec, count=count, source="nominal")
        raise InvalidInput(
            f"the memory or the speed of '{name}' is unknown ({gpu.product}); give --memory and "
            "--bandwidth, and no --device",
            code="advise.gpu-unknown",
        )
    raise InvalidInput(
        f"'{name}' is not seen by NVIDIA's driver here (found: {', '.join(gpus) or 'none'}); "
        "install the extra `nvidia`, or give --memory and --bandwidth",
        code="advise.no-such-gpu",
    )


def product(name: str) -> DeviceSpec | None:
    """The device of the table that a driver calls by this name; None if there is none."""
    # Compared as whole words, since A10 is also a part of A100.
    names = (row["name"] for row in rows("devices") if f" {row['product']} " in f" {name} ")
    return next(map(known_device, names), None)


def device_by_hand(
    memory: str, *, bandwidth: str | None = None, tflops: float | None = None, is_gpu: bool = True
) -> DeviceSpec:
    """A GPU, or a processor, by figures such as `24 GiB` and `1008 GB`; raises `InvalidInput`."""
    try:
        size = parse_bytes(memory)
        speed = parse_bytes(bandwidth.removesuffix("/s")) if bandwidth else None
    except ValueError as error:
        raise InvalidInput(str(error), code="advise.size-unreadable") from error
    if size < _LEAST_BYTES or (speed is not None and speed < _LEAST_BYTES):
        problem = f"'{memory}' is no memory, or it has no speed; give both with their units: "
        problem += '--memory "24 GiB" --bandwidth "1008 GB"'
        raise InvalidInput(problem, code="advise.no-memory")
    return DeviceSpec(
        name=f"{'GPU' if is_gpu else MACHINE} of {memory}",
        memory_bytes=size,
        memory_bytes_per_s=speed or 0.0,
        flops_per_s=tflops * 1e12 if tflops else None,
        is_gpu=is_gpu,
        source="by hand",
    )


@cache
def quantizations() -> dict[str, Quantization]:
    """Name → quantization of the table."""
    table: dict[str, Quantization] = {}
    for row in rows("quantizations"):
        name, packing = row["name"], cast("Packing", row["packing"])
        table[name] = Quantization(name, packing, float(row["bits"]), float(row["nominal_bits"]))
    return table


def quantization_of(name: str) -> Quantization:
    """The quantization of this name, in upper or lower case; raises `InvalidInput` if unknown."""
    table = quantizations()
    if name.upper() not in table:
        problem = f"'{name}' is not a quantization; {did_you_mean(name.upper(), table)}"
        raise InvalidInput(problem, code="advise.quantization-unknown")
    return table[name.upper()]


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Name of each model → its published configuration and size."""
    return {row["name"]: row for row in json.loads(_text("models.json"))}


@cache
def known_shape(model: str) -> ModelShape:
    """The known model of this name, as we or a hub write it, or one of this size, such as `7B`."""
    models = known_models()
    # On a hub, `meta-llama/Meta-Llama-3.1-8B-Instruct` is Llama-3.1-8B.
    plain = _VARIANT.sub("", model.lower().rpartition("/")[2]).removeprefix("meta-")
    for name, row in models.items():
        if _letters(name) == _letters(plain):
            shape = model_shape.configured_shape(row["config"], path=Path(name), title=model)
            return replace(shape, is_local=False)
    count = model_shape.parse_parameters(model)
    if not count:
        size = re.search(r"\d+(\.\d+)?[bm]\b", model.lower())
        problem = f"'{model}' is no file or folder here, and no model that is known; give a GGUF "
        problem += "file, a folder of safetensors, a config.json, a name "
        problem += f"({did_you_mean(model, models)}), or a size: harness advise "
        problem += size[0].upper() if size else "8B"
        raise InvalidInput(problem, code="advise.model-unknown")
    usual = [known_shape(name) for name, row in models.items() if "usual" in row]
    # The usual model that is nearest gives the layers and heads; only its sizes are scaled.
    shape = min(usual, key=lambda shape: abs(shape.parameters - count))
    scaled = shape.scaled(count / shape.parameters)
    return replace(scaled, title=model, family="", exact_caches=False)
