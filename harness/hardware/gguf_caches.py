"""The caches that llama.cpp keeps for each layer of a GGUF model, and its recurrent states.

As in b11434 (`create_memory` in src/llama-model.cpp, `n_embd_r` and `n_embd_s` in
src/llama-hparams.cpp, `load_arch_hparams` in src/models/); b11549 logs the same in the tests. The
caches are exact for full attention, sliding windows, latents (MLA) and recurrence at an interval
(Qwen 3.5). For other kinds they are an upper bound, and `exact_caches` is False: full keys and
values in each layer with key-value heads, and a state in all others, or in all layers if all have
heads. An impossible key raises `ModelFileInvalid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from harness.errors import InvalidInput
from harness.hardware.gguf_file import GgufFile
from harness.hardware.quantization import BlockFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The cache and the state of one layer; by default it has none."""

    heads: int = 0  # key-value heads
    key_length: int = 0
    """Elements of one head's key, or with latent attention (MLA) of a token's latent."""
    value_length: int = 0
    """Elements of one head's value; 0 with latent attention, whose values come from the latent."""
    window_tokens: int | None = None  # the tokens that the layer looks back; None for all
    index_length: int = 0  # elements of a token in the index of sparse attention, one head for all
    state_elements: int = 0  # elements of a recurrent layer's state, for a sequence of any length


NO_OUTPUT: Final = frozenset(
    {
        "bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert",
        "nomic-bert-moe",
    }
)  # fmt: skip
"""Encoders for which llama.cpp makes no logits."""

# Encoders and diffusion models, which process a text all at once.
_NO_CACHE: Final = NO_OUTPUT | {
    "clef", "dream", "gemma-embedding", "llada", "llada-moe", "rnd1", "wavtokenizer-dec",
}  # fmt: skip

# Each has a kind of cache of its own in llama.cpp, or more layers than its header.
_CACHES_OF_THEIR_OWN: Final = frozenset(
    {
        "bailingmoe3", "deepseek32", "deepseek4", "dflash", "dots3note", "gemma4-assistant",
        "glm-dsa", "glm5-next", "graniteswitch", "hy_v4", "minimax-01", "minimax-m3", "nanbeige",
        "qwen4exp",
    }
)  # fmt: skip

_SIGNS_OF_A_STATE: Final = (
    ".attention.recurrent_layers", ".full_attention_interval", ".kda.", ".shortconv.", ".ssm.",
    ".wkv.",
)  # fmt: skip
_SIGNS_OF_AN_INDEX: Final = (".attention.compress_ratios", ".attention.indexer.")
# Keys that distinguish layers if they hold an array.
_BY_LAYER: Final = (".attention.head_count_kv", ".attention.recurrent_layers")
_SHARED: Final = ".attention.shared_kv_layers"

# llama.cpp's `n_layer_kv_from_start` for it; the layers behind use these layers' caches.
_GEMMA3N_OWN_LAYERS: Final = 20


def model_caches(
    file: GgufFile, *, heads: int, heads_kv: tuple[int, ...], key_length: int, value_length: int
) -> tuple[tuple[LayerCache, ...], bool]:
    """The cache of each layer, and whether it is exact; else it is usually too large."""
    if file.architecture in _NO_CACHE:
        return (LayerCache(),) * file.layers, True
    if _is_latent(file):  # MLA: one latent in place of keys and values
        value_length = 0
    full = [
        LayerCache(heads=count, key_length=key_length, value_length=value_length)
        for count in heads_kv
    ]
    state = _state_elements(file, heads=heads)
    if not _has_known_caches(file):
        return tuple(_upper_bounds(file, full, state)), False
    # 1. Attention and recurrence.
    caches = [
        LayerCache(state_elements=state) if recurs else cache
        for cache, recurs in zip(full, _recurrent_layers(file), strict=True)
    ]
    # 2. Sliding windows.
    window_tokens, windows = _layer_windows(file)
    for number, windowed in enumerate(windows or ()):
        if windowed and caches[number].heads:
            caches[number] = replace(
                caches[number],
                window_tokens=window_tokens,
                key_length=file.count(".attention.key_length_swa", default=key_length),
                value_length=file.count(".attention.value_length_swa", default=value_length),
            )
    # 3. Layers that use an earlier layer's cache, or belong to a draft that is not loaded.
    first = _own_layers(file)
    caches[first:] = [LayerCache()] * (file.layers - first)
    is_exact = windows is not None  # else it is unknown which layers have a window
    return tuple(caches), is_exact


def draft_layers(file: GgufFile) -> int:
    """How many layers at the end (NextN) only draft; llama.cpp loads them only for speculation."""
    count = file.count(".nextn_predict_layers", default=0)
    return count if count < file.layers else 0


