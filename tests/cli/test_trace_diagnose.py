"""What `harness trace diagnose` prints."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from golden import printed

from harness.analysis import Diagnosis, RunFinding
from harness.analysis.finding import Expected
from harness.analysis.speed_limits import SpeedLimit
from harness.analysis.time_budget import TimeShare
from harness.cli.consoles import json_object
from harness.cli.trace_report import print_findings

FINDING = RunFinding(
    rule="queueing",
    severity="warning",
    model="small",
    seen="7 of 8 calls to '[bold]small' queued in the server.",
    spans=(6, 8),
    meaning="More calls came at once than the server has places.",
    layer="L4a",
    move=("start vLLM with a larger --max-num-seqs", "under [endpoints.small]: more slots"),
    lost_ns=3_400_000_000,
    expected=Expected("time to first token", 4.1, 0.6, "s"),
)


TIME = (
    TimeShare(kind="decode", duration_ns=8_000_000_000, share=0.8),
    TimeShare(kind="code", duration_ns=2_000_000_000, share=0.2),
)


def diagnosis(*findings: RunFinding, **more: Any) -> Diagnosis:
    usual = {"run_id": "r1", "status": "ok", "duration_ns": 10_000_000_000, "time": TIME}
    return Diagnosis(**{**usual, "findings": findings, **more})


def shown(*findings: RunFinding, **more: Any) -> str:
    return printed(partial(print_findings, diagnosis(*findings, **more)))


def test_a_finding_is_printed_with_its_owner_its_moves_and_its_spans() -> None:
    text = shown(FINDING, FINDING, checked=("queueing", "retries"), unexplained=TIME[1])

    lines = [line.rstrip() for line in text.splitlines()]
    assert [line for line in lines if line[:1].isdigit()] == [
        "1. queueing  warning, routing",
        "2. queueing  warning, routing",
    ]
    assert "   - start vLLM with a larger --max-num-seqs" in lines
    assert lines.count("   spans 6, 8") == 2
    assert "harness trace show SPAN r1 prints one" in text
    assert "'[bold]small'" in text
    assert "Looked for by 2 rules: calls that failed" in text
    assert "The largest part that none explains: 20% the nodes' own code" in " ".join(text.split())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "Nothing was found."),
        ({"status": "cancelled"}, "Looked for by 0 rules, up to its end: calls"),
    ],
    ids=["nothing found", "cut short"],
)
def test_nothing_found_is_said_with_what_cannot_be_seen(more: Any, said: str) -> None:
    assert said in shown(**more)


def test_where_the_time_went_is_said_whatever_was_found() -> None:
    said = (
        "Where the 10.0 s of the critical path went: 80% models wrote replies; 20% the nodes' own"
    )
    assert said in shown()
    assert said in shown(FINDING)
    assert (
        "Findings count all nodes" in shown(),
        "Findings count all nodes" in shown(FINDING),
    ) == (
        False,
        True,
    )


@pytest.mark.parametrize(("bound", "told"), [("unknown", False), ("compute", True)])
def test_a_limit_that_was_passed_has_no_verdict_and_no_prediction(bound: Any, told: Any) -> None:
    limit = SpeedLimit(
        model="small",
        device="machine",
        calls=3,
        at_once=1.0,
        tokens_per_s=23.2,
        weight_bytes=10**8,
        cache_bytes=0.0,
        memory_bytes_per_s=1e10,
        memory_source="measured",
        memory_limit=100.0,
        compute_limit=15.6,
        memory_share=0.23,
        compute_share=1.488,
        bound=bound,
    )
    text = " ".join(shown(speed_limits=(limit,)).split())
    assert ("Computing is the limit." in text, "Predicted" in text) == (told, told)
    assert ("could not be told" in text) != told


def test_what_was_not_examined_is_said() -> None:
    text = shown(not_examined=("where prompts were the same: no texts were recorded",))
    assert "Not examined: where prompts were the same: no texts were recorded." in text


def test_json_holds_everything_that_was_found() -> None:
    (finding,) = json.loads(json_object(diagnosis(FINDING)))["findings"]

    assert (finding["rule"], finding["lost_ns"]) == ("queueing", 3_400_000_000)
    assert finding["spans"] == [6, 8]
    assert finding["move"] == list(FINDING.move)
    assert finding["expected"] == {
        "figure": "time to first token",
        "before": 4.1,
        "after": 0.6,
        "unit": "s",
    }
