"""What `harness trace diagnose` prints."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from harness.cli.trace_diagnose import findings_as_json, print_findings
from harness.trace.diagnosis import Diagnosis, Evidence, Finding

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


def diagnosis(*findings: Finding, **more: Any) -> Diagnosis:
    return Diagnosis(**{"run_id": "r1", "status": "ok", "findings": findings, **more})


def printed(*findings: Finding, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_findings(diagnosis(*findings, **more), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_finding_is_printed_with_its_owner_its_moves_and_its_spans():
    lines = [line.rstrip() for line in printed(FINDING, FINDING).splitlines()]

    assert [line for line in lines if line[:1].isdigit()] == [
        "1. queueing  warning, routing",
        "2. queueing  warning, routing",
    ]
    assert "   - start vLLM with a larger --max-num-seqs" in lines
    assert lines.count("   spans 6, 8") == 2
    assert sum("A span's number is" in line for line in lines) == 1


def test_brackets_in_what_was_seen_are_no_markup():
    assert "'[bold]small'" in printed(FINDING)
    assert "[endpoints.small]" in printed(FINDING)


def test_nothing_is_denied_that_was_not_examined():
    assert "one after another" in printed()
    text = printed(not_examined=("where prompts were the same: no texts were recorded",))

    assert text.startswith("Nothing is wrong that this can see: ")
    assert "one after another" not in text
    assert "Not examined: where prompts were the same: no texts were recorded." in text


@pytest.mark.parametrize(
    ("more", "beginning"),
    [
        ({}, "Nothing is wrong that this can see: "),
        ({"unexplained": "8 of 8 calls took longer."}, "Calls were slow, and no rule knows why."),
        ({"status": "cancelled"}, "Nothing was wrong that this can see until"),
    ],
    ids=["nothing found", "slow calls are no all-clear", "cut short"],
)
def test_nothing_found_is_said_with_what_cannot_be_seen(more: Any, beginning: str):
    assert printed(**more).startswith(beginning)


def test_calls_that_no_finding_explains_are_said_beside_those_that_one_does():
    assert "Calls were also slow" in printed(FINDING, unexplained="Of 8, 8.")


def test_json_holds_everything_that_was_found():
    (finding,) = json.loads(findings_as_json(diagnosis(FINDING)))["findings"]

    assert finding["rule"] == "queueing"
    assert finding["evidence"] == {"spans": [6, 8], "figures": {"queue_max_s": 3.4}}
    assert finding["move"] == list(FINDING.move)
    assert finding["lost_ns"] == 3_400_000_000
