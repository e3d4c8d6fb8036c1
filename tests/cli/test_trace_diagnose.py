"""What `harness trace diagnose` prints."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from golden import assert_shown, printed

from harness.analysis import Diagnosis, RunFinding
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
)


TIME = (
    TimeShare(kind="decode", duration_ns=8_000_000_000, share=0.8),
    TimeShare(kind="code", duration_ns=2_000_000_000, share=0.2),
)


def diagnosis(*findings: RunFinding, **more: Any) -> Diagnosis:
    usual = {"run_id": "r1", "status": "ok", "duration_ns": 10_000_000_000, "time": TIME}
    return Diagnosis(**{**usual, "findings": findings, **more})


def limit(bound: Any) -> SpeedLimit:
    return SpeedLimit(
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


CASES = {
    "two findings": diagnosis(
        FINDING, FINDING, checked=("queueing", "retries"), unexplained=TIME[1]
    ),
    "nothing found": diagnosis(),
    "cut short": diagnosis(status="cancelled"),
    "a limit that was passed": diagnosis(speed_limits=(limit("compute"),)),
    "an unknown limit": diagnosis(speed_limits=(limit("unknown"),)),
    "a remark": diagnosis(remarks=("No texts were recorded.",)),
}


@pytest.mark.parametrize("case", CASES)
def test_findings_are_printed_with_their_owner_moves_and_spans_and_what_was_not_seen(
    case: str,
) -> None:
    assert_shown("diagnosis", case, printed(partial(print_findings, CASES[case])))


def test_json_holds_everything_that_was_found() -> None:
    (finding,) = json.loads(json_object(diagnosis(FINDING)))["findings"]

    assert (finding["rule"], finding["lost_ns"]) == ("queueing", 3_400_000_000)
    assert finding["spans"] == [6, 8]
    assert finding["move"] == list(FINDING.move)
