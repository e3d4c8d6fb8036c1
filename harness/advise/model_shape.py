"""What the arithmetic of speed and memory knows of a model, whatever it was read from."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from harness.advise.safetensors import (
    CACHE_FORMATS,
    SafetensorsModel,
    configured_model,
    read_safetensors_model,
    safetensors_footprint,
)
from harness.errors import InvalidInput
from harness.hardware.footprint import Footprint, Loading, gguf_footprint
from harness.hardware.gguf import GgufHeader, read_gguf_header
from harness.hardware.gguf_caches import LayerCache, layer_token_bytes, state_bytes
from harness.hardware.quantization import (
    CACHE_TYPES,
    BlockFormat,
    KvBits,
    cache_format,
    file_type_name,
)

Packing = Literal["gguf", "safetensors"]

_PROMPT_TOKENS_AT_ONCE: Final[dict[Packing, int]] = {"gguf": 512, "safetensors": 8192}
_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's size and what a token of its context takes."""

    title: str
    family: str
    """Its architecture, such as `llama`; empty if unknown."""
    quantization: str | None
    """Such as `Q4_K_M` or `gptq-4bit`; None if unknown."""
    packing: Packing
    parameters: int
    active_parameters: int
    """Those that one token is multiplied with."""
    weight_bytes: int
    """All that is in memory."""
    passed_bytes: int
    """Those that some token may pass: not the input's table, unless it is the output's too."""
    active_bytes: int
    """Those that one token passes: with experts, only the ones it uses."""
    expert_share: float = 1.0
    """Of a layer's experts, those that one token uses; 1 for a dense model."""
    fine_parameters: int = 0
    """Those that quantizations of safetensors leave in 16 bits."""
    heads: int = 0
    """Of queries; 0 if unknown."""
    caches: tuple[LayerCache, ...]
    exact_caches: bool
    """Whether the cache is known to the byte; else it is usually smaller."""
    context_limit: int | None
    """Tokens it was trained for; None if unknown."""
    source: GgufHeader | SafetensorsModel
    """What it was read from, or made of by hand."""

    @property
    def layers(self) -> int:
        """How many it has."""
        return len(self.caches)

    def token_kv_bytes(self, kv_bits: KvBits = 16) -> int:
        """2 * layers * kv_heads * head_dim * bytes of an element, layer by layer.

        Windows are not considered here; `sequence_kv_bytes` does.

        Raises:
            InvalidInput: A head is not a whole number of the format's blocks.
        """
        return sum(self._layer_bytes(layer, kv_bits) for layer in self.caches)

    def sequence_kv_bytes(self, tokens: int, kv_bits: KvBits = 16) -> int:
        """What so many tokens of one sequence fill: a windowed layer keeps only its window.

        Recurrent states count whole. Raises as `token_kv_bytes`.
        """

        def held(layer: LayerCache) -> int:
            return tokens if layer.window_tokens is None else min(tokens, layer.window_tokens)

        return sum(
            held(layer) * self._layer_bytes(layer, kv_bits) + state_bytes(layer)
            for layer in self.caches
        )

    def _layer_bytes(self, layer: LayerCache, kv_bits: KvBits) -> int:
        block = self._cache_format(kv_bits)
        return layer_token_bytes(layer, keys=block, values=block, model=self.title)

    def _cache_format(self, kv_bits: KvBits) -> BlockFormat:
        of_gguf = self.packing == "gguf"
        return cache_format(CACHE_TYPES[kv_bits]) if of_gguf else CACHE_FORMATS[kv_bits]

    def footprint(
        self, *, context_tokens: int, sequences: int = 1, kv_bits: KvBits = 16
    ) -> Footprint:
        """The memory it takes in its server, over all devices together.

        As `gguf_footprint` or `safetensors_footprint` has it; the weights are an estimate with a
        quantization that it does not come in. Raises as `token_kv_bytes`.
        """
        if isinstance(self.source, GgufHeader):
            cache_type = CACHE_TYPES[kv_bits]
            loading = Loading(
                context_tokens=context_tokens,
                slots=sequences,
                cache_type_k=cache_type,
                cache_type_v=cache_type,
            )
            made = gguf_footprint(self.source, loading)
            return replace(made, weights_bytes=self.weight_bytes)
        made = safetensors_footprint(
            self.source,
            context_tokens=context_tokens,
            sequences=sequences,
            element=self._cache_format(kv_bits),
            batch_tokens=_PROMPT_TOKENS_AT_ONCE[self.packing],
        )
        return replace(made, weights_bytes=self.weight_bytes)

    def quantized(self, name: str, *, packing: Packing, bits: float) -> ModelShape:
        """The same with weights of so many bits each, scales included: an estimate."""
        fine = self.fine_parameters if packing == "safetensors" else 0
        size = round(((self.parameters - fine) * bits + fine * max(bits, 16)) / 8)
        ratio = size / self.weight_bytes
        return replace(
            self,
            quantization=name,
            packing=packing,
            weight_bytes=size,
            passed_bytes=round(self.passed_bytes * ratio),
            active_bytes=round(self.active_bytes * ratio),
        )

    def on_rank(self, ranks: int) -> ModelShape:
        """With the caches that one of so many GPUs has of each layer (tensor parallel).

        Key-value heads are divided, and repeated if there are fewer than GPUs: a latent (MLA), one
        head for all, is on each of them whole.
        """

        def part(cache: LayerCache) -> LayerCache:
            heads, state = (-(-n // ranks) for n in (cache.heads, cache.state_elements))
            return replace(cache, heads=heads, state_elements=state)

        caches = tuple(map(part, self.caches))
        return replace(self, caches=caches, source=replace(self.source, caches=caches))


def read_model_shape(path: Path) -> ModelShape:
    """Reads a GGUF file, a folder of safetensors, or a `config.json` alone.

    Raises:
        ModelFileInvalid: It is missing, damaged, or no language model.
    """
    if path.is_dir():
        whole = any(path.glob("*.safetensors"))
        return _of_safetensors(
            read_safetensors_model(path) if whole else configured_model(path / "config.json")
        )
    if path.suffix == ".json":
        return _of_safetensors(configured_model(path))
    header = read_gguf_header(path)
    quantization = file_type_name(header.file_type)
    parameters = header.parameters
    experts = max(header.expert_count, 1)
    return ModelShape(
        title=header.name,
        family=header.architecture,
        quantization=None if quantization == "unknown" else quantization,
        packing="gguf",
        parameters=parameters,
        # All tensors are packed about alike, so that bytes tell the share.
        active_parameters=round(parameters * header.active_bytes / header.weights.loaded_bytes),
        weight_bytes=header.weights.loaded_bytes,
        passed_bytes=header.weights.passed_bytes,
        active_bytes=header.active_bytes,
        expert_share=max(header.expert_used_count, 1) / experts,
        heads=header.head_count,
        caches=header.caches,
        exact_caches=header.exact_caches,
        context_limit=header.context_length,
        source=header,
    )


def _of_safetensors(model: SafetensorsModel) -> ModelShape:
    passed = model.tensor_bytes - model.input_bytes
    quantization = model.quantization.upper() if model.quantization else _dtype_label(model.dtype)
    return ModelShape(
        title=model.name,
        family=model.architecture,
        quantization=quantization,
        packing="safetensors",
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        weight_bytes=model.tensor_bytes,
        passed_bytes=passed,
        active_bytes=passed - round(model.expert_bytes * (1 - model.expert_share)),
        expert_share=model.expert_share,
        fine_parameters=model.fine_parameters,
        heads=model.heads,
        caches=model.caches,
        exact_caches=model.exact_caches,
        context_limit=model.context_length or None,
        source=model,
    )


def _dtype_label(dtype: str | None) -> str | None:
    return dtype and dtype.replace("bfloat", "BF").replace("float", "F")


def shape_by_hand(
    size: str,
    *,
    title: str = "",
    layers: int,
    width: int = 0,
    heads: int = 0,
    kv_heads: int,
    head_dim: int,
    bits: float = 16,
    active: str = "",
    fine: str = "",
    quantization: str = "BF16",
) -> ModelShape:
    """A model of so many parameters, such as `7B`, of which a token uses all or the active ones.

    Raises:
        InvalidInput: A size is of another form.
    """
    parameters = parse_parameters(size)
    used = parse_parameters(active) if active else parameters
    width = width or 4 * kv_heads * head_dim  # as is usual, and so is the feed-forward layer's
    fine_count = parse_parameters(fine) if fine else 0
    size_bytes = round(((parameters - fine_count) * bits + fine_count * max(bits, 16)) / 8)
    model = SafetensorsModel(
        architecture="",
        name=title or size,
        dtype=None,
        quantization=quantization,
        parameters=parameters,
        active_parameters=used,
        expert_share=used / parameters,
        tensor_bytes=size_bytes,
        expert_bytes=size_bytes if active else 0,
        fine_parameters=fine_count,
        heads=heads,
        context_length=0,
        embedding_length=width,
        feed_forward_length=7 * width // 2,
        vocabulary_size=0,
        caches=(LayerCache(heads=kv_heads, key_length=head_dim, value_length=head_dim),) * layers,
        exact_caches=False,
    )
    return _of_safetensors(model)


def parse_parameters(size: str) -> int:
    """The count that a person wrote: `7B` is 7 * 10**9, `135M` 135 * 10**6.

    Raises:
        InvalidInput: It has another form.
    """
    match = _COUNT.fullmatch(size.strip())
    if match is None or not float(match[1]):
        raise InvalidInput(
            f"'{size}' is not a number of parameters; write 7B or 135M",
            code="model.size-unreadable",
        )
    return round(float(match[1]) * (10**9 if match[2].upper() == "B" else 10**6))
