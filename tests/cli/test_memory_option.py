"""`--memory`: passages kept beyond a run, and found again by the run that is resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).with_name("harness")

KITCHEN = """\
from pathlib import Path
from harness import Pipeline, Run

kitchen = Pipeline("kitchen")

@kitchen.node
async def kept(run: Run, note: str) -> int:
    return len(await run.remember(note))

@kitchen.node
async def found(run: Run, kept: int, question: str) -> list[str]:
    if not Path("mended").exists():
        raise ValueError("not yet")
    return [hit.text for hit in await run.recall(question)]
"""
TEA = "Steep green tea for three minutes."


def harness(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def begun(cwd: Path, *options: str, note: str = TEA) -> subprocess.CompletedProcess[str]:
    inputs = ("--set", f"note={note}", "--set", "question=how long does green tea steep")
    return harness("run", "kitchen.py", *inputs, "--json", *options, cwd=cwd)


def result_of(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["result"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "kitchen.py").write_text(KITCHEN)
    return tmp_path


def test_a_second_run_finds_what_the_first_kept(project: Path) -> None:
    (project / "mended").touch()
    assert result_of(begun(project, "--memory", "shelf")) == [TEA]
    again = begun(project, "--memory", "shelf", note="Bread rises twice.")
    assert TEA in result_of(again)


def test_it_goes_before_the_path_of_the_settings(project: Path) -> None:
    (project / "mended").touch()
    (project / "harness.toml").write_text('[memory]\npath = "other"\n')
    assert result_of(begun(project, "--memory", "shelf")) == [TEA]
    assert (project / "shelf").is_dir()
    assert not (project / "other").exists()


def test_a_resumed_run_has_the_memory_that_it_was_begun_with(project: Path) -> None:
    failed = begun(project, "--memory", "shelf")
    assert failed.returncode == 1
    (project / "mended").touch()
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mended").touch()
    resumed = harness(
        *("resume", "latest", "--traces", str(project / "traces"), "--json"), cwd=elsewhere
    )
    assert result_of(resumed) == [TEA]
    assert not (elsewhere / "shelf").exists()


def test_a_resumed_run_may_be_given_another(project: Path) -> None:
    assert begun(project, "--memory", "shelf").returncode == 1
    (project / "mended").touch()
    resumed = harness("resume", "latest", "--memory", "empty", "--json", cwd=project)
    assert result_of(resumed) == [], "what was kept elsewhere is not found there"
