"""NVIDIA's GPUs, asked through NVML's optional package `nvidia-ml-py`.

Other makers' GPUs are not seen; their sizes are for a person to write down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; what it does not tell is None."""

    name: str
    """`gpu0`, `gpu1`, …: NVML's numbers, which are `nvidia-smi`'s. CUDA numbers GPUs otherwise,
    unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and only those in CUDA_VISIBLE_DEVICES."""
    capacity_bytes: int | None
    """None for one that shares the machine's own memory."""
    memory_bytes_per_s: int | None
    """Nominal, from the width of its bus and the highest clock of its memory, which moves data
    twice a cycle."""
    product: str = ""
    """Such as `NVIDIA H100 80GB HBM3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What a GPU does at a moment; what it does not tell is None."""

    busy: float | None
    """The share of the driver's last sampling period, up to a second, in which anything ran."""
    memory_busy: float | None
    """The share of it in which its memory was read or written."""
    used_bytes: int | None
    power_w: float | None


def read_gpus() -> tuple[Gpu, ...]:
    """The machine's; empty without a driver, a GPU, or the package."""
    with opened_gpus() as gpus:
        return gpus.found if gpus else ()


@contextmanager
def opened_gpus() -> Iterator[Gpus | None]:
    """The driver until the block is left; None without a driver or the package."""
    # Here rather than at the top: it is optional.
    try:
        import pynvml  # noqa: PLC0415
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield Gpus(pynvml)
    finally:
        pynvml.nvmlShutdown()


class Gpus:
    """The driver, while it is open.

    Attributes:
        found: Its GPUs, by their numbers.
    """

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - pynvml is not typed
        self._nvml = nvml
        count = self._told(nvml.nvmlDeviceGetCount) or 0
        self._handles = [self._told(nvml.nvmlDeviceGetHandleByIndex, n) for n in range(count)]
        self.found = tuple(map(self._described, range(count)))

    def state(self, number: int) -> GpuState:
        """Of one GPU now; takes some milliseconds."""
        nvml, handle = self._nvml, self._handles[number]
        rates = self._told(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._told(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._told(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuState(
            busy=None if rates is None else rates.gpu / 100,
            memory_busy=None if rates is None else rates.memory / 100,
            used_bytes=None if memory is None else int(memory.used),
            power_w=None if power_mw is None else power_mw / 1000,
        )

    def _described(self, number: int) -> Gpu:
        nvml, handle = self._nvml, self._handles[number]
        memory = self._told(nvml.nvmlDeviceGetMemoryInfo, handle)
        bits = self._told(nvml.nvmlDeviceGetMemoryBusWidth, handle)
        mhz = self._told(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM)
        return Gpu(
            name=f"gpu{number}",
            product=str(self._told(nvml.nvmlDeviceGetName, handle) or ""),
            capacity_bytes=None if memory is None else int(memory.total),
            memory_bytes_per_s=bits * mhz * 2 * 10**6 // 8 if bits and mhz else None,
        )

    def _told(self, ask: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - as above
        try:
            # Value by value: a GPU that does not know its power may still tell its memory.
            return ask(*about)
        except self._nvml.NVMLError:
            return None
