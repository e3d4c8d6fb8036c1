"""How far two judgings of the same drafts lie apart: offsets, flips, and the threshold to move."""

import numpy as np
import pytest
from rubric.judged import CLEAR, rubric

from harness.rubric.calibration.shift import shift
from harness.rubric.verdict import DimensionScore, reach_verdict

RUBRIC = rubric(pass_at=7)


def verdict(clear, by=RUBRIC):
    scores = [DimensionScore(name="clear", score=float(clear), source="judged", reason="")]
    return reach_verdict(by, scores, unjudged=tuple({d.name for d in by.dimensions} - {"clear"}))


def drawn(count, *, offset, noise=0.5, seed=0, by=RUBRIC):
    """Scores, and others that are higher by `offset`, both with noise, before the scale ends."""
    generator = np.random.default_rng(seed)
    quality = generator.normal(6.5, 1, count)
    sides = [quality + generator.normal(0, noise, count) + more for more in (0, offset)]
    return [
        {f"d{n}": verdict(np.clip(one, 0, 10), by) for n, one in enumerate(side)} for side in sides
    ]


def shifted(first, second, *, groups=None, by=RUBRIC, confidence=0.9):
    generator = np.random.default_rng(0)
    return shift(first, second, by, groups=groups or {}, confidence=confidence, generator=generator)


def test_an_offset_and_the_threshold_that_undoes_it_are_found_with_their_intervals():
    found = shifted(*drawn(400, offset=0.8))

    for name in ("clear", "composite"):
        moved = found.moved[name]
        assert moved.offset.low < 0.8 < moved.offset.high
        assert moved.offset.higher == "second"
        assert moved.means[1] - moved.means[0] == pytest.approx(moved.offset.value)
    same = found.same_rate
    assert same.threshold.low <= 7.8 <= same.threshold.high
    assert same.passed == pytest.approx(found.passed[0], abs=8)
    assert found.passed[1] > found.passed[0]
    assert same.flipped < len(found.flipped)


def test_flipped_drafts_are_those_decided_otherwise_the_farthest_apart_first():
    first = {"a": verdict(6), "b": verdict(7), "c": verdict(9), "only": verdict(9)}
    second = {"a": verdict(7), "b": verdict(4), "c": verdict(8), "other": verdict(1)}
    found = shifted(first, second)

    assert found.drafts == 3
    assert found.passed == (2, 2)
    assert found.flipped == ("b", "a")
    assert found.moved["clear"].means == pytest.approx((22 / 3, 19 / 3))
    # As many pass, so that the threshold can stay; the drafts are others.
    assert (found.same_rate.threshold.value, found.same_rate.flipped) == (7, 2)


def test_of_thresholds_that_keep_the_rate_the_nearest_is_named():
    first = {"a": verdict(5), "b": verdict(8), "c": verdict(9)}
    lower = {"a": verdict(3), "b": verdict(5), "c": verdict(6)}
    higher = {"a": verdict(7.5), "b": verdict(9), "c": verdict(9.5)}

    assert shifted(first, lower).same_rate.threshold.value == 5
    assert shifted(first, higher).same_rate.threshold.value == 7.6


def test_what_no_threshold_lets_through_is_not_counted_on():
    by = rubric(CLEAR.model_copy(update={"floor": 4}), pass_at=7)
    first = {name: verdict(8, by) for name in "abc"}
    second = {"a": verdict(8, by), "b": verdict(3, by), "c": verdict(3, by)}
    same = shifted(first, second, by=by).same_rate

    assert (same.threshold.value, same.passed, same.flipped) == (7, 1, 2)


def test_a_judge_that_gives_all_the_same_has_no_deviation():
    first, _ = drawn(30, offset=0)
    found = shifted(first, {name: verdict(7.3) for name in first})

    assert found.moved["clear"].deviations[0] > 0.5
    assert found.moved["clear"].deviations[1] == 0


def test_drafts_of_one_group_count_as_one():
    first, second = drawn(60, offset=0.5)
    groups = {name: str(int(name[1:]) % 3) for name in first}
    alone, together = shifted(first, second), shifted(first, second, groups=groups)

    assert (alone.groups, together.groups) == (60, 3)
    offsets = [found.moved["clear"].offset.value for found in (alone, together)]
    assert offsets[0] == pytest.approx(offsets[1])


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 0.6])
def test_intervals_hold_the_truth_as_often_as_they_say(offset):
    offsets = thresholds = 0
    for seed in range(200):
        found = shifted(*drawn(80, offset=offset, seed=seed))
        one, same = found.moved["clear"].offset, found.same_rate.threshold
        offsets += one.low <= offset <= one.high
        thresholds += same.low - 0.05 <= 7 + offset <= same.high + 0.05

    # Of 200 draws, 90 % with two standard errors.
    assert offsets >= 171
    assert thresholds >= 171
