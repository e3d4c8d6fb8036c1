"""The public names are one written list, and it says what is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import harness

LAYERS = [p.name for p in Path(harness.__file__).parent.iterdir() if (p / "__init__.py").is_file()]


def test_every_promised_name_can_be_imported_from_the_root() -> None:
    for name in harness.__all__:
        assert getattr(harness, name) is not None


def test_the_promise_the_lazy_table_and_what_the_type_checker_sees_are_the_same_names() -> None:
    import ast

    tree = ast.parse(Path(harness.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen_by_checker = {
        alias.name
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen_by_checker == set(harness._HOME_OF)
    assert seen_by_checker | {"__version__"} == set(harness.__all__)


def test_dir_lists_exactly_the_promised_names() -> None:
    assert dir(harness) == sorted(harness.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Pipelin'"):
        harness.Pipelin  # noqa: B018


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_exports_exactly_what_its_list_says(layer: str) -> None:
    module = importlib.import_module(f"harness.{layer}")
    submodules = {p.stem for p in Path(module.__file__ or "").parent.iterdir()}
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (name not in submodules or name in getattr(module, "__all__", ()))
        and name != "annotations"
    }
    assert public == set(getattr(module, "__all__", ()))


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = ("litellm", "llama_cpp", "xllamacpp", "tantivy", "usearch", "wordllama", "torch")
    program = (
        "import sys, harness\n"
        "for name in harness.__all__: getattr(harness, name)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
