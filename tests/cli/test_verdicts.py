"""What is said of a verdict, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cli.verdicts import decision, passes_at, points, remarks, why_not_more
from harness.rubric import DimensionScore, Finding, Rubric, Verdict
from harness.rubric.verdict import Judges, Shortened

RUBRIC = Rubric.model_validate(
    {
        "id": "notes",
        "title": "Notes",
        "pass_at": 8,
        "dimensions": [
            {
                "name": "length",
                "floor": 6,
                "gate": True,
                "checks": [{"check": "words", "min": 5, "max": 40}],
            },
            {"name": "clear", "judge": "Is it clear?", "floor": 4},
            {"name": "useful", "judge": "Is it useful?", "optional": True},
            {"name": "borne_out", "judge": "Do they say so?", "needs_sources": True},
        ],
    }
)


def verdict(composite: float = 9.0, **more: Any) -> Verdict:
    scores = {"length": 10.0, "clear": composite}
    return Verdict(
        rubric="notes",
        rubric_sha256="00",
        scores=tuple(
            DimensionScore(name=name, score=score, source="judged", reason="")
            for name, score in scores.items()
        ),
        composite=composite,
        **{"passed": composite >= 8, **more},
    )


def judges(**more: Any) -> Judges:
    return Judges(**{"evaluators": ("a",), "prompt_sha256": "p", **more})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(verdict(9), "passed (needed: 8)", id="passed"),
        pytest.param(verdict(7), "not passed (needed: 8)", id="below the threshold"),
        pytest.param(
            verdict(9, passed=False, below_floor=("clear",)),
            "not passed (clear 9 is below its floor 4)",
            id="below a floor alone",
        ),
        pytest.param(
            verdict(3, below_floor=("clear",)),
            "not passed (needed: 8, and clear 3 is below its floor 4)",
            id="both",
        ),
        pytest.param(
            verdict(
                9,
                passed=False,
                judges=judges(combine="majority", judgements=4, pass_share=0.5),
            ),
            "not passed (50% of the judgements pass it, and more than half must)",
            id="outvoted",
        ),
    ],
)
def test_why_a_draft_did_not_pass_is_said(found: Verdict, said: str) -> None:
    assert decision(found, RUBRIC) == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param(
            {"gates": ("length",), "unjudged": ("clear",)},
            ["The gate length is shut, so no model was asked"],
            id="gate",
        ),
        pytest.param(
            {"unjudged": ("clear", "useful")},
            ["Not judged, since no evaluator model is configured: clear, useful."],
            id="nobody to judge",
        ),
        pytest.param(
            {"unjudged": ("borne_out",), "judges": judges()},
            ["Not judged, since there are no sources to judge it by: borne_out.", "Judged by a."],
            id="no sources",
        ),
        pytest.param(
            {"unjudged": ("length",)},
            ["Not scored, for want of something to check it by (sources, or enough text): length."],
            id="nothing to check by",
        ),
        pytest.param(
            {"carried": ("clear",)}, ["Taken over from an earlier round: clear."], id="carried"
        ),
        pytest.param(
            {
                "judges": judges(
                    evaluators=("a", "b"),
                    judgements=5,
                    abstentions=1,
                    absent=("b: no score can be read",),
                    spread=0.5,
                    pass_share=0.6,
                    combine="median",
                )
            },
            [
                "The median of 5 judgements by a, b, spread 0.50, 60% of them would pass it.",
                "Asked in vain, which counts for nothing: b: no score can be read",
            ],
            id="several judgements",
        ),
        pytest.param(
            {"judges": judges(judgements=3, pass_share=2 / 3, combine="majority")},
            ["The medians of 3 judgements by a, 67% of them would pass it."],
            id="a vote",
        ),
        pytest.param(
            {
                "judges": judges(
                    shortened=Shortened(before_chars=9_000, after_chars=6_000, refused="too long")
                )
            },
            [
                "Judged by a.",
                "The evaluator saw 6,000 of 9,000 characters, picked sentences (a model's summary",
            ],
            id="shortened",
        ),
        pytest.param({}, [], id="nothing to remark"),
    ],
)
def test_what_is_to_be_known_about_a_verdict_is_said(more: Any, said: list[str]) -> None:
    found = list(remarks(verdict(9, **more), RUBRIC))
    assert len(found) == len(said)
    for line, beginning in zip(found, said, strict=True):
        assert line.startswith(beginning)


def test_of_a_judged_dimension_the_reason_and_every_finding_is_told_once() -> None:
    score = DimensionScore(
        name="clear",
        score=6.5,
        source="judged",
        reason="It rambles.; at most 6: one-line bullets",
        findings=(
            Finding("It rambles."),
            Finding("no figure", section="Costs", section_index=1),
            Finding("one-line bullets"),
        ),
        spread=0.25,
        capped=("at most 6: one-line bullets",),
    )
    assert list(why_not_more(score)) == [
        "It rambles.",
        "“Costs”: no figure",
        "held down: at most 6: one-line bullets",
    ]
    assert points(score) == "6.5 ±0.2"


def test_of_a_checked_dimension_the_findings_are_told_and_not_their_sum_as_well() -> None:
    score = DimensionScore(
        name="length",
        score=5,
        source="checked",
        reason="3 words; at least 5 are needed",
        findings=(Finding("3 words; at least 5 are needed"),),
    )
    assert list(why_not_more(score)) == ["3 words; at least 5 are needed"]


@pytest.mark.parametrize(
    ("more", "pass_at", "passes"),
    [
        ({}, 7, True),
        ({}, 7.5, True),
        ({}, 8, False),
        ({"below_floor": ("clear",)}, 7, False),
        ({"gates": ("length",), "below_floor": ("length",)}, 0, False),
    ],
)
def test_another_threshold_moves_the_composites_line_and_no_floor(
    more: Any, pass_at: float, passes: object
) -> None:
    assert passes_at(verdict(7.5, passed=False, **more), pass_at) is passes
