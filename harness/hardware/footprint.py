"""How many bytes a GGUF model needs in llama.cpp: weights, KV cache and compute buffers.

Also byte counts as people write them: `8 GiB` is 8 * 2**30 bytes, `8 GB` is 8 * 10**9.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil
from typing import Final

from harness.hardware.gguf import GgufHeader
from harness.hardware.gguf_caches import LayerCache, layer_token_bytes, state_bytes
from harness.hardware.quantization import CACHE_FORMATS, CacheType

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})", re.IGNORECASE | re.ASCII)
_ACCEPTED = "write a number of bytes, or a number with a unit: 512 MiB, 8 GiB, 1.5GB"


def format_bytes(count: int) -> str:
    """A byte count for people, in binary units with one decimal: `1.2 GiB`."""
    size = float(count)
    power = 0
    # Rounded first: 1023.96 KiB is 1.0 MiB, not 1024.0 KiB.
    while round(size, 1) >= 1024 and power < len(_BINARY_UNITS):
        size /= 1024
        power += 1
    return f"{size:.1f} {_BINARY_UNITS[power - 1]}" if power else f"{count} B"


def parse_bytes(size: int | str) -> int:
    """The byte count that a person wrote: `8589934592`, `8 GiB`, `8GB`; case does not matter.

    A fraction of a byte is dropped. Raises ValueError for any other text; it lists the forms.
    """
    text = str(size).strip()
    if text.isascii() and text.isdigit():
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{size!r} is not a size; {_ACCEPTED}")
    number, unit = match.groups()
    # Read as a decimal: as a float, `1.005 KB` would be 1,004 bytes.
    return int(Fraction(number) * _UNITS[unit.upper()])


# llama.cpp pads a context to a multiple of this.
_CELL_STEP: Final = 256
_FLOAT_BYTES: Final = 4
_MASK_BYTES: Final = 2
# Token ids, positions, masks of sliding windows.
_SMALL_INPUTS_BYTES: Final = 2 * 2**20
# What a process takes on a GPU beside its model: CUDA's context and libraries. On an H100 (driver
# 580, llama.cpp with ggml 0.25), 773 to 822 MB beside models of 3.3 to 7.9 GB, whole and split.
GPU_CONTEXT_BYTES: Final = 800 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The settings with which llama.cpp loads a model."""

    context_tokens: int  # the context of each slot (llama.cpp's `n_ctx` is this times slots)
    slots: int = 1  # requests served at once (`n_parallel`), each with a cache of its own
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"  # quantized values need flash attention
    micro_batch_tokens: int = 512
    """Tokens computed at once (`--ubatch-size`, at most `--batch-size`)."""
    whole_windows: bool = False
    """Whether layers with a sliding window keep the whole context too (`--swa-full`)."""
    computed_logits: int | None = None
    """Tokens of a micro-batch that get logits; None for one of each slot."""

    def cells(self, *, window_tokens: int | None = None) -> int:
        """Cells of all slots together in a layer, which may have a sliding window."""
        cells = padded_tokens(self.context_tokens)
        if window_tokens is not None and not self.whole_windows:
            # The cache has room for a micro-batch beside the window of its first token.
            cells = min(cells, padded_tokens(window_tokens + self.micro_batch_tokens))
        return self.slots * cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory of a loaded model."""

    weights_bytes: int
    kv_bytes: int
    """The bytes for the whole context of all slots, allocated when the model is loaded."""
    compute_bytes: int  # intermediate results of one micro-batch, and the logits

    @property
    def total_bytes(self) -> int:
        """Weights, KV cache and compute buffers, over all devices."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.total_bytes)} (weights {format_bytes(self.weights_bytes)}, "
            f"KV cache {format_bytes(self.kv_bytes)}, compute {format_bytes(self.compute_bytes)})"
        )


