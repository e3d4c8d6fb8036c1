"""The memories that llama.cpp sees on this machine: its own, and those of GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevices:
    """Their sizes."""

    machine_bytes: int
    """All of the machine's own memory."""
    free_gpu_bytes: tuple[int, ...]
    """What is free on each GPU, in the order of their numbers."""


def seen_devices() -> SeenDevices:
    """Asks the engine, which takes a millisecond once it is imported."""
    # Here rather than at the top: the engine is 34 MB and needed only once a model loads.
    import xllamacpp  # noqa: PLC0415

    kinds = xllamacpp.ggml_backend_dev_type
    devices = xllamacpp.get_device_info()
    discrete, integrated = (
        tuple(device["memory_free"] for device in devices if device["type"] == kind)
        for kind in (kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU)
    )
    return SeenDevices(
        machine_bytes=next(d["memory_total"] for d in devices if d["name"] == "CPU"),
        # As it does itself: an integrated one is used where there is no other.
        free_gpu_bytes=discrete or integrated,
    )
