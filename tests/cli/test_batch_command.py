"""`harness batch`: tables in; outputs, failures and figures out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from command import NOBODY, harness, serving
from golden import assert_shown
from pipelines import ECHO
from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer

from harness import ScriptedBackend, Settings
from harness.cli.progress import _PERIOD_S
from harness.cli.project_files import load_pipeline

PICKY = """\
import os
import signal
from pathlib import Path
from harness import Pipeline

picky = Pipeline("picky")

@picky.node
def step(task: str) -> str:
    if "SIGNAL" in os.environ and task == "milk":
        signal.raise_signal(int(os.environ["SIGNAL"]))
    if task == "milk" and not Path("mended").exists():
        raise ValueError("milk is off")
    return task.upper()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "picky.py").write_text(PICKY)
    (tmp_path / "drinks.csv").write_text("id,task\n1,tea\n2,milk\n3,green tea\n")
    return tmp_path


def lines(path: Path) -> dict[str, object]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {one["id"]: one["output"] for one in found}


def test_rows_that_fail_are_told_and_tried_again(project: Path) -> None:
    first = harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    assert_shown("batch", "a row fails", first)
    assert lines(project / "out.jsonl") == {"1": "TEA", "3": "GREEN TEA"}

    (project / "mended").touch()
    again = harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    assert_shown("batch", "the failed row again", again)
    done = harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    assert_shown("batch", "nothing left to do", done)
    assert not (project / "out.jsonl.failures.jsonl").exists()


@pytest.mark.parametrize(("number", "code"), [("2", 130), ("15", 143)])
def test_an_interrupted_batch_says_as_json_what_its_output_has(
    project: Path, number: str, code: int
) -> None:
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", "--max-parallel", "1")
    ended = harness(*command, "--json", cwd=project, SIGNAL=number)
    assert (ended.exit_code, ended.code) == (code, "run.interrupted")
    assert (ended.json["status"], ended.json["output"]) == ("cancelled", "out.jsonl")
    assert ended.json["done"] == len(lines(project / "out.jsonl"))
    assert (project / "traces" / f"{ended.json['run_id']}.jsonl").is_file()


def test_an_interrupted_batch_says_how_to_go_on(project: Path) -> None:
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.csv", "--max-parallel", "1")
    ended = harness(*command, cwd=project, SIGNAL="15")
    assert_shown("batch", "terminated", ended)
    (project / "mended").touch()
    again = harness(*command, "--json", cwd=project).json
    assert (again["done"], again["status"]) == (3, "finished")


SHORT = """\
from harness import Pipeline, Run

short = Pipeline("short")

@short.node
async def kept(run: Run, task: str) -> str:
    return (await run.wiggum(task, draft=task, rubric="short", max_rounds=1)).text
"""


def test_rows_whose_drafts_did_not_pass_are_counted(project: Path) -> None:
    (project / "short.py").write_text(SHORT)
    (project / "harness.toml").write_text('[endpoints.producer]\nurl = "http://127.0.0.1:9/v1"\n')
    (project / "rubrics").mkdir()
    length = "dimensions: [{ name: length, checks: [{ check: words, max: 1 }] }]"
    (project / "rubrics" / "short.yaml").write_text(f"title: Short\n{length}\n")
    command = ("batch", "short.py", "drinks.csv", "--output", "out.jsonl")
    first = harness(*command, cwd=project)
    assert first.exit_code == 0
    counts = "3 of 3 rows have their output in out.jsonl"
    assert first.stdout.startswith(f"{counts}; 1 of 3 rows did not pass their rubric.\n")
    again = harness(*command, "--json", cwd=project).json
    assert (again["done"], again["kept"], again["not_passed"]) == (3, 3, 1)


WRITES = """\
from harness import Pipeline, Run

writes = Pipeline("writes")

@writes.node
async def line(run: Run, task: str) -> str:
    return await run.chat("producer", task)
"""


