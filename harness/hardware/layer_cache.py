"""What one layer of a model keeps of the tokens it has seen, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from harness.errors import InvalidInput
from harness.hardware.quantisation import BlockFormat

_STATE_ELEMENT_BYTES: Final = 4  # llama.cpp keeps recurrent states in f32 whatever the cache types


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The memory of one layer. Without any argument: of one that keeps nothing."""

    heads: int = 0
    """Key-value heads."""
    key_length: int = 0
    """Elements of one head's key; with latent attention (MLA), of the latent of a token."""
    value_length: int = 0
    """Elements of one head's value; 0 with latent attention, whose values come of the latent."""
    window_tokens: int | None = None
    """Tokens that it looks back; None for all there are."""
    index_length: int = 0
    """Elements by which sparse attention finds the tokens worth attending to, one head for all."""
    state_elements: int = 0
    """What a recurrent layer keeps of a sequence, however long that is."""


class CachedModel(Protocol):
    """What the arithmetic of caches must know of a model."""

    @property
    def name(self) -> str:
        """For a person."""
        ...

    @property
    def caches(self) -> Sequence[LayerCache]:
        """One for each layer."""
        ...


def layer_token_bytes(
    model: CachedModel, layer: LayerCache, *, keys: BlockFormat, values: BlockFormat
) -> int:
    """Bytes of one token in one layer: heads * (key bytes + value bytes), and of its index.

    Raises:
        InvalidInput: A head is not a whole number of the format's blocks.
    """
    head_bytes = _head_bytes(model, layer.key_length, keys)
    head_bytes += _head_bytes(model, layer.value_length, values)
    return layer.heads * head_bytes + _head_bytes(model, layer.index_length, keys)


def state_bytes(layer: LayerCache) -> int:
    """Bytes that one sequence takes in one layer from its first token on."""
    return layer.state_elements * _STATE_ELEMENT_BYTES


def _head_bytes(model: CachedModel, length: int, block: BlockFormat) -> int:
    try:
        return block.row_bytes(length)
    except ValueError as error:
        raise InvalidInput(
            f"{model.name} cannot have a {block.name.lower()} KV cache: {error}; use f16",
            code="model.cache-type-does-not-fit",
        ) from error
