"""`harness runs diff` as a person meets it."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import pytest
from command import Done, harness
from demo import ROOT
from rich.console import Console

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.cli.runs_diff import print_comparison
from harness.inference import ChatRequest
from harness.trace import Journal, RunTrace
from harness.trace.comparison import compare


def diff(*arguments: str | Path, cwd: Path) -> Done:
    return harness("runs", "diff", *arguments, cwd=cwd, COLUMNS="160")


def essay(*, shouts: bool = False) -> Pipeline:
    pipeline = Pipeline("essay")

    @pipeline.node
    async def topics(task: str) -> list[str]:
        return task.split()

    @pipeline.node(each={"topic": "topics"})
    async def sections(run: Run, topic: str) -> str:
        return await run.chat("producer", f"Write about {topic}.")

    if shouts:

        @pipeline.node
        async def text(sections: list[str]) -> str:
            return " ".join(sections).upper()

        return pipeline

    @pipeline.node
    async def text(sections: list[str]) -> str:
        return " ".join(sections)

    return pipeline


def run_of(pipeline: Pipeline, traces: Path, task: str, *, reply: str = "") -> Path:
    """The journal of a run whose model says back what it is asked, and a reply after that."""

    def answer(request: ChatRequest) -> str:
        return f"{request.messages[-1].content} {reply}"

    result = asyncio.run(
        pipeline.run_async(
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
        "first": run_of(essay(), traces, "tea salt"),
        "again": run_of(essay(), traces, "tea salt"),
        "other task": run_of(essay(), traces, "tea sand rain"),
        "other reply": run_of(essay(), traces, "tea salt", reply="indeed"),
        "other code": run_of(essay(shouts=True), traces, "tea salt"),
    }


def differing(a: Path, b: Path) -> dict[str, tuple[str, ...]]:
    nodes = compare(Journal(a), Journal(b)).nodes
    return {one.node: one.differs_in for one in nodes if one.differs_in}


def printed(a: Path, b: Path) -> str:
    stream = io.StringIO()
    print_comparison(compare(Journal(a), Journal(b)), Console(file=stream, width=160))
    return stream.getvalue()


def test_the_same_run_twice_differs_in_nothing(runs: dict[str, Path]) -> None:
    assert differing(runs["first"], runs["again"]) == {}


def test_other_inputs_are_followed_to_where_they_lead(runs: dict[str, Path]) -> None:
    comparison = compare(Journal(runs["first"]), Journal(runs["other task"]))

    nodes = {one.node: one for one in comparison.nodes}
    assert nodes["sections[2]"].differs_in == ("only in b",)
    assert nodes["topics"].differs_in == ("output", "inputs")
    assert nodes["topics"].changed_inputs == ("task",)
    assert nodes["sections[0]"].differs_in == ()
    assert nodes["sections[1]"].changed_inputs == ("topic",)
    assert nodes["text"].changed_inputs == ("sections",)
    assert (comparison.a.calls, comparison.b.calls) == (2, 3)


def test_another_reply_is_told_from_another_prompt(runs: dict[str, Path]) -> None:
    said = printed(runs["first"], runs["other reply"])

    assert "output changed, with the same code, inputs and models: another reply" in said
    assert "output changed: its input 'sections'" in said


def test_changed_code_is_why_an_output_changed(runs: dict[str, Path]) -> None:
    assert differing(runs["first"], runs["other code"]) == {"text": ("output", "code")}
    assert "output changed: its code" in printed(runs["first"], runs["other code"])


def test_equal_calls_are_counted_and_not_listed(runs: dict[str, Path]) -> None:
    said = printed(runs["first"], runs["other code"])

    assert "Node calls that differ: 1; equal: 3." in said
    assert "topics" not in said


def test_many_differences_are_cut_off_and_counted(tmp_path: Path) -> None:
    journals = []
    for name in ("a", "b"):
        with RunTrace(tmp_path / name, name="many") as trace:
            for number in range(100):
                with trace.span("node", node="n", item=number, label=f"n[{number}]"):
                    trace.output("n", name, item=number)
        journals.append(trace.journal_path)
    said = printed(*journals)

    assert said.count("output changed; why is not recorded") == 40
    assert "and 60 more" in said


def test_runs_are_named_as_elsewhere(runs: dict[str, Path]) -> None:
    first, other = runs["first"], runs["other task"]
    done = diff(first.stem, other.stem[-6:], cwd=first.parents[1])

    assert done.exit_code == 0, done.stderr
    assert f"A is {first.stem}, B is {other.stem}" in done.stdout


def test_everything_is_there_as_json(runs: dict[str, Path]) -> None:
    told = diff("--json", runs["first"], runs["other code"], cwd=ROOT).json

    assert told["a"]["run_id"] == runs["first"].stem
    text = next(one for one in told["nodes"] if one["node"] == "text")
    assert text["differs_in"] == ["output", "code"]
    assert text["a"]["code"] != text["b"]["code"]


def test_runs_of_two_pipelines_are_compared_and_it_says_so(runs: dict[str, Path]) -> None:
    said = printed(runs["first"], ROOT / "traces/recorded/brief.jsonl")

    assert "They are runs of two pipelines, 'essay' and 'brief'." in said
    assert "Role producer: producer in A, smollm2-135m in B." in said


def test_what_cannot_be_compared_is_said(runs: dict[str, Path]) -> None:
    project = runs["first"].parents[1]
    unknown = diff("nothing", "latest", "--json", cwd=project)
    assert (unknown.exit_code, unknown.code) == (2, "run.not-found")
    for arguments, named in (("--json diff a b", "after 'diff'"), ("diff latest", "'B'")):
        done = harness("runs", *arguments.split(), cwd=project)
        assert done.exit_code == 2
        assert named in done.stderr


def test_the_list_is_as_it_was(runs: dict[str, Path]) -> None:
    done = harness("runs", "--limit", "2", cwd=runs["first"].parents[1])
    assert runs["other code"].stem in done.stdout
    assert runs["first"].stem not in done.stdout
