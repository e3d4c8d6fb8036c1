"""`harness resume`, and what `harness run` says of a run that did not finish."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from command import Done, harness
from golden import assert_shown
from pipelines import ASKS, FAILS, WAITS

from harness import NodeFailed, Pipeline, Run, ScriptedBackend, Settings
from harness.cli.project_files import load_pipeline
from harness.session import Origin

LEAVES = """\
import sys
from harness import Pipeline

leaves = Pipeline("leaves")

@leaves.node
def first() -> str: ...

@leaves.node
def quits() -> str:
    sys.exit(3)
"""

REMEMBERS = """\
from pathlib import Path
from harness import Pipeline, Run

remembers = Pipeline("remembers")

@remembers.node
async def kept(run: Run, note: str) -> int:
    return len(await run.remember(note))

@remembers.node
async def found(run: Run, kept: int) -> list[str]:
    if not Path("mended").exists():
        raise ValueError("not yet")
    return [hit.text for hit in await run.recall("how long does green tea steep")]
"""
TEA = "Steep green tea for three minutes."

DECIDES = """\
from typing import Literal
from pydantic import BaseModel
from harness import Pipeline, Run

class Decision(BaseModel):
    action: Literal["approve", "reject"]
    why: str = ""

decides = Pipeline("decides")

@decides.node
async def decision(run: Run) -> str:
    return (await run.ask("Ship it?", returns=Decision)).action
