"""The report of a run, as a person reads it, and its progress while it runs."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.cli.progress import Progress
from harness.cli.report import print_result
from harness.session import RunResult
from harness.trace import CounterSet, SpanEnded, SpanStarted

GOOD = "The server must read the weights from disk before it can process the prompt, in 8 s or so."


@pytest.fixture
def result(tmp_path: Path) -> RunResult:
    pipeline = Pipeline("answering")

    @pipeline.node
    async def text(run: Run) -> str:
        draft = "It takes 900 years."
        return (await run.wiggum("Why?", sources=[GOOD], rubric="answer", draft=draft)).text

    return asyncio.run(
        pipeline.run_async(
            {},
            settings=Settings(traces=tmp_path),
            backends={"producer": ScriptedBackend([GOOD])},
        )
    )


def printed(result: RunResult, *, width: int = 100) -> str:
    stream = io.StringIO()
    print_result(result, Console(file=stream, width=width))
    return stream.getvalue()


def row(text: str, first_cell: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"│ {first_cell}"))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_every_round_stands_in_a_table_with_its_scores(result: RunResult) -> None:
    text = printed(result)
    first, second = result.loops[0].rounds
    assert row(text, "    1 ")[-1] == f"{first.verdict.composite:.1f}"
    assert row(text, "   2*")[-1] == f"{second.verdict.composite:.1f}"


def test_what_was_asked_to_change_is_said_by_dimension(result: RunResult) -> None:
    text = printed(result)
    assert "Asked to change" in text
    assert 'no source says this: "It takes 900 years."' in text


def test_the_reason_why_it_stopped_and_what_was_not_judged_are_said(result: RunResult) -> None:
    text = " ".join(printed(result).split())
    assert "Stopped: passed (the draft meets the rubric). Round 2* is returned" in text
    assert "Not judged, since no evaluator model is configured: relevance." in text


def test_models_are_listed_and_what_they_do_not_report_is_said(result: RunResult) -> None:
    cells = row(printed(result), "producer")
    assert cells[0] == "producer"
    assert "not reported" in cells


def test_the_files_are_named(result: RunResult) -> None:
    text = printed(result, width=60)
    for path in (result.files.journal, result.files.chrome_trace, result.files.audit_log):
        assert str(path) in text


def test_markup_in_a_text_is_printed_as_it_is(result: RunResult) -> None:
    from dataclasses import replace

    assert "[bold]x[/bold] ]" in printed(replace(result, result="[bold]x[/bold] ]"))


def test_progress_shows_nodes_items_tokens_and_scores() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    progress = Progress(console, ["topics", "sections"])
    for number in (1, 2):
        progress.observe(
            SpanStarted(
                id=number,
                parent=None,
                name="node",
                time_ns=0,
                attributes={"track": "sections"},
            )
        )
    progress.observe(SpanStarted(id=3, parent=1, name="chat", time_ns=0, attributes={}))
    progress.observe(SpanEnded(id=3, time_ns=1, attributes={"output_tokens": 42}))
    progress.observe(SpanEnded(id=1, time_ns=1))
    progress.observe(CounterSet(name="composite", unit="points", time_ns=1, value=8.5))
    console.print(progress)
    shown = stream.getvalue()
    assert "topics" in shown
    assert "1/2" in shown
    assert "1 calls  42 tokens" in shown
    assert "scores 8.5" in shown


def test_progress_is_quiet_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(Console(file=stream), ["a"]):
        pass
    assert stream.getvalue() == ""
