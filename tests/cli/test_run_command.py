"""`harness run` as a person meets it: words in, words out, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from command import NOBODY, harness
from golden import assert_shown
from pipelines import ASKS, CHATS, ECHO, FILLS, WAITS
from sample_runs import load_run

from harness import __version__
from harness.cli.project_files import load_pipeline
from harness.errors import InvalidInput

FILES = {
    "echo.py": ECHO,
    "two.py": ECHO + 'other = Pipeline("other")\n',
    "chats.py": CHATS,
    "waits.py": WAITS,
    "fills.py": FILLS,
    "syntax.py": "x = 1\ndef f(:\n",
    "raises.py": "x = {}\nx['key']\n",
    "exits.py": "raise SystemExit(3)\n",
    "negative.py": "from harness import Resources\n\non = Resources(gpus=-1)\n",
    "cycle.py": 'from harness import Pipeline\np = Pipeline("p")\n\n'
    "@p.node\ndef a(b: str) -> str: ...\n\n@p.node\ndef b(a: str) -> str: ...\n",
    "rubs.py": CHATS.replace(
        'run.chat("producer", word)', 'run.wiggum(word, rubric="mine", draft="x")'
    ),
    "rubrics/mine.yaml": "title: Mine\ndimensions:\n  - nmae: a\n",
    "keeps.py": 'from harness import Pipeline, Run\np = Pipeline("p")\n\n'
    "@p.node\nasync def keep(run: Run) -> int:\n"
    '    return len(await run.remember("Approve it\\u202e."))\n',
    "keeps_and_fails.py": 'from harness import Pipeline, Run\np = Pipeline("p")\n\n'
    "@p.node\nasync def keep(run: Run) -> float:\n"
    '    return 1 / len(await run.remember("Approve it\\u202e."))\n',
    "file.toml": '[endpoints.a]\npath = "models/none.gguf"\n',
    "task.txt": "grüße",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "rubrics").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("grüße".encode("latin-1"))
    return tmp_path


def test_a_pipeline_runs_and_says_where_its_files_are(project: Path) -> None:
    done = harness("run", "echo.py", "--task", "tea", cwd=project)
    assert_shown("run", "a list is its result", done)


def test_a_run_with_no_room_for_its_journal_stops_and_says_so(project: Path) -> None:
    resource = pytest.importorskip("resource", reason="file sizes cannot be limited here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        shown = harness("run", "fills.py", cwd=project)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        stopped = harness("run", "fills.py", "--json", cwd=project)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert (shown.exit_code, stopped.exit_code) == (3, 3)
    assert "trace.journal-incomplete" in [one["code"] for one in stopped.json["warnings"]]
    assert "trace.journal-incomplete" in shown.stderr
    assert stopped.json["skips"][0]["node"] == "after"


@pytest.mark.parametrize(
    "pipeline",
    [
        pytest.param("keeps.py", id="in the report"),
        pytest.param("keeps_and_fails.py", id="without a report"),
    ],
)
def test_a_warning_of_a_run_is_printed_once(project: Path, pipeline: str) -> None:
    done = harness("run", pipeline, cwd=project)

    (line,) = [line for line in done.stderr.splitlines() if "not remembered" in line]
    assert "warning" in line


def test_warnings_can_be_json_with_their_run_node_and_span(project: Path) -> None:
    done = harness("run", "keeps.py", "--json", "--log-format", "json", cwd=project)
    said = json.loads(done.stderr.splitlines()[0])
    assert (said["level"], said["run_id"], said["node"]) == ("warning", done.json["run_id"], "keep")
    assert said["code"] == done.json["warnings"][0]["code"]
    record = load_run(Path(project, done.json["files"]["journal"]))
    (node,) = [span for span in record.spans if span.id == said["span"]]
    assert node.name == "remember"


TALKS = """\
import logging
import sys

import structlog

from harness import Pipeline, Run

talks = Pipeline("talks")
logging.getLogger("talks").addHandler(logging.StreamHandler())


@talks.node
async def said(run: Run, times: int = 1) -> str:
    print("plain", "words")
    print("two\\nlines \\x1b[31m", file=sys.stderr)
    print('{"own": "object"}')
    print("begun", end="")
    logging.getLogger("talks").warning("by the library")
    structlog.get_logger().info("of the node", count=3)
    if times > 1:
        raise ValueError("too often")
    return "so"
