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


@pytest.fixture(scope="module")
def with_plugins(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with the plugins of `tests/plugins` as wheels."""
    directory = tmp_path_factory.mktemp("plugins")
    folders = sorted((ROOT / "tests/plugins").iterdir())
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", directory, *folders, cwd=directory)
    where = "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
    for built in directory.glob("*.whl"):
        with zipfile.ZipFile(built) as archive:
            archive.extractall(run(installed, "-c", where, cwd=directory))
    return installed


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
    page = ("run.html", "run.css", "run.js", "evaluation.html", "evaluation.js", "elements.js")
    assert {f"harness/analysis/page/{name}" for name in page} <= names
    assert {"harness/cli/perfetto.js", "harness/cli/tuning_report.html"} <= names
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


PIPELINE = """
import os
from pathlib import Path

from harness import Pipeline, Resources, Run

pids = Pipeline("pids")


@pids.node(each={"n": "ns"}, on=Resources(cpus=1))
def elsewhere(n: int) -> int:
    return os.getpid()


@pids.node(on=Resources(cpus=1))
async def dies(run: Run, lost: str) -> str:
    found = await run.recall("owls")
    if not Path(lost).exists():
        Path(lost).touch()
        os._exit(1)
    return f"{len(found)} passages"


@pids.node
def here(elsewhere: list[int], dies: str) -> list[object]:
    return [os.getpid(), *elsewhere, dies]
"""


def test_a_plugins_executor_makes_calls_and_makes_one_again_whose_worker_was_lost(
    with_plugins: Path, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="dask is not installed")
    (tmp_path / "pids.py").write_text(PIPELINE)
    inputs = ("--set", "ns=[1, 2, 3]", "--set", f"lost={tmp_path / 'lost'}")
    command = ("-m", "harness", "run", "pids.py", *inputs, "--on", "dask", "--json")
    result = json.loads(run(with_plugins, *command, cwd=tmp_path))
    pid, *others, dies = result["result"]
    assert pid not in others
    assert dies == "0 passages"
    assert result["retries"]["dies"] == 1


def test_a_plugins_store_keeps_passages(with_plugins: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    (tmp_path / "owls.md").write_text("# Owls\n\nThey hunt voles at night, by sound.\n")
    store = ("--store", f"duckdb://{tmp_path}/passages.duckdb")
    run(with_plugins, "-m", "harness", "memory", "add", "owls.md", *store, cwd=tmp_path)
    command = ("-m", "harness", "memory", "search", "voles", *store, "--json")
    found = json.loads(run(with_plugins, *command, cwd=tmp_path))
    assert "by sound" in found["hits"][0]["text"]


def test_a_plugins_check_and_exporter_are_used_by_their_names(
    with_plugins: Path, tmp_path: Path
) -> None:
    check = "{check: no_shouting, max_share: 0.1}"
    (tmp_path / "calm.yaml").write_text(
        f"title: Calm\npass_at: 8\ndimensions:\n  - {{name: calm, weight: 1, checks: [{check}]}}\n"
    )
    (tmp_path / "draft.md").write_text("WE SHOUT ALL the time\n")
    harness = (with_plugins, "-m", "harness")
    score = run(*harness, "rubric", "score", "calm.yaml", "draft.md", "--json", cwd=tmp_path)
    assert "2 of 4 words are in capitals" in score
    recorded = ROOT / "traces" / "recorded" / "brief.jsonl"
    export = ("trace", "export", recorded, "--format", "csv", "--output", "calls.csv")
    assert run(*harness, *export, cwd=tmp_path) == "8 calls written to calls.csv\n"
    head, *lines = (tmp_path / "calls.csv").read_text().splitlines()
    assert head.startswith("model,role,start_ms")
    assert len(lines) == 8
