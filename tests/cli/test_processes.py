"""What only a process of its own shows: signals, kills, and the real model."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from command import COMMAND, ENVIRONMENT, harness, interrupt, serving
from demo import ROOT
from pipelines import CHATS, WAITS
from sample_runs import load_run
from servers.emulated import Answer, Asked, Emulated

from harness.trace import Instant, Journal, SpanRecord

LONGEST_S = 10
"""From Ctrl-C to the end; below 2 s on a machine that does nothing else."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "chats.py").write_text(CHATS)
    (tmp_path / "waits.py").write_text(WAITS)
    return tmp_path


def journal_in(project: Path) -> Path | None:
    """That of the only run, once it has begun."""
    found = [path for path in project.glob("traces/2*.jsonl") if "." not in path.stem]
    return found[0] if found else None


def started(*command: str | Path, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""As `harness run … &` in a script: the shell has Ctrl-C ignored."""


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        pytest.param([COMMAND], signal.SIGINT, 130, id="Ctrl-C"),
        pytest.param(
            [*IN_THE_BACKGROUND, COMMAND],
            signal.SIGTERM,
            143,
            id="SIGTERM in the background",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_interrupted_run_ends_with_the_signals_exit_code(
    project: Path, command: list[str | Path], number: signal.Signals, code: int
) -> None:
    process = started(*command, "run", "waits.py", cwd=project, SIGNAL=str(int(number)))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert errors.startswith("interrupted\n")
    journal = journal_in(project)
    assert journal is not None
    ended = load_run(journal).ended
    assert ended is not None
    assert ended.status == "cancelled"


@pytest.mark.slow
def test_a_killed_run_is_resumed_from_another_directory_with_its_own_settings(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "harness.toml").write_text('traces = "runs"\n')
    process = started(COMMAND, "run", "waits.py", cwd=project, SIGNAL=str(int(signal.SIGKILL)))
    process.communicate(timeout=120)
    (journal,) = (project / "runs").glob("2*.jsonl")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "go").touch()
    done = harness("resume", journal, "--json", cwd=elsewhere)
    assert done.exit_code == 0, done.stderr
    assert (done.json["result"], done.json["reused"]) == ("done at last", ["first"])
    assert not (elsewhere / "traces").exists()


# --- a server ------------------------------------------------------------------------------------


class Endless(Emulated):
    """Begins to answer, interrupts the command, and does not end until its client has gone."""

    gone = threading.Event()

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"object": "list", "data": [{"id": "m", "object": "model"}]})
            return
        delta = {"index": 0, "delta": {"role": "assistant", "content": "On "}}
        chunk = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [delta]}
        await answer.start("text/event-stream")
        await answer.send(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        interrupt()
        try:
            await answer.hold()
        finally:
            self.gone.set()


def test_nothing_goes_on_at_the_server_of_a_run_that_is_interrupted(project: Path) -> None:
    with serving(Endless()) as server:
        endpoints = {"far": {"url": f"{server.root}/v1", "model_id": "m"}}
        words = ("--set", 'words=["sun"]', "--role", "producer=far")
        done = harness("run", "chats.py", *words, cwd=project, endpoints=endpoints)
        assert server.gone.wait(30)
    assert done.exit_code == 130
    assert harness("trace", "report", "latest", "--json", cwd=project).json["status"] == "cancelled"


# --- the real model ------------------------------------------------------------------------------


@pytest.fixture
def brief(tmp_path: Path) -> Path:
    """A directory with the example and a short document."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    document = (tmp_path / "examples/documents/one-machine-two-models.md").read_text()
    _, *sections = document.split("\n\n## ")
    # Of three, the heading and a paragraph: enough for a brief, and little to read.
    short = ("\n\n".join(section.split("\n\n")[:2]) for section in sections[:3])
    (tmp_path / "short.md").write_text("# Models\n\n## " + "\n\n## ".join(short) + "\n")
    # No first draft passes, so that there is a revision to be interrupted.
    rubric = (ROOT / "rubrics/brief.yaml").read_text()
    assert "pass_at: 9\n" in rubric
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics/brief.yaml").write_text(rubric.replace("pass_at: 9\n", "pass_at: 10\n"))
    return tmp_path


def interrupted(project: Path, *command: str, at: str) -> tuple[int, str]:
    """Has a command interrupted once a journal of the run has said something.

    Returns its exit code and its errors.
    """
    with started(COMMAND, *command, cwd=project) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            # A part that was resumed has a file of its own.
            if any(at.encode() in part.read_bytes() for part in project.glob("traces/2*.jsonl")):
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=LONGEST_S)
        finally:
            process.kill()
        return process.returncode, errors


@pytest.mark.slow
def test_a_run_on_the_real_model_ends_at_once_and_goes_on_where_it_was(brief: Path) -> None:
    begin = ("run", "examples/brief.py", "--set", "document=@short.md")
    for command, at in (
        (begin, '"name":"chat"'),  # during the first prefill
        (("resume", "latest"), '"name":"revise"'),  # in the loop
    ):
        code, errors = interrupted(brief, *command, at=at)
        assert code == 130, errors
        assert "Traceback" not in errors
        path = journal_in(brief)
        assert path is not None
        assert f"{path.stem}.jsonl" in errors
        assert Journal(path).ended

    done = harness("resume", "latest", "--json", cwd=brief)
    assert done.exit_code == 0, done.stderr
    journal = Journal(path)
    resumed_ns = [
        one.time_ns for one in journal.items() if isinstance(one, Instant) and one.name == "resumed"
    ]
    assert len(resumed_ns) == 2
    spans = list(journal.spans())
    for moment_ns in resumed_ns:
        before = [one for one in spans if one.status == "ok" and one.end_ns < moment_ns]
        after = [one for one in spans if one.start_ns >= moment_ns]
        assert set(map(work_of, before)) & set(map(work_of, after)) <= {None}


def work_of(span: SpanRecord) -> object:
    """Which call of a node it is, or what a model was asked; None for other spans."""
    if span.name == "chat":  # of a candidate, whose neighbours have the same prompt
        return span.attributes["prompt_sha256"], span.attributes["seed"]
    return span.attributes["label"] if span.name == "node" else None
