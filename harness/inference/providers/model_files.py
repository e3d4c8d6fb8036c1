"""What the two engines that harness runs share: loading a file, and explaining a failed load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from harness.errors import HarnessError, LoadFailed, ModelFileInvalid
from harness.hardware import (
    CacheType,
    GgufHeader,
    Loading,
    gguf_footprint,
    read_gguf_header,
)
from harness.hardware.quantization import TENSOR_FORMATS
from harness.inference.endpoint import Endpoint
from harness.inference.providers.provider import HostReport
from harness.log import log_warning


def warn_of_context(endpoint: Endpoint, header: GgufHeader) -> None:
    """Warns if a model is loaded with a longer context than it was trained with."""
    if endpoint.context_tokens > header.context_length:
        log_warning(
            "a model's context is longer than the one it was trained with; it may not make sense "
            "of text beyond that",
            code="endpoint.context-beyond-training",
            endpoint=endpoint.tag,
            context_tokens=endpoint.context_tokens,
            trained_tokens=header.context_length,
        )


_NUMBERS = {one.name.lower(): number for number, one in TENSOR_FORMATS.items()}


def type_number(cache_type: CacheType) -> int:
    """What `ggml_type` calls it."""
    return _NUMBERS[cache_type]


def gpu_fields(endpoint: Endpoint) -> dict[str, Any]:
    """The GPUs with its layers, in llama.cpp's terms; empty for none."""
    shares = {int(name[3:]): part for name, part in endpoint.shares.items() if name[:3] == "gpu"}
    last = max(shares, default=-1)
    if len(shares) < 2:
        return {"main_gpu": last, "split_mode": "LLAMA_SPLIT_MODE_NONE"} if shares else {}
    by_number = [shares.get(number, 0.0) for number in range(last + 1)]
    # The first means nothing to llama.cpp then; `embedded_child` looks whether it is there.
    return {"main_gpu": last, "split_mode": "LLAMA_SPLIT_MODE_LAYER", "tensor_split": by_number}


def load_error(
    endpoint: Endpoint,
    loading_of: Callable[[Endpoint, GgufHeader], Loading],
    *,
    said: str,
    lacks_memory: bool,
) -> HarnessError:
    """The error of a failed load.

    `lacks_memory` says whether what the engine said means that memory is short.
    """
    path = endpoint.path
    assert path is not None
    try:
        header = read_gguf_header(path)
    except ModelFileInvalid as error:
        return error
    if not lacks_memory:
        return ModelFileInvalid(
            f"llama.cpp cannot load it ({said}); is it a whole GGUF, and of a kind that this "
            "llama.cpp knows?",
            path=path,
        )
    loading = loading_of(endpoint, header)
    less = "context_tokens or slots" if loading.slots > 1 else "context_tokens"
    return LoadFailed(
        f"there is no room for {path.name}: it needs {gguf_footprint(header, loading)} ({said}); "
        f"lower {less}, or use a smaller quantization",
        endpoint=endpoint.tag,
        out_of_memory=True,
    )


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
    computed from the file's header hold, which are within 2 MiB of that log. The engine's maker
    closes it.
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
