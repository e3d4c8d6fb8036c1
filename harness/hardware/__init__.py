"""Arithmetic of what models need from a machine: sizes, KV caches, footprints.

Pure but for reading a model file's header; nothing here asks the machine what it has.
"""

from __future__ import annotations

from harness.hardware.footprint import (
    Footprint,
    compute_bytes,
    gguf_footprint,
    kv_bytes_per_token,
    kv_cache_bytes,
)
from harness.hardware.gguf import GgufHeader, read_gguf_header
from harness.hardware.quantisation import CacheType, file_type_name
from harness.hardware.sizes import format_bytes, parse_bytes

__all__ = [
    "CacheType",
    "Footprint",
    "GgufHeader",
    "compute_bytes",
    "file_type_name",
    "format_bytes",
    "gguf_footprint",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "parse_bytes",
    "read_gguf_header",
]
