"""What the two engines that harness runs share: devices, and why a file was not loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from harness.errors import HarnessError, LoadFailed, ModelFileInvalid
from harness.hardware import (
    CacheType,
    Footprint,
    GgufHeader,
    Loading,
    format_bytes,
    gguf_footprint,
    read_gguf_header,
    split_footprint,
)
from harness.hardware.quantization import TENSOR_FORMATS
from harness.inference.endpoint import Endpoint
from harness.inference.providers.provider import HostReport
from harness.log import log_warning


def warn_of_context(endpoint: Endpoint, header: GgufHeader) -> None:
    """Says so where a model is loaded with a longer context than it was trained for."""
    if endpoint.context_tokens > header.context_length:
        log_warning(
            "a model's context is longer than it was trained for; what lies beyond, it may not "
            "make sense of",
            code="endpoint.context-beyond-training",
            endpoint=endpoint.tag,
            context_tokens=endpoint.context_tokens,
            trained_tokens=header.context_length,
        )


_NUMBERS = {one.name.lower(): number for number, one in TENSOR_FORMATS.items()}
_GPU = re.compile(r"gpu(\d+)")


def type_number(cache_type: CacheType) -> int:
    """What `ggml_type` calls it."""
    return _NUMBERS[cache_type]


def gpu_of(endpoint: Endpoint) -> int | None:
    """The number of the GPU that the endpoint's model is for: 1 for `gpu1`; None for no such."""
    found = _GPU.fullmatch(endpoint.device)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevices:
    """Their sizes."""

    machine_bytes: int
    """All of the machine's own memory."""
    free_gpu_bytes: tuple[int, ...]
    """What is free on each GPU, in the order of their numbers."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """From what `embedded_child` tells."""
        return cls(
            machine_bytes=told["machine_bytes"], free_gpu_bytes=tuple(told["free_gpu_bytes"])
        )


def seen_devices() -> SeenDevices:
    """Asks the wheel's llama.cpp, whichever engine it is for."""
    # Here rather than at the top: the engine is 34 MB and needed only once a load has failed.
    from harness.inference.providers import embedded_child  # noqa: PLC0415

    return SeenDevices.of(embedded_child.devices())


def machine_memory_bytes() -> int:
    """All the memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def why_not_loaded(
    endpoint: Endpoint,
    devices: SeenDevices,
    loading_of: Callable[[Endpoint, GgufHeader], Loading],
    *,
    said: str = "",
) -> HarnessError:
    """The error of a failed load: the file is wrong, or memory is short.

    Arithmetic decides: the engine reports all failures alike.

    Args:
        endpoint: The file, and what was asked for; `path` must be set.
        devices: The memories there are.
        loading_of: How the engine loads a file.
        said: What the engine did say.
    """
    path = endpoint.path
    assert path is not None
    try:
        header = read_gguf_header(path)
        loading = loading_of(endpoint, header)
        for part, most_bytes in _parts(endpoint, header, loading, devices):
            if part.total_bytes > most_bytes:
                less = "context_tokens or slots" if loading.slots > 1 else "context_tokens"
                return LoadFailed(
                    f"there is no room for {path.name}: it needs {part}, and there are "
                    f"{format_bytes(most_bytes)}; lower {less}, or use a smaller quantization",
                    endpoint=endpoint.tag,
                    out_of_memory=True,
                )
    except HarnessError as error:
        return error
    return ModelFileInvalid(
        f"llama.cpp cannot load it{f' ({said})' if said else ''}; is it a whole GGUF, and is there "
        f"memory for {loading.slots} x {loading.context_tokens} tokens?",
        path=path,
    )


def _parts(
    endpoint: Endpoint, header: GgufHeader, loading: Loading, devices: SeenDevices
) -> Iterator[tuple[Footprint, int]]:
    """What a model needs of each memory, and the most that it could get there.

    In the machine's own memory that is all of it: an allocation succeeds though less may be free.
    """
    number = gpu_of(endpoint)
    if number is None or number >= len(devices.free_gpu_bytes):
        everything = devices.machine_bytes + sum(devices.free_gpu_bytes)
        yield gguf_footprint(header, loading), everything
        return
    split = split_footprint(header, loading, gpu_layers=endpoint.gpu_layers)
    yield split.gpu, devices.free_gpu_bytes[number]
    yield split.machine, devices.machine_bytes


class Engine(Protocol):
    """A backend that loads its model itself."""

    @property
    def is_loaded(self) -> bool:
        """Whether calls can begin."""
        ...

    async def load(self) -> None:
        """Makes the model resident."""
        ...

    async def unload(self) -> None:
        """Gives its memory back."""
        ...


class EngineHost:
    """A `Host` of a backend that loads its model from a file.

    llama.cpp reports what it allocated in its log only: a report has no sizes, and the figures
    computed from the file's header hold, which are within 2 MiB of that log.

    Args:
        engine: The backend; its maker closes it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def load(self) -> None:
        """Loads it, unless it is loaded."""
        if self._engine.is_loaded:
            return
        # An engine that has died still holds what it had.
        await self._engine.unload()
        await self._engine.load()

    async def unload(self) -> None:
        """Gives its memory back; a call that is under way is cut off."""
        await self._engine.unload()

    async def report(self) -> HostReport:
        """Whether it is loaded, and its engine alive."""
        return HostReport(resident=self._engine.is_loaded)

    async def aclose(self) -> None:
        """Does nothing: the backend's maker closes it."""
