"""Writes `server_flags.txt`: the options of servers, by their own sources, one server a line.

    pip download --no-deps --only-binary :all: vllm sglang
    curl -o ollama-0.33.0.go https://raw.githubusercontent.com/ollama/ollama/v0.33.0/envconfig/config.go
    python tests/advise/server_flags.py vllm-*.whl sglang-*.whl ollama-*.go

llama-server's are read from the xllamacpp that is installed, which is built with its parser.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

FLAGS = Path(__file__).with_name("server_flags.txt")
SOURCES = {
    "vllm": r"vllm/(engine/arg_utils|entrypoints/\w+/cli_args)\.py",
    "sglang": r"sglang/srt/arg_groups/fields/\w+\.py",
}


def flags(server: str) -> set[str]:
    """The options in the list."""
    lines = (line.split() for line in FLAGS.read_text().splitlines())
    return next(set(words[2:]) for words in lines if words[0] == server)


def options(file: str, tree: ast.AST) -> Iterator[str]:
    """Those that a parser is given, and the fields that one is made of, with their aliases."""
    for node in ast.walk(tree):
        texts: list[ast.expr] = []
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            texts = node.args
        elif isinstance(node, ast.keyword) and node.arg == "aliases":
            texts = getattr(node.value, "elts", [])
        elif isinstance(node, ast.ClassDef) and not file.endswith("/arg_utils.py"):
            named = (getattr(one.target, "id", "_") for one in node.body if hasattr(one, "target"))
            yield from (f"--{name.replace('_', '-')}" for name in named if name[0] != "_")
        yield from (one.value for one in texts if isinstance(one, ast.Constant))


def main() -> None:
    """Reads the files that are named."""
    binary = next(Path(find_spec("xllamacpp").origin).parent.glob("*.so")).read_bytes()
    texts = {one.decode() for one in re.findall(rb"\0(--[a-z][a-z0-9-]+)(?=\0)", binary)}
    found = {"llamacpp": (f"xllamacpp-{version('xllamacpp')}", texts)}
    for path in map(Path, sys.argv[1:]):
        server, number = path.name.split("-")[:2]
        if server == "ollama":
            names = set(re.findall(r"OLLAMA_[A-Z_]+", path.read_text()))
        else:
            files = zipfile.ZipFile(path)
            sources = [one for one in files.namelist() if re.fullmatch(SOURCES[server], one)]
            trees = {file: ast.parse(files.read(file)) for file in sources}
            names = {one for file, tree in trees.items() for one in options(file, tree)}
        found[server] = f"{server}-{number.removesuffix('.go')}", names
    lines = (
        f"{server} {source} {' '.join(sorted(of))}\n" for server, (source, of) in found.items()
    )
    FLAGS.write_text("".join(lines))


if __name__ == "__main__":
    main()
