"""The report on a run's trace, as a person reads it and as a script does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import orjson
import pytest
from golden import assert_shown, printed
from manual_clock import ManualClock

from harness.analysis import RunReport, report_of
from harness.cli.consoles import json_object
from harness.cli.trace_report import print_report
from harness.trace import Journal, RunTrace

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


def report_on(directory: Path, *, model: str = "small") -> RunReport:
    """Of one node with a loop and two calls."""
    clock = ManualClock(7_000 * MS)
    with (
        RunTrace(directory, name="essay", clock=clock) as trace,
        trace.span("node", node="text", label="text"),
        trace.span("wiggum", rubric="essay") as loop,
    ):
        trace.instant("endpoint", model=model, usd_per_hour=8.42)
        clock.advance(ms=1000)
        call(trace, clock, model=model, wait_ms=250, output=51)
        call(trace, clock, model=model, wait_ms=12_345, output=101)
        trace.instant("retry", model=model)
        loop.set(composites=[6.5, 8.3], best_round=2, passed=True, stop_reason="passed")
    return report_of(Journal(trace.journal_path))


def shown(report: RunReport) -> str:
    return printed(partial(print_report, report), width=80)


def test_a_report_says_where_the_time_the_tokens_and_the_money_went(tmp_path: Path) -> None:
    # By hand: 250 ms and 50 waits of 20 ms; 12,345 ms and 100 of them; 1 s before any call. So 152
    # tokens in 16.595 s, 51 of them in time; 8.42 dollars an hour for 16.595 s.
    text = shown(report_on(tmp_path))
    assert_shown("trace report", "two calls in a loop", text)
    assert text.count("\nmodel small ") == 2  # a table that is too wide breaks the names of rows


@pytest.mark.parametrize(
    ("case", "costs"),
    [
        ("no price", {}),
        ("a cache that saved", {"cost_usd": 0.01, "cache_saved_usd": 0.0081}),
        ("a cache that cost", {"cost_usd": 0.01, "cache_saved_usd": -0.012}),
    ],
)
def test_a_report_says_what_a_call_cost_and_what_the_providers_cache_saved(
    tmp_path: Path, case: str, costs: dict[str, float]
) -> None:
    with (
        RunTrace(tmp_path, name="essay", clock=ManualClock()) as trace,
        trace.span("chat", model="claude") as chat,
    ):
        chat.set(input_tokens=4_000, cached_tokens=3_000, output_tokens=9, **costs)
    assert_shown("trace report", case, shown(report_of(Journal(trace.journal_path))))


def test_it_fits_eighty_columns_and_cuts_nothing_off(tmp_path: Path) -> None:
    text = shown(report_on(tmp_path, model=LONG_TAG))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "[bold]" in text


def test_json_has_times_as_integers(tmp_path: Path) -> None:
    written = orjson.loads(json_object(report_on(tmp_path)))
    ttft = {
        "count": 2,
        "p50_ns": 6_297_500_000,
        "p95_ns": None,
        "p99_ns": None,
        "max_ns": 12_345 * MS,
    }
    assert written["models"][0]["ttft"] == ttft
    assert written["duration_ns"] == 16_595 * MS