def gguf_footprint(header: GgufHeader, loading: Loading) -> Footprint:
    """The memory that llama.cpp takes for a model, over all devices together.

    Not counted: the process itself (a CUDA context is some hundred MiB), image projectors,
    adapters, draft models, saved prompts and checkpoints of windows. This function and those below
    raise `InvalidInput` for a cache type that does not suit the model.
    """
    return Footprint(
        weights_bytes=header.weights.loaded_bytes,
        kv_bytes=sum(layer_cache_bytes(header, loading)),
        compute_bytes=compute_bytes(header, loading),
    )


def layer_cache_bytes(header: GgufHeader, loading: Loading) -> list[int]:
    """The bytes of each layer's KV cache as llama.cpp allocates it."""
    # cells * kv_heads * (key bytes + value bytes) + slots * state elements * 4
    return [
        loading.cells(window_tokens=layer.window_tokens) * token_bytes
        + loading.slots * state_bytes(layer)
        for layer, token_bytes in _token_bytes(header, loading)
    ]


def prompt_kv_bytes(header: GgufHeader, loading: Loading, tokens: int) -> int:
    """The bytes that so many tokens of one request fill in KV caches, without recurrent states."""
    size = 0
    for layer, token_bytes in _token_bytes(header, loading):
        window = None if loading.whole_windows else layer.window_tokens
        cached_tokens = tokens if window is None else min(tokens, window)
        size += cached_tokens * token_bytes
    return size


def _token_bytes(header: GgufHeader, loading: Loading) -> Iterator[tuple[LayerCache, int]]:
    """Each layer, with the bytes of a token there: kv_heads * (key bytes + value bytes)."""
    keys, values = CACHE_FORMATS[loading.cache_type_k], CACHE_FORMATS[loading.cache_type_v]
    for layer in header.caches:
        yield layer, layer_token_bytes(layer, keys=keys, values=values, model=header.name)


