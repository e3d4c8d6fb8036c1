"""How many bytes a GGUF model needs in llama.cpp: weights, KV cache and compute buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.errors import InvalidInput
from harness.hardware.gguf import GgufHeader
from harness.hardware.layer_cache import LayerCache, layer_token_bytes, state_bytes
from harness.hardware.quantisation import CacheType, cache_format
from harness.hardware.sizes import format_bytes

_CELL_STEP: Final = 256  # llama.cpp pads a context to a multiple of this
MICRO_BATCH_TOKENS: Final = 512
"""llama.cpp's default `--ubatch-size`."""
_FLOAT_BYTES: Final = 4
_MASK_BYTES: Final = 2
_SMALL_INPUTS_BYTES: Final = 2 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a loaded model takes. Printed, it names its parts."""

    weights_bytes: int
    """The tensors."""
    kv_bytes: int
    """Keys and values, for the whole context of all slots; taken at once when it is loaded."""
    compute_bytes: int
    """Intermediate results of one micro-batch, and the logits."""
    kv_is_exact: bool = True
    """Whether the cache is known to the byte; else it is as a rule smaller."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.total_bytes)} (weights {format_bytes(self.weights_bytes)}, "
            f"KV cache {format_bytes(self.kv_bytes)}, compute {format_bytes(self.compute_bytes)})"
        )


def gguf_footprint(
    header: GgufHeader,
    *,
    context_tokens: int,
    slots: int = 1,
    cache_type_k: CacheType = "f16",
    cache_type_v: CacheType = "f16",
    unified: bool = False,
) -> Footprint:
    """What llama.cpp's server takes for a model, over all devices together.

    Not counted: the process itself (a CUDA context is some hundred MiB), image projectors,
    adapters, draft models and saved prompts.

    Args:
        header: The model.
        context_tokens: Tokens that each slot can hold (llama.cpp's `n_ctx` is this times slots).
        slots: Requests served at once (`n_parallel`), each with a cache of its own.
        cache_type_k: Type of the cached keys.
        cache_type_v: Type of the cached values; quantised, it needs flash attention.
        unified: Whether the slots share one cache instead (`--kv-unified`), as they do when
            llama-server is not told how many there are.

    Raises:
        InvalidInput: There is no slot or no context, or the cache type does not suit the model.
    """
    return Footprint(
        kv_is_exact=header.exact_caches,
        weights_bytes=header.weights.loaded_bytes,
        kv_bytes=kv_cache_bytes(
            header,
            context_tokens=context_tokens,
            slots=slots,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            unified=unified,
        ),
        compute_bytes=compute_bytes(
            header, context_tokens=context_tokens, slots=slots, unified=unified
        ),
    )


def kv_cache_bytes(
    header: GgufHeader,
    *,
    context_tokens: int,
    slots: int = 1,
    cache_type_k: CacheType = "f16",
    cache_type_v: CacheType = "f16",
    unified: bool = False,
) -> int:
    """The KV cache as llama.cpp allocates it; arguments and errors as of `gguf_footprint`.

    Exact where `header.exact_caches` is true; else a figure that is as a rule too high.
    """
    return sum(
        layer_cache_bytes(
            header,
            context_tokens=context_tokens,
            slots=slots,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            unified=unified,
        )
    )


def layer_cache_bytes(
    header: GgufHeader,
    *,
    context_tokens: int,
    slots: int = 1,
    cache_type_k: CacheType = "f16",
    cache_type_v: CacheType = "f16",
    unified: bool = False,
) -> list[int]:
    """What each layer's part of the cache takes; arguments and errors as of `gguf_footprint`.

    bytes = cells * kv_heads * (key bytes + value bytes) + slots * state elements * 4
    """
    keys, values = cache_format(cache_type_k), cache_format(cache_type_v)

    def bytes_of(layer: LayerCache) -> int:
        cells = _cells(
            context_tokens, slots=slots, unified=unified, window_tokens=layer.window_tokens
        )
        token_bytes = layer_token_bytes(header, layer, keys=keys, values=values)
        return cells * token_bytes + slots * state_bytes(layer)

    return [bytes_of(layer) for layer in header.caches]