def test_an_option_limits_its_command_and_a_setting_the_whole_batch(project: Path) -> None:
    (project / "writes.py").write_text(WRITES)
    rows = "".join(f'{{"id": "{n}", "task": "{n}"}}\n' for n in range(5))
    (project / "rows.jsonl").write_text(rows)
    with serving(OpenAIServer(dialect=DIALECTS["vllm"])) as server:

        def settings(more: str = "") -> None:
            endpoint = f'[endpoints.writer]\nbackend = "vllm"\nurl = "{server.url}"\n'
            roles = '[roles]\nproducer = "writer"\n'
            (project / "harness.toml").write_text(f"{endpoint}{roles}{more}")

        def told(*options: str) -> list[str]:
            command = ("writes.py", "rows.jsonl", "--output", "told.jsonl", *options)
            ended = harness("batch", *command, "--log-format=json", cwd=project)
            end = json.loads(ended.stderr.splitlines()[-1])
            return [end["level"], end["code"]]

        def made(*options: str) -> tuple[int, int, str | None]:
            command = ("writes.py", "rows.jsonl", "--output", "out.jsonl", "--max-parallel", "1")
            ended = harness("batch", *command, *options, "--json", cwd=project)
            return ended.exit_code, ended.json["done"], ended.json["stopped_by"]

        settings()
        assert told("--max-calls", "2") == ["warning", "run.limit-reached"]
        code, done, stopped_by = made("--max-calls", "2")
        assert (code, done, "(--max-calls)" in (stopped_by or "")) == (3, 2, True)
        assert made("--max-calls", "1")[:2] == (3, 3), "it counts its own calls alone"
        settings("[limits]\nmax_calls = 1\n")
        code, _, stopped_by = made("--max-calls", "9")
        assert (code, "[limits] in harness.toml" in (stopped_by or "")) == (3, True)
        settings()
        assert made() == (0, 5, None)


BOTH = """\
from harness import Pipeline, Run

both = Pipeline("both")

@both.node
async def line(run: Run, task: str) -> str:
    if task == "milk":
        raise ValueError("milk is off")
    return await run.chat("producer", task)
"""


@pytest.mark.parametrize(
    ("limit", "scenario"),
    [
        (("--max-calls", "1"), "reply"),
        (("--max-failures", "0"), "reply"),
        (("--max-seconds", "1.5"), "silent"),
        ((), "overload"),
    ],
    ids=["calls", "failures", "seconds", "outage"],
)
def test_a_batch_that_ends_early_has_code_3_although_rows_failed(
    project: Path, limit: tuple[str, ...], scenario: str
) -> None:
    (project / "both.py").write_text(BOTH)
    (project / "drinks.csv").write_text("task\nmilk\ntea\ncoffee\ncocoa\n")
    with serving(OpenAIServer(dialect=DIALECTS["vllm"], scenario=scenario)) as server:
        endpoint = f'[endpoints.w]\nbackend = "vllm"\nurl = "{server.url}"\nmax_outage_s = 0.3\n'
        roles = 'retry = {max_attempts = 1}\n[roles]\nproducer = "w"\n'
        (project / "harness.toml").write_text(endpoint + roles)
        command = ("both.py", "drinks.csv", "--output", "out.jsonl", "--max-parallel", "1")
        shard = harness("batch", *command, *limit, "--shard", "1/1", "--json", cwd=project)
    assert shard.exit_code == 3, shard.stderr
    assert (shard.json["status"], len(shard.json["failures"])) == ("failed", 1)
    manifest = json.loads((project / "out.1-of-1.jsonl.batch").read_text())
    assert (manifest["complete"], manifest["failed"]) == (False, 1)
    merged = harness("batch", *command, "--merge", "--json", cwd=project)
    assert (merged.exit_code, merged.code) == (2, "batch.shards-incomplete")


