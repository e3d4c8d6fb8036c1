"""This machine: its speed, its GPUs, and the use of it by processes.

The speed of memory limits decoding, and that of multiplication limits the reading of prompts. Only
NVIDIA's GPUs are seen, by the optional package `nvidia-ml-py`. The sizes of others are settings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.hardware.capacity import core_count

MACHINE_SHARE: Final = 0.8
"""The share of the machine's memory that models may take by default."""

# Far larger than a processor's caches, and small beside a model.
_BYTES: Final = 128 << 20
_ROUNDS: Final = 3
_ROUND_S: Final = 0.05
_WIDTH: Final = 1024


@cache
def memory_bytes_per_s() -> float:
    """Bytes a second that all cores together read; measured once, in a third of a second."""
    cores = core_count()
    # Ones, since all pages that were never written to are the same page of zeros, in the caches.
    parts = [np.ones(_BYTES // 8 // cores, dtype=np.int64) for _ in range(cores)]
    # The best round counts, since other processes only slow the memory down.
    return max(_read_bytes_per_s(parts) for _ in range(_ROUNDS))


@cache
def flops_per_s() -> float:
    """Operations a second of f32 matrix products on all cores; measured once, in 0.1 s."""
    factor = np.ones((_WIDTH, _WIDTH), dtype=np.float32)

    def once_s() -> float:
        start_s = time.perf_counter()
        np.matmul(factor, factor)
        return time.perf_counter() - start_s

    # Each product is a multiplication and an addition. The best time counts here, too.
    return 2 * _WIDTH**3 / min(once_s() for _ in range(_ROUNDS))


def _read_bytes_per_s(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
    """Bytes a second that threads read together, each its own part again and again."""
    start_s = time.perf_counter()

    def read(part: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        rounds = 0
        while time.perf_counter() < start_s + _ROUND_S:
            # Reads the whole part, without the interpreter's lock.
            part.max()
            rounds += 1
        return rounds * part.nbytes

    with ThreadPoolExecutor(len(parts)) as threads:
        read_bytes = sum(threads.map(read, parts))
        return read_bytes / (time.perf_counter() - start_s)


# --- GPUs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. A value that its driver does not report is None."""

    name: str
    """`gpu0`, `gpu1`, …: NVML's numbers, which are `nvidia-smi`'s. CUDA numbers GPUs otherwise,
    unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and only those in CUDA_VISIBLE_DEVICES."""
    capacity_bytes: int | None  # None for a GPU that shares the machine's own memory
    memory_bytes_per_s: int | None
    """Nominal, from the width of its bus and the highest clock of its memory, which moves data
    twice a cycle."""
    product: str = ""  # the name of the GPU, such as `NVIDIA H100 80GB HBM3`


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The state of a GPU at a moment. A value that its driver does not report is None."""

    busy: float | None
    """The share of the driver's last sampling period, up to a second, in which anything ran."""
    used_bytes: int | None
    power_w: float | None


def read_gpus() -> tuple[Gpu, ...]:
    """The machine's GPUs; empty without a driver, a GPU, or the package."""
    with opened_gpus() as driver:
        return driver.gpus if driver else ()


@contextmanager
def opened_gpus() -> Iterator[GpuDriver | None]:
    """The driver until the block is left; None without a driver or the package."""
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield GpuDriver(pynvml)
    finally:
        pynvml.nvmlShutdown()


class GpuDriver:
    """NVIDIA's driver, while it is open; `gpus` are in the order of their numbers."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - pynvml is not typed
        self._nvml = nvml
        count = self._value(nvml.nvmlDeviceGetCount) or 0
        self._handles = [self._value(nvml.nvmlDeviceGetHandleByIndex, n) for n in range(count)]
        self.gpus = tuple(map(self._described, range(count)))

    def state(self, number: int) -> GpuState:
        """The state of one GPU now; asking takes some milliseconds."""
        nvml, handle = self._nvml, self._handles[number]
        rates = self._value(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._value(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._value(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuState(
            busy=None if rates is None else rates.gpu / 100,
            used_bytes=None if memory is None else int(memory.used),
            power_w=None if power_mw is None else power_mw / 1000,
        )

    def _described(self, number: int) -> Gpu:
        nvml, handle = self._nvml, self._handles[number]
        memory = self._value(nvml.nvmlDeviceGetMemoryInfo, handle)
        bits = self._value(nvml.nvmlDeviceGetMemoryBusWidth, handle)
        mhz = self._value(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM)
        return Gpu(
            name=f"gpu{number}",
            product=str(self._value(nvml.nvmlDeviceGetName, handle) or ""),
            capacity_bytes=None if memory is None else int(memory.total),
            memory_bytes_per_s=bits * mhz * 2 * 10**6 // 8 if bits and mhz else None,
        )

    def _value(self, query: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as above
        try:
            # Value by value: a GPU that does not know its power may still report its memory.
            return query(*arguments)
        except self._nvml.NVMLError:
            return None


# --- processes, as Linux counts them in /proc; nothing elsewhere ----------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """The use of a process since it began."""

    cpu_s: float  # the time of all its threads together
    resident_bytes: int  # now


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreUse:
    """The time of all cores together since the machine was started."""

    busy_s: float
    total_s: float


def process_use(process_id: int) -> ProcessUse | None:
    """The use of a process so far; None if there is no such process, or no `/proc`."""
    try:
        line = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field, a name in parentheses, may hold spaces and parentheses. See proc(5).
    fields = line.rpartition(")")[2].split()
    # From the third field on: utime and stime are 14 and 15 there, rss is 24.
    return ProcessUse(
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGESIZE"),
    )


def core_use() -> CoreUse | None:
    """The time of all cores so far; None if there is no `/proc`."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            first = file.readline()
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in the first two.
    ticks = [int(field) for field in first.split()[1:9]]
    total = sum(ticks) / os.sysconf("SC_CLK_TCK")
    idle = (ticks[3] + ticks[4]) / os.sysconf("SC_CLK_TCK")
    return CoreUse(busy_s=total - idle, total_s=total)
