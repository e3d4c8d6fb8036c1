"""This machine: its memory, and how fast it reads that and multiplies, which is measured.

Reading limits decoding; multiplying, the reading of prompts.
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from typing import Final

import numpy as np

MACHINE_SHARE: Final = 0.8
"""Of the machine's memory, what models may take unless told otherwise."""

_BYTES: Final = 128 << 20
"""Far more than a processor's caches hold, and little beside a model."""
_ROUNDS: Final = 3
_ROUND_S: Final = 0.05
_WIDTH: Final = 1024


def core_count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory_bytes() -> int:
    """Physical memory, whether free or in use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def memory_bytes_per_s() -> float:
    """Bytes a second that all cores together read, at the best of three moments.

    Takes a third of a second, once a process, and 128 MiB meanwhile.
    """
    cores = core_count()
    # Written to, since all pages that were never written are one page of zeros, in the caches.
    parts = [np.ones(_BYTES // 8 // cores, dtype=np.int64) for _ in range(cores)]
    return max(_round(parts) for _ in range(_ROUNDS))


@cache
def products_per_s() -> float:
    """Floating-point operations a second of f32 matrix products on all cores, at the best of three.

    Takes a tenth of a second, once a process.
    """
    factor = np.ones((_WIDTH, _WIDTH), dtype=np.float32)

    def once_s() -> float:
        start_s = time.perf_counter()
        np.matmul(factor, factor)
        return time.perf_counter() - start_s

    # Of each product a multiplication and an addition; the best time, since others only slow it.
    return 2 * _WIDTH**3 / min(once_s() for _ in range(_ROUNDS))


def _round(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
    read = [0] * len(parts)
    start_s = time.perf_counter()

    def work(number: int) -> None:
        part = parts[number]
        while time.perf_counter() < start_s + _ROUND_S:
            part.max()  # reads all of it, without the interpreter's lock
            read[number] += part.nbytes

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(read) / (time.perf_counter() - start_s)