def test_a_batch_is_resumed_by_its_own_command(project: Path) -> None:
    harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    done = harness("resume", "latest", "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, "resume.is-batch")


def test_a_dry_run_says_what_would_be_made(project: Path) -> None:
    command = ("batch", "echo.py", "drinks.csv", "--output", "out.jsonl")
    new = harness(*command, "--dry-run", cwd=project)
    assert_shown("batch", "a dry run of a new batch", new)
    assert not (project / "traces").exists()

    harness(*command, "--max-parallel", "1", cwd=project)
    (project / "echo.py").write_text(ECHO.replace("upper", "title"))
    changed = harness(*command, "--dry-run", cwd=project)
    assert_shown("batch", "a dry run after a change", changed)
    assert lines(project / "out.jsonl")["1"] == ["TEA"]


def test_a_dry_run_tells_rows_that_were_begun_before(project: Path) -> None:
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.jsonl")

    def foreseen() -> list[int]:
        plan = harness(*command, "--dry-run", "--json", cwd=project).json
        return [plan[name] for name in ("kept", "new", "rows_again")]

    harness(*command, cwd=project)
    assert foreseen() == [2, 0, 1]
    (project / "mended").touch()
    harness(*command, cwd=project)
    assert foreseen() == [3, 0, 0]
    with (project / "drinks.csv").open("a") as file:
        file.write("4,coffee\n")
    assert foreseen() == [3, 1, 0]


MUCH = """\
from harness import Pipeline, Run

much = Pipeline("much")

@much.node
async def asked(run: Run, task: str) -> str:
    return await run.chat("producer", "word " * 60_000 + task)
"""


def test_much_is_not_made_again_unasked(project: Path) -> None:
    (project / "much.py").write_text(MUCH)
    (project / "harness.toml").write_text('[endpoints.producer]\nbackend = "scripted"\n')
    output = project / "out.jsonl"
    done = asyncio.run(
        load_pipeline(str(project / "much.py")).batch(
            [project / "drinks.csv"],
            output=output,
            settings=Settings(traces=project / "traces"),
            backends={"producer": ScriptedBackend(["yes"] * 3)},
            max_parallel=1,
        )
    )
    assert len(done.outputs) == 3
    (project / "much.py").write_text(MUCH.replace("word ", "other "))
    before = output.read_bytes()
    command = ("batch", "much.py", "drinks.csv", "--output", "out.jsonl")

    refused = harness(*command, "--json", cwd=project)
    assert (refused.exit_code, refused.code) == (2, "resume.not-confirmed")
    assert_shown("batch", "much to be made again", refused.stderr)
    assert output.read_bytes() == before
    assert_shown("batch", "a dry run of much", harness(*command, "--dry-run", cwd=project))

    # As far as the model that the settings do not have.
    assert harness(*command, "--yes", "--json", cwd=project).code == "endpoint.scripted"
    kept = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(one["output"], "changed" in one["outdated"]) for one in kept] == [("yes", True)] * 3


def test_rows_that_failed_are_tried_again_without_a_question(project: Path) -> None:
    (project / "much.py").write_text(MUCH.replace("return await", "assert 'yes' in await"))
    (project / "harness.toml").write_text('[endpoints.producer]\nbackend = "scripted"\n')
    done = asyncio.run(
        load_pipeline(str(project / "much.py")).batch(
            [project / "drinks.csv"],
            output=project / "out.jsonl",
            settings=Settings(traces=project / "traces"),
            backends={"producer": ScriptedBackend(["no"] * 3)},
        )
    )
    assert len(done.failures) == 3
    command = ("batch", "much.py", "drinks.csv", "--output", "out.jsonl", "--json")

    assert harness(*command, "--dry-run", cwd=project).json["again"][0]["failed"]
    # As far as the model that the settings do not have.
    assert harness(*command, cwd=project).code == "endpoint.scripted"


def test_what_is_set_for_all_rows_takes_their_columns(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "a.md").write_text("a text")
    done = harness(
        *("batch", "echo.py", "docs", "--output", "out.jsonl", "--set", "task=@{path}"),
        *("--set", "times=2"),
        cwd=project,
    )
    assert done.exit_code == 0, done.stderr
    assert [*lines(project / "out.jsonl").values()] == [["A TEXT", "A TEXT"]]


def test_rows_that_do_not_fit_are_left_out_if_so_asked(project: Path) -> None:
    (project / "drinks.csv").write_text("task,times\ntea,often\nmilk,2\n")
    command = ("batch", "echo.py", "drinks.csv", "--output", "out.jsonl", "--json")
    done = harness(*command, "--bad-rows", "skip", cwd=project)
    assert (done.exit_code, done.json["done"], len(done.json["failures"])) == (1, 1, 1)


