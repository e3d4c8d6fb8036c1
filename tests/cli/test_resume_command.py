"""`harness resume`, and what `harness run` says of a run that did not finish."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("harness")

ASKS = """\
from harness import Pipeline, Run

asks = Pipeline("asks")

@asks.node
def draft(task: str) -> str:
    with open("made", "a") as file:
        file.write("draft\\n")
    return task.upper()

@asks.node
async def ship(run: Run, draft: str) -> str:
    return f"{draft} shipped" if await run.ask("Ship this?", returns=bool) else f"{draft} kept"
"""

FAILS = """\
from pathlib import Path
from harness import Pipeline

fails = Pipeline("fails")

@fails.node(each={"word": "words"})
def loud(word: str) -> str:
    with open("made", "a") as file:
        file.write(f"{word}\\n")
    if word == "b" and not Path("mended").exists():
        raise ValueError("b is bad")
    return word.upper()

@fails.node
def joined(loud: list[str]) -> str:
    return " ".join(loud)
"""

RHYMES = """\
from harness import Pipeline, Run

rhymes = Pipeline("rhymes")

@rhymes.node(each={"word": "words"})
async def rhyme(run: Run, word: str, words: list[str] = ["sun", "moon", "sky"]) -> str:
    return await run.chat("producer", word)
"""

LEAVES = """\
import asyncio
import sys
from harness import Pipeline

leaves = Pipeline("leaves")

@leaves.node
def first() -> str: ...

@leaves.node
def quits() -> str:
    sys.exit(3)

@leaves.node
async def stubborn() -> str:
    while len(asyncio.all_tasks()) > 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""

SLOW = """\
import asyncio
from pathlib import Path
from harness import Pipeline

slow = Pipeline("slow")

@slow.node
def first() -> str:
    return "done"

@slow.node
async def second(first: str) -> str:
    Path("started").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return f"{first} at last"
"""


def harness(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_run_that_waits_says_what_to_type_and_goes_on_when_that_is_typed(project: Path) -> None:
    waiting = harness("run", "asks.py", "--task", "tea", cwd=project)
    assert waiting.returncode == 4
    assert "'ship' asks: Ship this? (yes or no)" in waiting.stdout
    typed = next(line for line in waiting.stderr.splitlines() if line.startswith("To answer: "))
    *_, run_id, option, answer = typed.split()
    assert (option, answer) == ("--answer", "yes")
    done = harness("resume", run_id, option, answer, cwd=project)
    assert done.returncode == 0, done.stderr
    assert "TEA shipped" in done.stdout
    assert "1 node call was done before, and none of them was made again." in done.stdout
    assert (project / "made").read_text() == "draft\n"


def test_a_waiting_runs_json_has_its_question_and_a_resumed_ones_what_it_did_not_repeat(
    project: Path,
) -> None:
    waiting = harness("run", "asks.py", "--task", "tea", "--json", cwd=project)
    assert waiting.returncode == 4
    said = json.loads(waiting.stdout)
    assert (said["status"], said["result"], said["passed"]) == ("waiting", None, False)
    (question,) = said["questions"]
    assert question["key"] == "ship/ask"
    done = harness("resume", "latest", "--answer", "ship/ask=no", "--json", cwd=project)
    result = json.loads(done.stdout)
    assert (result["status"], result["result"]) == ("finished", "TEA kept")
    assert (result["reused"], result["reruns"], result["parts"]) == (["draft"], [], 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--answer", "perhaps"], "'perhaps' is not yes or no", id="answer's kind"),
        pytest.param(["--answer", "yes", "--answer", "no"], "answers 'ship/ask' twice", id="twice"),
        pytest.param(["--set", "tsk=x"], "did you mean 'task'", id="input"),
        pytest.param(["--file", "fails.py"], "and not of 'fails'", id="another pipeline"),
        pytest.param(["--max-tokens", "0"], "not in the range", id="limit"),
    ],
)
def test_a_mistake_is_answered_before_anything_runs(
    project: Path, arguments: list[str], said: str
) -> None:
    harness("run", "asks.py", "--task", "tea", cwd=project)
    before = {path: path.read_bytes() for path in (project / "traces").iterdir()}
    done = harness("resume", "latest", *arguments, cwd=project)
    assert done.returncode == 2
    assert said in done.stderr
    assert {path: path.read_bytes() for path in (project / "traces").iterdir()} == before


def test_a_run_that_does_not_exist_is_answered_by_those_that_do(project: Path) -> None:
    done = harness("resume", "nothing", cwd=project)
    assert done.returncode == 2
    assert "there are no runs in 'traces'" in done.stderr


def test_an_answer_to_nothing_is_refused(project: Path) -> None:
    harness("run", "fails.py", "--set", 'words=["b"]', cwd=project)
    done = harness("resume", "latest", "--answer", "yes", cwd=project)
    assert done.returncode == 2
    assert "asks nothing that waits for an answer" in done.stderr


