"""The shape and size of a GGUF model, as the arithmetic of memory needs them.

Defaults are those of llama.cpp b11434 (src/llama-model.cpp, `llama_model_base::load_hparams`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.hardware.gguf_caches import (
    NO_OUTPUT,
    LayerCache,
    draft_layers,
    model_caches,
    recurrent_length,
)
from harness.hardware.gguf_file import GgufFile, GgufValue, read_gguf_file
from harness.hardware.quantization import UNKNOWN_FILE_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """A language model's shape and size."""

    architecture: str  # `general.architecture`, such as `llama`
    name: str  # `general.name`, or else the name of the file
    file_type: int  # `general.file_type`; see `file_type_name`
    parameters: int
    """The sum over all parts of a split model, as for the weights; 0 if a server does not say."""
    block_count: int  # layers
    context_length: int  # tokens the model was trained for
    embedding_length: int
    feed_forward_length: int
    """Inner width of a layer for one token; with experts, the sum over those it uses."""
    recurrent_length: int
    """Elements that flow in a recurrent layer for one token; 0 if other layers have more."""
    expert_count: int  # experts in a layer; 0 for a dense model
    expert_used_count: int  # experts that one token uses in a layer; 0 for a dense model
    head_count: int  # attention heads of the first layer; 0 without attention
    vocabulary_size: int  # 0 if the file does not say
    caches: tuple[LayerCache, ...]  # the cache of each layer
    exact_caches: bool
    """Whether `caches` are llama.cpp's. They are usually too large for an unknown kind of cache, or
    if a server left out keys."""
    weights: Weights

    @property
    def has_output(self) -> bool:
        """Whether it makes logits; encoders do not."""
        return self.architecture not in NO_OUTPUT

    @property
    def active_bytes(self) -> int:
        """Bytes of weights that one token passes: layers, output, and only the experts it uses."""
        experts = max(self.expert_count, 1)
        idle_experts = max(experts - self.expert_used_count, 0)
        return self.weights.passed_bytes - self.weights.expert_bytes * idle_experts // experts


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads a model's header. A split model is read by its first part, with the others beside it.

    Raises `ModelFileInvalid` for a file that is missing, cut, or no language model's.
    """
    first = read_gguf_file(path)
    files = [first, *(read_gguf_file(part) for part in _further_parts(first))]
    tensors = itertools.chain.from_iterable(file.tensors.items() for file in files)
    weights = weights_of(
        tensors,
        layers=first.layers,
        drafts=draft_layers(first),
        has_output=first.architecture not in NO_OUTPUT,
    )
    return _header(first, parameters=sum(file.elements for file in files), weights=weights)


def gguf_header_from_values(
    values: Mapping[str, Any], *, name: str, tensor_bytes: int
) -> GgufHeader:
    """The header as a server reports it, such as Ollama's `model_info` in `/api/show`.

    `values` have the keys of a GGUF header; an array that was left out is null. `tensor_bytes` is
    the model's size: all layers are assumed equal, and input and output empty. An impossible value
    raises `ModelFileInvalid`, whose path is the server's `name` for the model.
    """
    file = GgufFile(
        path=Path(name),
        values={key: _json_value(value) for key, value in values.items()},
        values_end=None,
        tensors={},
        elements=0,
    )
    return _header(
        file,
        parameters=file.count("general.parameter_count", default=0),
        weights=even_weights(tensor_bytes, layers=file.layers),
    )


def _header(file: GgufFile, *, parameters: int, weights: Weights) -> GgufHeader:
    embedding_length = file.count(".embedding_length")

    # By default there are as many key-value heads as heads, and a head's width is the embedding's
    # divided by their number.
    head_count = ".attention.head_count"
    if file.is_left_out(head_count):
        raise file.unusable(head_count, "was left out; ask the server for all there is")
    heads = file.counts(head_count, default=(0,) * file.layers)
    head_length = embedding_length // heads[0] if heads[0] else 0
    caches, is_exact = model_caches(
        file,
        heads=heads[0],
        heads_kv=file.counts(".attention.head_count_kv", default=heads),
        key_length=file.count(".attention.key_length", default=head_length),
        value_length=file.count(".attention.value_length", default=head_length),
    )

    used = max(file.counts(".expert_used_count", default=(0,)))
    # The usual width, in place of an array that a server left out.
    default_length = 4 * embedding_length if file.is_left_out(".feed_forward_length") else 0
    # The widest layer, since all layers compute in one buffer: see `compute_bytes`.
    dense_length = max(file.counts(".feed_forward_length", default=(default_length,)))
    expert_length = max(file.counts(".expert_feed_forward_length", default=(dense_length,)))

    return GgufHeader(
        architecture=file.architecture,
        name=file.text("general.name", default=file.path.stem),
        file_type=file.count("general.file_type", default=UNKNOWN_FILE_TYPE),
        parameters=parameters,
        block_count=file.layers,
        context_length=file.count(".context_length"),
        embedding_length=embedding_length,
        feed_forward_length=max(dense_length, used * expert_length),
        recurrent_length=recurrent_length(file),
        expert_count=file.count(".expert_count", default=0),
        expert_used_count=used,
        head_count=heads[0],
        vocabulary_size=_vocabulary_size(file),
        caches=caches,
        exact_caches=is_exact,
        weights=weights,
    )


def _further_parts(first: GgufFile) -> Iterator[Path]:
    """The other files of a split model, by its first part."""
    count = first.count("split.count", default=1)
    if count <= 1:
        return
    number = first.count("split.no") + 1
    # Parts are numbered from 0 in the header, from 1 in names of files.
    if number != 1:
        raise first.unusable("split.no", f"says part {number} of {count}; name part 1")
    ending = f"-00001-of-{count:05}.gguf"
    if not first.path.name.endswith(ending):
        raise first.unusable("split.count", f"is {count}, so the name must end in '{ending}'")
    stem = first.path.name.removesuffix(ending)
    for part in range(2, count + 1):
        yield first.path.with_name(f"{stem}-{part:05}-of-{count:05}.gguf")


def _vocabulary_size(file: GgufFile) -> int:
    tokens = file.values.get("tokenizer.ggml.tokens")
    if tokens is None or not tokens.length:
        return file.count(".vocab_size", default=0)
    return tokens.length


def _json_value(value: object) -> GgufValue:
    """A value of a server's JSON."""
    if isinstance(value, list):
        has_numbers = all(isinstance(item, int | float) for item in value)
        # Arrays of texts, such as the vocabulary, are only counted, as in a file.
        content = tuple(value) if has_numbers else None
        return GgufValue(offset=None, content=content, length=len(value))
    return GgufValue(offset=None, content=value, length=0 if value is None else 1)


