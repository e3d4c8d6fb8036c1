"""The memories of NVIDIA's GPUs, by way of NVML and its optional package `nvidia-ml-py`.

Other makers' GPUs are not seen; their sizes are for a person to write down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One GPU's."""

    name: str
    """`gpu0`, `gpu1`, …: NVML's numbers, which are `nvidia-smi`'s. CUDA numbers GPUs otherwise,
    unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and only those that CUDA_VISIBLE_DEVICES names."""
    total_bytes: int
    """All of it."""
    free_bytes: int
    """Not taken by any program."""


def read_gpus() -> tuple[DeviceMemory, ...]:
    """Asks the driver; nothing where there is no driver, no GPU, or no package to ask with."""
    # Here rather than at the top: it is optional.
    try:
        import pynvml  # noqa: PLC0415
    except ImportError:
        return ()
    return gpus_by(pynvml)


def gpus_by(nvml: Any) -> tuple[DeviceMemory, ...]:  # noqa: ANN401 - pynvml is not typed
    """The same, by this library.

    A GPU that does not tell is left out, such as one that shares the machine's own memory.

    Args:
        nvml: `pynvml`, or what has its functions.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        read = [_read(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()
    return tuple(device for device in read if device)


def _read(nvml: Any, number: int) -> DeviceMemory | None:  # noqa: ANN401 - as above
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(number))
    except nvml.NVMLError:
        return None
    return DeviceMemory(
        name=f"gpu{number}", total_bytes=int(memory.total), free_bytes=int(memory.free)
    )
