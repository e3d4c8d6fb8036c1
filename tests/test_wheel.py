"""What is installed from the wheel, far from the checkout, has its rubrics and patterns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from demo import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", directory, ROOT, cwd=directory)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel in it; its dependencies are borrowed from this one."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False)
    python = home / "bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
    purelib = Path(run(python, "-c", where, cwd=home))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(purelib)
    # A path added by a .pth file is searched, but its own .pth files are not read: the checkout,
    # which is installed here as editable, stays out of sight.
    (purelib / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_rooms_and_the_type_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "harness/py.typed" in names
    assert "harness/_rooms/rubrics/brief.yaml" in names
    assert "harness/rubric/prompts.yaml" in names
    assert {f"harness/analysis/page/run.{kind}" for kind in ("html", "css", "js")} <= names
    patterns = {path.name for path in (ROOT / "patterns").glob("*.py")} - {"gallery.py"}
    shipped = {Path(name).name for name in names if name.startswith("harness/_rooms/patterns/")}
    assert shipped == patterns | {"README.md"}, "neither pictures nor what takes them"
    starter = (path for path in (ROOT / "examples/starter").rglob("*") if path.is_file())
    assert {f"harness/_rooms/{path.relative_to(ROOT)}" for path in starter} <= names
    assert not any(name.startswith(("tests/", "examples/", "docs/")) for name in names)


def test_the_wheel_brings_its_guides_and_no_link_that_leads_nowhere(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "```" in text, "the README is its description"
    shown = run(installed, "-m", "harness", "--help", cwd=tmp_path)
    folder = "".join(shown.partition("Markdown, are in")[2].split())
    guides = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {path.name for path in Path(folder).iterdir()} == guides
    assert {f"harness/_rooms/docs/{name}" for name in guides} <= names


def test_a_shipped_pattern_runs_by_name_on_the_demo_model_by_the_wheels_code(
    installed: Path, tmp_path: Path
) -> None:
    where = run(installed, "-c", "import harness; print(harness.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where
    command = ("-m", "harness", "run", "wiggum_loop", "--set", "rounds=2", "--json")
    result = json.loads(run(installed, *command, cwd=tmp_path))
    assert result["pipeline"] == "wiggum-loop"
    assert result["loops"][0]["rubric"] == "answer"
    assert result["models"][0]["name"] == "smollm2-135m"
