"""The memory that a model is put into, and the processor beside it.

A device's figures come from a table, from this machine, or from a person.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.errors import InvalidInput
from harness.hardware.footprint import parse_bytes
from harness.hardware.gpus import read_gpus
from harness.hardware.machine import machine_memory_bytes, memory_bytes_per_s, products_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One GPU, or the machine's own memory and processor."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    """0 if unknown."""
    flops_per_s: float | None
    """Of matrix products with 16-bit factors, without sparsity; None if unknown."""
    fp8_flops_per_s: float | None = None
    """With 8-bit factors; None if unknown or if it has no units for them."""
    is_gpu: bool = True
    count: int = 1
    """Alike ones in the machine."""
    source: str
    """Where the figures are from: `measured`, `nominal`, `by hand`, or a data sheet."""

    def flops_with(self, quantization: str | None) -> float | None:
        """What it computes a second with weights packed so.

        Only FP8 has units of its own. Others, 4 bits included, are unpacked to 16.
        """
        eight = self.fp8_flops_per_s if (quantization or "").upper().startswith("FP8") else None
        return eight or self.flops_per_s


def this_machine() -> DeviceSpec:
    """The machine's own memory and processor; measuring takes half a second, once a process.

    Its operations are f32 products: what kernels for quantized weights reach is about as much.
    """
    return DeviceSpec(
        name="machine",
        memory_bytes=machine_memory_bytes(),
        memory_bytes_per_s=memory_bytes_per_s(),
        flops_per_s=products_per_s(),
        is_gpu=False,
        source="measured",
    )


def this_gpu(name: str, *, known: Callable[[str], DeviceSpec | None]) -> DeviceSpec:
    """A GPU of this machine, by its driver; `known` finds a product, for what that does not tell.

    Raises:
        InvalidInput: There is no such GPU, or it does not tell enough.
    """
    gpus = read_gpus()
    gpu = next((one for one in gpus if one.name == name), None)
    like = known(gpu.product) if gpu else None
    memory = gpu and (gpu.capacity_bytes or (like and like.memory_bytes))
    speed = gpu and (gpu.memory_bytes_per_s or (like and like.memory_bytes_per_s))
    if gpu is None or not memory or not speed:
        found = ", ".join(one.name for one in gpus) or "none"
        raise InvalidInput(
            f"'{name}' is not seen by NVIDIA's driver here (found: {found}); install the extra "
            "`nvidia`, or give --memory and --bandwidth",
            code="advise.no-such-gpu",
        )
    return DeviceSpec(
        name=like.name if like else name,
        memory_bytes=memory,
        memory_bytes_per_s=speed,
        flops_per_s=like.flops_per_s if like else None,
        fp8_flops_per_s=like.fp8_flops_per_s if like else None,
        count=sum(one.product == gpu.product for one in gpus),
        source="nominal",
    )


def device_by_hand(
    memory: str,
    *,
    bandwidth: str | None = None,
    tflops: float | None = None,
    like: DeviceSpec | None = None,
) -> DeviceSpec:
    """A device of so much memory, `24 GiB`, and speed, `1008 GB`; the rest is as of `like`.

    Raises:
        ValueError: A size has another form.
    """
    found = like or DeviceSpec(
        name=memory, memory_bytes=0, memory_bytes_per_s=0.0, flops_per_s=None, source="by hand"
    )
    speed = parse_bytes(bandwidth.removesuffix("/s")) if bandwidth else found.memory_bytes_per_s
    return replace(
        found,
        name=f"{memory}, otherwise as {like.name}" if like else memory,
        memory_bytes=parse_bytes(memory),
        memory_bytes_per_s=speed,
        flops_per_s=tflops * 1e12 if tflops else found.flops_per_s,
        fp8_flops_per_s=None if tflops else found.fp8_flops_per_s,
        source="by hand",
    )
