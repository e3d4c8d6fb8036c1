"""Bottlenecks planted in real runs by people who had not read the rules, and healthy runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from bench_diagnosis import row_of  # - found by the path above
from more_planted_bottlenecks import PLANTED as MORE_PLANTED
from planted_bottlenecks import PLANTED, Planted

SAMPLE = {
    "blocking-fetch",
    "loop-instead-of-map",
    "more-than-the-quota",
    "conversation-read-again",
    "quota-of-tokens",
    "honest-chain",
    "one-warm-call",
}
NOT_NAMED = {
    *("essays-for-labels", "filter-comes-last", "stages-in-step", "padded-batches"),
    *("rounds-gain-nothing", "verdict-asked-again", "eight-candidates", "one-slow-server"),
}
"""What a reply is for, whether a stage or a reply was needed, how a server batches: no journal
says it."""

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [
        one
        for one in [*PLANTED, *MORE_PLANTED]
        if one.name in SAMPLE or (IS_NIGHTLY and one.name not in NOT_NAMED)
    ],
    ids=lambda planted: planted.name,
)
def test_it_is_named_or_left_alone(planted: Planted) -> None:
    assert row_of(planted).verdict in {"named", "stated", "left alone"}
