"""What is said of a verdict, in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden import assert_shown

from harness.cli.verdicts import decision, passes_at, points, remarks, why_not_more
from harness.rubric import DimensionScore, Finding, Rubric, Verdict
from harness.rubric.verdict import Judges, Shortened

RUBRIC = Rubric.model_validate(
    {
        "id": "notes",
        "title": "Notes",
        "pass_at": 8,
        "dimensions": [
            {"name": "length", "floor": 6, "gate": True, "checks": [{"check": "words", "min": 5}]},
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


VERDICTS = {
    "passed": verdict(9),
    "below both": verdict(3, below_floor=("clear",)),
    "words of the loop": verdict(9, passed=False, below_floor=("no-echo",)),
    "outvoted": verdict(
        9, passed=False, judges=judges(combine="majority", judgements=4, pass_share=0.5)
    ),
    "a gate is shut": verdict(gates=("length",), unjudged=("clear",)),
    "nobody to judge": verdict(unjudged=("clear", "useful")),
    "no sources": verdict(unjudged=("borne_out",), judges=judges()),
    "nothing to check by": verdict(9, unjudged=("length",)),
    "not for its language": verdict(
        9, unjudged=("length",), unjudged_reasons={"length": "not for this language: no blanks"}
    ),
    "not all scored": verdict(9, passed=False, unjudged=("length",), missing=("length",)),
    "several judgements": verdict(
        judges=judges(
            evaluators=("a", "b"),
            judgements=5,
            abstentions=1,
            absent=("b: no score can be read",),
            spread=0.5,
            pass_share=0.6,
            combine="median",
        )
    ),
    "cut": verdict(9, passed=False),
    "shortened": verdict(judges=judges(shortened=Shortened(before_chars=9_000, after_chars=6_000))),
    "sources shortened": verdict(
        judges=judges(sources_shortened=Shortened(before_chars=55_000, after_chars=14_000))
    ),
}


def test_why_a_draft_passed_or_not_and_what_is_to_be_known_of_it_are_said() -> None:
    lines = []
    for name, one in VERDICTS.items():
        lines += [f"{name}: {decision(one, RUBRIC)}", *(f"  {x}" for x in remarks(one, RUBRIC))]
    assert_shown("verdicts", "decisions and remarks", "\n".join(lines))


def test_the_reason_and_every_finding_is_told_once() -> None:
    judged = DimensionScore(
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
    why = "3 words; at least 5 are needed"
    checked = replace(judged, source="checked", reason=why, findings=(Finding(why),), capped=())
    open_cap = replace(judged, capped=(), open_caps=("at most 3: unless: … (there is no Python)",))
    every = (judged, checked, open_cap)
    lines = [line for one in every for line in (points(one), *why_not_more(one))]
    assert_shown("verdicts", "why a score is not higher", "\n".join(lines))


@pytest.mark.parametrize(
    ("more", "pass_at", "passes"),
    [
        ({}, 7.5, True),
        ({}, 8, False),
        ({"below_floor": ("clear",)}, 7, False),
        ({"unjudged": ("length",), "missing": ("length",)}, 7, False),
        ({"gates": ("length",), "below_floor": ("length",)}, 0, False),
    ],
)
def test_another_threshold_moves_the_composites_line_and_no_floor(
    more: Any, pass_at: float, passes: object
) -> None:
    assert passes_at(verdict(7.5, passed=False, **more), pass_at) is passes
