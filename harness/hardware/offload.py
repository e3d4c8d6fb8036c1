"""A model that is partly on a GPU, or over several: what is where."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Final

from harness.hardware.footprint import (
    Footprint,
    Loading,
    compute_bytes,
    kept_logits_bytes,
    layer_cache_bytes,
)
from harness.hardware.gguf import GgufHeader

GPU_CONTEXT_BYTES: Final = 800 * 10**6
"""What a process takes on a GPU beside its model: CUDA's context and libraries. On an H100 (driver
580, llama.cpp with ggml 0.25), 773 to 822 MB beside models of 3.3 to 7.9 GB, whole and split."""


_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFootprint:
    """The memory of a model that is partly on a GPU."""

    gpu: Footprint
    machine: Footprint


def split_footprint(
    header: GgufHeader, loading: Loading, *, gpu_layers: int | None
) -> SplitFootprint:
    """The memory that llama.cpp takes on a GPU and in the machine.

    As b11434 splits it (`load_tensors` in src/llama-model.cpp): layers go to the GPU from the last
    back, after the output; a layer's cache goes with it. Tensors and caches are exact, as in
    `gguf_footprint`; compute buffers are an allowance.

    `gpu_layers` is llama.cpp's `-ngl`: layers on the GPU, the output being one; None for all.

    Raises:
        InvalidInput: The cache type does not suit the model.
    """
    caches = layer_cache_bytes(header, loading)
    weights = header.weights
    first = first_gpu_layer(header, gpu_layers)
    # The input's tables stay in the machine; of one that is also the output's matrix, the GPU has a
    # copy.
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
    # All of the allowance on each side that has a layer; the buffers of input and output are always
    # in the machine. What CUDA takes beside them is counted with the GPU's.
    return SplitFootprint(
        gpu=Footprint(
            weights_bytes=gpu_weights,
            kv_bytes=sum(caches[first:]),
            compute_bytes=compute + GPU_CONTEXT_BYTES if gpu_weights else 0,
        ),
        machine=Footprint(
            weights_bytes=machine_weights,
            kv_bytes=sum(caches[:first]),
            compute_bytes=compute if first > 0 else ends,
        ),
    )


def dealt_footprints(
    header: GgufHeader, loading: Loading, *, shares: Collection[float]
) -> tuple[Footprint, ...]:
    """The memory of a model on each of several GPUs that have all its layers together.

    As llama.cpp deals them out (`tensor_split`, `LLAMA_SPLIT_MODE_LAYER`): of n layers, the output
    being the last, layer i, from 0, goes to the first GPU with which the shares add up to more than
    i / n of all. Compute buffers are as in `split_footprint`.
    """
    compute = compute_bytes(header, loading) + GPU_CONTEXT_BYTES
    weights, caches = header.weights, layer_cache_bytes(header, loading)
    # Layers that only draft are not loaded, and have their place in the deal nonetheless.
    drafts = [0] * (header.block_count - len(weights.layer_bytes))
    sizes = [*weights.layer_bytes, *drafts, weights.output_bytes + weights.shared_bytes]
    *_, whole = ends = [*accumulate(shares, initial=0.0)]
    return tuple(
        Footprint(
            weights_bytes=sum(sizes[start:end]),
            kv_bytes=sum(caches[start:end]),
            compute_bytes=compute if start < end else 0,
        )
        for start, end in pairwise(ceil(end / whole * len(sizes)) for end in ends)
    )


def first_gpu_layer(header: GgufHeader, gpu_layers: int | None) -> int:
    """The first layer on the GPU, from 0; the output comes after the last layer."""
    if gpu_layers is None:
        return 0
    return max(header.block_count + 1 - gpu_layers, 0)
