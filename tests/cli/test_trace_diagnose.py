"""What `harness trace diagnose` prints."""

from __future__ import annotations

import io
import json

from rich.console import Console

from harness.cli.trace_diagnose import findings_as_json, print_findings
from harness.trace.diagnosis import Evidence, Finding

FINDING = Finding(
    rule="queueing",
    severity="warning",
    model="small",
    seen="7 of 8 calls to '[bold]small' queued in the server.",
    evidence=Evidence(spans=(6, 8), figures={"queue_max_s": 3.4}),
    meaning="More calls came at once than the server has places.",
    layer="L4a",
    move=("start vLLM with a larger --max-num-seqs", "under [endpoints.small]: more slots"),
    lost_ns=3_400_000_000,
)


def printed(*findings: Finding) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_findings(findings, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_finding_is_printed_with_its_owner_its_moves_and_its_spans():
    lines = [line.rstrip() for line in printed(FINDING).splitlines()]

    assert lines[0] == "1. queueing  warning, L4a routing"
    assert "   - start vLLM with a larger --max-num-seqs" in lines
    assert "   spans 6, 8" in lines


def test_brackets_in_what_was_seen_are_no_markup():
    assert "'[bold]small'" in printed(FINDING)
    assert "[endpoints.small]" in printed(FINDING)


def test_findings_are_numbered_in_the_order_given():
    assert [line[:2] for line in printed(FINDING, FINDING).splitlines() if line[:1].isdigit()] == [
        "1.",
        "2.",
    ]


def test_nothing_found_is_said_with_what_cannot_be_seen():
    text = printed()

    assert text.startswith("Nothing is wrong that this can see: ")
    assert "how busy the device was" in text.replace("\n", " ")


def test_json_holds_everything_that_was_found():
    (finding,) = json.loads(findings_as_json([FINDING]))["findings"]

    assert finding["rule"] == "queueing"
    assert finding["evidence"] == {"spans": [6, 8], "figures": {"queue_max_s": 3.4}}
    assert finding["move"] == list(FINDING.move)
    assert finding["lost_ns"] == 3_400_000_000
    assert json.loads(findings_as_json([])) == {"findings": []}
