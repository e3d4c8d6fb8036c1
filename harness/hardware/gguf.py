"""What a GGUF model is, as far as the arithmetic of memory needs to know it.

Defaults are those of llama.cpp b11434 (src/llama-model.cpp, `llama_model_base::load_hparams`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.hardware.gguf_file import MAX_LAYERS, GgufFile, read_gguf_file
from harness.hardware.quantisation import UNKNOWN_FILE_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """A language model's shape and size."""

    architecture: str
    """`general.architecture`, such as `llama`."""
    name: str
    """`general.name`, or else the name of the file."""
    file_type: int
    """`general.file_type`; `file_type_name` has the words for it."""
    tensor_bytes: int
    """Bytes of all tensors, each by its own type, over all parts of a split model."""
    file_bytes: int
    """Bytes on disk, over all parts."""
    block_count: int
    """Layers."""
    context_length: int
    """Tokens the model was trained for."""
    embedding_length: int
    """Width of what flows from layer to layer."""
    feed_forward_length: int
    """Inner width that one token passes in a layer; with experts, that of all it uses."""
    expert_used_count: int
    """Experts that one token uses in a layer; 0 for a dense model."""
    head_count: int
    """Attention heads of the first layer; 0 for a model without attention."""
    head_count_kv: tuple[int, ...]
    """Key-value heads of each layer; 0 for a layer without attention."""
    key_length: int
    """Elements of one head's key."""
    value_length: int
    """Elements of one head's value."""
    vocabulary_size: int
    """Tokens in the vocabulary; 0 if the file does not say."""
    plain_attention: bool
    """Whether every layer caches full keys and values, as `kv_cache_bytes` supposes.

    False with sliding windows, latent attention, and shared or recurrent layers: llama.cpp then
    keeps a cache of another kind, as a rule a much smaller one."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Read what a model is; of a split model name the first part, the others lie beside it.

    Raises:
        ModelFileInvalid: A file is missing, is no GGUF, is cut, or holds no language model.
    """
    first = read_gguf_file(path)
    files = [first, *(read_gguf_file(part) for part in _further_parts(first))]

    architecture = first.text("general.architecture")

    def count(key: str, default: int | None = None) -> int:
        return first.count(f"{architecture}.{key}", default=default)

    def counts(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return first.counts(f"{architecture}.{key}", layers=layers, default=default)

    layers = count("block_count")
    if not 0 < layers <= MAX_LAYERS:
        raise first.unusable(
            f"{architecture}.block_count",
            f"is {layers:,}, not 1 to {MAX_LAYERS:,}; the file is damaged, download it again",
        )
    embedding_length = count("embedding_length")

    # Unless said: as many key-value heads as heads, each as wide as its share of the embedding.
    heads = counts("attention.head_count", default=(0,) * layers)
    head_length = embedding_length // heads[0] if heads[0] else 0

    experts = count("expert_used_count", default=0)
    dense_length = max(counts("feed_forward_length", default=(0,)))
    expert_length = max(counts("expert_feed_forward_length", default=(dense_length,)))

    return GgufHeader(
        architecture=architecture,
        name=first.text("general.name", default=path.stem),
        file_type=first.count("general.file_type", default=UNKNOWN_FILE_TYPE),
        tensor_bytes=sum(file.tensor_bytes for file in files),
        file_bytes=sum(file.file_bytes for file in files),
        block_count=layers,
        context_length=count("context_length"),
        embedding_length=embedding_length,
        feed_forward_length=max(dense_length, experts * expert_length),
        expert_used_count=experts,
        head_count=heads[0],
        head_count_kv=counts("attention.head_count_kv", default=heads),
        key_length=count("attention.key_length", default=head_length),
        value_length=count("attention.value_length", default=head_length),
        vocabulary_size=_vocabulary_size(first, architecture),
        plain_attention=_plain_attention(first, architecture),
    )


def _further_parts(first: GgufFile) -> list[Path]:
    """The files beside the first that a split model also consists of."""
    count = first.count("split.count", default=1)
    if count <= 1:
        return []
    number = first.count("split.no") + 1
    if number != 1:
        raise first.unusable("split.no", f"says part {number} of {count}; name part 1")
    ending = f"-00001-of-{count:05}.gguf"
    if not first.path.name.endswith(ending):
        raise first.unusable("split.count", f"is {count}, so the name must end in '{ending}'")
    stem = first.path.name.removesuffix(ending)
    return [
        first.path.with_name(f"{stem}-{part:05}-of-{count:05}.gguf") for part in range(2, count + 1)
    ]


def _vocabulary_size(file: GgufFile, architecture: str) -> int:
    tokens = file.values.get("tokenizer.ggml.tokens")
    if tokens is None:
        return file.count(f"{architecture}.vocab_size", default=0)
    return tokens.length


# What a key begins with, after the architecture, that stands for a cache of another kind.
_OTHER_CACHES: Final = (
    "attention.compress_ratios",
    "attention.indexer.",
    "attention.kv_lora_rank",
    "attention.recurrent_layers",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "full_attention_interval",
    "kda.",
    "nextn_predict_layers",
    "shortconv.",
    "ssm.",
    "wkv.",
)


def _plain_attention(file: GgufFile, architecture: str) -> bool:
    others = tuple(f"{architecture}.{key}" for key in _OTHER_CACHES)
    return not any(
        key.startswith(others) and value.content != 0  # 0 is how a converter says "none"
        for key, value in file.values.items()
    )
