"""Where llama.cpp puts a model, and what it stores its cache as, from an endpoint's settings."""

from __future__ import annotations

import re

from harness.hardware import CacheType
from harness.hardware.quantization import TENSOR_FORMATS
from harness.inference.endpoint import Endpoint

_NUMBERS = {one.name.lower(): number for number, one in TENSOR_FORMATS.items()}
_GPU = re.compile(r"gpu(\d+)")


def type_number(cache_type: CacheType) -> int:
    """What `ggml_type` calls it."""
    return _NUMBERS[cache_type]


def gpu_of(endpoint: Endpoint) -> int | None:
    """The number of the GPU that the endpoint's model is for: 1 for `gpu1`; None for no such."""
    found = _GPU.fullmatch(endpoint.device)
    return int(found[1]) if found else None
