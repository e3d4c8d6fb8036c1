"""Several runs as one service."""

from pathlib import Path

from manual_clock import ManualClock

from harness.analysis import report_of_runs
from harness.trace import Journal, RunTrace

MS = 1_000_000


def run_of(
    directory: Path, *, name: str, wall_ns: int, ttft_ms: tuple[int, ...], composite: float | None
) -> Journal:
    """A run of one call after the other, and perhaps a loop."""
    clock = ManualClock()
    with RunTrace(directory, name=name, clock=clock, wall_ns=lambda: wall_ns) as trace:
        trace.instant("endpoint", model="small", usd_per_hour=3600.0)
        for wait_ms in ttft_ms:
            with trace.span("chat", model="small") as chat:
                clock.advance(ms=wait_ms)
                chat.set(ttft_ns=wait_ms * MS, itl_mean_ns=MS, input_tokens=5, output_tokens=10)
        if composite is not None:
            with trace.span("wiggum", rubric="essay") as loop:
                loop.set(composites=[1.0, composite], best_round=2, stop_reason="passed")
    return Journal(trace.journal_path)


def test_calls_of_all_runs_are_one_group_and_each_run_is_a_line(tmp_path: Path) -> None:
    journals = [
        run_of(tmp_path / "a", name="essay", wall_ns=10**18, ttft_ms=(100, 300), composite=8.5),
        run_of(tmp_path / "b", name="essay", wall_ns=2 * 10**18, ttft_ms=(600,), composite=None),
    ]

    report = report_of_runs(journals)

    (model,) = report.models
    assert (model.name, model.calls, model.output_tokens) == ("small", 3, 30)
    assert model.ttft is not None
    assert (model.ttft.p50_ns, model.ttft.max_ns) == (300 * MS, 600 * MS)
    assert [(run.duration_ns // MS, run.composite, run.cost.usd) for run in report.runs] == [
        (400, 8.5, 0.4),
        (600, None, 0.6),
    ]
    assert [run.calls.calls for run in report.runs] == [2, 1]
    # The last call took longer than half a second to its first token.
    assert (report.goodput.met, report.goodput.missed) == (2, 1)
    assert report.goodput.throughput_tokens_per_s == 30


def test_no_runs_are_no_report_of_anything() -> None:
    assert report_of_runs([]).runs == ()
