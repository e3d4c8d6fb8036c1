"""Which cache llama.cpp keeps for each layer of a GGUF model.

As b11434 has it (src/llama-model.cpp `create_memory`); b11549 logs the same in the tests. An
architecture whose cache is of a kind that is not known here is given full keys and values in all
layers, and states if it has any: as a rule too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from harness.hardware.gguf_keys import ModelKeys
from harness.hardware.gguf_states import (
    RECURRENT,
    RECURRENT_WITH_DRAFTS,
    layer_kinds,
    state_elements,
)
from harness.hardware.gguf_windows import layer_windows
from harness.hardware.layer_cache import LayerCache

NO_OUTPUT: Final = frozenset(
    {
        "bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert",
        "nomic-bert-moe",
    }
)  # fmt: skip
"""Encoders for which llama.cpp makes no matrix for logits, of the tokens' or of their own."""

_NO_CACHE: Final = NO_OUTPUT | {
    "clef", "dream", "gemma-embedding", "llada", "llada-moe", "rnd1", "wavtokenizer-dec",
}  # fmt: skip
"""What reads or writes a text all at once: encoders and diffusion models."""

_CACHES_OF_THEIR_OWN: Final = frozenset(
    {
        "bailingmoe3", "deepseek32", "deepseek4", "dflash", "dots3note", "gemma4-assistant",
        "glm-dsa", "glm5-next", "graniteswitch", "hy_v4", "minimax-m3", "nanbeige", "qwen4exp",
    }
)  # fmt: skip
"""llama.cpp has a kind of cache, or more layers than the header, for each of them alone."""

_SIGNS_OF_A_STATE: Final = (
    "attention.recurrent_layers", "full_attention_interval", "kda.", "shortconv.", "ssm.", "wkv."
)  # fmt: skip
_SIGNS_OF_AN_INDEX: Final = ("attention.compress_ratios", "attention.indexer.")
_BY_LAYER: Final = (
    "attention.head_count_kv", "attention.recurrent_layers", "feed_forward_length"
)  # fmt: skip
"""What tells one layer from another, if it is an array."""
_SHARED: Final = "attention.shared_kv_layers"

_GEMMA3N_OWN_LAYERS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCaches:
    """What a model's layers keep."""

    layers: tuple[LayerCache, ...]
    """One for each layer."""
    exact: bool
    """Whether llama.cpp keeps just that; else it is as a rule too much."""


def model_caches(
    keys: ModelKeys, *, heads: int, heads_kv: tuple[int, ...], key_length: int, value_length: int
) -> ModelCaches:
    """What llama.cpp keeps for each layer.

    Args:
        keys: The model's.
        heads: Attention heads of the first layer.
        heads_kv: Key-value heads of each layer.
        key_length: Elements of one head's key.
        value_length: Elements of one head's value.

    Raises:
        ModelFileInvalid: A key makes no sense.
    """
    if keys.architecture in _NO_CACHE:
        return ModelCaches(layers=(LayerCache(),) * keys.layers, exact=True)
    if _is_latent(keys):
        value_length = 0
    full = [
        LayerCache(heads=count, key_length=key_length, value_length=value_length)
        for count in heads_kv
    ]
    state = state_elements(keys, heads=heads, key_length=key_length)
    if not _is_known(keys):
        return ModelCaches(layers=tuple(_at_most(keys, full, state)), exact=False)
    # 1. What attends, and what is recurrent.
    kinds = layer_kinds(keys, heads_kv)
    caches = [
        replace(cache if kind.attends else LayerCache(), state_elements=state * kind.recurs)
        for cache, kind in zip(full, kinds, strict=True)
    ]
    # 2. What looks back through a window only.
    windows = layer_windows(keys)
    for number, windowed in enumerate(windows.layers or ()):
        if windowed and caches[number].heads:
            caches[number] = replace(
                caches[number],
                window_tokens=windows.tokens,
                key_length=keys.count("attention.key_length_swa", default=key_length),
                value_length=keys.count("attention.value_length_swa", default=value_length),
            )
    # 3. What uses the cache of a layer before it, or belongs to a draft that is not loaded.
    own = _own_layers(keys)
    caches[own:] = [LayerCache()] * (keys.layers - own)
    return ModelCaches(layers=tuple(caches), exact=windows.layers is not None)


def draft_layers(keys: ModelKeys) -> int:
    """Layers at the end (NextN) that only guess the tokens after the next.

    llama.cpp loads them only for speculation.

    Raises:
        ModelFileInvalid: The key makes no sense.
    """
    count = keys.count("nextn_predict_layers", default=0)
    return count if count < keys.layers else 0


def _is_known(keys: ModelKeys) -> bool:
    if keys.architecture in _CACHES_OF_THEIR_OWN or keys.any_begins(*_SIGNS_OF_AN_INDEX):
        return False
    if keys.architecture not in RECURRENT and keys.any_begins(*_SIGNS_OF_A_STATE):
        return False
    if any(map(keys.is_untold, _BY_LAYER)):
        return False
    if keys.architecture in RECURRENT - RECURRENT_WITH_DRAFTS and draft_layers(keys):
        return False
    return keys.architecture in {"gemma3n", "gemma4"} or not keys.any_begins(_SHARED)


def _is_latent(keys: ModelKeys) -> bool:
    """Whether keys and values come of one latent (MLA). Files of before 2025 do not have it."""
    return all(keys.count(f"attention.{part}_length_mla", default=0) for part in ("key", "value"))


def _at_most(keys: ModelKeys, full: Sequence[LayerCache], state: int) -> list[LayerCache]:
    index = keys.count("attention.indexer.key_length", default=0)
    return [
        replace(
            cache,
            heads=cache.heads * keys.count("num_loops", default=1),  # Nanbeige
            # Next to a latent, the index is of keys alone.
            index_length=index + cache.value_length if index else 0,
            state_elements=state,
        )
        for cache in full
    ]


def _own_layers(keys: ModelKeys) -> int:
    """How many layers, from the first, have a cache of their own."""
    if keys.architecture == "gemma3n":
        return min(_GEMMA3N_OWN_LAYERS, keys.layers)
    if keys.architecture == "gemma4":
        return max(keys.layers - keys.count(_SHARED, default=0), 0)
    return keys.layers - draft_layers(keys)
