"""What `harness trace show` prints of one span."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from golden import assert_shown, printed
from manual_clock import ManualClock

from harness.cli.trace import SpanShown, print_span, span_shown
from harness.errors import InvalidInput
from harness.trace import Journal, RunTrace, TraceOptions

MS = 1_000_000


def journal_of(directory: Path, *, content: str = "full") -> Journal:
    """A node with one call: spans 1 and 2, with a phase and two texts."""
    clock = ManualClock(5_000 * MS)
    options = TraceOptions(content=content)  # type: ignore[arg-type]
    with (
        RunTrace(directory, name="essay", clock=clock, options=options) as trace,
        trace.span("node", node="text", label="text[3]"),
    ):
        clock.advance(ms=250)
        with trace.span(
            "chat",
            label="text[3] · producer",
            track="model small",
            prompt_sha256=trace.content("Say [bold]something[/bold]."),
        ) as chat:
            trace.completed_span("decode", start_ns=clock(), end_ns=clock() + 40 * MS)
            clock.advance(ms=40)
            chat.set(ttft_ns=12_345_678, seed=None, reply_sha256=trace.content("Something."))
    return Journal(trace.journal_path)


def shown(span: SpanShown) -> str:
    return printed(partial(print_span, span), width=80)


def test_a_call_is_shown_with_its_place_its_figures_and_its_texts(tmp_path: Path) -> None:
    assert_shown("trace show", "a call", shown(span_shown(journal_of(tmp_path), 2)))


def test_a_script_gets_nanoseconds_and_texts_by_name(tmp_path: Path) -> None:
    found = span_shown(journal_of(tmp_path), 2)
    assert (found.start_ns, found.duration_ns) == (250 * MS, 40 * MS)
    assert found.around == ("text[3]",)
    assert found.parts == (("decode", 250 * MS, 40 * MS),)
    assert found.texts == {"prompt": "Say [bold]something[/bold].", "reply": "Something."}
    assert found.attributes["ttft_ns"] == 12_345_678


def test_texts_that_were_not_recorded_stay_hashes(tmp_path: Path) -> None:
    found = span_shown(journal_of(tmp_path, content="hash"), 2)
    assert found.texts == {}
    assert "prompt_sha256" in found.attributes


def test_how_it_ended_is_shown_if_not_well(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="no good"),
        RunTrace(tmp_path, name="essay", clock=ManualClock()) as trace,
        trace.span("work"),
    ):
        raise ValueError("no good")
    assert_shown("trace show", "an error", shown(span_shown(Journal(trace.journal_path), 1)))


@pytest.mark.parametrize("wanted", [99, "text[2]", "findings[2]"])
def test_a_span_that_is_not_there_is_refused_with_labels_that_are(
    wanted: int | str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as raised:
        span_shown(journal_of(tmp_path), wanted)
    assert raised.value.code == "trace.no-such-span"
    assert_shown("trace show", f"no span {wanted}", str(raised.value))
