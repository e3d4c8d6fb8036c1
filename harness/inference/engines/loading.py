"""How the engines in this process are told to load a model, which the arithmetic of memory needs.

What stands here for all settings of an endpoint, the engines hand on to llama.cpp.
"""

from __future__ import annotations

from harness.hardware import GgufHeader, Loading
from harness.inference.endpoint import Endpoint
from harness.log import log_warning

_MICRO_BATCH_TOKENS = 512
"""llama.cpp's default."""
_EMBEDDED_CHAT_TOKENS = 128
"""How much is computed between two looks at the queue: until then other slots wait, and nothing
can be cancelled. On a CPU prompts are read as fast with 128 as with the default, 2048."""
_PACKAGE_SEQUENCES = 256
"""Texts that llama-cpp-python has room for at once when it embeds."""


def warn_of_context(endpoint: Endpoint, header: GgufHeader) -> None:
    """Says so where a model is loaded with a longer context than it was trained for."""
    if endpoint.context_tokens > header.context_length:
        log_warning(
            "a model's context is longer than it was trained for; what lies beyond, it may not "
            "make sense of",
            code="endpoint.context-beyond-training",
            endpoint=endpoint.tag,
            context_tokens=endpoint.context_tokens,
            trained_tokens=header.context_length,
        )


def loading_of(endpoint: Endpoint, header: GgufHeader) -> Loading:
    """How a model from a file is loaded.

    Args:
        endpoint: One of a backend that loads files.
        header: Of its file.
    """
    if endpoint.backend == "llama-cpp-python":
        micro_batch = _MICRO_BATCH_TOKENS
        if endpoint.embeddings:
            # A text is embedded in one go, whatever its length; longer ones it was not trained on.
            micro_batch = min(endpoint.context_tokens, header.context_length)
        return Loading(
            context_tokens=endpoint.context_tokens,
            cache_type_k=endpoint.cache_type_k,
            cache_type_v=endpoint.cache_type_v,
            micro_batch_tokens=micro_batch,
            whole_windows=True,
            computed_logits=micro_batch,
            kept_logits=_PACKAGE_SEQUENCES if endpoint.embeddings else None,
        )
    return Loading(
        context_tokens=endpoint.context_tokens,
        slots=endpoint.slots,
        cache_type_k=endpoint.cache_type_k,
        cache_type_v=endpoint.cache_type_v,
        # A text to embed has to fit into one.
        micro_batch_tokens=_MICRO_BATCH_TOKENS if endpoint.embeddings else _EMBEDDED_CHAT_TOKENS,
        computed_logits=_MICRO_BATCH_TOKENS if endpoint.embeddings else None,
    )
