"""What a model's file, or the server that loaded it, says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_BASE_MODEL = re.compile(r"general\.base_model\.\d+\.name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model, by its own word."""

    names: tuple[str, ...] = ()
    """What it calls itself: by its name, and by basename, size, version and fine-tune together."""
    base_models: tuple[str, ...] = ()
    """What it was made from."""
    architecture: str | None = None
    """How llama.cpp computes it; many families share `llama`."""
    quantisation: str | None = None
    """How most of its weights are packed, such as `Q4_K_M`."""
    path: str | None = None
    """What its server loaded: a file or a folder there, or a repository's name."""
    fingerprint: str | None = None
    """Of its weights, where its server tells one: whatever else has it is the same model."""


def metadata_from(keys: Mapping[str, object], *, quantisation: str | None) -> ModelMetadata:
    """The metadata that stand under GGUF's keys; what is no text there is left out.

    Args:
        keys: By name, as in a file's header or in Ollama's `model_info`.
        quantisation: What `general.file_type` stands for, or what the server calls it.
    """

    def text(key: str) -> str:
        value = keys.get(f"general.{key}")
        return value.strip() if isinstance(value, str) else ""

    parts = [text(key) for key in ("basename", "size_label", "version", "finetune")]
    composed = "-".join(filter(None, parts)) if parts[0] else ""
    return ModelMetadata(
        names=tuple(filter(None, (text("name"), composed))),
        base_models=tuple(
            value
            for key, value in keys.items()
            if _BASE_MODEL.fullmatch(key) and isinstance(value, str)
        ),
        architecture=text("architecture") or None,
        quantisation=quantisation,
    )
