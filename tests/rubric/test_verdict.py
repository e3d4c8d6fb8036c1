import math
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import EvaluationFailed
from harness.rubric import Dimension, DimensionScore, Finding, Rubric, reach_verdict
from harness.rubric.checks import GroundedNumbers, Words
from harness.rubric.rubric import Scale
from harness.rubric.verdict import Judges, Shortened, half_up


def rubric(*dimensions: Dimension, **fields) -> Rubric:
    return Rubric(id="essay", title="Essay", dimensions=dimensions, **fields)


def dimension(name: str, **fields) -> Dimension:
    return Dimension(name=name, judge="Good?", **fields)


def score(name: str, points: float) -> DimensionScore:
    return DimensionScore(name=name, score=points, source="judged", reason="because")


@pytest.mark.parametrize(
    ("value", "step", "start", "rounded"),
    [
        pytest.param(8.25, 0.1, 0, 8.3, id="the half that Python rounds down"),
        pytest.param(77 / 12, 0.1, 0, 6.4, id="6.417"),
        pytest.param(6.35, 0.1, 0, 6.4, id="a half that no float is"),
        pytest.param(0.1 + 0.2, 0.3, 0, 0.3, id="noise of float arithmetic"),
        pytest.param(-8.25, 0.1, 0, -8.2, id="up is up below zero too"),
        pytest.param(-0.04, 0.1, 0, 0, id="nothing"),
        pytest.param(4.1, 2, 1, 5, id="steps that start at 1"),
        pytest.param(3.9, 2, 1, 3, id="steps that start at 1, below the half"),
        pytest.param(1e30, 0.5, 0, 1e30, id="more digits than decimals keep"),
    ],
)
def test_half_up_gives_the_nearest_step(value, step, start, rounded):
    assert half_up(value, step, start=start) == rounded
    # Neither -0.0 nor a number that only prints as the step.
    assert str(half_up(value, step, start=start)) == str(float(rounded))


@given(hundredths=st.integers(0, 1000), step=st.sampled_from(["0.1", "0.25", "0.5", "1", "2"]))
def test_half_up_is_what_decimals_round_to(hundredths, step):
    exact = Decimal(hundredths) / 100
    steps = (exact / Decimal(step)).quantize(Decimal(1), ROUND_HALF_UP)

    assert half_up(hundredths / 100, float(step)) == float(steps * Decimal(step))


COMPOSITE_STEPS = st.builds(
    lambda low, steps, step: Scale(
        min=low, max=float(Decimal(low) + steps * Decimal(step)), step=float(step)
    ),
    st.integers(0, 1),
    st.integers(1, 100),
    st.sampled_from(["0.01", "0.1", "0.25", "0.5", "1", "2", "5"]),
)


@given(scale=COMPOSITE_STEPS)
def test_composites_are_rounded_finer_than_any_step_of_the_scale(scale):
    finest = min(Fraction(str(scale.step)) / 5, Fraction(str(scale.max - scale.min)) / 50)
    step = Fraction(str(scale.composite_step))

    assert step <= finest * (1 + Fraction(1, 10**6))
    assert step == Fraction(1, 10) or 10 * step > finest
    assert scale.step != 0.5 or scale.max - scale.min < 5 or scale.composite_step == 0.1


def test_a_draft_just_under_the_threshold_of_a_small_scale_is_not_rounded_over_it():
    by = rubric(
        dimension("a"),
        dimension("b"),
        scale=Scale(min=0, max=1, step=0.1),
        pass_at=0.7,
        focus_below=0.6,
    )

    verdict = reach_verdict(by, [score("a", 0.6), score("b", 0.7)])

    assert (verdict.composite, verdict.passed) == (0.65, False)


@given(scored=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=6))
@example([(0, 7), (17, 12), (20, 12), (20, 12)])
def test_the_composite_is_the_weighted_mean_rounded_half_up(scored):
    names = [f"d{number}" for number in range(len(scored))]
    dimensions = [
        dimension(name, weight=quarters / 4)
        for name, (_, quarters) in zip(names, scored, strict=True)
    ]
    scores = [score(name, halves / 2) for name, (halves, _) in zip(names, scored, strict=True)]

    verdict = reach_verdict(rubric(*dimensions), scores)

    mean = Fraction(sum(h * q for h, q in scored), 2 * sum(q for _, q in scored))
    assert verdict.passed == (mean >= 8)
    if 7.95 <= mean < 8:  # not rounded over the threshold
        assert 7.9 < verdict.composite < 8
    else:
        assert verdict.composite == math.floor(mean * 10 + Fraction(1, 2)) / 10


@pytest.mark.parametrize(
    ("points", "composite", "passed", "below_floor"),
    [
        pytest.param((8, 8), 8.0, True, (), id="at the threshold"),
        pytest.param((8, 7.5), 7.9, False, (), id="just under it"),
        pytest.param((10, 4), 8.5, True, (), id="at the floor"),
        pytest.param((10, 3.5), 8.4, False, ("b",), id="under the floor"),
        pytest.param((0, 3.5), 0.9, False, ("b",), id="under both"),
    ],
)
def test_a_draft_passes_at_its_threshold_and_with_every_floor_reached(
    points, composite, passed, below_floor
):
    measured_by = rubric(dimension("a", weight=3), dimension("b", floor=4))

    verdict = reach_verdict(measured_by, [score("a", points[0]), score("b", points[1])])

    assert (verdict.composite, verdict.passed) == (composite, passed)
    assert verdict.below_floor == below_floor


