"""The report of a run, as a person reads it, and its progress while it runs."""

from __future__ import annotations

import asyncio
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.cli.progress import Progress
from harness.cli.report import print_result, result_as_json
from harness.cli.run_end import print_failure
from harness.session import RunResult
from harness.trace import Instant, SpanEnded, SpanStarted
from harness.wiggum import Spent, StopReason

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
    assert row(text, "    1 ")[-2:] == [f"{first.verdict.composite:.1f}", ""]
    assert row(text, "   2*")[-2:] == [
        f"{second.verdict.composite:.1f}",
        f"{len(first.draft) + len(second.draft):,}",
    ]


def test_what_was_asked_to_change_is_said_by_dimension(result: RunResult) -> None:
    text = printed(result)
    assert "Asked to change" in text
    assert row(text, "        2")[:3] == ["2", "1", "grounded"]
    assert 'no source says this: "It takes 900 years."' in text


def test_the_reason_why_it_stopped_and_what_was_not_judged_are_said(result: RunResult) -> None:
    text = " ".join(printed(result).split())
    assert "Stopped: passed (the draft meets the rubric). Round 2* is returned" in text
    assert "Not judged, since no evaluator model is configured: relevance." in text


def test_what_the_loop_took_is_said(result: RunResult) -> None:
    spent = result.loops[0].spent
    assert (spent.calls, spent.output_tokens) == (1, len(GOOD.split()))
    tokens = f"calls: 1; tokens in: {spent.input_tokens:,}, out: {spent.output_tokens:,}."
    assert tokens in " ".join(printed(result).split())


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        pytest.param(
            Spent(calls=3, input_tokens=1_200, output_tokens=90, time_ns=2_500_000_000),
            "The loop took 2.5 s; calls: 3; tokens in: 1,200, out: 90.",
            id="counted",
        ),
        pytest.param(
            Spent(calls=3, input_tokens=1_200, output_tokens=90, estimated_calls=1),
            "tokens in: about 1,200, out: about 90.",
            id="estimated",
        ),
        pytest.param(Spent(calls=1, cost_usd=0.0125), "; dollars: 0.0125.", id="priced"),
        pytest.param(
            Spent(calls=2, cost_usd=0.0125, unpriced_calls=1),
            "dollars: 0.0125, without 1 of the calls, whose price is unknown.",
            id="priced in part",
        ),
    ],
)
def test_figures_say_how_they_were_come_by(result: RunResult, spent: Spent, said: str) -> None:
    loop = replace(result.loops[0], spent=spent)
    assert said in " ".join(printed(replace(result, loops=(loop,))).split())


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_every_reason_to_stop_has_words(result: RunResult, reason: StopReason) -> None:
    loop = replace(result.loops[0], stop_reason=reason, stop_detail="what there is to say")
    text = " ".join(printed(replace(result, loops=(loop,))).split())
    assert re.search(rf"Stopped: {reason} \([a-z' ,]+[a-z]\)\. Round 2\* is returned", text)
    assert "what there is to say" in text


def test_a_round_that_a_gate_stopped_stands_in_the_table_without_what_was_not_judged(
    result: RunResult,
) -> None:
    loop = result.loops[0]
    first, second = loop.rounds
    stopped = replace(
        first,
        verdict=replace(first.verdict, scores=first.verdict.scores[:1], gates=("length",)),
    )
    shown = replace(result, loops=(replace(loop, rounds=(stopped, second)),))
    cells = row(printed(shown), "    1 ")
    assert cells[1] != "-"
    assert cells[2:4] == ["-", "-"]


def test_json_has_what_each_round_changed_and_took(result: RunResult) -> None:
    loop = json.loads(result_as_json(result))["loops"][0]
    first, second = loop["rounds"]
    assert loop["spent"]["calls"] == 1
    assert (first["base_round"], first["changed_chars"]) == (None, 0)
    assert (second["base_round"], second["spent"]["calls"]) == (1, 1)
    assert second["changed_chars"] == len(first["draft"]) + len(second["draft"])
    assert second["judges"] is None
    assert (second["unjudged"], second["gates"]) == (["relevance"], [])


def test_models_are_listed_and_what_they_do_not_report_is_said(result: RunResult) -> None:
    cells = row(printed(result), "producer")
    assert cells[0] == "producer"
    assert "not reported" in cells


def test_a_failed_run_says_what_it_took(result: RunResult) -> None:
    file = io.StringIO()
    spent = Spent(calls=3, input_tokens=1200, output_tokens=40, time_ns=2_000_000_000)
    print_failure(replace(result, status="failed", spent=spent), Console(file=file, width=120))
    assert "The run took 2.0 s; calls: 3; tokens in: 1,200, out: 40." in file.getvalue()


def test_the_files_are_named(result: RunResult) -> None:
    text = printed(result, width=60)
    for path in (result.files.journal, result.files.chrome_trace, result.files.audit_log):
        assert str(path) in text


def test_markup_in_a_text_is_printed_as_it_is(result: RunResult) -> None:
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
                attributes={"node": "sections", "item": number},
            )
        )
    progress.observe(SpanStarted(id=3, parent=1, name="chat", time_ns=0, attributes={}))
    counted = {"input_tokens": 7, "output_tokens": 42}
    progress.observe(SpanEnded(id=3, time_ns=1, attributes=counted))
    progress.observe(SpanEnded(id=1, time_ns=1))
    progress.observe(SpanStarted(id=4, parent=2, name="wiggum", time_ns=1))
    progress.observe(Instant(4, "round", 1, {"composite": 8.5}))
    console.print(progress)
    shown = stream.getvalue()
    assert "topics" in shown
    assert "1/2" in shown
    assert "1 calls  tokens in 7, out 42" in shown
    assert "scores 8.5" in shown


def test_progress_is_quiet_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(Console(file=stream), ["a"]):
        pass
    assert stream.getvalue() == ""
