"""What is particular to a model server stands in its file under `inference/providers`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sources import PACKAGE, nodes_of

PROVIDERS = PACKAGE / "inference" / "providers"

SERVER = re.compile(
    r"vllm|ollama|sglang|llama[_.-]?cpp|llama[_-]server|tabby|triton|tensorrt|trtllm|\btgi\b"
    r"|lm[_ ]?studio|litellm|xllamacpp|\bmlc\b|runpod|\bmodal\b",
    re.IGNORECASE,
)

# Files outside it that name servers, and why.
ELSEWHERE = {
    "inference/endpoint.py": "the values of `backend`, and the settings that each one has",
    "session/settings.py": "an example of an endpoint",
    "trace/secrets.py": "words that people put where a client wants a key",
}


def named_in(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Servers in the identifiers and the texts of a file; docstrings and comments may name them."""
    documentation = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes:
        said = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module")]
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            said.append(node.value)
        for one in said:
            if isinstance(one, str) and SERVER.search(one):
                yield getattr(node, "lineno", 0), one


def test_no_other_file_names_a_server() -> None:
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        is_exempt = path.is_relative_to(PROVIDERS) or path.is_relative_to(PACKAGE / "_rooms")
        if is_exempt or not SERVER.search(text):
            continue
        if named := list(named_in(nodes_of(path))):
            found[path.relative_to(PACKAGE).as_posix()] = named
    assert {file: named for file, named in found.items() if file not in ELSEWHERE} == {}
    assert ELSEWHERE.keys() <= found.keys(), "an exemption that is no longer needed"
