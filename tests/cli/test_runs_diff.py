"""`harness runs diff` as a person meets it; what is compared is tested with the journals."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from command import Done, harness
from demo import ROOT
from golden import assert_shown, printed

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.analysis.comparison import compare
from harness.cli.runs_diff import print_comparison
from harness.errors import NodeFailed
from harness.inference import ChatRequest
from harness.trace import Journal


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
    return result.files.journal


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


@pytest.mark.parametrize("other", ["nothing", "the task", "the reply", "the code"])
def test_what_differs_is_said_with_the_reason(runs: dict[str, Path], other: str) -> None:
    found = compare(Journal(runs["first"]), Journal(runs[other]))
    text = printed(partial(print_comparison, found), width=160)
    _, _, differing = text.partition("Node calls, A → B")
    rows = [line.strip("│").split("│") for line in differing.splitlines() if line[0] == "│"]
    said = sorted(f"{node.strip()}: {what.strip()}" for node, what, *_ in rows)
    # On a busy machine a call may also have taken longer.
    lines = [line.removesuffix(", time") for line in said if not line.endswith(": time")]
    assert_shown("runs diff", other, "\n".join(lines))


def failed_run(traces: Path, *, calls: int, message: str = "no text") -> Path:
    pipeline = Pipeline("failing")

    @pipeline.node
    async def text(run: Run, task: str) -> str:
        for number in range(calls):
            await run.chat("producer", f"{task} {number}")
        raise ValueError(message)

    with pytest.raises(NodeFailed):
        asyncio.run(
            pipeline.run_async(
                {"task": "t"},
                settings=Settings(traces=traces),
                backends={"producer": ScriptedBackend(lambda _: "x")},
            )
        )
    (journal,) = traces.glob("2*.jsonl")  # beside it lies the list of runs
    return journal


def test_calls_that_failed_in_both_runs_have_no_output_to_be_the_same(tmp_path: Path) -> None:
    a, b = (failed_run(tmp_path / str(calls), calls=calls) for calls in (1, 2))
    text = printed(partial(print_comparison, compare(Journal(a), Journal(b))), width=160)

    assert "other calls" in text


def test_a_long_error_leaves_the_labels_their_room(tmp_path: Path) -> None:
    a, b = (
        failed_run(tmp_path / word, calls=1, message=f"{word} " * 60) for word in ("tea", "milk")
    )
    text = printed(partial(print_comparison, compare(Journal(a), Journal(b))), width=80)

    assert "│ model calls " in text
    words = text.split()
    assert (words.count("tea"), words.count("milk")) == (60, 60)  # the messages are whole


@pytest.mark.parametrize(
    ("a", "b"),
    [("queueing", "parallel_client"), ("queueing", "queueing"), ("queueing", "revise_loop")],
)
def test_a_comparison_begins_with_the_bottleneck_and_fits_80_columns(a: str, b: str) -> None:
    recorded = ROOT / "tests/analysis/recorded_runs"
    files = recorded / f"{a}.jsonl", recorded / f"{b}.jsonl"
    shown = harness("runs", "diff", *files, cwd=ROOT, COLUMNS="80")

    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert_shown("runs diff", f"{a} and {b}", shown)


def test_runs_are_named_as_elsewhere_and_everything_is_there_as_json(runs: dict[str, Path]) -> None:
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
