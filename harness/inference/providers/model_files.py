"""Files of models for the two engines that harness runs: loading, and explaining a failed load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

from harness.errors import HarnessError, LoadFailed, ModelFileInvalid
from harness.hardware import Loading, gguf_footprint, read_gguf_header
from harness.inference.backend import Backend
from harness.inference.endpoint import Endpoint
from harness.inference.providers.http import Access
from harness.inference.providers.provider import Host, HostReport
from harness.log import log_warning


def check_file(endpoint: Endpoint) -> None:
    """Checks an endpoint's file; warns of a context longer than the model was trained with."""
    path = endpoint.path
    assert path is not None
    if not path.is_file():
        raise ModelFileInvalid(
            f"there is no such file; set path of endpoint '{endpoint.tag}' to a GGUF", path=path
        )
    header = read_gguf_header(path)
    if endpoint.context_tokens > header.context_length:
        log_warning(
            "a model's context is longer than the one it was trained with; it may not make sense "
            "of text beyond that",
            code="endpoint.context-beyond-training",
            endpoint=endpoint.tag,
            context_tokens=endpoint.context_tokens,
            trained_tokens=header.context_length,
        )


def gpu_fields(endpoint: Endpoint) -> dict[str, Any]:
    """llama.cpp's parameters for the GPUs that compute an endpoint's layers; empty for none."""
    # Number of a GPU → its share of the layers.
    shares = {int(name[3:]): part for name, part in endpoint.shares.items() if name[:3] == "gpu"}
    if not shares:
        return {}
    last = max(shares)
    if len(shares) == 1:
        return {"main_gpu": last, "split_mode": "LLAMA_SPLIT_MODE_NONE"}
    return {
        # It means nothing to llama.cpp here, but `embedded_child` checks that this GPU is there.
        "main_gpu": last,
        "split_mode": "LLAMA_SPLIT_MODE_LAYER",
        "tensor_split": [shares.get(number, 0.0) for number in range(last + 1)],
    }


def load_error(
    endpoint: Endpoint, loading: Loading, *, why: str, lacks_memory: bool
) -> HarnessError:
    """The error of a failed load; `why` and `lacks_memory` are from the engine's own message."""
    path = endpoint.path
    assert path is not None
    if not lacks_memory:
        return ModelFileInvalid(
            f"llama.cpp cannot load it ({why}); is it a whole GGUF, and of a kind that this "
            "llama.cpp knows?",
            path=path,
        )
    need = gguf_footprint(read_gguf_header(path), loading)
    less = "context_tokens or slots" if loading.slots > 1 else "context_tokens"
    return LoadFailed(
        f"there is no room for {path.name}: it needs {need} ({why}); "
        f"lower {less}, or use a smaller quantization",
        out_of_memory=True,
    )


class Engine(ABC):
    """A backend that loads its model from a file, and is its own `Host`.

    A report has no sizes, since llama.cpp reports its allocations only in its log. The figures
    computed from the file's header count, which are within 2 MiB of that log.
    """

    @property
    @abstractmethod
    def is_loaded(self) -> bool:
        """Whether calls can begin: the model was loaded, and its engine lives."""

    async def load(self) -> None:
        """Makes the model resident, unless it is; see `Host.load`."""
        if not self.is_loaded:
            await self.unload()  # what an engine that has died left behind
            await self._load()

    @abstractmethod
    async def _load(self) -> None: ...

    @abstractmethod
    async def unload(self) -> None:
        """Gives the memory back; a call that is under way is cut off."""

    async def report(self) -> HostReport:
        """Whether it is loaded, and its engine alive."""
        return HostReport(resident=self.is_loaded)

    async def aclose(self) -> None:
        """Unloads the model."""
        await self.unload()


def engine_host(_endpoint: Endpoint, _access: Access, backend: Backend) -> Host:
    """`Provider.host` of these backends: the backend itself."""
    return cast("Host", backend)
