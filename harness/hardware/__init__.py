"""Arithmetic of what models need from a machine: sizes, KV caches, footprints, speed limits.

Pure but for reading a model file's header; nothing here asks the machine what it has.
"""

from __future__ import annotations

from harness.hardware.footprint import (
    Footprint,
    Loading,
    compute_bytes,
    format_bytes,
    gguf_footprint,
    kv_bytes_per_token,
    kv_cache_bytes,
    layer_cache_bytes,
    parse_bytes,
)
from harness.hardware.gguf import GgufHeader, Weights, gguf_header_from_values, read_gguf_header
from harness.hardware.gguf_caches import LayerCache
from harness.hardware.quantization import (
    EVALUATOR_FLOOR,
    WEIGHT_FORMATS,
    CacheType,
    WeightFormat,
    file_type_name,
    is_below_evaluator_floor,
    label_bits,
)
from harness.hardware.safetensors import (
    SafetensorsModel,
    read_safetensors_model,
    reserved_bytes,
    safetensors_footprint,
)
from harness.hardware.speed import (
    BANDWIDTHS,
    GAIN_PER_DOUBLING,
    BandwidthName,
    Fit,
    SplitFootprint,
    decode_limit_tokens_per_s,
    first_gpu_layer,
    fit,
    layers_that_fit,
    load_limit_s,
    move_s,
    needed_bytes,
    offload_speedup,
    sequences_that_fit,
    split_footprint,
    step_bytes,
    weights_per_sequence,
)

__all__ = [
    "BANDWIDTHS",
    "EVALUATOR_FLOOR",
    "GAIN_PER_DOUBLING",
    "WEIGHT_FORMATS",
    "BandwidthName",
    "CacheType",
    "Fit",
    "Footprint",
    "GgufHeader",
    "LayerCache",
    "Loading",
    "SafetensorsModel",
    "SplitFootprint",
    "WeightFormat",
    "Weights",
    "compute_bytes",
    "decode_limit_tokens_per_s",
    "file_type_name",
    "first_gpu_layer",
    "fit",
    "format_bytes",
    "gguf_footprint",
    "gguf_header_from_values",
    "is_below_evaluator_floor",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "label_bits",
    "layer_cache_bytes",
    "layers_that_fit",
    "load_limit_s",
    "move_s",
    "needed_bytes",
    "offload_speedup",
    "parse_bytes",
    "read_gguf_header",
    "read_safetensors_model",
    "reserved_bytes",
    "safetensors_footprint",
    "sequences_that_fit",
    "split_footprint",
    "step_bytes",
    "weights_per_sequence",
]