@pytest.mark.parametrize("text", ["some", "-1", "150%", "2.5", "nan%"])
def test_what_is_no_number_of_failures_is_refused(project: Path, text: str) -> None:
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.jsonl")
    done = harness(*command, "--max-failures", text, cwd=project)
    assert_shown("batch", f"--max-failures {text}", done)


def test_progress_is_told_now_and_then_without_a_terminal(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_PERIOD_S, "text", 0.001)
    rows = "".join(f"tea {n}\n" for n in range(100))
    (project / "drinks.csv").write_text("task\n" + rows)
    done = harness("batch", "echo.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    told = [line for line in done.stderr.splitlines() if line.startswith("rows ")]
    assert any(" left" in line for line in told)


def test_a_program_is_told_the_progress_in_figures(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_PERIOD_S, "json", 0.001)
    (project / "drinks.csv").write_text("task\n" + "tea\nmilk\n" * 50)
    command = ("picky.py", "drinks.csv", "--output", "out.jsonl", "--max-failures", "100%")
    done = harness("batch", *command, "--log-format=json", cwd=project)
    *told, end = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in told] == ["progress"] * len(told)
    assert (end["level"], end["code"]) == ("error", "batch.rows-failed")
    made = [line["nodes"]["rows"].get("failed", 0) for line in told]
    assert made == sorted(made)
    last = told[-1]["nodes"]["rows"]
    assert last["total"] == 100
    assert last["done"] + last["failed"] == 100


def test_the_figures_of_a_batch_that_ends_early_agree(project: Path) -> None:
    (project / "drinks.csv").write_text("task\n" + "milk\n" * 60)
    command = ("picky.py", "drinks.csv", "--output", "out.jsonl", "--max-parallel", "1")

    done = harness("batch", *command, cwd=project)

    assert done.exit_code == 3
    assert_shown("batch", "too many failures", done.stdout)

    done = harness("batch", *command, "--log-format=json", cwd=project)
    end = json.loads(done.stderr.splitlines()[-1])
    assert (end["level"], end["code"]) == ("error", "batch.too-many-failures")


@pytest.mark.parametrize(
    ("case", "name", "text", "code"),
    [
        ("an empty table", "a.csv", "", "file.empty"),
        ("blank lines", "a.jsonl", "\n \n", "file.empty"),
        ("a header alone", "a.csv", "task,times\n", "row.no-rows"),
        ("a header with a BOM", "a.csv", "\ufefftask\n", "row.no-rows"),
        ("a binary file", "a.csv", "a\0b", "file.binary"),
        ("a text", "a.md", "tea", "batch.rows-mistaken"),
        ("JSON", "a.json", "[]", "batch.rows-mistaken"),
    ],
)
def test_a_file_without_rows_is_said_to_be_that_whatever_becomes_of_bad_rows(
    project: Path, case: str, name: str, text: str, code: str
) -> None:
    (project / name).write_text(text, encoding="utf-8")
    command = ("batch", "echo.py", name, "--output", "out.jsonl", "--json", "--bad-rows")

    stopped, skipped = (harness(*command, how, cwd=project) for how in ("stop", "skip"))

    assert [(done.exit_code, done.code) for done in (stopped, skipped)] == [(2, code)] * 2
    assert skipped.stderr == stopped.stderr
    assert_shown("batch", case, stopped.stderr)


