"""`harness runs diff` as a person meets it; what is compared is tested with the journals."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest
from command import Done, harness
from demo import ROOT
from golden import printed

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.cli.runs_diff import print_comparison
from harness.inference import ChatRequest
from harness.trace import Journal, RunTrace
from harness.trace.comparison import compare


def essay(*, shouts: bool) -> Pipeline:
    pipeline = Pipeline("essay")

    @pipeline.node
    async def topics(task: str) -> list[str]:
        return task.split()

    @pipeline.node(each={"topic": "topics"})
    async def sections(run: Run, topic: str) -> str:
        return await run.chat("producer", f"Write about {topic}.")

    async def quiet(sections: list[str]) -> str:
        return " ".join(sections)

    async def loud(sections: list[str]) -> str:
        return " ".join(sections).upper()

    pipeline.node(name="text")(loud if shouts else quiet)
    return pipeline


def run_of(traces: Path, *, task: str = "tea salt", reply: str = "", shouts: bool = False) -> Path:
    """The journal of a run whose model says back what it is asked, and a reply after that."""

    def answer(request: ChatRequest) -> str:
        return f"{request.messages[-1].content} {reply}"

    result = asyncio.run(
        essay(shouts=shouts).run_async(
            {"task": task},
            settings=Settings(traces=traces),
            backends={"producer": ScriptedBackend(answer)},
        )
    )
    return timed_by_lines(result.files.journal)


def timed_by_lines(journal: Path) -> Path:
    """The journal as of a machine that needs a microsecond for a line: a busy one may take the
    tenth of a second more for a node that `compare` would name."""
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text(
        "".join(
            re.sub(r'"time_ns":\d+', f'"time_ns":{number * 1_000}', line, count=1)
            for number, line in enumerate(lines)
        ),
        encoding="utf-8",
    )
    return journal


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one pipeline, by what is different in each."""
    traces = tmp_path_factory.mktemp("project") / "traces"
    return {
        "first": run_of(traces),
        "nothing": run_of(traces),
        "the task": run_of(traces, task="tea sand rain"),
        "the reply": run_of(traces, reply="indeed"),
        "the code": run_of(traces, shouts=True),
    }


def diff(*arguments: str | Path, cwd: Path) -> Done:
    return harness("runs", "diff", *arguments, cwd=cwd, COLUMNS="160")


SECTIONS = "output changed: its input 'sections'"
REPLY = "output changed, with the same code, inputs and models: another reply"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        pytest.param("nothing", {}),
        pytest.param(
            "the task",
            {
                "topics": "output changed: its input 'task'",
                "sections[1]": "output changed: its input 'topic'",
                "sections[2]": "only in B",
                "text": SECTIONS,
            },
        ),
        pytest.param("the reply", {"sections[0]": REPLY, "sections[1]": REPLY, "text": SECTIONS}),
        pytest.param("the code", {"text": "output changed: its code"}),
    ],
)
def test_what_differs_is_said_with_the_reason(
    runs: dict[str, Path], other: str, told: dict[str, str]
) -> None:
    found = compare(Journal(runs["first"]), Journal(runs[other]))
    text = printed(partial(print_comparison, found), width=160)
    _, _, differing = text.partition("Node calls, A → B")
    rows = [line.strip("│").split("│") for line in differing.splitlines() if line[0] == "│"]
    assert {node.strip(): what.strip() for node, what, *_ in rows} == told
    assert f"Node calls that differ: {len(told)}; equal: " in text


def test_many_differences_are_cut_off_and_counted(tmp_path: Path) -> None:
    journals = []
    for name in ("a", "b"):
        with RunTrace(tmp_path / name, name="many") as trace:
            for number in range(100):
                with trace.span("node", node="n", item=number, label=f"n[{number}]"):
                    trace.output("n", name, item=number)
        journals.append(Journal(trace.journal_path))
    said = printed(partial(print_comparison, compare(*journals)), width=160)

    assert said.count("output changed; why is not recorded") == 40
    assert "and 60 more" in said


def test_runs_of_two_pipelines_are_compared_and_it_says_so(runs: dict[str, Path]) -> None:
    said = diff(runs["first"], ROOT / "traces/recorded/brief.jsonl", cwd=ROOT).stdout

    assert "'essay' and 'brief'" in said
    assert "Role producer: producer in A, smollm2-135m in B." in said


def test_runs_are_named_as_elsewhere_and_everything_is_there_as_json(
    runs: dict[str, Path],
) -> None:
    first, other = runs["first"], runs["the code"]
    told = diff(first.stem, other.stem[-6:], "--json", cwd=first.parents[1]).json

    assert (told["a"]["run_id"], told["b"]["run_id"]) == (first.stem, other.stem)
    text = next(one for one in told["nodes"] if one["node"] == "text")
    assert text["differs_in"] == ["output", "code"]
    assert text["a"]["code"] != text["b"]["code"]


def test_what_cannot_be_compared_is_said(runs: dict[str, Path]) -> None:
    project = runs["first"].parents[1]
    unknown = diff("nothing", "latest", "--json", cwd=project)
    assert (unknown.exit_code, unknown.code) == (2, "run.not-found")
    for arguments, named in (("--json diff a b", "after 'diff'"), ("diff latest", "'B'")):
        done = harness("runs", *arguments.split(), cwd=project)
        assert done.exit_code == 2
        assert named in done.stderr
