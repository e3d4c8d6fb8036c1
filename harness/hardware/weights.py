"""Where the weights of a GGUF model are needed: at its input, in its layers, at its output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_LAYER: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
_INPUTS: Final = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_OUTPUT: Final = "output.weight"
_TOKENS: Final = "token_embd.weight"
_EXPERTS: Final = "_exps."


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a model's tensors, by what needs them."""

    input_bytes: int
    """Tables in which tokens are looked up: a few rows of them for each token."""
    layer_bytes: tuple[int, ...]
    """Each layer's, without the layers that only draft (NextN)."""
    output_bytes: int
    """What turns the last layer's result into logits."""
    shared_bytes: int
    """Of the input, what is the output's matrix too; 0 for a model that has one of its own, or
    none."""
    expert_bytes: int
    """Of the layers, all experts together."""
    draft_bytes: int
    """Layers that llama.cpp loads only for speculation."""

    @property
    def loaded_bytes(self) -> int:
        """What is loaded, once."""
        return self.input_bytes + sum(self.layer_bytes) + self.output_bytes

    @property
    def passed_bytes(self) -> int:
        """What tokens go through: the layers and the output, not the input's tables."""
        return sum(self.layer_bytes) + self.output_bytes + self.shared_bytes


def weights_of(
    tensors: Iterable[tuple[str, int]], *, layers: int, drafts: int = 0, has_output: bool = True
) -> Weights:
    """Sorts tensors by their names, as llama.cpp names them.

    Args:
        tensors: Names and bytes.
        layers: How many layers the header speaks of.
        drafts: How many of them, from the last, only draft.
        has_output: Whether it makes logits, if need be with the matrix of its input.
    """
    by_layer = [0] * layers
    input_bytes = output_bytes = expert_bytes = shared_bytes = 0
    own_output = False
    for name, size in tensors:
        layer = _LAYER.match(name)
        if layer is not None and int(layer[1]) < layers:
            by_layer[int(layer[1])] += size
            if _EXPERTS in name and int(layer[1]) < layers - drafts:
                expert_bytes += size
        elif name.startswith(_INPUTS):
            input_bytes += size
            shared_bytes += size if name == _TOKENS else 0
        else:
            output_bytes += size
            own_output = own_output or name == _OUTPUT
    return Weights(
        input_bytes=input_bytes,
        layer_bytes=tuple(by_layer[: layers - drafts]),
        output_bytes=output_bytes,
        shared_bytes=0 if own_output or not has_output else shared_bytes,
        expert_bytes=expert_bytes,
        draft_bytes=sum(by_layer[layers - drafts :]),
    )


def even_weights(size: int, *, layers: int) -> Weights:
    """For a model of which no more than its size is known: all of it in its layers, evenly."""
    share, rest = divmod(size, layers)
    return Weights(
        input_bytes=0,
        layer_bytes=(share,) * (layers - 1) + (share + rest,),
        output_bytes=0,
        shared_bytes=0,
        expert_bytes=0,
        draft_bytes=0,
    )