def test_one_row_is_shown_by_its_label(project: Path) -> None:
    harness("batch", "echo.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    row = harness("trace", "show", "rows[2]", "latest", cwd=project)
    assert ("rows[2]/echo/shout" in row.stdout, "rows[1]" in row.stdout) == (True, False)
    node = harness("trace", "show", "rows[2]/echo/shout", "latest", cwd=project)
    assert "rows[2] / rows[2]/echo/shout" in node.text


def test_the_report_has_a_line_for_each_node_and_not_for_each_row(project: Path) -> None:
    (project / "asks.py").write_text(
        'from harness import Pipeline, Run\nasks = Pipeline("asks")\n\n'
        "@asks.node\nasync def step(run: Run, task: str) -> str:\n"
        '    return await run.chat("producer", task)\n'
    )
    nobody = {"backend": "llamacpp", "url": NOBODY, "model_id": "none", "retry": {"base_s": 0.01}}
    command = ("batch", "asks.py", "drinks.csv", "--output", "out.jsonl")
    failed = harness(*command, cwd=project, endpoints={"producer": nobody})
    assert failed.exit_code == 1
    report = harness("trace", "report", "latest", "--json", cwd=project).json
    assert [one["name"] for one in report["nodes"]] == ["rows/asks/step"]


def test_shards_are_run_and_merged_by_one_command(project: Path) -> None:
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.jsonl")
    early = harness(*command, "--merge", "--json", cwd=project)
    assert (early.exit_code, early.code) == (2, "batch.shards-unclear")
    codes = [harness(*command, "--shard", f"{n}/2", cwd=project).exit_code for n in (1, 2)]
    assert sorted(codes) == [0, 1]  # milk is in one of them

    merged = harness(*command, "--merge", cwd=project)

    assert_shown("batch", "shards merged", merged)
    assert [*lines(project / "out.jsonl")] == ["1", "3"]
    (project / "mended").touch()
    failed = harness(*command, "--shard", f"{codes.index(1) + 1}/2", cwd=project)
    assert failed.exit_code == 0
    done = harness(*command, "--merge", "--json", cwd=project)
    assert (done.exit_code, done.json["done"], done.json["failed"]) == (0, 3, 0)
    assert [*lines(project / "out.jsonl")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "options",
    [["--shard", "0/2"], ["--shard", "3/2"], ["--shard", "2"], ["--merge", "--shard", "1/2"]],
)
def test_shards_that_there_are_not_are_refused(project: Path, options: list[str]) -> None:
    done = harness("batch", "picky.py", "drinks.csv", "--output", "o.jsonl", *options, cwd=project)
    assert done.exit_code == 2


LEAVES = """\
import asyncio
import sys
from harness import Pipeline

leaves = Pipeline("leaves")

async def leave(task):
    if task == "milk":
        sys.exit(0)

@leaves.node
async def step(task: str) -> str:
    # In a task of its own it breaks off the event loop.
    await asyncio.create_task(leave(task))
    return task
"""


def test_a_node_whose_own_task_calls_sys_exit_ends_the_batch_with_a_message(project: Path) -> None:
    (project / "leaves.py").write_text(LEAVES)
    command = ("batch", "leaves.py", "drinks.csv", "--output", "out.jsonl", "--max-parallel", "1")
    done = harness(*command, "--json", cwd=project)
    assert (done.exit_code, done.code) == (1, "run.left")
    assert "leaves.py:9: leave called sys.exit(0)" in done.stderr


ROLES = """
[roles]
producer = "a"
[endpoints.a]
backend = "vllm"
url = "http://127.0.0.1:9"
[endpoints.b]
backend = "vllm"
url = "http://127.0.0.1:9"
"""


@pytest.mark.parametrize(
    "command",
    [
        ["run", "echo.py", "--task", "x"],
        ["batch", "echo.py", "drinks.csv", "--output", "out.jsonl"],
        ["evaluate", "echo.py", "--dataset", "drinks.csv", "--score", "includes"],
    ],
    ids=["run", "batch", "evaluate"],
)
def test_a_slip_in_a_role_is_refused(project: Path, command: list[str]) -> None:
    (project / "harness.toml").write_text(ROLES)
    done = harness(*command, "--role", "producr=b", "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, "roles.misspelt")
    assert "did you mean 'producer'?" in done.stderr
    told = harness(*command, "--role", "nope=a", cwd=project)
    assert "no node of 'echo' is seen to ask role 'nope'" in " ".join(told.stderr.split())


@pytest.mark.parametrize("command", ["batch", "evaluate"])
def test_an_output_of_another_pipeline_is_named(project: Path, command: str) -> None:
    harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    (project / "aims.csv").write_text("id,task,target\n1,tea,tea\n")
    words = {
        "batch": ["echo.py", "drinks.csv"],
        "evaluate": ["echo.py", "--dataset", "aims.csv", "--score", "includes"],
    }
    done = harness(command, *words[command], "--output", "out.jsonl", cwd=project)
    assert done.exit_code == 2
    assert f"it has the outputs of 'batch picky', not of '{command} echo'" in done.stderr
