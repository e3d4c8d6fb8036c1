"""The recorded run in traces/recorded: a real run of the demo, which every later version reads."""

from __future__ import annotations

import json
from pathlib import Path

from demo import ROOT
from sample_runs import load_run

from harness.trace import Journal
from harness.trace.chrome import write_chrome_trace

RECORDED = ROOT / "traces/recorded"


def test_it_is_whole_and_names_nothing_of_the_machine_it_was_recorded_on() -> None:
    run = load_run(RECORDED / "brief.jsonl")

    assert run.ended is not None
    assert run.ended.status == "ok"
    # The run ended before its model was let go.
    assert {span.status for span in run.spans if span.name != "unload"} == {"ok"}
    assert [span.name for span in run.spans].count("candidate") == 4
    assert [output.node for output in run.outputs].count("sections") == 3
    text = (RECORDED / "brief.jsonl").read_text() + (RECORDED / "brief.json").read_text()
    assert not [place for place in ("/tmp", "/home", "/root", "/work") if place in text]


def test_its_timeline_is_what_its_journal_gives(tmp_path: Path) -> None:
    # When the exporter changes on purpose, write the file again from the journal.
    write_chrome_trace(Journal(RECORDED / "brief.jsonl"), tmp_path / "brief.json")

    written = json.loads((tmp_path / "brief.json").read_text())
    assert written == json.loads((RECORDED / "brief.json").read_text())
