"""`harness run` as a person meets it: words in, words out, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.trace import load_run

COMMAND = Path(sys.executable).with_name("harness")

ECHO = """\
from harness import Pipeline

echo = Pipeline("echo")

@echo.node
def shout(task: str, times: int = 1) -> list[str]:
    return [task.upper()] * times
"""

ASKS = """\
from harness import Pipeline, Run

asks = Pipeline("asks")

@asks.node
async def answer(run: Run, task: str = "x") -> str:
    return await run.chat("producer", task)
"""


def harness(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "asks.py").write_text(ASKS)
    return tmp_path


def test_a_pipeline_runs_and_says_where_its_files_are(project: Path) -> None:
    done = harness("run", "echo.py", "--task", "tea", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "TEA" in done.stdout
    assert "traces/" in done.stdout
    assert len(list((project / "traces").glob("2*.jsonl"))) == 1


def test_json_output_is_one_object_and_nothing_else(project: Path) -> None:
    done = harness("run", "echo.py", "--task", "tea", "--set", "times=2", "--json", cwd=project)
    result = json.loads(done.stdout)
    assert result["result"] == ["TEA", "TEA"]
    assert result["outputs"] == {"shout": ["TEA", "TEA"]}
    assert result["passed"] is True
    assert Path(project, result["files"]["journal"]).is_file()
    assert done.stderr == ""


def test_a_value_can_come_from_a_file(project: Path) -> None:
    (project / "task.txt").write_text("grüße")
    done = harness("run", "echo.py", "--set", "task=@task.txt", "--json", cwd=project)
    assert json.loads(done.stdout)["result"] == ["GRÜSSE"]


def test_a_file_with_several_pipelines_is_run_by_name(project: Path) -> None:
    (project / "two.py").write_text(ECHO + 'other = Pipeline("other")\n')
    assert harness("run", "two.py:echo", "--task", "x", cwd=project).returncode == 0
    done = harness("run", "two.py", "--task", "x", cwd=project)
    assert done.returncode == 2
    assert "two.py:echo, two.py:other" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["nowhere.py"], "there is no file 'nowhere.py'", id="missing file"),
        pytest.param(["ehco.py"], "did you mean 'echo.py'", id="misspelt file"),
        pytest.param(["echo.py"], "needs 'task'", id="missing input"),
        pytest.param(["echo.py", "--set", "tsk=x"], "did you mean 'task'", id="unknown input"),
        pytest.param(["echo.py", "--set", "task"], "name=value", id="no value"),
        pytest.param(
            ["echo.py", "--task", "x", "--set", "task=y"], "gives 'task' twice", id="twice"
        ),
        pytest.param(
            ["echo.py", "--task", "x", "--set", "times=many"], "input 'times'", id="wrong type"
        ),
        pytest.param(["echo.py", "--set", "task=@no.txt"], "no.txt: ", id="missing value file"),
        pytest.param(["echo.py", "--set", "task=@empty.txt"], "is empty", id="empty file"),
        pytest.param(["echo.py", "--set", "task=@binary"], "binary file", id="binary file"),
        pytest.param(["echo.py", "--set", "task=@latin.txt"], "not UTF-8", id="other encoding"),
        pytest.param(
            ["echo.py", "--task", "x", "--config", "no.toml"], "no.toml: there is no", id="config"
        ),
        pytest.param(["syntax.py"], "syntax.py:2: ", id="syntax error"),
        pytest.param(["raises.py"], "raises.py:2: importing it failed: KeyError", id="import"),
        pytest.param(["exits.py"], 'if __name__ == "__main__"', id="exits on import"),
        pytest.param(["echo.py", "--role", "x"], "--role 'x' is not of the form", id="role"),
        pytest.param(["empty.py"], 'Pipeline("name")', id="no pipeline"),
        pytest.param(["cycle.py"], "cycle: b → a → b", id="cycle"),
        pytest.param(["notes.txt"], "ending .py", id="not python"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_exit_code_2(
    project: Path, arguments: list[str], said: str
) -> None:
    (project / "empty.txt").write_text(" \n")
    (project / "binary").write_bytes(b"\x00\x01")
    (project / "latin.txt").write_bytes("grüße".encode("latin-1"))
    (project / "syntax.py").write_text("x = 1\ndef f(:\n")
    (project / "raises.py").write_text("x = {}\nx['key']\n")
    (project / "empty.py").write_text("x = 1\n")
    (project / "exits.py").write_text("raise SystemExit(3)\n")
    (project / "notes.txt").write_text("x")
    (project / "cycle.py").write_text(
        'from harness import Pipeline\np = Pipeline("p")\n\n@p.node\ndef a(b: str) -> str: ...\n'
        "\n@p.node\ndef b(a: str) -> str: ...\n"
    )
    done = harness("run", *arguments, cwd=project)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_unreachable_endpoint_says_which_url_was_tried(project: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    done = harness(
        "run",
        "asks.py",
        cwd=project,
        environment={"HARNESS_ENDPOINTS": json.dumps({"a": {"url": url}})},
    )
    assert done.returncode == 1
    assert f"nothing answers at {url}/chat/completions" in done.stderr
    assert "is the server running" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_model_file_says_which(project: Path) -> None:
    (project / "harness.toml").write_text('[endpoints.a]\npath = "models/none.gguf"\n')
    done = harness("run", "asks.py", cwd=project)
    assert done.returncode == 2
    assert "models/none.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_producer_and_evaluator_on_one_model_are_refused_by_name(project: Path) -> None:
    endpoints = {
        "a": {"url": "http://h/v1", "model_id": "m"},
        "b": {"url": "http://i/v1", "model_id": "m"},
    }
    done = harness(
        "run",
        "asks.py",
        "--role",
        "producer=a",
        "--role",
        "evaluator=b",
        cwd=project,
        environment={"HARNESS_ENDPOINTS": json.dumps(endpoints)},
    )
    assert done.returncode == 2
    assert "producer 'a'" in done.stderr
    assert "evaluator 'b'" in done.stderr


def test_a_rubric_with_a_mistake_is_answered_by_its_line(project: Path) -> None:
    (project / "rubrics").mkdir()
    (project / "rubrics/mine.yaml").write_text("title: Mine\ndimensions:\n  - nmae: a\n")
    (project / "rubs.py").write_text(
        ASKS.replace('run.chat("producer", task)', 'run.wiggum(task, rubric="mine", draft="x")')
    )
    done = harness("run", "rubs.py", cwd=project)
    assert done.returncode == 2
    assert "rubrics/mine.yaml:3: 'nmae' is not allowed here; did you mean 'name'?" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "starter"),
    [
        pytest.param(signal.SIGINT, 130, [], id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, [], id="SIGTERM"),
        # As `harness run slow.py &` in a script: the shell has Ctrl-C ignored.
        pytest.param(
            signal.SIGTERM,
            143,
            ["sh", "-c", 'trap "" INT; exec "$@"', "sh"],
            id="in the background",
        ),
    ],
)
def test_an_interrupted_run_is_closed_as_far_as_it_came(
    project: Path, number: signal.Signals, code: int, starter: list[str]
) -> None:
    (project / "slow.py").write_text(
        "import asyncio\nfrom pathlib import Path\nfrom harness import Pipeline, Run\n"
        'slow = Pipeline("slow")\n'
        "@slow.node\ndef first() -> str:\n    return 'done'\n"
        "@slow.node\nasync def second(run: Run, first: str) -> str:\n"
        "    Path('started').touch()\n    await asyncio.sleep(60)\n    return 'never'\n"
    )
    with subprocess.Popen(
        [*starter, COMMAND, "run", "slow.py"],
        cwd=project,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 30
        while not (project / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == code
    assert "interrupted" in errors
    assert "Traceback" not in errors
    (journal,) = (project / "traces").glob("2*.jsonl")
    record = load_run(journal)
    assert [(output.node, output.value) for output in record.outputs] == [("first", "done")]
    assert record.ended is not None
    assert record.ended.status == "cancelled"
    assert journal.with_suffix(".pftrace").is_file()
    assert "CancelledError" in (project / "traces/runs.jsonl").read_text()


def test_help_answers_without_importing_the_engine() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom harness.cli.main import command\n"
        "result = CliRunner().invoke(command, ['--help'])\n"
        "assert result.exit_code == 0 and 'Run a pipeline file.' in result.output, result.output\n"
        "print([m for m in ('pydantic', 'httpx', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_unknown_command_is_exit_code_2(tmp_path: Path) -> None:
    assert harness("rnu", cwd=tmp_path).returncode == 2


def test_the_version_is_printed(tmp_path: Path) -> None:
    from harness import __version__

    assert harness("--version", cwd=tmp_path).stdout.strip().endswith(__version__)


def test_a_pipeline_file_may_bear_the_name_of_a_library(project: Path) -> None:
    (project / "asyncio.py").write_text(ECHO)
    done = harness("run", "asyncio.py", "--task", "x", "--json", cwd=project)
    assert json.loads(done.stdout)["result"] == ["X"]


def test_a_result_that_json_has_no_form_for_is_still_reported(project: Path) -> None:
    big = ECHO.replace("[task.upper()] * times", "[2**70]").replace("list[str]", "list[int]")
    (project / "big.py").write_text(big)
    done = harness("run", "big.py", "--task", "x", "--json", cwd=project)
    assert json.loads(done.stdout)["result"] == [str(2**70)]


def test_a_failure_is_reported_as_json_too_with_the_run_to_look_at(project: Path) -> None:
    (project / "fails.py").write_text(ECHO.replace("[task.upper()] * times", "1 / 0"))
    done = harness("run", "fails.py", "--task", "x", "--json", cwd=project)
    assert done.returncode == 1
    reported = json.loads(done.stdout)
    assert "ZeroDivisionError" in reported["error"]["message"]
    assert (project / "traces" / f"{reported['run_id']}.jsonl").is_file()
    assert reported["run_id"] in done.stderr
