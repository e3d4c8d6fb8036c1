"""What a run's page is made of, and the file that holds it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from demo import ROOT
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from harness import Pipeline, Settings
from harness.analysis.html_page import html_of
from harness.analysis.run_page import RunPage, page_json, run_page_of, word_changes
from harness.rubric import Verdict
from harness.trace import (
    Content,
    Flow,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunTrace,
    TraceOptions,
    sha256_of,
)
from harness.wiggum import Round
from harness.wiggum.record import record_round
from tests.sample_runs import span, write_journal

RECORDED = ROOT / "traces" / "recorded" / "brief.jsonl"
NASTY = "</script><img src=x onerror=\"document.title='ran'\"><!--<script>"
MS = 1_000_000


@pytest.fixture(scope="module")
def recorded() -> RunPage:
    return run_page_of(RECORDED)


def page_of(path: Path, *records: Record) -> RunPage:
    write_journal(path / "run.jsonl", *records)
    return run_page_of(path / "run.jsonl")


def chat(number: int, *, parent: int | None, start_ms: int, prompt: str = "", **more: object):
    asked = {"model": "small", "role": "producer", "prompt_sha256": sha256_of(prompt)}
    times = {"start_ns": start_ms * MS, "end_ns": (start_ms + 20) * MS}
    return span(number, **times, parent=parent, name="chat", **asked, **more)


# --- the model --------------------------------------------------------------------------------


def test_the_result_is_of_the_node_that_the_pipeline_names(tmp_path: Path) -> None:
    pipeline = Pipeline[str]("answered", result="answer")
    pipeline.node(lambda: "It is.", name="answer")
    pipeline.node(lambda answer: f"Seen: {answer}", name="audit")
    done = pipeline.run(settings=Settings(traces=tmp_path))

    page = run_page_of(done.files.journal)
    assert page.result is not None
    assert page.texts[page.result] == done.result == "It is."


def test_a_node_named_scores_scores_only_the_rows_of_a_batch(tmp_path: Path) -> None:
    pipeline = Pipeline[list[str]]("graded", result="answers")
    pipeline.node(lambda: [{"composite": 3.0}], name="found")
    pipeline.node(lambda found: found, name="scores", each={"found": "found"})
    pipeline.node(lambda found: f"{found}", name="answers", each={"found": "found"})
    page = run_page_of(pipeline.run(settings=Settings(traces=tmp_path)).files.journal)

    (answers,) = (node for column in page.columns for node in column if node.name == "answers")
    assert [item.score for item in answers.items] == [None]


def test_nodes_stand_in_columns_behind_what_they_were_given(recorded: RunPage) -> None:
    columns = [[node.name for node in column] for column in recorded.columns]
    assert columns == [["parts"], ["topics"], ["sources"], ["sections"], ["text"]]
    sections = recorded.columns[3][0]
    assert [item.label for item in sections.items] == [f"sections[{n}]" for n in range(3)]
    assert sections.needs == ("topics", "sources")
    gave = sections.items[2].gave
    assert gave is not None
    assert recorded.texts[gave].startswith("## Fitting both models in memory")


@pytest.mark.parametrize("reason", [{"because_of": "wanted"}, {"decided_by": ["wanted", "task"]}])
def test_a_node_that_was_skipped_stands_behind_what_it_was_skipped_for(
    reason: dict[str, object], tmp_path: Path
) -> None:
    page = page_of(
        tmp_path,
        span(1, 0, 5, name="node", node="wanted", label="wanted"),
        Instant(None, "skip", 6, {"node": "text", "detail": "no", **reason}),
        NodeOutput("text", None, None, skipped="no"),
        RunEnded(9, "ok"),
    )
    assert [[node.name for node in column] for column in page.columns] == [["wanted"], ["text"]]
    (item,) = page.columns[1][0].items
    assert (item.status, item.start_ns, item.gave) == ("skipped", None, None)


def test_a_call_has_its_place_its_phases_its_cost_and_its_texts(tmp_path: Path) -> None:
    prices = {"usd_per_million_input_tokens": 10.0, "usd_per_million_output_tokens": 20.0}
    page = page_of(
        tmp_path,
        Instant(None, "endpoint", 0, {"model": "small", **prices}),
        span(1, 0, 30 * MS, name="node", node="text", label="text[3]", item=3),
        Content(sha256_of("Why?"), "Why?"),
        Content(sha256_of("So."), "So."),
        chat(
            2,
            parent=1,
            start_ms=5,
            prompt="Why?",
            reply_sha256=sha256_of("So."),
            seed=7,
            input_tokens=100_000,
            output_tokens=50_000,
        ),
        span(3, 5 * MS, 15 * MS, parent=2, name="prefill"),
        span(4, 15 * MS, 25 * MS, parent=2, name="decode"),
        RunEnded(30 * MS, "ok"),
    )
    (call,) = page.calls
    assert (call.id, call.node, call.model, call.role) == (2, "text[3]", "small", "producer")
    assert call.phases == (("prefill", 5 * MS, 10 * MS), ("decode", 15 * MS, 10 * MS))
    assert call.cost_usd == pytest.approx(2.0)
    assert call.attributes == {"seed": 7, "input_tokens": 100_000, "output_tokens": 50_000}
    assert [page.texts[index] for index in (call.prompt, call.reply)] == ["Why?", "So."]


def test_a_text_that_many_calls_share_is_held_once(tmp_path: Path) -> None:
    calls = [chat(n, parent=None, start_ms=n, prompt="Why?") for n in range(1, 9)]
    page = page_of(tmp_path, Content(sha256_of("Why?"), "Why?"), *calls, RunEnded(99 * MS, "ok"))
    assert page.texts == ("Why?",)
    assert {call.prompt for call in page.calls} == {0}


def test_a_round_has_its_changes_by_section_with_findings_beside_them(recorded: RunPage) -> None:
    (loop,) = recorded.loops
    first, second = loop.rounds
    assert loop.stop == "passed: the draft meets the rubric"
    assert (first.round.base_round, second.round.base_round) == (None, 1)
    assert [len(section.notes) for section in first.sections] == [0, 0, 3]
    assert first.sections[2].notes[0] == ("structure", "the last sentence breaks off; finish it")
    assert [[op for op, _ in section.parts] for section in second.sections] == [
        ["="],
        ["="],
        ["=", "-", "+"],
    ]
    # What stands at a section is not said again of the whole.
    assert first.why == dict.fromkeys(["length", "structure", "grounded", "plain"], ())


def test_a_round_says_why_dimensions_were_not_judged(tmp_path: Path) -> None:
    verdict = Verdict(
        rubric="essay",
        rubric_sha256="5eed",
        scores=(),
        composite=5.0,
        passed=False,
        unjudged=("numbers", "clear"),
        unjudged_reasons={"numbers": "there are no sources"},
    )
    with (
        RunTrace(tmp_path, name="essays", options=TraceOptions(timelines=())) as trace,
        trace.span("wiggum", rubric="essay", rubric_sha256="5eed"),
    ):
        twice = "# A\n\n## Example\none\n\n## Example\ntwo\n"
        for base, draft in enumerate([twice, twice, twice.replace("## Example\none\n\n", "")]):
            round_ = Round(number=base + 1, draft=draft, base_round=base or None, verdict=verdict)
            record_round(round_, trace)
    (loop,) = run_page_of(trace.journal_path).loops
    assert loop.rounds[0].remarks == ("not judged: numbers (there are no sources), clear",)
    # Sections with one heading are compared by their texts.
    changes = ["".join(op for s in shown.sections for op, _ in s.parts) for shown in loop.rounds]
    assert changes == ["===", "===", "==-"]


def test_without_texts_rounds_are_told_by_their_scores(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        span(1, 0, 9, name="wiggum", rubric="essay", composites=[4.0, 6.0], stop_reason="plateau"),
        Instant(1, "round", 3, {"round": 1, "composite": 4.0, "draft_sha256": "00"}),
        Instant(1, "stop", 8, {"reason": "plateau", "detail": "no gain twice"}),
        chat(2, parent=None, start_ms=0, prompt="Why?"),
        RunEnded(99 * MS, "ok"),
    )
    (loop,) = page.loops
    assert not page.has_texts
    assert next(iter(page.calls)).prompt is None
    assert page.report.loops[0].composites == (4.0, 6.0)
    assert (loop.rounds, loop.stop.endswith("; no gain twice")) == ((), True)
    assert "did not record texts" in str(loop.unreadable)


def test_warnings_and_second_tries_are_events_with_their_place(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        span(1, 0, 50, name="node", node="text", label="text"),
        Instant(1, "warning", 10, {"message": "slow", "code": "a.b"}),
        Instant(1, "retry", 20, {"model": "small", "detail": "503", "delay_s": 0.5}),
        RunEnded(50, "error", "Boom"),
    )
    said = [(one.kind, one.time_ns, one.where, one.message) for one in page.events]
    assert said == [("warning", 10, "text", "slow"), ("retry", 20, "text", "503")]
    assert page.events[1].figures == (("model", "small"), ("delay_s", "0.5"))
    assert (page.status, page.report.error) == ("error", "Boom")


def test_the_version_changes_with_each_record_and_says_whether_the_run_goes_on(
    tmp_path: Path,
) -> None:
    with RunTrace(tmp_path, name="essay", clock=ManualClock()) as trace:
        trace.flush()
        before = run_page_of(trace.journal_path)
        with trace.span("work"):
            trace.flush()
            during = run_page_of(trace.journal_path)
    after = run_page_of(trace.journal_path)
    assert [page.status for page in (before, during, after)] == ["running", "running", "ok"]
    assert len({page.version for page in (before, during, after)}) == 3


def test_a_damaged_journal_with_a_circle_of_nodes_still_has_columns(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        span(1, 0, 5, name="node", node="a", label="a", needs=["b"]),
        span(2, 5, 9, name="node", node="b", label="b", needs=["a"]),
        Flow("output", 2, 1),
        Flow("output", 1, 2),
        Flow("output", 2, 3),  # to a node whose line is lost
        RunEnded(9, "ok"),
    )
    assert [[node.name for node in column] for column in page.columns] == [["a"], ["b"]]


# --- changes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("a b c\n", "a b c\n", "=a b c\n"),
        ("a b c d\n", "a x c d\n", "=a |-b |+x |=c d\n"),
        ("one two three\n", "four five six\n", "-one two three\n|+four five six\n"),
        ("a\nb\n", "a\nb\nc\n", "=a\nb\n|+c\n"),
        ("a\nb\n", "b\n", "-a\n|=b\n"),
        ("", "a\n", "+a\n"),
        ("a\n\nb\n", "a\n\nc\n\nb\n", "=a\n|+\nc\n|=\nb\n"),
    ],
    ids=["same", "a word", "nothing in common", "more", "fewer", "from nothing", "between"],
)
def test_changes_are_told_by_words(before: str, after: str, parts: str) -> None:
    assert "|".join(op + text for op, text in word_changes(before, after)) == parts


@pytest.mark.parametrize("form", ["\n{}\n", "| {} |\n", "{}\n}}\n"], ids=["blank", "table", "code"])
def test_what_is_frequent_between_changes_does_not_make_them_slow(form: str) -> None:
    before, after = ("".join(form.format(n + m) for n in range(900)) for m in (10_000, 20_000))
    start_s = time.process_time()
    assert word_changes(before, after)[-1] == ("+", after)
    assert time.process_time() - start_s < 2
    assert word_changes(after, after) == [("=", after)]


lines = st.text("ab \n#", max_size=40)


@given(lines, lines)
def test_the_parts_of_a_change_make_both_texts(before: str, after: str) -> None:
    parts = word_changes(before, after)
    assert "".join(text for op, text in parts if op != "-") == after
    assert "".join(text for op, text in parts if op != "+") == before


# --- the file ---------------------------------------------------------------------------------


def test_no_text_gets_out_of_the_json_that_holds_it(tmp_path: Path) -> None:
    nasty = Content(sha256_of(NASTY), NASTY)
    page = page_of(
        tmp_path, nasty, chat(1, parent=None, start_ms=0, prompt=NASTY), RunEnded(99 * MS, "ok")
    )
    html = b"".join(html_of(page_json(page), nonce="n")).decode()
    island = html.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(island)["texts"] == [NASTY]
    assert "<" not in island
    assert html.count("<script") == html.count("</script>") == 2
    assert "<img" not in html


def test_a_page_loads_nothing_and_runs_its_own_script_alone(recorded: RunPage) -> None:
    html = b"".join(html_of(page_json(recorded), nonce="chance")).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html, re.DOTALL)
    assert " ".join(policy.split()) == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'nonce-chance'; "
        "style-src 'nonce-chance'; connect-src 'none'"
    )
    head = html.partition('id="data"')[0]
    assert not re.search(r"\b(src|srcset|data)=|url\(|@import|https?:|\bon\w+=", head)
    assert "{{" not in head
