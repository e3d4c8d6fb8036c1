"""Arithmetic of what models need from a machine: sizes, KV caches, footprints.

Pure but for reading a model file's header, and for `machine`, which asks and measures this machine.
"""

from harness.hardware.footprint import (
    Footprint,
    Loading,
    first_gpu_layer,
    format_bytes,
    gguf_footprint,
    parse_bytes,
    prompt_kv_bytes,
    split_footprint,
)
from harness.hardware.gguf import gguf_header_from_values, read_gguf_header
from harness.hardware.quantization import CacheType, file_type_name, is_below_evaluator_floor

__all__ = [
    "CacheType",
    "Footprint",
    "Loading",
    "file_type_name",
    "first_gpu_layer",
    "format_bytes",
    "gguf_footprint",
    "gguf_header_from_values",
    "is_below_evaluator_floor",
    "parse_bytes",
    "prompt_kv_bytes",
    "read_gguf_header",
    "split_footprint",
]