def kv_bytes_per_token(
    header: GgufHeader, *, cache_type_k: CacheType = "f16", cache_type_v: CacheType = "f16"
) -> int:
    """Bytes of one token: kv_heads * (key bytes + value bytes), summed over the layers.

    In a layer that looks back through a window, a token that has left it takes nothing any more.

    Raises:
        InvalidInput: A head is not a whole number of the cache type's blocks.
    """
    keys, values = cache_format(cache_type_k), cache_format(cache_type_v)
    return sum(
        layer_token_bytes(header, layer, keys=keys, values=values) for layer in header.caches
    )


def compute_bytes(
    header: GgufHeader, *, context_tokens: int, slots: int = 1, unified: bool = False
) -> int:
    """Bytes for what flows through one micro-batch of 512 tokens: an allowance.

    llama.cpp has no formula: it plans the graph and measures it. With flash attention (which it
    chooses itself wherever it can) the peak is in the feed-forward layer, in f32:

        512 * 4 * max(3 * feed_forward + 5 * embedding, (2 * experts_used + 6) * embedding)
        + 512 * 2 * cells of a slot     the attention mask, f16
        + 4 * slots * vocabulary        the logits, f32
        + 2 MiB                         token ids, positions, masks of sliding windows

    Or, if that is more than the first line, in a recurrent layer:

        512 * 4 * recurrent_length + 2 * 4 * slots * state elements of a layer

    A context of all slots that is shorter than 512 makes the micro-batch shorter.

    Held against the compute and output buffers that llama.cpp b11549 logs for a CPU, over Llama
    1B to 70B, Qwen 2.5 and 3, Phi 3, Gemma 3, Mixtral, Qwen3-30B-A3B and gpt-oss: from 0.4 to
    2.0 MiB too high, of 32 to 280. Over Mamba, Jamba, Falcon H1 and Qwen 3.5: up to a sixth too
    high. The cases stand in this function's tests. Where feed-forward layers have no gate (GPT-2)
    it is twice what is taken. Without flash attention up to 512 * 4 * heads * cells of a slot come
    on top; a larger micro-batch takes more in proportion.

    Raises:
        InvalidInput: There is no slot or no context.
    """
    width = header.embedding_length
    floats = max(
        3 * header.feed_forward_length + 5 * width,
        (2 * header.expert_used_count + 6) * width,
    )
    cells = _cells(context_tokens, slots=slots, unified=unified)
    mask_cells = cells if unified else cells // slots
    tokens = min(MICRO_BATCH_TOKENS, cells)
    states = 2 * slots * max(state_bytes(layer) for layer in header.caches)
    flowing_bytes = _FLOAT_BYTES * tokens * floats
    if header.recurrent_length:
        recurrent_bytes = _FLOAT_BYTES * tokens * header.recurrent_length + states
        flowing_bytes = max(flowing_bytes, recurrent_bytes)
    return (
        flowing_bytes
        + _MASK_BYTES * tokens * mask_cells
        + _FLOAT_BYTES * slots * header.vocabulary_size
        + _SMALL_INPUTS_BYTES
    )


def _cells(
    context_tokens: int, *, slots: int, unified: bool, window_tokens: int | None = None
) -> int:
    """Cells of all slots: a cache for each of them, or one for all."""
    if context_tokens < 1 or slots < 1:
        raise InvalidInput(
            f"{slots} slots of {context_tokens} tokens serve nothing; give 1 or more of each"
        )
    caches, sharers = (1, slots) if unified else (slots, 1)
    cells = _padded(sharers * context_tokens)
    if window_tokens is not None:
        # What a micro-batch reads must fit beside what its first token looks back on.
        cells = min(cells, _padded(sharers * window_tokens + MICRO_BATCH_TOKENS))
    return caches * cells


def _padded(tokens: int) -> int:
    return -(-tokens // _CELL_STEP) * _CELL_STEP