def test_a_failed_run_says_what_failed_and_what_was_left_out_and_can_be_resumed(
    project: Path,
) -> None:
    failed = harness("run", "fails.py", "--set", 'words=["a", "b", "c"]', cwd=project)
    assert failed.returncode == 1
    assert "node 'loud[1]' failed: ValueError: b is bad (fails.py:11)" in failed.stderr
    assert "joined: 'loud[1]' failed" in failed.stderr
    assert "Traceback" not in failed.stderr
    (project / "mended").touch()
    (project / "made").unlink()
    done = harness("resume", "latest", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "A B C" in done.stdout
    assert "2 node calls were done before" in done.stdout
    assert (project / "made").read_text() == "b\n"


def test_a_failed_runs_json_has_the_error_and_all_the_rest(project: Path) -> None:
    failed = harness("run", "fails.py", "--set", 'words=["a", "b"]', "--json", cwd=project)
    assert failed.returncode == 1
    said = json.loads(failed.stdout)
    assert said["error"]["type"] == "NodeFailed"
    assert said["status"] == "failed"
    assert said["failures"] == [
        {"node": "loud[1]", "type": "ValueError", "message": "b is bad", "attempts": 1}
    ]
    assert said["skips"] == [
        {"node": "joined", "reason": "'loud[1]' failed", "because_of": "loud[1]"}
    ]


def test_what_is_made_again_is_said_with_the_reason(project: Path) -> None:
    (project / "mended").touch()
    harness("run", "fails.py", "--set", 'words=["a", "b"]', cwd=project)
    (project / "fails.py").write_text(FAILS.replace('" ".join', '" and ".join'))
    done = harness("resume", "latest", cwd=project)
    assert "A and B" in done.stdout
    assert "2 node calls were done before; made again:" in done.stdout
    assert "joined: its code changed" in done.stdout


def test_a_finished_run_that_is_resumed_runs_nothing_and_says_so(project: Path) -> None:
    (project / "mended").touch()
    harness("run", "fails.py", "--set", 'words=["a"]', cwd=project)
    done = harness("resume", "latest", cwd=project)
    assert done.returncode == 0
    assert "A\n" in done.stdout
    assert "The run had finished: nothing was left to do." in done.stdout
    assert (project / "made").read_text() == "a\n"


def test_a_run_stopped_at_a_limit_has_an_exit_code_of_its_own(project: Path) -> None:
    stopped = harness("run", "slow.py", "--max-seconds", "0.2", cwd=project)
    assert stopped.returncode == 3
    assert "Stopped: " in stopped.stdout
    assert "second: " in stopped.stdout
    typed = next(line for line in stopped.stderr.splitlines() if line.startswith("To go on"))
    assert "resume 2" in typed
    assert typed.endswith(" --max-seconds …")
    said = json.loads(harness("resume", "latest", "--json", cwd=project).stdout)
    assert (said["status"], said["outputs"]) == ("stopped", {"first": "done"})
    (project / "go").touch()
    done = harness("resume", "latest", "--max-seconds", "60", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "done at last" in done.stdout


def test_what_a_limit_stopped_is_listed_and_the_limit_is_said_once(project: Path) -> None:
    (project / "rhymes.py").write_text(RHYMES)
    (project / "harness.toml").write_text(
        '[roles]\nproducer = "far"\n\n'
        '[endpoints.far]\nurl = "http://127.0.0.1:9/v1"\nmodel_id = "m"\n'
    )
    stopped = harness("run", "rhymes.py", "--max-tokens", "2", cwd=project)
    assert stopped.returncode == 3, stopped.stderr
    assert "  rhyme[0]: was stopped by a limit\n" in stopped.stdout
    assert "  rhyme[2]: was stopped by a limit\n" in stopped.stdout
    assert stopped.stdout.count("max_tokens = 2") == 1


def test_a_node_that_ends_the_process_ends_the_run_and_not_with_its_exit_code(
    project: Path,
) -> None:
    (project / "leaves.py").write_text(LEAVES)
    done = harness("run", "leaves.py", cwd=project)
    assert done.returncode == 1
    assert "leaves.py:12: quits ended the run with sys.exit(3); let a node" in done.stderr
    assert "Traceback" not in done.stderr
    assert "resume 2" in done.stderr
    said = json.loads(harness("resume", "latest", "--json", cwd=project).stdout)
    assert said["status"] == "failed"
    assert said["error"] == {"type": "SystemExit", "message": "3"}
    assert "SystemExit: 3" in harness("trace", "report", cwd=project).stdout


@pytest.mark.parametrize("as_json", [False, True], ids=["for people", "as JSON"])
def test_an_interrupted_run_says_how_to_go_on_and_does(project: Path, *, as_json: bool) -> None:
    with subprocess.Popen(
        [COMMAND, "run", "slow.py", *(["--json"] if as_json else [])],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(project / "started")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "resume 2" in errors
    if as_json:
        said = json.loads(output)
        assert (said["status"], said["error"]["message"]) == ("cancelled", "interrupted")
    (project / "go").touch()
    done = harness("resume", "latest", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "done at last" in done.stdout


def test_a_killed_run_is_resumed_from_another_directory_with_its_own_settings(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "harness.toml").write_text('traces = "runs"\n')
    with subprocess.Popen([COMMAND, "run", "slow.py"], cwd=project) as process:
        wait_for(project / "started")
        process.kill()
    (project / "go").touch()
    (journal,) = (one for one in (project / "runs").glob("2*.jsonl"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "go").touch()
    done = harness("resume", str(journal), "--json", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == "done at last"
    assert json.loads(done.stdout)["reused"] == ["first"]
    assert not (elsewhere / "traces").exists()


@pytest.mark.parametrize("file", ["asks.py", "fails.py"])
def test_what_is_said_to_be_typed_finds_a_run_that_landed_elsewhere(
    project: Path, file: str
) -> None:
    (project / "other").mkdir()
    (project / "other/harness.toml").write_text('traces = "my runs"\n')
    given = ["--task", "tea"] if file == "asks.py" else ["--set", 'words=["b"]']
    ended = harness("run", file, *given, "--config", "other/harness.toml", cwd=project)
    assert ended.returncode == (4 if file == "asks.py" else 1)
    (said,) = (line for line in ended.stderr.splitlines() if "resume 2" in line)
    typed = shlex.split(said[said.index("resume 2") :].rstrip(")"))
    (project / "mended").touch()
    assert harness(*typed, cwd=project).returncode == 0


def test_a_pipeline_that_moved_is_named_anew(project: Path) -> None:
    harness("run", "asks.py", "--task", "tea", cwd=project)
    (project / "asks.py").rename(project / "moved.py")
    lost = harness("resume", "latest", "--answer", "yes", cwd=project)
    assert lost.returncode == 2
    assert "there is no file" in lost.stderr
    assert "--file" in lost.stderr
    done = harness("resume", "latest", "--answer", "yes", "--file", "moved.py", cwd=project)
    assert "TEA shipped" in done.stdout


def test_a_run_from_python_needs_its_file(project: Path) -> None:
    (project / "start.py").write_text("import asks\nasks.asks.run(task='tea')\n")
    subprocess.run([sys.executable, "start.py"], cwd=project, check=True, timeout=60)
    done = harness("resume", "latest", "--answer", "yes", cwd=project)
    assert done.returncode == 2
    assert "--file FILE.py" in done.stderr
    done = harness("resume", "latest", "--answer", "yes", "--file", "asks.py", cwd=project)
    assert "TEA shipped" in done.stdout


def test_a_node_that_ignores_its_end_does_not_keep_the_command(project: Path) -> None:
    (project / "stubborn.py").write_text(
        "import asyncio\nfrom harness import Pipeline, Timeout\n"
        'stubborn = Pipeline("stubborn")\n'
        "@stubborn.node(timeout=Timeout(total_s=0.1))\nasync def hang() -> str:\n"
        "    while True:\n        try:\n            await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError:\n            pass\n"
    )
    began_s = time.monotonic()
    done = harness("run", "stubborn.py", cwd=project)
    assert done.returncode == 1
    assert "took longer than total_s = 0.1 s" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Task was destroyed" not in done.stderr
    assert time.monotonic() - began_s < 20


class Terminal:
    """The command on a pseudo-terminal, and what it shows there."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [COMMAND, *arguments],
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str | None) -> None:
        """Types a text, or Ctrl-C for None: a terminal that controls nobody sends no signal."""
        if text is None:
            self._process.send_signal(signal.SIGINT)
        else:
            os.write(self._master, text.encode())

    def until(self, is_there: Callable[[str], bool]) -> None:
        """Reads until something is shown, or the command has ended."""
        deadline = time.monotonic() + 30
        while not is_there(self.shown) and time.monotonic() < deadline:
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            try:
                self.shown += os.read(self._master, 4096).decode()
            except OSError:
                return

    def end(self) -> int:
        self.until(lambda _: False)
        os.close(self._master)
        return self._process.wait(timeout=30)


@pytest.mark.parametrize(
    ("typed", "code", "shown"),
    [
        pytest.param(["perhaps\n", "yes\n"], 0, "TEA shipped", id="after a slip"),
        pytest.param(["\x04"], 4, "To answer: ", id="Ctrl-D"),
        pytest.param([None], 130, "interrupted", id="Ctrl-C"),
    ],
)
def test_on_a_terminal_a_question_is_asked_at_once(
    project: Path, typed: list[str | None], code: int, shown: str
) -> None:
    terminal = Terminal("run", "asks.py", "--task", "tea", cwd=project)
    for number, text in enumerate(typed, start=1):
        terminal.until(lambda so_far, n=number: so_far.count("(yes or no) ") >= n)
        terminal.type(text)
    assert terminal.end() == code, terminal.shown
    assert shown in terminal.shown
    assert ("'perhaps' is not yes or no" in terminal.shown) == (len(typed) == 2)
