"""Imports point one way: from the command line down to the errors."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import networkx as nx
from sources import PACKAGE, nodes_of

# Lowest first. A module may import from its own layer and from those before it.
LAYERS = [
    "version",
    "errors",
    "text",
    "files",
    "log",
    "result_files",
    "rows",
    "threads",
    "text_store",
    "plugins",
    "trace",
    "hardware",
    "inference",
    "metrics",
    "residency",
    "memory",
    "compress",
    "rubric",
    "wiggum",
    "graph",
    "session",
    "recording",
    "testing",
    "pytest_plugin",
    "analysis",
    "cli",
    "advise",
    "__main__",
]

# What a layer must not know, although it stands above it: each can be used without the others.
STRANGERS = {
    "memory": {"rubric", "graph", "inference", "trace"},
    "compress": {"inference", "trace", "memory"},
    "hardware": {"trace", "inference", "text"},
    "graph": {"inference", "residency", "memory", "rubric", "wiggum"},
    "wiggum": {"memory", "residency"},
}


def layer_of(module: str) -> str | None:
    """The layer of a module of this package; empty for the package's own root."""
    root, _, rest = module.partition(".")
    return rest.partition(".")[0] if root == "harness" else None


@cache
def imports_of(path: Path) -> list[str]:
    """The modules of this package that a file imports anywhere, functions included."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if layer_of(name) is not None]


def modules() -> list[Path]:
    # The root re-exports the public names and is above every layer. A wheel's rooms are files of
    # users, such as patterns.
    found = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]
    return [path for path in found if not path.is_relative_to(PACKAGE / "_rooms")]


def test_a_module_imports_only_from_its_own_layer_and_those_below() -> None:
    upward = []
    for path in modules():
        layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        allowed = set(LAYERS[: LAYERS.index(layer) + 1]) - STRANGERS.get(layer, set())
        upward += [
            (path, name) for name in imports_of(path) if layer_of(name) not in {*allowed, ""}
        ]
    assert upward == []


def test_every_layer_has_its_place_in_the_order() -> None:
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert found == set(LAYERS)


def test_no_module_imports_the_root_of_its_own_package() -> None:
    assert [path for path in modules() if "harness" in imports_of(path)] == []


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module_of(path): path for path in modules()}
    graph = nx.DiGraph()
    for module, path in known.items():
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                names = {name if name in known else str(node.module) for name in names}
            else:
                continue
            graph.add_edges_from((module, name) for name in names & known.keys())
    circles = [circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []


def test_no_two_files_have_one_name() -> None:
    places = defaultdict(list)
    for path in modules():
        if path.name != "__init__.py":
            places[path.stem].append(module_of(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice == {}


def test_what_is_found_by_entry_points_is_imported_by_nothing_else() -> None:
    points = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    found = {
        value.partition(":")[0]
        for group, names in points["entry-points"].items()
        if group.startswith("harness.")
        for value in names.values()
    }
    assert len(found) == 3
    users = [path for path in modules() if found & set(imports_of(path))]
    assert users == []