def compute_bytes(header: GgufHeader, loading: Loading) -> int:
    """Bytes of the intermediate results of one micro-batch, such as 512 tokens: an allowance.

    llama.cpp has no formula: it plans the graph and measures it. With flash attention (which it
    chooses whenever it can) the peak is in the feed-forward layer, in f32:

        512 * 4 * max(3 * feed_forward + 5 * embedding, (2 * experts_used + 6) * embedding)
        + 512 * 2 * cells of a slot     the attention mask, f16; another for whole windows
        + 4 * slots * vocabulary        the logits, f32
        + 2 MiB                         token ids, positions, masks of sliding windows

    Or, if that is more than the first line, in a recurrent layer:

        512 * 4 * recurrent_length + 2 * 4 * slots * state elements of a layer

    Or in place of the first two lines, if a whole micro-batch gets logits:

        512 * 4 * (vocabulary + 8 * embedding)

    Compared with the compute and output buffers that llama.cpp b11549 logs on a CPU (the cases are
    in this function's tests): for Llama 1B to 70B, Qwen 2.5 and 3, Phi 3, Gemma 3, Mixtral,
    Qwen3-30B-A3B and gpt-oss 0.4 to 2.0 MiB too high, of 32 to 280. For Mamba, Jamba, Falcon H1 and
    Qwen 3.5 up to a sixth too high; with logits of a whole micro-batch up to a tenth, and for
    encoders two or three times. Twice too high without gates in the feed-forward layers (GPT-2).
    Without flash attention, add up to 512 * 4 * heads * cells of a slot.
    """
    width = header.embedding_length
    floats = max(
        3 * header.feed_forward_length + 5 * width, (2 * header.expert_used_count + 6) * width
    )
    cells = loading.cells()
    has_windows = any(layer.window_tokens for layer in header.caches)
    masks = 2 if loading.whole_windows and has_windows else 1
    # llama.cpp cuts a micro-batch to the context of all slots together, not of one.
    tokens = min(loading.micro_batch_tokens, cells)
    masks_bytes = masks * _MASK_BYTES * tokens * (cells // loading.slots)
    layer_bytes = _FLOAT_BYTES * tokens * floats
    if header.recurrent_length:
        states = 2 * loading.slots * max(state_bytes(layer) for layer in header.caches)
        recurrent_bytes = _FLOAT_BYTES * tokens * header.recurrent_length + states
        layer_bytes = max(layer_bytes, recurrent_bytes)
    peak_bytes = layer_bytes + masks_bytes
    if loading.computed_logits is not None and header.has_output:
        logits = min(loading.computed_logits, tokens) * header.vocabulary_size
        peak_bytes = max(peak_bytes, _FLOAT_BYTES * (logits + 8 * tokens * width))
    return peak_bytes + kept_logits_bytes(header, loading) + _SMALL_INPUTS_BYTES


def kept_logits_bytes(header: GgufHeader, loading: Loading) -> int:
    """Bytes of the logits that the caller gets, in f32, in the machine's memory."""
    length = header.vocabulary_size if header.has_output else header.embedding_length
    return _FLOAT_BYTES * loading.slots * length


def padded_tokens(tokens: int) -> int:
    """The context that llama.cpp allocates for so many tokens, padded to its step."""
    return -(-tokens // _CELL_STEP) * _CELL_STEP


# --- partly on a GPU, or over several -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFootprint:
    """The memory of a model that is partly on GPUs."""

    gpus: tuple[Footprint, ...]
    machine: Footprint


def split_footprint(
    header: GgufHeader,
    loading: Loading,
    *,
    gpu_layers: int | None,
    shares: Collection[float] = (1.0,),
) -> SplitFootprint:
    """The memory that llama.cpp takes on each GPU and in the machine.

    Tensors and caches are exact, as in `gguf_footprint`; compute buffers are an allowance.
    `gpu_layers` is llama.cpp's `-ngl`: layers on GPUs, the output being one; None for all. `shares`
    are the relative shares of these layers that each GPU gets.
    """
    caches = layer_cache_bytes(header, loading)
    weights = header.weights
    # Layers that only draft are not loaded, but llama.cpp counts them when it deals layers out.
    drafts = [0] * (header.block_count - len(weights.layer_bytes))
    # The input's tables stay in the machine. The GPU has a copy of one that is the output's, too.
    sizes = [*weights.layer_bytes, *drafts, weights.output_bytes + weights.shared_bytes]
    # The split of b11434 (`load_tensors` in src/llama-model.cpp, `LLAMA_SPLIT_MODE_LAYER`): layers
    # go to GPUs from the last back, after the output; a layer's cache goes with it. Of the n layers
    # there, layer i, counted from 0, goes to the first GPU with which the shares add up to more
    # than i / n of their sum.
    first = first_gpu_layer(header, gpu_layers)
    sums = list(accumulate(shares, initial=0.0))
    ends = [first + ceil(part / sums[-1] * (len(sizes) - first)) for part in sums]
    # Each device with a layer gets the whole allowance. The buffers of input and output are always
    # in the machine. CUDA's context is counted with the GPU's compute buffers.
    compute = compute_bytes(header, loading)
    gpus = tuple(
        Footprint(
            weights_bytes=sum(sizes[start:end]),
            kv_bytes=sum(caches[start:end]),
            compute_bytes=compute + GPU_CONTEXT_BYTES if start < end else 0,
        )
        for start, end in pairwise(ends)
    )
    tokens = min(loading.micro_batch_tokens, loading.cells())
    tables = _FLOAT_BYTES * tokens * header.embedding_length + kept_logits_bytes(header, loading)
    # Without even the output on a GPU, its matrix may be the input's.
    all_here = first == len(sizes)
    machine_weights = weights.input_bytes + sum(weights.layer_bytes[:first])
    return SplitFootprint(
        gpus=gpus,
        machine=Footprint(
            weights_bytes=weights.loaded_bytes if all_here else machine_weights,
            kv_bytes=sum(caches[:first]),
            compute_bytes=compute if first > 0 else tables,
        ),
    )


def first_gpu_layer(header: GgufHeader, gpu_layers: int | None) -> int:
    """The first layer on the GPU, from 0; the output comes after the last layer."""
    if gpu_layers is None:
        return 0
    return max(header.block_count + 1 - gpu_layers, 0)
