"""The recorded run in traces/recorded: a real run of the demo, which every later version reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from demo import ROOT
from perfetto import query_trace

from harness.trace import (
    TIMELINES,
    Journal,
    RunRecord,
    TimelineFormat,
    calls_of,
    group_calls,
    load_run,
    write_chrome_trace,
)

pytestmark = pytest.mark.slow

RECORDED = ROOT / "traces/recorded"


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return load_run(RECORDED / "brief.jsonl")


def test_it_is_whole(record: RunRecord) -> None:
    assert record.ended is not None
    assert record.ended.status == "ok"
    assert {span.status for span in record.spans} == {"ok"}
    assert [output.node for output in record.outputs].count("sections") == 3


def test_its_timeline_is_what_its_journal_gives(tmp_path: Path) -> None:
    # When the exporter changes on purpose, write the file again from the journal.
    write_chrome_trace(Journal(RECORDED / "brief.jsonl"), tmp_path / "brief.json")
    written = json.loads((tmp_path / "brief.json").read_text())
    assert written == json.loads((RECORDED / "brief.json").read_text())


def test_its_figures_add_up(record: RunRecord) -> None:
    (model,) = group_calls(calls_of(record.spans), by=lambda call: call.model)
    calls = [span for span in record.spans if span.name == "chat"]
    assert model.calls == len(calls)
    assert model.output_tokens == sum(int(str(s.attributes["output_tokens"])) for s in calls)


@pytest.mark.parametrize("form", TIMELINES)
def test_perfetto_loads_it_without_a_complaint(form: TimelineFormat, tmp_path: Path) -> None:
    ending, write = TIMELINES[form]
    path = tmp_path / f"brief{ending}"
    write(Journal(RECORDED / "brief.jsonl"), path)

    complaints = query_trace(
        path, "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    )
    assert complaints == []


def test_it_names_nothing_of_the_machine_it_was_recorded_on() -> None:
    text = (RECORDED / "brief.jsonl").read_text() + (RECORDED / "brief.json").read_text()
    assert "/tmp" not in text
    assert "/home" not in text
