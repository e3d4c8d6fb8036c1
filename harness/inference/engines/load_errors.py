"""Why llama.cpp did not load a model: in this process it does not say."""

from __future__ import annotations

from collections.abc import Iterator

from harness.errors import HarnessError, LoadFailed, ModelFileInvalid
from harness.hardware import (
    Footprint,
    GgufHeader,
    Loading,
    format_bytes,
    gguf_footprint,
    read_gguf_header,
    split_footprint,
)
from harness.inference.endpoint import Endpoint
from harness.inference.engines.loading import loading_of
from harness.inference.engines.placement import gpu_of
from harness.inference.engines.seen_devices import SeenDevices


def why_not_loaded(endpoint: Endpoint, devices: SeenDevices, *, said: str = "") -> HarnessError:
    """The error of a load that failed: of its file, or of the memory there is.

    Judged by arithmetic: the engine calls all failures the same.

    Args:
        endpoint: The file, and what was asked for; `path` must be set.
        devices: What there is.
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
                    f"{format_bytes(most_bytes)}; lower {less}, or use a smaller quantisation",
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
    """What a model needs, and the most that it could be given of it.

    Of the machine's own memory that is all there is: an allocation of less succeeds, though less
    may be free.
    """
    number = gpu_of(endpoint)
    if number is None or number >= len(devices.free_gpu_bytes):
        everything = devices.machine_bytes + sum(devices.free_gpu_bytes)
        yield gguf_footprint(header, loading), everything
        return
    split = split_footprint(header, loading, gpu_layers=endpoint.gpu_layers)
    yield split.gpu, devices.free_gpu_bytes[number]
    yield split.machine, devices.machine_bytes