"""


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        pytest.param([], 0, None, id="finished"),
        pytest.param(["--set", "times=2", "--traceback"], 1, "node.failed", id="failed"),
        pytest.param(["--set", "time=2"], 2, "pipeline.unknown-input", id="an input that is none"),
        pytest.param(["--nonsense"], 2, "cli.usage", id="an option that is none"),
        pytest.param(["--max-calls", "none"], 2, "cli.usage", id="an argument that does not fit"),
    ],
)
def test_each_line_of_standard_error_is_one_object_where_a_program_reads_it(
    project: Path, arguments: list[str], exit_code: int, code: str | None
) -> None:
    (project / "talks.py").write_text(TALKS)
    done = harness("run", "talks.py", "--log-format", "json", *arguments, cwd=project, typed="")
    assert done.exit_code == exit_code
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(isinstance(line, dict) for line in lines)
    assert "\x1b" not in done.stderr
    if exit_code < 2:
        told = {line.get("event"): line for line in lines}
        assert {"plain words", "two\nlines ?[31m", None, "progress"} <= told.keys()
        assert told["by the library"]["level"] == "warning"
        assert "begun" in told
        of_node = told["of the node"]
        assert (of_node["node"], of_node["count"], of_node["level"]) == ("said", 3, "info")
        assert of_node["run_id"] == told["progress"]["run_id"]
        assert told["progress"]["nodes"]["said"]["total"] == 1
    assert [line["code"] for line in lines if line.get("level") == "error"] == [code] * bool(code)


@pytest.mark.parametrize(
    ("pipeline", "code"), [(ASKS, "run.waiting"), (WAITS, "run.limit-reached")]
)
def test_a_program_is_warned_that_a_run_is_to_be_resumed(
    project: Path, pipeline: str, code: str
) -> None:
    (project / "ends.py").write_text(pipeline)
    options = ["--task", "tea"] if pipeline is ASKS else ["--max-seconds", "0.2"]
    done = harness("run", "ends.py", *options, "--log-format", "json", cwd=project)
    assert done.exit_code == {"run.waiting": 4, "run.limit-reached": 3}[code], done.stderr
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["level"], last["code"]) == ("warning", code)


def test_json_output_is_one_object_and_nothing_else(project: Path) -> None:
    done = harness("run", "echo.py", "--task", "tea", "--set", "times=2", "--json", cwd=project)
    result = done.json
    assert result["result"] == ["TEA", "TEA"]
    assert result["outputs"] == {"shout": ["TEA", "TEA"]}
    assert result["passed"] is None  # nothing was judged
    assert Path(project, result["files"]["journal"]).is_file()
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        pytest.param(["echo.py", "--set", "task=@task.txt"], ["GRÜSSE"], id="value from a file"),
        pytest.param(["two.py:echo", "--task", "x"], ["X"], id="one of several"),
        pytest.param(["asyncio.py", "--task", "x"], ["X"], id="the name of a library"),
        pytest.param(["big.py", "--task", "x"], [str(2**70)], id="what json has no form for"),
        pytest.param(["raw.py", "--task", "x"], "_w==", id="bytes that are no text"),
        pytest.param(["shop/flows/buy.py", "--task", "x"], ["X!"], id="a module of a package"),
        pytest.param(["v1.0/echo.py", "--task", "x"], ["X"], id="where no package can be"),
    ],
)
def test_what_may_be_run(project: Path, arguments: list[str], result: object) -> None:
    (project / "asyncio.py").write_text(ECHO)
    flows = project / "shop" / "flows"
    flows.mkdir(parents=True)
    (flows.parent / "__init__.py").touch()
    (flows.parent / "marks.py").write_text('MARK = "!"\n')
    (flows / "__init__.py").write_text("from .buy import MARK\n")
    buys = ECHO.replace("task.upper()", "task.upper() + MARK")
    (flows / "buy.py").write_text(f"from shop.marks import MARK\nfrom ..marks import MARK\n{buys}")
    (project / "v1.0").mkdir()
    (project / "v1.0" / "__init__.py").touch()
    (project / "v1.0" / "echo.py").write_text(ECHO)
    big = ECHO.replace("[task.upper()] * times", "[2**70]").replace("list[str]", "list[int]")
    (project / "big.py").write_text(big)
    raw = ECHO.replace("[task.upper()] * times", 'b"\\xff"').replace("list[str]", "bytes")
    (project / "raw.py").write_text(raw)
    assert harness("run", *arguments, "--json", cwd=project).json["result"] == result


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("ehco.py", "pipeline.no-file"),
        ("syntax.py", "pipeline.syntax-error"),
        ("raises.py", "pipeline.import-failed"),
        ("exits.py", "pipeline.exits-on-import"),
        ("negative.py", "pipeline.policy-negative"),
        ("two.py", "pipeline.not-one"),
        ("two.py:ehco", "pipeline.unknown"),
        ("cycle.py", "pipeline.cycle"),
        ("echo.py", "pipeline.input-missing"),
        ("echo.py --set tsk=x", "pipeline.unknown-input"),
        ("echo.py --task x --set times=y", "pipeline.input-invalid"),
        ("echo.py --set task", "option.malformed"),
        ("echo.py --task x --set task=y", "option.given-twice"),
        ("echo.py --set task=@latin.txt", "file.not-utf8"),
        ("rubs.py", "node.failed"),
        ("chats.py --config file.toml", "model.file-invalid"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_exit_code_2(
    project: Path, arguments: str, code: str
) -> None:
    done = harness("run", *arguments.split(), "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, code)
    assert done.json["run_id"] is not None or done.stderr.count("\n") == 1
    # Python words one of them; of three nodes that fail, any may be told.
    masks = {"(syntax.py:2: ).*": r"\1…", r"\[\d\]| \(and \d more.*": ""}
    assert_shown("run", arguments, done.stderr, masks={str(project): "/project", **masks})


def test_a_file_of_a_package_that_fails_is_no_module_the_next_time(tmp_path: Path) -> None:
    package = tmp_path / "halved"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "flow.py").write_text(f"{ECHO}\n1 / 0\n")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="division by zero"):
            load_pipeline(str(package / "flow.py"))
    (tmp_path / "link.py").symlink_to("halved/flow.py")
    with chdir(tmp_path), pytest.raises(InvalidInput, match=r"link\.py:\d+: .*division by zero"):
        load_pipeline("link.py")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("import typo", "typo.py:3", id="in a module it imports"),
        pytest.param(
            "import ast\nast.literal_eval('1 +')", "imports.py:2", id="in a text it reads"
        ),
    ],
)
def test_a_mistake_in_python_is_placed_where_it_stands(
    project: Path, text: str, place: str
) -> None:
    (project / "typo.py").write_text("x = 1\n\ndef f(:\n")
    (project / "imports.py").write_text(text)
    done = harness("run", "imports.py", "--json", cwd=project)
    assert done.code == "pipeline.syntax-error"
    assert f"{place}: invalid syntax" in done.stderr


def test_producer_and_evaluator_on_one_model_are_refused_by_name(project: Path) -> None:
    endpoints = {tag: {"url": f"http://{tag}/v1", "model_id": "m"} for tag in ("a", "b")}
    roles = ("--role", "producer=a", "--role", "evaluator=b")
    (project / "judges.py").write_text(CHATS.replace('"producer"', '"evaluator"'))
    done = harness("run", "judges.py", *roles, "--json", cwd=project, endpoints=endpoints)
    assert (done.exit_code, done.code) == (2, "roles.same-model")
    assert_shown("run", "one model in two roles", done.stderr)


def test_an_unreachable_endpoint_says_which_url_was_tried(project: Path) -> None:
    endpoints = {"a": {"url": f"{NOBODY}/v1", "retry": {"base_s": 0.01}}}
    done = harness("run", "chats.py", "--json", cwd=project, endpoints=endpoints)
    assert done.exit_code == 1
    assert [one["code"] for one in done.json["failures"]] == ["call.unreachable"] * 3
    assert all(f"{NOBODY}/v1/chat" in one["message"] for one in done.json["failures"])


def test_a_failure_is_reported_as_json_too_with_the_run_to_look_at(project: Path) -> None:
    (project / "fails.py").write_text(ECHO.replace("[task.upper()] * times", "1 / 0"))
    done = harness("run", "fails.py", "--task", "x", "--json", cwd=project)
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.json["error"]["message"]
    run_id = done.json["run_id"]
    assert (project / "traces" / f"{run_id}.jsonl").is_file()
    assert run_id in done.stderr


def test_a_run_that_is_told_to_end_is_closed_as_far_as_it_came(project: Path) -> None:
    done = harness("run", "waits.py", "--json", cwd=project, SIGNAL=str(int(signal.SIGTERM)))
    assert (done.exit_code, done.code) == (143, "run.interrupted")
    (journal,) = (project / "traces").glob("2*.jsonl")
    record = load_run(journal)
    assert [(output.node, output.value) for output in record.outputs] == [("first", "done")]
    assert record.ended is not None
    assert record.ended.status == "cancelled"
    assert journal.with_suffix(".pftrace").is_file()
    assert "CancelledError" in (project / "traces/runs.jsonl").read_text()
    assert f"resume traces/{journal.stem}" in done.stderr
    (project / "go").touch()
    resumed = harness("resume", "latest", "--json", cwd=project).json
    assert (resumed["result"], resumed["reused"]) == ("done at last", ["first"])


def test_help_answers_without_importing_the_engine() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom harness.cli.main import command\n"
        "result = CliRunner().invoke(command, ['--help'])\n"
        "assert result.exit_code == 0 and 'Run a pipeline file.' in result.output, result.output\n"
        "print([m for m in ('pydantic', 'httpx', 'httpx2', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_version_is_printed_and_an_unknown_command_is_exit_code_2(tmp_path: Path) -> None:
    assert harness("--version", cwd=tmp_path).stdout.strip().endswith(__version__)
    assert harness("rnu", cwd=tmp_path).exit_code == 2


def test_on_says_where_nodes_run_and_a_resumed_run_remembers_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (project / "harness.toml").write_text('[execution]\nengine = "ray"\n')

    on = "@echo.node(on=Resources())"
    text = ECHO.replace("import Pipeline", "import Pipeline, Resources").replace("@echo.node", on)
    (project / "worker.py").write_text(text)

    on_ray = harness("run", "worker.py", "--task", "tea", cwd=project)
    resumed = harness("resume", "latest", "--on", "process", cwd=project)
    here = harness("run", "worker.py", "--task", "tea", "--on", "process", cwd=project)

    assert on_ray.exit_code == 2
    assert "wiggum-harness[ray]" in on_ray.stderr
    assert resumed.exit_code == here.exit_code == 0
    again = harness("resume", "latest", "--set", "task=milk", cwd=project)
    assert again.exit_code == 0, again.stderr
