"""`harness runs prune`: what goes, what stays and why, in words and as JSON."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from command import harness
from golden import assert_shown
from pipelines import ASKS, ECHO

from harness.trace.journal_reader import is_packed

DAY_S = 86_400
SIZES = {r"\d+(\.\d+)? ([KMG]i|k)?B\b": "1 kB"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "drinks.csv").write_text("id,task\n1,tea\n2,milk\n")
    return tmp_path


def run(project: Path, *, age_days: float = 0, file: str = "echo.py") -> str:
    """A run that changed so long ago; its id."""
    before = {path.name for path in (project / "traces").glob("2*.jsonl")}
    done = harness("run", file, "--task", "tea", cwd=project)
    assert done.exit_code in {0, 4}, done.stderr
    (journal,) = (p for p in (project / "traces").glob("2*.jsonl") if p.name not in before)
    age(project, journal.stem, age_days)
    return journal.stem


def age(project: Path, run_id: str, days: float) -> None:
    for path in (project / "traces").glob(f"{run_id}*"):
        os.utime(path, (time.time() - days * DAY_S,) * 2)


def listed(project: Path) -> str:
    return harness("runs", cwd=project).stdout


def test_old_runs_go_and_the_list_lacks_them(project: Path) -> None:
    old, young = run(project, age_days=31), run(project)
    command = ("runs", "prune", "--older", "30d")

    foreseen = harness(*command, "--dry-run", cwd=project)
    assert old in foreseen.stdout
    assert_shown("runs prune", "a dry run", foreseen, masks=SIZES)
    assert harness("view", old, "--output", "a.html", cwd=project).exit_code == 0

    done = harness(*command, "--json", cwd=project)

    assert (done.exit_code, done.stderr) == (0, "")
    assert [entry["run_id"] for entry in done.json["removed"]] == [old]
    files = (project / "traces").glob("2*")
    assert done.json["remaining_bytes"] == sum(path.stat().st_size for path in files)
    assert old not in listed(project)
    assert young in listed(project)
    assert old in (project / "traces" / "runs.jsonl").read_text()  # the audit log has all
    assert harness("view", old, cwd=project).exit_code == 2


@pytest.mark.parametrize("loops", [1, 30])
def test_the_list_says_that_scores_are_of_one_loop_of_several(project: Path, loops: int) -> None:
    run(project)
    log = project / "traces" / "runs.jsonl"
    scores = {"wiggum_scores": [7.6, 9.2], "stop_reason": "passed", "loops": [{}] * loops}
    log.write_text(json.dumps(json.loads(log.read_text()) | scores) + "\n")
    shown = " ".join(listed(project).split())
    assert ("loops)" in shown, "7.6" in shown) == (loops > 1, True)


def test_runs_whose_files_are_gone_are_told_and_dropped(project: Path) -> None:
    run_id = run(project)
    (project / "traces" / f"{run_id}.jsonl").unlink()
    (line,) = (line for line in listed(project).splitlines() if run_id in line)
    assert "(files gone)" in line
    for case in ("files gone, a dry run", "files gone", "files gone before"):
        options = ("--dry-run",) if "dry" in case else ()
        assert_shown(
            "runs prune", case, harness("runs", "prune", *options, cwd=project), masks=SIZES
        )
    assert run_id not in listed(project)


def test_the_oldest_go_for_a_size(project: Path) -> None:
    ids = [run(project, age_days=days) for days in (3, 2, 1)]
    sizes = [
        sum(path.stat().st_size for path in (project / "traces").glob(f"{run_id}*"))
        for run_id in ids
    ]
    done = harness("runs", "prune", "--size", f"{sizes[2] + sizes[1]}B", "--json", cwd=project).json
    assert [entry["run_id"] for entry in done["removed"]] == ids[:1]


def test_a_batch_keeps_its_run_and_what_is_kept_may_exceed_a_size(project: Path) -> None:
    command = ("batch", "echo.py", "drinks.csv", "--output", "out.jsonl")
    assert harness(*command, cwd=project).exit_code == 0
    (journal,) = (project / "traces").glob("2*.jsonl")
    prune = ("runs", "prune", "--older", "30d", "--size", "1KB", "--compress")
    age(project, journal.stem, 40)

    done = harness(*prune, cwd=project)

    assert_shown("runs prune", "a batch", done, masks={str(project): "/project", **SIZES})
    # Its journal is packed now, and the same command goes on from it.
    assert is_packed(journal)
    assert harness(*command, "--json", cwd=project).json["kept"] == 2
    (project / "drinks.csv").write_text("id,task\n1,tea\n2,milk\n3,coffee\n")
    further = harness(*command, "--json", cwd=project)
    assert (further.json["done"], further.json["kept"]) == (3, 2)

    (project / "out.jsonl.batch").unlink()
    age(project, journal.stem, 40)
    assert len(harness(*prune, "--json", cwd=project).json["removed"]) == 1
    assert not [*(project / "traces").glob(f"*{journal.stem}*")]


def test_packed_runs_are_read_by_every_command(project: Path) -> None:
    waiting = run(project, file="asks.py")
    first, second = run(project), run(project)
    commands = [
        ("runs", "diff", first, second),
        ("trace", "report", first),
        ("trace", "diagnose", waiting),
        ("trace", "check", waiting),
        ("trace", "show", "draft", waiting),
        ("graph", "asks.py", "--run", waiting),
        ("view", first, "--output", "page.html"),
        ("resume", waiting, "--dry-run"),
    ]
    before = [harness(*command, cwd=project) for command in commands]

    done = harness("runs", "prune", "--compress", cwd=project)

    assert_shown("runs prune", "packed", done, masks=SIZES)
    journals = (project / "traces").glob("2*.jsonl")
    assert all(map(is_packed, journals))
    assert [harness(*command, cwd=project) for command in commands] == before
    assert harness("resume", "latest", cwd=project).exit_code == 0
    answered = harness("resume", waiting, "--answer", "yes", cwd=project)
    assert (answered.exit_code, "TEA shipped" in answered.stdout) == (0, True)


@pytest.mark.parametrize(
    "options",
    [
        "--older 30",
        "--older -1d",
        "--size much",
        "--size 5",
        "--older 1d --traces nodir",
        "--keep good",
    ],
)
def test_mistakes_are_told_before_anything_goes(project: Path, options: str) -> None:
    run_id = run(project, age_days=99)
    done = harness("runs", "prune", *options.split(), cwd=project)
    assert done.exit_code == 2
    assert_shown("runs prune", f"refused: {options}", done.stderr)
    assert run_id in listed(project)


def test_kept_runs_are_named_with_the_reason(project: Path) -> None:
    run(project, file="asks.py", age_days=40)
    done = harness("runs", "prune", "--older", "1d", "--keep", "unfinished", cwd=project)
    assert_shown("runs prune", "an unfinished run is kept", done, masks=SIZES)


def test_a_folder_that_no_run_has_made_yet_is_no_mistake(tmp_path: Path) -> None:
    done = harness("runs", "prune", "--older", "1d", cwd=tmp_path)
    assert_shown("runs prune", "no folder", done)
