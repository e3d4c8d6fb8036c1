"""Ctrl-C during a run on the real model, and of one whose model is on a server."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from demo import ROOT
from servers.emulated import Answer, Asked, Emulated

from harness import load_run
from harness.trace import Instant, Journal, SpanRecord

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).with_name("harness")
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
LONGEST_S = 10
"""It takes below 2 s on a machine that does nothing else."""

ASKS = """\
from harness import Pipeline, Run

asks = Pipeline("asks")

@asks.node
async def first(run: Run) -> str:
    return "done"

@asks.node
async def second(run: Run, first: str) -> str:
    return await run.chat("producer", "Go on for ever.")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    document = (tmp_path / "examples/documents/one-machine-two-models.md").read_text()
    _, *sections = document.split("\n\n## ")
    # Of three, the heading and a paragraph: enough for a brief, and little to read.
    short = ("\n\n".join(section.split("\n\n")[:2]) for section in sections[:3])
    (tmp_path / "short.md").write_text("# Models\n\n## " + "\n\n## ".join(short) + "\n")
    (tmp_path / "asks.py").write_text(ASKS)
    return tmp_path


def journal_in(project: Path) -> Path | None:
    """That of the only run, once it has begun."""
    found = [path for path in project.glob("traces/2*.jsonl") if "." not in path.stem]
    return found[0] if found else None


def harness(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def interrupt(project: Path, *, at: str, times: int) -> tuple[int, str, float]:
    """Runs the example and has it interrupted when its journal has said something so many times.

    Returns its exit code, its errors, and how many seconds it took to end.
    """
    with subprocess.Popen(
        [COMMAND, "run", "examples/brief.py", "--set", "document=@short.md"],
        cwd=project,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            journal = journal_in(project)
            if journal is not None and journal.read_bytes().count(at.encode()) >= times:
                break
            time.sleep(0.002)
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, errors, time.monotonic() - began_s


@pytest.mark.parametrize(
    ("at", "times"),
    [
        pytest.param('"name":"load"', 1, id="while the model loads"),
        pytest.param('"name":"chat"', 1, id="during the first prefill"),
        pytest.param('"name":"first token"', 1, id="during decoding"),
        pytest.param('"name":"revise"', 1, id="in the loop"),
    ],
)
def test_a_run_on_the_real_model_ends_at_once_and_goes_on_where_it_was(
    project: Path, at: str, times: int
) -> None:
    code, errors, took_s = interrupt(project, at=at, times=times)
    assert code == 130, errors
    assert took_s < LONGEST_S, f"it took {took_s:.1f} s to end"
    assert "Traceback" not in errors
    path = journal_in(project)
    assert path is not None
    assert f"resume {path.stem}" in errors
    checked = harness("trace", "check", "latest", cwd=project)
    assert (checked.returncode, "whole; the run ended: cancelled" in checked.stdout) == (0, True)

    done = harness("resume", "latest", "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    journal = Journal(path)
    (resumed_ns,) = (one.time_ns for one in journal.items() if is_resumption(one))
    spans = list(journal.spans())
    before = {label_of(one) for one in spans if one.status == "ok" and one.end_ns < resumed_ns}
    after = {label_of(one) for one in spans if one.start_ns >= resumed_ns}
    assert (before & after) - {None} == set()
    asked_before = {
        prompt_of(one) for one in spans if one.status == "ok" and one.end_ns < resumed_ns
    }
    asked_after = {prompt_of(one) for one in spans if one.start_ns >= resumed_ns}
    assert (asked_before & asked_after) - {None} == set()
    assert harness("trace", "check", "latest", cwd=project).returncode == 0


def is_resumption(item: object) -> bool:
    return isinstance(item, Instant) and item.name == "resumed"


def label_of(span: SpanRecord) -> object:
    """Which call of a node it is; None for other spans."""
    return span.attributes["label"] if span.name == "node" else None


def prompt_of(span: SpanRecord) -> object:
    """What a model was asked; None for other spans."""
    return span.attributes["prompt_sha256"] if span.name == "chat" else None


class Endless(Emulated):
    """Begins to answer, and does not end until its client has gone."""

    began: asyncio.Event
    gone: asyncio.Event

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"object": "list", "data": [{"id": "m", "object": "model"}]})
            return
        delta = {"index": 0, "delta": {"role": "assistant", "content": "On "}}
        chunk = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [delta]}
        await answer.start("text/event-stream")
        await answer.send(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.began.set()
        try:
            await answer.hold()
        finally:
            self.gone.set()


def test_nothing_goes_on_at_the_server_of_a_run_that_is_interrupted(project: Path) -> None:
    async def main() -> None:
        server = Endless()
        server.began, server.gone = asyncio.Event(), asyncio.Event()
        async with server:
            (project / "harness.toml").write_text(
                f'[roles]\nproducer = "far"\n\n[endpoints.far]\nurl = "{server.root}/v1"\n'
                'model_id = "m"\n'
            )
            process = await asyncio.create_subprocess_exec(
                *(COMMAND, "run", "asks.py"),
                cwd=project,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(60):
                    await server.began.wait()
                    process.send_signal(signal.SIGINT)
                    _, errors = await process.communicate()
                    await server.gone.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert process.returncode == 130, errors

    asyncio.run(main())
    path = journal_in(project)
    assert path is not None
    assert [output.node for output in load_run(path).outputs] == ["first"]
    assert harness("trace", "check", "latest", cwd=project).returncode == 0
