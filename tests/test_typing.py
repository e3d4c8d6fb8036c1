"""What type checkers of users see of the public API."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

from harness import Pipeline
from harness.errors import PipelineInvalid

EXAMPLES = Path(__file__).with_name("typed_examples.py")
ROOT = EXAMPLES.parents[1]


def test_mypy_takes_what_users_write_and_refuses_a_result_of_another_type(tmp_path):
    right = 'brief.run(task="?").result, str'
    wrong = tmp_path / "wrong.py"
    wrong.write_text(EXAMPLES.read_text().replace(right, right.replace("str", "int")))
    cache = str(ROOT / ".mypy_cache")
    found, errors, _ = api.run([str(EXAMPLES), str(wrong), "--strict", "--cache-dir", cache])
    assert errors == ""
    mistakes = [line for line in found.splitlines() if ": error: " in line]
    assert len(mistakes) == 1, found
    assert 'of type "str", not "int"' in mistakes[0]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None and shutil.which("pyright") is None,
    reason="pyright is not installed",
)
def test_pyright_takes_what_users_write():
    program = shutil.which("pyright")
    command = [program] if program else [sys.executable, "-m", "pyright"]
    ended = subprocess.run(
        [*command, "--pythonpath", sys.executable, str(EXAMPLES)],
        check=False, capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize(
    ("stated", "is_right"), [(str, True), (str | None, True), (int, False), (list[str], False)]
)
def test_a_pipeline_states_the_type_that_its_result_has(stated, is_right):
    pipeline = Pipeline[stated]("one")

    @pipeline.node
    def text(task: str) -> str:
        return task

    if is_right:
        assert pipeline.check() is None
        return
    with pytest.raises(PipelineInvalid) as caught:
        pipeline.check()
    assert caught.value.code == "pipeline.result-type-differs"
