"""A GGUF model of which some layers are on a GPU and the others are not, as llama.cpp splits it.

From b11434 (src/llama-model.cpp `load_tensors`): `-ngl` counts from the last layer back, and the
output is the first of what it counts. A layer's cache lies with the layer. The input's tables stay
with the processor, also when all else is on the GPU; where one of them serves as the output's
matrix too, the GPU has a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.hardware.footprint import (
    Footprint,
    Loading,
    compute_bytes,
    kept_logits_bytes,
    layer_cache_bytes,
)
from harness.hardware.gguf import GgufHeader
from harness.hardware.speed import GPU_SPEEDUP, offload_speedup

_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFootprint:
    """What a model takes on a GPU and beside it."""

    gpu: Footprint
    """On the GPU."""
    machine: Footprint
    """In the machine's memory."""

    gpu_share: float
    """Of the weights that every token goes through, from 0 to 1: p in Amdahl's law."""

    def speedup(self, gpu: float = GPU_SPEEDUP) -> float:
        """How much faster than without a GPU, if all of it there were `gpu` times as fast."""
        return offload_speedup(self.gpu_share, speedup=gpu)


def split_footprint(
    header: GgufHeader, loading: Loading, *, gpu_layers: int | None
) -> SplitFootprint:
    """What llama.cpp takes on a GPU and in the machine's memory.

    The tensors and the caches are exact, as those of `gguf_footprint` are. Compute buffers are an
    allowance that was not measured on a GPU: all of it there as soon as any layer is, and all of it
    here while any layer is; what goes in and comes out is always here.

    Args:
        header: The model.
        loading: How it is loaded.
        gpu_layers: llama.cpp's `-ngl`: layers from the last back, the output being one; None for
            all.

    Raises:
        InvalidInput: The cache type does not suit the model.
    """
    caches = layer_cache_bytes(header, loading)
    weights = header.weights
    first = first_gpu_layer(header, gpu_layers)
    output_bytes = weights.output_bytes + weights.shared_bytes
    if first > header.block_count:  # not even the output
        gpu_weights = 0
        machine_weights = weights.loaded_bytes
    else:
        gpu_weights = sum(weights.layer_bytes[first:]) + output_bytes
        machine_weights = weights.input_bytes + sum(weights.layer_bytes[:first])
    compute = compute_bytes(header, loading)
    tokens = min(loading.micro_batch_tokens, loading.cells())
    ends = _FLOAT_BYTES * tokens * header.embedding_length + kept_logits_bytes(header, loading)
    return SplitFootprint(
        gpu=Footprint(
            weights_bytes=gpu_weights,
            kv_bytes=sum(caches[first:]),
            compute_bytes=compute if gpu_weights else 0,
        ),
        machine=Footprint(
            weights_bytes=machine_weights,
            kv_bytes=sum(caches[:first]),
            compute_bytes=compute if first > 0 else ends,
        ),
        gpu_share=gpu_weights / weights.passed_bytes if weights.passed_bytes else 0.0,
    )


def first_gpu_layer(header: GgufHeader, gpu_layers: int | None) -> int:
    """The number of the first layer on the GPU, from 0; the output is one more than the last."""
    if gpu_layers is None:
        return 0
    return max(header.block_count + 1 - gpu_layers, 0)


def layers_that_fit(header: GgufHeader, loading: Loading, *, gpu_bytes: int) -> int:
    """The most that can be given to llama.cpp as `-ngl` for a GPU with `gpu_bytes` free.

    Whether less than all is worth it says `SplitFootprint.speedup`. Errors are those of
    `split_footprint`.
    """
    for layers in range(header.block_count + 1, 0, -1):
        split = split_footprint(header, loading, gpu_layers=layers)
        if split.gpu.total_bytes <= gpu_bytes:
            return layers
    return 0
