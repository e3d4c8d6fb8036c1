"""How much memory NVIDIA's GPUs have, asked through NVML's optional package `nvidia-ml-py`.

Other makers' GPUs are not seen; their sizes are for a person to write down.
"""

from __future__ import annotations

from typing import Any


def read_gpus() -> dict[str, int]:
    """Bytes of each GPU, by name; empty without a driver, a GPU, or the package.

    The names are `gpu0`, `gpu1`, …: NVML's numbers, which are `nvidia-smi`'s. CUDA numbers GPUs
    otherwise, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and only those in CUDA_VISIBLE_DEVICES.
    """
    # Here rather than at the top: it is optional.
    try:
        import pynvml  # noqa: PLC0415
    except ImportError:
        return {}
    return gpus_by(pynvml)


def gpus_by(nvml: Any) -> dict[str, int]:  # noqa: ANN401 - pynvml is not typed
    """The same, by `pynvml` or what has its functions.

    A GPU that does not tell is left out, such as one that shares the machine's own memory.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    found: dict[str, int] = {}
    try:
        for number in range(nvml.nvmlDeviceGetCount()):
            size_bytes = _size_bytes(nvml, number)
            if size_bytes is not None:
                found[f"gpu{number}"] = size_bytes
    except nvml.NVMLError:
        return {}
    finally:
        nvml.nvmlShutdown()
    return found


def _size_bytes(nvml: Any, number: int) -> int | None:  # noqa: ANN401 - as above
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(number)).total)
    except nvml.NVMLError:
        return None
