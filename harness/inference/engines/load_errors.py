"""Why llama.cpp did not load a model: in this process it does not say."""

from __future__ import annotations

from harness.errors import HarnessError, LoadFailed, ModelFileInvalid
from harness.hardware import format_bytes, gguf_footprint, read_gguf_header
from harness.inference.endpoint import Endpoint


def why_not_loaded(
    endpoint: Endpoint, *, slots: int, free_bytes: int, said: str = ""
) -> HarnessError:
    """The error of a load that failed: of its file, or of the memory there is.

    Judged by arithmetic: the engine calls all failures the same.

    Args:
        endpoint: The file, and what was asked for; `path` must be set.
        slots: Calls side by side that it was to be loaded for.
        free_bytes: What could be had at the most, on all devices that it may use together.
        said: What the engine did say.
    """
    path = endpoint.path
    assert path is not None
    try:
        footprint = gguf_footprint(
            read_gguf_header(path),
            context_tokens=endpoint.context_tokens,
            slots=slots,
            cache_type_k=endpoint.cache_type_k,
            cache_type_v=endpoint.cache_type_v,
        )
    except HarnessError as error:
        return error
    if footprint.total_bytes > free_bytes:
        return LoadFailed(
            f"there is no room for {path.name}: it needs {footprint}, and there are "
            f"{format_bytes(free_bytes)}; lower context_tokens or slots, or use a smaller "
            "quantisation",
            endpoint=endpoint.tag,
            out_of_memory=True,
        )
    return ModelFileInvalid(
        f"llama.cpp cannot load it{f' ({said})' if said else ''}; is it a whole GGUF, and is there "
        f"memory for {slots} x {endpoint.context_tokens} tokens?",
        path=path,
    )
