"""Which layers of a GGUF model are recurrent, and how much they keep of a sequence.

As llama.cpp b11434 has it: src/llama-hparams.cpp `n_embd_r` and `n_embd_s`, the layer filters of
`create_memory` in src/llama-model.cpp, `load_arch_hparams` in src/models/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.hardware.gguf_keys import ModelKeys

_ALL_RECURRENT: Final = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})
_WITHOUT_HEADS: Final = frozenset(
    {"granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"}
)
"""Their layers without key-value heads are the recurrent ones."""
_NEMOTRON: Final = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Some of their layers are nothing but feed-forward."""
_ATTENTION_INTERVAL: Final = {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
"""The last of so many layers attends, the others are recurrent, unless the header has another."""
_NO_GROUPS: Final = frozenset({"jamba", "mamba"})

RECURRENT: Final = (
    _ALL_RECURRENT | _WITHOUT_HEADS | _NEMOTRON | _ATTENTION_INTERVAL.keys() | {"falcon-h1"}
)
"""The architectures whose recurrent layers are known here."""
RECURRENT_WITH_DRAFTS: Final = frozenset(_ATTENTION_INTERVAL)
"""Those whose layers for drafts (NextN), where they have some, are known to keep nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What a layer does. Some do both, some neither."""

    attends: bool
    """Whether it keeps keys and values."""
    recurs: bool
    """Whether it keeps a state."""


def layer_kinds(keys: ModelKeys, heads_kv: tuple[int, ...]) -> tuple[LayerKind, ...]:
    """What each layer does.

    Raises:
        ModelFileInvalid: A key makes no sense.
    """
    architecture = keys.architecture
    if architecture == "falcon-h1":
        return (LayerKind(attends=True, recurs=True),) * keys.layers
    if architecture in _ALL_RECURRENT:
        return (LayerKind(attends=False, recurs=True),) * keys.layers
    if architecture in _WITHOUT_HEADS:
        return tuple(LayerKind(attends=heads > 0, recurs=heads == 0) for heads in heads_kv)
    if architecture in _NEMOTRON:
        inner = keys.counts("feed_forward_length", default=(0,) * keys.layers)
        return tuple(
            LayerKind(attends=heads > 0 and not length, recurs=heads == 0 and not length)
            for heads, length in zip(heads_kv, inner, strict=True)
        )
    if architecture in _ATTENTION_INTERVAL:
        recurrent = keys.flags("attention.recurrent_layers")
        if recurrent is None:
            key = "full_attention_interval"
            interval = keys.count(key, default=_ATTENTION_INTERVAL[architecture])
            if interval == 0:
                raise keys.unusable(key, "is 0; the file is damaged, download it again")
            recurrent = tuple((number + 1) % interval != 0 for number in range(keys.layers))
        return tuple(LayerKind(attends=not recurs, recurs=recurs) for recurs in recurrent)
    return (LayerKind(attends=True, recurs=False),) * keys.layers


def state_elements(keys: ModelKeys, *, heads: int, key_length: int) -> int:
    """What one recurrent layer keeps of a sequence: its last inputs, and the state itself.

    Args:
        keys: The model's.
        heads: Attention heads of its first layer.
        key_length: Elements of one head's key.

    Raises:
        ModelFileInvalid: A key makes no sense.
    """
    width = keys.count("embedding_length")
    if head_size := keys.count("wkv.head_size", default=0):  # RWKV
        return width * (keys.count("token_shift_count", default=2) + head_size)
    kernel = keys.count("ssm.conv_kernel", default=0)
    if head_dim := keys.count("kda.head_dim", default=0):  # Kimi
        return heads * head_dim * (3 * (kernel - 1 if kernel else 3) + head_dim)
    if keys.architecture == "minimax-01":
        return heads * key_length**2
    inner, state = (keys.count(f"ssm.{key}", default=0) for key in ("inner_size", "state_size"))
    if kept := keys.count("shortconv.l_cache", default=0):  # LFM2
        return width * (kept - 1) + inner * state
    groups = keys.count("ssm.group_count", default=0)
    if keys.architecture in _NO_GROUPS:
        groups = 0
    return max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner  # Mamba


def recurrent_length(keys: ModelKeys) -> int:
    """Elements that flow in a recurrent layer for one token, where they are at most; 0 for none.

    Mamba: embedding + 7 * inner + 6 * groups * state + heads; RWKV: 19 * embedding. Fitted to the
    compute buffers of llama.cpp b11549, see `compute_bytes`. Short convolutions and delta nets
    (LFM2, Qwen 3.5, Kimi) take less than the feed-forward layer beside them.

    Raises:
        ModelFileInvalid: A key makes no sense.
    """
    width = keys.count("embedding_length")
    if keys.count("wkv.head_size", default=0):
        return 19 * width
    inner = keys.count("ssm.inner_size", default=0)
    if keys.architecture in _ATTENTION_INTERVAL or not inner:
        return 0
    grouped = keys.count("ssm.group_count", default=0) * keys.count("ssm.state_size", default=0)
    return width + 7 * inner + 6 * grouped + keys.count("ssm.time_step_rank", default=0)