_LAYER: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
_INPUTS: Final = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_OUTPUT: Final = "output.weight"
_TOKENS: Final = "token_embd.weight"
_EXPERTS: Final = "_exps."


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a model's tensors, by where they are needed."""

    input_bytes: int  # tables in which tokens are looked up, a few rows for each token
    layer_bytes: tuple[int, ...]
    """The bytes of each layer, without the layers that only draft (NextN)."""
    output_bytes: int
    shared_bytes: int
    """The part of the input that is also the output's matrix; 0 if the output has its own."""
    expert_bytes: int  # the part of the layers that is experts

    @property
    def loaded_bytes(self) -> int:
        """The bytes of all tensors, each counted once."""
        return self.input_bytes + sum(self.layer_bytes) + self.output_bytes

    @property
    def passed_bytes(self) -> int:
        """The bytes that tokens pass: the layers and the output, not the input's tables."""
        return sum(self.layer_bytes) + self.output_bytes + self.shared_bytes


def weights_of(
    tensors: Iterable[tuple[str, int]], *, layers: int, drafts: int = 0, has_output: bool = True
) -> Weights:
    """Adds up tensors (name, bytes) by llama.cpp's names; the last `drafts` layers only draft."""
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
        # A model that makes logits and has no matrix for them uses the input's.
        shared_bytes=0 if own_output or not has_output else shared_bytes,
        expert_bytes=expert_bytes,
    )


def even_weights(size: int, *, layers: int) -> Weights:
    """Stands in for a model of which only the size is known: all in its layers, evenly."""
    share, remainder = divmod(size, layers)
    return Weights(
        input_bytes=0,
        # The last layer has the remainder, so that the sum is exact.
        layer_bytes=(share,) * (layers - 1) + (share + remainder,),
        output_bytes=0,
        shared_bytes=0,
        expert_bytes=0,
    )