"""

FILES = {
    "decides.py": DECIDES,
    "asks.py": ASKS,
    "fails.py": FAILS,
    "waits.py": WAITS,
    "leaves.py": LEAVES,
    "remembers.py": REMEMBERS,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def asks(project: Path, *options: str) -> Done:
    return harness("run", "asks.py", "--task", "tea", *options, cwd=project)


def fails(project: Path, *options: str, words: str = '["a", "b", "c"]') -> Done:
    return harness("run", "fails.py", "--set", f"words={words}", *options, cwd=project)


def resumed(project: Path, *options: str, run: str = "latest") -> Done:
    return harness("resume", run, *options, cwd=project)


# --- a run that waits ----------------------------------------------------------------------------


def test_a_run_that_waits_says_what_to_type_and_goes_on_when_that_is_typed(project: Path) -> None:
    waiting = asks(project)
    assert_shown("resume", "waiting", waiting)
    typed = next(line for line in waiting.stderr.splitlines() if line.startswith("To answer: "))
    *_, run_id, option, answer = typed.split()
    assert (option, answer) == ("--answer", "yes")
    said = resumed(project, "--json").json
    assert (said["status"], said["result"], said["passed"]) == ("waiting", None, False)
    assert [one["key"] for one in said["questions"]] == ["ship/ask"]
    result = resumed(project, "--answer", "ship/ask=yes", "--json", run=run_id).json
    assert (result["status"], result["result"]) == ("finished", "TEA shipped")
    assert (result["reused"], result["reruns"], result["parts"]) == (["draft"], [], 3)
    assert (project / "made").read_text() == "draft\n"


@pytest.mark.parametrize(
    ("typed", "environment", "code", "result"),
    [
        pytest.param("perhaps\nyes\n", {}, 0, "TEA shipped\n", id="after a slip"),
        pytest.param("\x04", {}, 4, "", id="Ctrl-D"),
        pytest.param("", {"SIGNAL": "2"}, 130, "", id="Ctrl-C"),
    ],
)
def test_on_a_terminal_a_question_is_asked_at_once(
    project: Path, typed: str, environment: dict[str, str], code: int, result: str
) -> None:
    task = ("--task", "tea")
    done = harness("run", "asks.py", *task, cwd=project, typed=typed, **environment)
    assert (done.exit_code, done.stdout) == (code, result), done.stderr
    assert done.stderr.count("(yes or no) ") == max(1, len(typed.splitlines()))


FIELDS = '(JSON of Decision: {"action": "approve" or "reject", "why": text (may be left out)})'
SLIP = '{"action": "aprove"}'
MISTAKE = f"'{SLIP}' is not JSON of Decision: action: Input should be 'approve' or 'reject'"


def test_a_question_for_a_model_shows_its_fields_and_names_the_field_of_a_mistake(
    project: Path,
) -> None:
    typed = f'{SLIP}\n{{"action": "reject"}}\n'
    done = harness("run", "decides.py", cwd=project, typed=typed)
    assert (done.exit_code, done.stdout) == (0, "reject\n"), done.stderr
    assert done.stderr.count(FIELDS) == 2
    assert MISTAKE in done.stderr

    (question,) = harness("run", "decides.py", "--json", cwd=project).json["questions"]
    assert question["form"] == "JSON of Decision"
    assert question["schema"]["properties"]["action"]["enum"] == ["approve", "reject"]
    (again,) = resumed(project, "--answer", SLIP, "--json").json["questions"]
    assert (again["schema"], again["problem"]) == (question["schema"], MISTAKE)
    told = resumed(project, "--answer", SLIP).stderr
    assert FIELDS in told
    assert MISTAKE in told


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--answer perhaps", "answer.invalid"),
        ("--answer yes --answer no", "option.given-twice"),
        ("--file fails.py", "resume.other-pipeline"),
    ],
)
def test_a_mistake_is_answered_before_anything_runs(
    project: Path, arguments: str, code: str
) -> None:
    asks(project)
    before = {path: path.read_bytes() for path in (project / "traces").iterdir()}
    done = resumed(project, *arguments.split(), "--json")
    assert done.exit_code == 2
    assert done.code.startswith(code), done.code
    assert_shown("resume", f"refused: {arguments}", done.stderr)
    assert {path: path.read_bytes() for path in (project / "traces").iterdir()} == before


def test_what_cannot_be_resumed_is_said(project: Path) -> None:
    assert resumed(project, "--max-tokens", "0").exit_code == 2
    assert resumed(project, "--json", run="nothing").code == "run.none-yet"
    fails(project)
    unasked = resumed(project, "--answer", "yes", "--json")
    assert (unasked.exit_code, unasked.code) == (2, "answer.none-asked")


# --- a run that failed ---------------------------------------------------------------------------


def test_a_failed_run_says_what_failed_and_what_was_left_out_and_can_be_resumed(
    project: Path,
) -> None:
    failed = fails(project, "--json")
    said = failed.json
    assert (failed.exit_code, failed.code, said["status"]) == (1, "node.failed", "failed")
    (failure,) = said["failures"]
    assert (failure["node"], failure["type"], failure["code"]) == ("loud[1]", "ValueError", None)
    (skip,) = said["skips"]
    assert (skip["node"], skip["because_of"]) == ("joined", "loud[1]")
    assert_shown("resume", "failed", resumed(project))
    (project / "mended").touch()
    (project / "made").unlink()
    assert_shown("resume", "resumed after a failure", resumed(project))
    assert (project / "made").read_text() == "b\n"


def test_a_finished_run_that_is_resumed_runs_only_what_changed_and_says_so(project: Path) -> None:
    (project / "mended").touch()
    fails(project)
    assert_shown("resume", "finished", resumed(project))
    (project / "fails.py").write_text(FAILS.replace('" ".join', '" and ".join'))
    assert_shown("resume", "finished and changed", resumed(project))
    assert sorted((project / "made").read_text().split()) == ["a", "b", "c"]


def test_a_node_that_ends_the_process_ends_the_run_and_not_with_its_exit_code(
    project: Path,
) -> None:
    done = harness("run", "leaves.py", cwd=project)
    assert_shown("resume", "left by sys.exit", done)
    said = resumed(project, "--json").json
    assert said["status"] == "failed"
    assert said["error"]["code"] == "run.left"
    assert "SystemExit: 3" in harness("trace", "report", cwd=project).stdout


# --- a run that was stopped or interrupted -------------------------------------------------------


def test_a_run_stopped_at_a_limit_has_an_exit_code_of_its_own(project: Path) -> None:
    (project / "harness.toml").write_text("[limits]\nmax_seconds = 0.2\n", encoding="utf-8")
    # No option raises what the settings say.
    assert "--max-seconds" not in harness("run", "waits.py", cwd=project).stderr
    (project / "harness.toml").unlink()
    stopped = harness("run", "waits.py", "--max-seconds", "0.2", cwd=project)
    assert_shown("resume", "stopped", stopped)
    again = resumed(project, "--max-seconds", "0.2", "--json")
    assert again.json["status"] == "stopped"
    (project / "go").touch()
    done = resumed(project, "--max-seconds", "600")
    assert (done.exit_code, done.stdout) == (0, "done at last\n"), done.stderr


# --- from elsewhere ------------------------------------------------------------------------------


@pytest.mark.parametrize(("here", "there"), [("", "my runs"), ("our runs", "")])
def test_what_is_said_to_be_typed_finds_a_run_that_landed_elsewhere(
    project: Path, here: str, there: str
) -> None:
    (project / "other").mkdir()
    for folder, traces in (("other", there), (".", here)):
        (project / folder / "harness.toml").write_text(traces and f'traces = "{traces}"')
    ended = asks(project, "--config", "other/harness.toml")
    (said,) = (line for line in ended.stderr.splitlines() if "resume " in line)
    typed = shlex.split(said[said.index("resume ") :])
    assert harness(*typed, cwd=project).exit_code == 0


def test_a_pipeline_that_moved_is_named_anew(project: Path) -> None:
    asks(project)
    (project / "asks.py").rename(project / "moved.py")
    lost = resumed(project, "--answer", "yes", "--json")
    assert (lost.exit_code, lost.code) == (2, "run.file-gone")
    done = resumed(project, "--answer", "yes", "--file", "moved.py")
    assert done.stdout == "TEA shipped\n"


def test_a_run_from_python_needs_its_file(project: Path) -> None:
    pipeline = Pipeline("asks")

    @pipeline.node
    def draft(task: str) -> str:
        return task.upper()

    @pipeline.node
    async def ship(run: Run, draft: str) -> bool:
        return await run.ask("Ship this?", returns=bool)

    settings = Settings(traces=project / "traces")
    asyncio.run(pipeline.run_async({"task": "tea"}, settings=settings))
    unknown = resumed(project, "--answer", "yes", "--json")
    assert (unknown.exit_code, unknown.code) == (2, "run.file-unknown")
    done = resumed(project, "--answer", "yes", "--file", "asks.py")
    assert done.stdout == "TEA shipped\n"


# --- with a memory -------------------------------------------------------------------------------


def remembers(project: Path, *options: str, note: str = TEA) -> Done:
    inputs = ("--set", f"note={note}", "--json", *options)
    return harness("run", "remembers.py", *inputs, cwd=project)


def test_a_second_run_finds_what_the_first_kept_where_the_option_says(project: Path) -> None:
    (project / "mended").touch()
    (project / "harness.toml").write_text('[memory]\npath = "other"\n')
    assert remembers(project, "--memory", "shelf").json["result"] == [TEA]
    assert TEA in remembers(project, "--memory", "shelf", note="Bread rises twice.").json["result"]
    assert (project / "shelf").is_dir()
    assert not (project / "other").exists()


def test_a_resumed_run_has_the_memory_that_it_was_begun_with(project: Path) -> None:
    assert remembers(project, "--memory", "shelf").exit_code == 1
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mended").touch()
    given = ("--traces", str(project / "traces"), "--json")
    assert resumed(elsewhere, *given).json["result"] == [TEA]
    assert not (elsewhere / "shelf").exists()


def test_a_journal_sends_nothing_to_a_server_without_leave(project: Path) -> None:
    typed = ("--memory", "postgresql://127.0.0.1:9/m")
    assert remembers(project, *typed).exit_code != 0  # there is no server, or no client for it
    refused = resumed(project, "--json")
    assert (refused.exit_code, refused.code) == (2, "trust.key-not-allowed")
    assert resumed(project, *typed, "--json").code != refused.code


def test_a_run_with_a_damaged_line_goes_on_from_what_is_certain(project: Path) -> None:
    harness("run", "fails.py", "--set", 'words=["a", "b"]', cwd=project)
    (journal,) = (project / "traces").glob("2*.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b'"value":"A"', b'"value":"E"'))
    (project / "mended").touch()
    refused = harness("resume", "latest", "--json", cwd=project)
    assert refused.code == "journal.invalid"
    (goes_on,) = re.findall(r"'harness ([^']*)'", refused.json["error"]["message"])

    done = harness(*shlex.split(goes_on), "--json", cwd=project)

    assert (done.exit_code, done.json["result"]) == (0, "A B")
    assert [one["code"] for one in done.json["warnings"]] == ["resume.salvaged"]


# --- what would be made again --------------------------------------------------------------------

MUCH = """\
from harness import Pipeline, Run

