"""Thresholds with a stated error rate: exact, and as often right as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.rubric.calibration.bounds import (
    RiskAim,
    at_threshold,
    drafts_for,
    interval,
    library,
    named_threshold,
    steps_of,
    upper_bound,
)

stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")


def test_a_package_that_is_missing_is_named_with_the_extra():
    with pytest.raises(InvalidInput) as caught:
        library("no_such_package")

    assert caught.value.code == "tune.package-missing"
    assert "wiggum-harness[tune]" in str(caught.value)


RISKS = ["accepted", "rejected", "all"]


@pytest.mark.parametrize(
    ("target", "least"), [(0.05, [45, 77, 105, 132]), (0.1, [22, 38, 52, 65])], ids=["5%", "10%"]
)
def test_so_many_drafts_are_needed_with_none_one_two_and_three_wrong(target, least):
    assert [*drafts_for(range(4), RiskAim(target=target))] == least


@given(st.floats(0.005, 0.95), st.floats(0.5, 0.995), st.integers(1, 5), st.integers(1, 300))
def test_one_draft_less_would_not_keep_the_aim(target, confidence, tried, wrong):
    aim = RiskAim(target=target, confidence=confidence, looks=tried)
    [least] = drafts_for([wrong], aim)

    assert stats.binom.cdf(wrong, least, target) <= aim.error + 1e-12
    assert stats.binom.cdf(wrong, least - 1, target) > aim.error - 1e-12


def test_bounds_are_those_of_clopper_and_pearson():
    exact = stats.binomtest(3, 60).proportion_ci(0.8, method="exact")

    assert upper_bound(3, 60, error=0.1) == pytest.approx(exact.high)
    assert interval(3, 60, confidence=0.8) == pytest.approx((exact.low, exact.high))
    assert upper_bound(0, 0, error=0.1) == 1
    assert interval(0, 0, confidence=0.9) == (0, 1)


@st.composite
def labeled(draw):
    """Few distinct scores, some out of reach, and labels."""
    count = draw(st.integers(1, 120))
    generator = np.random.default_rng(draw(st.integers(0, 10_000)))
    scores = generator.integers(0, draw(st.integers(1, 40)), count).astype(float)
    scores[generator.random(count) < 0.1] = -np.inf
    return scores, generator.random(count) < draw(st.sampled_from([0.02, 0.1, 0.4]))


@given(labeled(), st.sampled_from(RISKS), st.sampled_from([0.05, 0.1, 0.3]))
def test_the_named_threshold_is_that_of_a_plain_walk_down_the_scores(drafts, risk, target):
    scores, wrong = drafts
    steps = steps_of(scores, wrong)
    named = named_threshold(steps, RiskAim(target=target, risk=risk))

    assert steps == tuple(at_threshold(scores, wrong, step.threshold) for step in steps)
    assert (named.threshold if named else None) == walked(scores, wrong, risk, target)


def walked(scores, wrong, risk, target):
    def is_kept(k, n):
        return n > 0 and stats.binom.cdf(k, n, target) <= 0.1

    least = next(n for n in range(1, 10_000) if is_kept(1, n))
    named = None
    for threshold in sorted(set(scores[np.isfinite(scores)]), reverse=True):
        passes = scores >= threshold
        trials = {"accepted": passes, "rejected": wrong, "all": passes | True}[risk].sum()
        if risk == "accepted" and trials < max(least, 0.1 * len(scores)):
            continue
        if not is_kept((passes & wrong).sum(), trials):
            return named
        named = threshold
    return named


def test_a_judge_that_is_fooled_at_the_top_ends_the_sequence_there():
    scores = np.repeat([9.0, 8.0], [50, 400])
    wrong = np.arange(450) < 20
    steps = steps_of(scores, wrong)

    assert named_threshold(steps, RiskAim()) is None
    # From 8 on, 20 of 450 are wrong: looked at alone, that would do.
    assert upper_bound(20, 450, error=0.1) < 0.1


def population(generator, shape, kind):
    wrong = generator.random(shape) < {"tells": 0.25, "says nothing": 0.12}[kind]
    apart = 2.8 if kind == "tells" else 0.0
    return generator.normal(8 - apart * wrong, 1.1), wrong


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("kind", ["tells", "says nothing"])
def test_a_claim_holds_in_as_many_label_sets_as_it_says(kind, risk):
    generator = np.random.default_rng(7)
    scores, wrong = population(generator, (1_000, 150), kind)
    aim = RiskAim(risk=risk)
    named = [named_threshold(steps_of(*one), aim) for one in zip(scores, wrong, strict=True)]
    thresholds = [step.threshold for step in named if step]
    file_scores, file_wrong = population(generator, 50_000, kind)
    shares = {"accepted": None, "rejected": file_wrong.sum(), "all": file_wrong.size}
    false = 0
    for threshold in thresholds:
        passes = file_scores >= threshold
        false += (passes & file_wrong).sum() / (shares[risk] or passes.sum()) > 0.1

    assert false / 1_000 <= 0.12
    if kind == "tells":
        assert len(thresholds) / 1_000 > 0.95
