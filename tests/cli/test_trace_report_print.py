"""The report on a run's trace, as a person reads it and as a script does."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from harness.cli.trace_report import print_report, report_as_json
from harness.trace import Journal, ManualClock, RunTrace, TraceOptions
from harness.trace.report import RunReport, report_of

MS = 1_000_000
LONG_TAG = "a-model-with-[bold]a-very-long-name[/bold]-of-70b-parameters-at-q8_0"


def call(trace: RunTrace, clock: ManualClock, *, model: str, wait_ms: int, output: int) -> None:
    """A call that waits for its first token, then gets one every 20 ms."""
    with trace.span("chat", model=model, role="producer") as chat:
        sent_ns = clock()
        clock.advance(ms=wait_ms)
        first_ns = clock()
        clock.advance(ms=20 * (output - 1))
        trace.completed_span("prefill", start_ns=sent_ns, end_ns=first_ns)
        trace.completed_span("decode", start_ns=first_ns, end_ns=clock())
        chat.set(
            ttft_ns=wait_ms * MS,
            itl_mean_ns=20 * MS,
            itl_p95_ns=21 * MS,
            input_tokens=1_234_567,
            output_tokens=output,
        )


def record(directory: Path, *, model: str = "small", clock: ManualClock) -> Iterator[RunTrace]:
    """One node with a loop and two calls; yields once, while the loop is open."""
    options = TraceOptions(durability="sync", timelines=())
    with RunTrace(directory, name="essay", clock=clock, options=options) as trace:
        trace.instant("endpoint", model=model, usd_per_hour=8.42)
        with (
            trace.span("node", node="text", label="text"),
            trace.span("wiggum", rubric="essay") as loop,
        ):
            clock.advance(ms=1000)
            call(trace, clock, model=model, wait_ms=250, output=51)
            call(trace, clock, model=model, wait_ms=12_345, output=101)
            trace.instant("retry", model=model)
            yield trace
            loop.set(composites=[6.5, 8.3], best_round=2, passed=True, stop_reason="passed")
        yield trace


def report_on(directory: Path, *, model: str = "small", is_killed: bool = False) -> RunReport:
    traces = record(directory, model=model, clock=ManualClock(7_000 * MS))
    journal_path = next(traces).journal_path
    if is_killed:
        report = report_of(Journal(journal_path))
        list(traces)
        return report
    list(traces)
    return report_of(Journal(journal_path))


def printed(report: RunReport, *, width: int = 100) -> str:
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=width))
    return stream.getvalue()


def row(text: str, first_cell: str, *, of_table: str = "") -> list[str]:
    lines = text[text.index(of_table) :].splitlines()
    line = next(line for line in lines if line.startswith(f"│ {first_cell} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_latencies_stand_by_model_node_and_role(tmp_path: Path) -> None:
    text = printed(report_on(tmp_path))
    # 250 ms and 50 waits of 20 ms; 12,345 ms and 100 of them.
    figures = ["2", "250 / 12,345 / 12,345", "20.0 / 20.0 / 20.0", "1.25 / 14.3 / 14.3"]
    for kind in ("model small", "node text", "role producer"):
        assert row(text, kind) == [kind, *figures]


def test_tokens_and_where_the_time_went_stand_in_a_table(tmp_path: Path) -> None:
    cells = row(printed(report_on(tmp_path)), "model small", of_table="Tokens, ")
    # 150 tokens in 3 s; a dash for what no server said, and for phases that there were none of.
    assert cells == [
        "model small", "2,469,134", "-", "152", "50.0", "-", "-", "12.6", "3.00", "15.6",
    ]  # fmt: skip


def test_what_is_one_sentence_is_said_in_one(tmp_path: Path) -> None:
    text = " ".join(printed(report_on(tmp_path)).split())
    assert "essay, 16.6 s, ok" in text
    assert "2 model calls; tried again 1 time; 0 models evicted to make room." in text
    # 51 and 152 tokens in 16.595 s.
    assert "Goodput: 3.07 of 9.16 tokens/s, efficiency 33.6%." in text
    assert "1 met, 1 missed, 0 unknown and counted as neither." in text
    assert "At most 1 call at once. No call under way: 1.00 s (6.0%) in 1 gap, the longest" in text


def test_the_critical_path_the_loops_and_the_cost_have_tables(tmp_path: Path) -> None:
    text = printed(report_on(tmp_path))
    assert row(text, "text", of_table="Critical path") == [
        "text", "0.00", "0.00", "16.6", "100.0%",
    ]  # fmt: skip
    assert row(text, "text", of_table="Loops")[2:4] == ["6.5 8.3*", "passed"]
    # 8.42 dollars an hour for 16.595 s, and that for 152 tokens.
    assert row(text, "small", of_table="Cost in dollars") == [
        "small", "hours", "0.0388", "0", "152", "255.35",
    ]  # fmt: skip


def test_a_killed_run_says_what_was_under_way(tmp_path: Path) -> None:
    text = printed(report_on(tmp_path, is_killed=True))
    assert "killed, or not over" in text
    assert row(text, "wiggum", of_table="Still under way")[2] == "16.6"
    assert row(text, "text (unfinished)", of_table="Critical path")[3] == "16.6"


def test_a_run_without_calls_is_told_in_two_lines(tmp_path: Path) -> None:
    with RunTrace(tmp_path, name="essay", clock=ManualClock()) as trace:
        pass
    assert printed(report_of(Journal(trace.journal_path))).splitlines() == [
        f"{trace.run_id}: essay, 0.00 s, ok",
        "0 model calls; tried again 0 times; 0 models evicted to make room.",
    ]


def test_a_model_without_a_price_is_said_to_have_none(tmp_path: Path) -> None:
    with RunTrace(tmp_path, name="essay", clock=ManualClock()) as trace:
        call(trace, ManualClock(), model="small", wait_ms=1, output=2)
    text = printed(report_of(Journal(trace.journal_path)))
    assert "Cost: unknown; no price was found for small." in text


@pytest.mark.parametrize("is_killed", [False, True], ids=["ended", "killed"])
def test_it_fits_a_hundred_columns_and_cuts_nothing_off(tmp_path: Path, *, is_killed: bool) -> None:
    text = printed(report_on(tmp_path, model=LONG_TAG, is_killed=is_killed))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "…" not in text
    assert "[bold]" in text


def test_json_has_every_field_under_its_own_name_and_times_as_integers(tmp_path: Path) -> None:
    report = report_on(tmp_path)
    written = report_as_json(report)
    assert written.endswith(b"\n")
    parsed = orjson.loads(written)
    assert parsed == as_plain(report)
    assert parsed["models"][0]["ttft"] == {
        "count": 2,
        "p50_ns": 250 * MS,
        "p95_ns": 12_345 * MS,
        "p99_ns": 12_345 * MS,
    }
    assert parsed["models"][0]["cached_tokens"] is None
    assert parsed["duration_ns"] == 16_595 * MS


def as_plain(value: object) -> object:
    """What JSON makes of a value, written out."""
    if is_dataclass(value):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [as_plain(one) for one in value]
    assert value is None or isinstance(value, str | int | float)
    return value