def test_what_was_not_judged_neither_counts_nor_fails_and_the_rubrics_order_stays():
    unjudged = dimension("b", weight=9, floor=9, optional=True)
    by = rubric(dimension("a"), unjudged, dimension("c"))

    verdict = reach_verdict(by, [score("c", 8), score("a", 9)])

    assert (verdict.composite, verdict.passed, verdict.unjudged) == (8.5, True, ("b",))
    assert list(verdict.vector.items()) == [("a", 9), ("c", 8)]
    assert (verdict.rubric, verdict.rubric_sha256) == ("essay", by.sha256)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("combine", ["mean", "majority"])
def test_a_draft_passes_without_a_checks_score_only_if_the_rubric_says_so(optional, combine):
    grounded = Dimension(name="b", checks=(GroundedNumbers(),), optional=optional)
    judges = Judges(evaluators=("x",), prompt_sha256="", combine=combine, pass_share=1.0)

    verdict = reach_verdict(rubric(dimension("a"), grounded), [score("a", 9)], judges=judges)

    assert (verdict.composite, verdict.unjudged) == (9, ("b",))
    assert (verdict.passed, verdict.missing) == (optional, () if optional else ("b",))


def test_a_verdict_says_who_judged_and_whether_they_saw_all_of_it():
    seen = Shortened(before_chars=9000, after_chars=6000)
    one = Judges(evaluators=("x",), prompt_sha256="")
    two = Judges(evaluators=("x", "y"), prompt_sha256="", shortened=seen)
    verdicts = [
        reach_verdict(rubric(dimension("a")), [score("a", 2)], judges=judges)
        for judges in (None, one, two)
    ]

    assert [verdict.evaluator for verdict in verdicts] == [None, "x", "x, y"]
    assert [verdict.compressed for verdict in verdicts] == [False, False, True]


@pytest.mark.parametrize(
    ("points", "combine", "pass_share", "passed"),
    [
        pytest.param(7, "majority", 0.6, True, id="more than half would pass it"),
        pytest.param(9, "majority", 0.5, False, id="half would"),
        pytest.param(9, "majority", None, True, id="a majority of one"),
        pytest.param(9, "mean", 0.2, True, id="the mean decides"),
        pytest.param(7, "median", 0.9, False, id="the median decides"),
    ],
)
def test_with_a_majority_the_evaluators_pass_a_draft_and_else_the_composite(
    points, combine, pass_share, passed
):
    judges = Judges(evaluators=("x", "y"), prompt_sha256="", combine=combine, pass_share=pass_share)

    verdict = reach_verdict(rubric(dimension("a")), [score("a", points)], judges=judges)

    assert verdict.passed is passed


GATE = Dimension(name="gate", checks=(Words(min=1),), gate=True, floor=5)


@pytest.mark.parametrize(
    ("points", "gates"), [pytest.param(4.5, ("gate",), id="shut"), pytest.param(5, (), id="open")]
)
def test_a_gate_under_its_floor_fails_the_draft_even_against_a_majority(points, gates):
    judges = Judges(evaluators=("x",), prompt_sha256="", combine="majority", pass_share=1.0)
    measured_by = rubric(GATE, dimension("a", weight=9))

    verdict = reach_verdict(measured_by, [score("gate", points), score("a", 10)], judges=judges)

    assert (verdict.gates, verdict.passed) == (gates, not gates)


def test_a_draft_that_a_gate_stopped_ranks_behind_one_that_was_judged():
    measured_by = rubric(GATE, dimension("a"))
    stopped = reach_verdict(measured_by, [score("gate", 4.5)])
    judged = reach_verdict(measured_by, [score("gate", 5), score("a", 1)])
    passing = reach_verdict(measured_by, [score("gate", 8), score("a", 8)])

    assert stopped.composite > judged.composite
    assert sorted([passing, judged, stopped], key=lambda v: v.rank) == [stopped, judged, passing]


def test_nothing_scored_is_no_verdict():
    with pytest.raises(EvaluationFailed, match="a, b"):
        reach_verdict(rubric(dimension("a"), dimension("b")), [])


def test_the_threshold_is_on_the_rubrics_own_scale():
    measured_by = rubric(
        dimension("a"), scale=Scale(min=-2, max=2, step=1), pass_at=-0.2, focus_below=0
    )

    assert reach_verdict(measured_by, [score("a", 0)]).passed
    assert not reach_verdict(measured_by, [score("a", -1)]).passed


@pytest.mark.parametrize(
    ("weights", "points", "composite"),
    [
        pytest.param((9, 1), (8, 7.5), 7.95, id="a tenth would lift it"),
        pytest.param((999, 1), (8, 7), 7.999, id="a hundredth would"),
        pytest.param((2, 1), (8, 8), 8, id="all of them reach it"),
    ],
)
def test_what_is_printed_of_a_mean_is_what_decides_and_no_better_than_its_parts(
    weights, points, composite
):
    names = ("clear", "useful")
    dimensions = [
        Dimension(name=name, judge="?", weight=weight)
        for name, weight in zip(names, weights, strict=True)
    ]
    scores = [
        DimensionScore(name=name, score=score, source="judged", reason="")
        for name, score in zip(names, points, strict=True)
    ]

    verdict = reach_verdict(Rubric(title="T", dimensions=tuple(dimensions)), scores)

    assert (verdict.composite, verdict.passed) == (composite, composite >= 8)
    assert verdict.composite <= max(points)


def test_own_findings_are_those_that_neither_the_reason_nor_a_cap_repeats():
    findings = tuple(Finding(text) for text in ("too long", "because", "no source"))
    judged = DimensionScore(
        name="a",
        score=4,
        source="judged",
        reason="because",
        findings=findings,
        capped=("capped at 4: no source",),
    )

    assert [finding.message for finding in judged.own_findings] == ["too long"]