much = Pipeline("much")

@much.node
async def asked(run: Run) -> str:
    return await run.chat("producer", "word " * 60_000)

@much.node
def last(asked: str) -> str:
    raise OSError(asked)
"""


@pytest.fixture
def much(project: Path) -> Path:
    """A project with a failed run that took many tokens, and whose code was edited since."""
    file = project / "much.py"
    file.write_text(MUCH)
    run = load_pipeline(str(file)).run_async(
        {},
        settings=Settings(traces=project / "traces"),
        backends={"producer": ScriptedBackend(["yes"])},
        origin=Origin(target=str(file)),
    )
    with pytest.raises(NodeFailed):
        asyncio.run(run)
    file.write_text(MUCH.replace("word ", "other "))
    return project


def test_a_dry_run_says_what_would_be_made_again_and_why_and_what_it_took(much: Path) -> None:
    files = sorted((much / "traces").iterdir())

    (again,) = resumed(much, "--dry-run", "--json").json["made_again"]
    shown = resumed(much, "--dry-run")

    assert again.pop("reason").startswith("its code changed: 'asked' (much.py:5)")
    took = {"calls": 1, "input_tokens": 60_000, "output_tokens": 1, "cost_usd": None}
    assert again == {"node": "asked", "steps": [], "failed": False, **took}
    assert_shown("resume", "a dry run", shown)
    assert sorted((much / "traces").iterdir()) == files


def test_a_dry_run_lists_nodes_that_were_renamed_and_new_ones(much: Path) -> None:
    added = "\n@much.node\ndef more(last: str) -> str: ...\n"
    (much / "much.py").write_text(MUCH.replace("asked", "question") + added)
    (much / "harness.toml").write_text('[endpoints.producer]\nbackend = "scripted"\n')

    found = resumed(much, "--dry-run", "--json").json
    shown = resumed(much, "--dry-run")

    assert (found["made_again"], found["new"]) == ([], ["more"])
    assert found["renamed"] == {"question": "asked"}
    assert_shown("resume", "a dry run with a renamed node", shown)


def test_much_is_not_made_again_unasked(much: Path) -> None:
    refused = resumed(much, "--json")
    assert (refused.exit_code, refused.code) == (2, "resume.not-confirmed")

    # As far as the model that the settings do not have.
    assert resumed(much, "--yes", "--json").code == "node.failed"