def _has_known_caches(file: GgufFile) -> bool:
    """Whether the header says which cache each layer has."""
    if file.architecture in _CACHES_OF_THEIR_OWN or file.any_begins(*_SIGNS_OF_AN_INDEX):
        return False
    if file.architecture not in _ATTENTION_INTERVAL and file.any_begins(*_SIGNS_OF_A_STATE):
        return False
    # Without the array, which a server left out, it is unknown which layers differ.
    if any(map(file.is_left_out, _BY_LAYER)):
        return False
    return file.architecture in {"gemma3n", "gemma4"} or not file.any_begins(_SHARED)


def _is_latent(file: GgufFile) -> bool:
    """Whether keys and values come from one latent (MLA); files from before 2025 do not say."""
    return all(file.count(f".attention.{part}_length_mla", default=0) for part in ("key", "value"))


def _upper_bounds(file: GgufFile, full: Sequence[LayerCache], state: int) -> list[LayerCache]:
    index = file.count(".attention.indexer.key_length", default=0)
    # Where heads are given by layer, those without any are recurrent (LFM2, Jamba, Granite); of
    # Nemotron H only those without a feed-forward part as well. Where all have some, each does both
    # (Falcon H1).
    has_both = all(cache.heads for cache in full)
    forward = (0,) * file.layers
    if file.architecture.startswith("nemotron_h"):
        forward = file.counts(".feed_forward_length", default=forward)
    return [
        replace(
            cache,
            heads=cache.heads * file.count(".num_loops", default=1),  # Nanbeige
            # Beside a latent, whose values have no length, the index has only keys.
            index_length=index + cache.value_length if index else 0,
            state_elements=state if has_both or not (cache.heads or width) else 0,
        )
        for cache, width in zip(full, forward, strict=True)
    ]


def _own_layers(file: GgufFile) -> int:
    """How many layers have a cache of their own; those at the end use an earlier one, or none."""
    if file.architecture == "gemma3n":
        return min(_GEMMA3N_OWN_LAYERS, file.layers)
    if file.architecture == "gemma4":
        return max(file.layers - file.count(_SHARED, default=0), 0)
    return file.layers - draft_layers(file)


# The last layer in so many attends; the others are recurrent. A header may say otherwise.
_ATTENTION_INTERVAL: Final = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}


def _recurrent_layers(file: GgufFile) -> tuple[bool, ...]:
    if file.architecture not in _ATTENTION_INTERVAL:
        return (False,) * file.layers
    if (flags := file.flags(".attention.recurrent_layers")) is not None:
        return flags
    key = ".full_attention_interval"
    interval = file.count(key, default=_ATTENTION_INTERVAL[file.architecture])
    if interval == 0:
        raise file.unusable(key, "is 0; the file is damaged, download it again")
    return tuple((number + 1) % interval != 0 for number in range(file.layers))


def _state_elements(file: GgufFile, *, heads: int) -> int:
    """Elements that a recurrent layer keeps of a sequence: its last inputs, and its state."""
    width = file.count(".embedding_length")
    if head_size := file.count(".wkv.head_size", default=0):  # RWKV
        return width * (file.count(".token_shift_count", default=2) + head_size)
    kernel = file.count(".ssm.conv_kernel", default=0)
    if head_dim := file.count(".kda.head_dim", default=0):  # Kimi
        # Queries, keys and values have a convolution each, of 4 inputs if the header has no other.
        return heads * head_dim * (3 * (kernel - 1 if kernel else 3) + head_dim)
    inner, state = (file.count(f".ssm.{key}", default=0) for key in ("inner_size", "state_size"))
    if length := file.count(".shortconv.l_cache", default=0):  # LFM2
        return width * (length - 1) + inner * state
    # A convolution keeps all its inputs except the present one.
    groups = file.count(".ssm.group_count", default=0)
    return max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner  # Mamba


