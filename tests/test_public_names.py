"""The public names are one written list, and it says what is there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from public_api import SNAPSHOT, public_api

import harness

LAYERS = [p.name for p in Path(harness.__file__).parent.iterdir() if (p / "__init__.py").is_file()]


def test_every_promised_name_can_be_imported_from_the_root_and_is_listed() -> None:
    assert [name for name in harness.__all__ if getattr(harness, name) is None] == []
    assert dir(harness) == sorted(harness.__all__)


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse(Path(harness.__file__).with_suffix(".pyi").read_text())
    seen_by_checker = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen_by_checker == vars(harness)["_HOME_OF"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Pipelin'"):
        harness.Pipelin  # noqa: B018


def test_each_layer_exports_exactly_what_its_list_says() -> None:
    for layer in LAYERS:
        module = importlib.import_module(f"harness.{layer}")
        promised = set(getattr(module, "__all__", ()))
        submodules = {p.stem for p in Path(module.__file__ or "").parent.iterdir()} - promised
        public = {name for name in vars(module) if not name.startswith(("_", "@"))}  # pytest's
        assert public - submodules - {"annotations"} == promised, layer


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = (
        "litellm",
        "llama_cpp",
        "xllamacpp",
        "tantivy",
        "wordllama",
        "torch",
        "mcp",
        "networkx",
    )
    program = (
        "import sys, harness\n"
        "for name in harness.__all__: getattr(harness, name)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_users_may_build_on_is_as_in_the_snapshot() -> None:
    assert public_api() == SNAPSHOT.read_text(encoding="utf-8"), (
        "if that was meant, and CHANGELOG.md says it: .venv/bin/python tests/public_api.py --write"
    )
