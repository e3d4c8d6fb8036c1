"""Models of any shape, for the arithmetic."""

from __future__ import annotations

from harness.advise.model_shape import ModelShape, parse_parameters
from harness.hardware.gguf_caches import LayerCache


def shape_by_hand(
    size: str,
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    heads: int = 0,
    bits: float = 16,
    active: str = "",
) -> ModelShape:
    """One of so many parameters, of which a token uses all or the active ones."""
    parameters = parse_parameters(size)
    used = parse_parameters(active) if active else parameters
    full = LayerCache(heads=kv_heads, key_length=head_dim, value_length=head_dim)
    return ModelShape(
        title=size,
        family="",
        quantization="BF16",
        packing="safetensors",
        is_local=False,
        parameters=parameters,
        active_parameters=used,
        weight_bytes=round(parameters * bits / 8),
        passed_bytes=round(parameters * bits / 8),
        active_bytes=round(used * bits / 8),
        expert_share=used / parameters,
        heads=heads,
        caches=(full,) * layers,
        exact_caches=False,
    )