def recurrent_length(file: GgufFile) -> int:
    """Elements of the compute buffer that a recurrent layer needs for one token, at its peak.

    Mamba: embedding + 7 * inner + 6 * groups * state + heads; RWKV: 19 * embedding. Fitted to the
    compute buffers of llama.cpp b11549, see `compute_bytes`. 0 where no layer is recurrent, and
    where the feed-forward layers need more.
    """
    width = file.count(".embedding_length")
    if file.count(".wkv.head_size", default=0):
        return 19 * width
    inner = file.count(".ssm.inner_size", default=0)
    # The feed-forward layers need more than delta nets (Qwen 3.5), and than the layers of LFM2 and
    # Kimi, whose headers have no inner size.
    if file.architecture in _ATTENTION_INTERVAL or not inner:
        return 0
    grouped = file.count(".ssm.group_count", default=0) * file.count(".ssm.state_size", default=0)
    heads = file.count(".ssm.time_step_rank", default=0)
    return width + 7 * inner + 6 * grouped + heads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """An architecture's windows. A pattern in the header overrides the period."""

    period: int | None = None  # one layer in so many has no window; None: the header has a pattern
    first_sees_all: bool = False
    """Whether the layer without a window is the first of the period; else it is the last."""
    default_tokens: int = 0  # the window's length if the header has none; 0 for no windows
    fixed_tokens: int = 0  # the window's length whatever the header says, unless that is 0


_ARCHITECTURES: Final = {
    "afmoe": _Windows(period=4),
    "cohere2": _Windows(period=4),
    "cohere2moe": _Windows(period=4, first_sees_all=True),
    "exaone-moe": _Windows(period=4, default_tokens=128),
    "gemma2": _Windows(period=2, default_tokens=4096),
    "gemma3": _Windows(period=6),
    "gemma3n": _Windows(period=5),
    "gemma4": _Windows(),
    "gpt-oss": _Windows(period=2),
    "granite_swa": _Windows(),
    "laguna": _Windows(period=4, first_sees_all=True),
    "llama4": _Windows(period=4, default_tokens=8192, fixed_tokens=8192),  # chunks of so many
    "maple": _Windows(),
    "mellum": _Windows(period=4),
    "mimo2": _Windows(),
    "muse-glimmer": _Windows(period=4),
    "olmo2": _Windows(period=4),
    "plamo3": _Windows(period=8),
    "smallthinker": _Windows(period=4, first_sees_all=True, fixed_tokens=4096),
    "spark2_5": _Windows(),
    "step35": _Windows(),
}
_EXAONE4_LARGE: Final = _Windows(period=4, default_tokens=4096)
_EXAONE4_LARGE_LAYERS: Final = 64  # its smaller sizes have no windows, whatever their headers say
# llama.cpp gives these full caches, whatever windows their headers have.
_IGNORED: Final = frozenset({"exaone4", "lfm2moe", "phi3"})


def _layer_windows(file: GgufFile) -> tuple[int, tuple[bool, ...] | None]:
    """The tokens of a sliding window, and which layers have one; None if unknown."""
    no_windows = 0, (False,) * file.layers
    windows = _ARCHITECTURES.get(file.architecture)
    if file.architecture == "exaone4" and file.layers == _EXAONE4_LARGE_LAYERS:
        windows = _EXAONE4_LARGE
    if windows is None:
        has_key = file.any_begins(".attention.sliding_window")
        is_unknown = has_key and file.architecture not in _IGNORED
        return (0, None) if is_unknown else no_windows
    tokens = file.count(".attention.sliding_window", default=windows.default_tokens)
    if not tokens:
        return no_windows
    return windows.fixed_tokens or tokens, _pattern(file, windows)


def _pattern(file: GgufFile, windows: _Windows) -> tuple[bool, ...] | None:
    key = ".attention.sliding_window_pattern"
    flags = file.flags(key)
    if flags is not None:
        return flags
    if windows.period is None or file.is_left_out(key):
        return None
    period = file.count(key, default=windows.period)
    if period == 0:  # which means that all layers have a window
        return (True,) * file.layers
    full = 0 if windows.first_sees_all else period - 1
    return tuple(number % period != full for number in range(file.layers))


_STATE_ELEMENT_BYTES: Final = 4  # llama.cpp keeps recurrent states in f32 whatever the cache types


def layer_token_bytes(
    layer: LayerCache, *, keys: BlockFormat, values: BlockFormat, model: str
) -> int:
    """Bytes of one token in one layer: heads * (key bytes + value bytes) + index bytes.

    Raises `InvalidInput`, which names the model, unless a head is a whole number of blocks.
    """
    head_bytes = _head_bytes(layer.key_length, keys, model)
    head_bytes += _head_bytes(layer.value_length, values, model)
    return layer.heads * head_bytes + _head_bytes(layer.index_length, keys, model)


def state_bytes(layer: LayerCache) -> int:
    """Bytes that one sequence of any length takes in one layer."""
    return layer.state_elements * _STATE_ELEMENT_BYTES


def _head_bytes(length: int, block: BlockFormat, model: str) -> int:
    try:
        return block.row_bytes(length)
    except ValueError as error:
        raise InvalidInput(
            f"{model} cannot have a {block.name.lower()} KV cache: {error}; use f16",
            code="model.cache-type-does-not-fit",
        ) from error
