"""Two sets of scores of the same drafts: who agrees better, or that labels cannot tell."""

import numpy as np
import pytest
from rubric.judged import CLEAR, LENGTH, TONE, rubric

from harness.errors import InvalidInput
from harness.rubric.calibration.agreement import Resamples, agreement, auc
from harness.rubric.calibration.bounds import RiskAim
from harness.rubric.calibration.calibration_files import Attempts
from harness.rubric.calibration.labels import Labeled
from harness.rubric.calibration.paired import compare, paired
from harness.rubric.calibration.tuning import Tuning

pytest.importorskip("scipy", reason="scipy is not installed")

RUBRIC = rubric(pass_at=7)


def drawn(count, *noises, seed=0, shared=0.0, **more):
    """The same labeled drafts for each noise, scored with so much of it, and some shared by all."""
    generator = np.random.default_rng(seed)
    quality = generator.normal(6.5, 1.5, count)
    people = np.clip(quality + generator.normal(0, 0.5, count), 0, 10)
    hard = generator.normal(0, shared, count)
    sides = []
    for noise in noises:
        scores = np.clip(quality + hard + generator.normal(0, noise, count), 0, 10)
        sides.append(
            [
                Labeled.model_construct(
                    id=f"d{n}",
                    people={"clear": {"": float(people[n])}},
                    accept={"": bool(people[n] >= 6)},
                    scores={"clear": (float(scores[n]),)},
                    **more,
                )
                for n in range(count)
            ]
        )
    return sides


def compared(first, second, rubrics=(RUBRIC, RUBRIC), *, attempts=None, **aim):
    return compare(
        paired(first, second, rubrics, accept_at=6),
        rubrics,
        RiskAim(**aim),
        attempts=attempts or Attempts(),
    )


def test_each_side_has_the_statistics_that_it_has_alone():
    first, second = drawn(150, 0.6, 1.2)
    found = compared(first, second).people.agreement
    accepted = np.array([one.accept[""] for one in first])
    resamples = Resamples([one.id for one in first])
    for side, drafts in (("first", first), ("second", second)):
        scores = np.array([round(one.scores["clear"][0], 2) for one in drafts])
        alone = agreement(
            "clear",
            evaluator=scores,
            people=np.array([[one.people["clear"][""]] for one in first]),
            resamples=resamples,
            lengths=np.full(150, np.nan),
            confidence=0.9,
        )
        for kind in ("pearson", "kappa", "offset"):
            one = getattr(found["clear"][kind], side)
            assert one == pytest.approx(alone.estimates[kind].value, abs=0.01)
        area = auc(scores.round(1), accepted, resamples=resamples)[0]
        assert getattr(found["composite"]["auc"], side) == pytest.approx(area, abs=0.01)


def test_a_better_evaluator_is_named_on_whichever_side_it_stands():
    good, bad = drawn(300, 0.4, 2.5)
    one, other = compared(good, bad).people.agreement, compared(bad, good).people.agreement

    for name, kind in (("clear", "pearson"), ("clear", "kappa"), ("composite", "auc")):
        assert one[name][kind].difference.higher == "first"
        assert other[name][kind].difference.higher == "second"
        difference = one[name][kind].difference
        assert difference.value == pytest.approx(-other[name][kind].difference.value)
        assert difference.low < difference.value < difference.high < 0


def test_scores_that_are_the_same_cannot_be_told_apart():
    (drafts,) = drawn(60, 0.8)
    found = compared(drafts, drafts).people.agreement

    for by in found.values():
        for one in by.values():
            assert (one.difference.value, one.difference.low, one.difference.high) == (0, 0, 0)
            assert one.difference.higher == "cannot tell"


@pytest.mark.slow
def test_evaluators_that_are_equally_good_are_rarely_told_apart():
    told = []
    for seed in range(60):
        first, second = drawn(80, 1.0, 1.0, seed=seed)
        told.append(compared(first, second).people.agreement["clear"]["pearson"].difference.higher)

    # By a 90 % interval, one of ten; sixty draws allow for twice as many.
    assert told.count("cannot tell") >= 48


def test_what_is_hard_for_both_does_not_widen_the_interval():
    first, second = drawn(200, 0.5, 0.5, shared=2.0)
    together = compared(first, second).people.agreement["clear"]["offset"].difference
    scores = np.array([[d.scores["clear"][0] for d in side] for side in (first, second)])
    people = np.array([d.people["clear"][""] for d in first])
    alone = np.hypot(*(np.std(side - people) for side in scores)) / np.sqrt(200)

    assert (together.high - together.low) / (2 * 1.645) < 0.4 * alone


def test_drafts_of_one_group_count_as_one():
    first, second = drawn(40, 0.5, 1.0)
    copies = [
        [
            one.model_copy(update={"id": f"{one.id}-{n}", "group": one.id})
            for one in side
            for n in "abcd"
        ]
        for side in (first, second)
    ]
    one, four = compared(first, second), compared(*copies)
    widths = [
        each.people.agreement["clear"]["pearson"].difference.high
        - each.people.agreement["clear"]["pearson"].difference.low
        for each in (one, four)
    ]

    assert (four.drafts, four.groups) == (160, 40)
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
    assert four.people.own[0].drafts == 40


def test_thresholds_of_both_share_what_may_go_wrong():
    first, second = drawn(300, 0.5, 0.6)
    found = compared(first, second)
    both = [
        Tuning(drafts, RUBRIC, RiskAim(), accept_at=6, attempts=found.people.attempts)
        for drafts in (first, second)
    ]

    assert found.people.aim.looks == 2
    assert found.people.named == tuple(one.named for one in both)
    assert found.people.own == tuple(one.own for one in both)
    assert [one.aim.looks for one in both] == [2, 2]
    assert compared(first, second, attempts=found.people.attempts).people.aim.looks == 2


def test_rubrics_are_compared_by_the_dimensions_that_both_have():
    (drafts,) = drawn(120, 0.8)
    both = {"length": (10,), "tone": (5,)}
    drafts = [one.model_copy(update={"scores": {**one.scores, **both}}) for one in drafts]
    one, other = rubric(CLEAR, LENGTH, pass_at=7), rubric(CLEAR, TONE, pass_at=6, id="other")
    found = compared(drafts, drafts, (one, other))

    assert list(found.people.agreement) == ["clear", "composite"]
    assert [at.threshold for at in found.people.own] == [7, 6]
    assert found.people.own[0].rejects == found.people.own[1].rejects


def test_people_are_those_of_drafts_held_back_and_rho_says_who_favors_long_ones():
    first, second = drawn(60, 0.5, 1.0, split="hold")
    texts = ["a" * round(100 * one.scores["clear"][0]) for one in second]
    held = [one.model_copy(update={"draft": text}) for one, text in zip(first, texts, strict=True)]
    rest = [one.model_copy(update={"id": f"t{one.id}", "split": ""}) for one in held]
    found = compared(
        [*held, *rest],
        [
            *second,
            *(o.model_copy(update={"scores": s.scores}) for o, s in zip(rest, second, strict=True)),
        ],
    )
    alone = compared(held, second)

    assert found.people.agreement == alone.people.agreement
    assert found.shifts["clear"].drafts == 120
    assert alone.people.agreement["clear"]["rho"].difference.higher == "second"


def test_labels_and_texts_that_differ_are_refused_and_missing_ones_are_not():
    first, second = drawn(30, 0.5, 1.0)
    bare = [
        one.model_copy(update={"people": {}, "accept": {}, "draft": "A text."}) for one in second
    ]
    assert compared(first, bare).people.agreement == compared(first, second).people.agreement

    for name, value in (("accept", {"": True}), ("people", {"clear": {"": 0.0}}), ("group", "a")):
        changed = [one.model_copy(update={name: value}) for one in second]
        labeled = [one.model_copy(update={"group": "b"}) for one in first]
        with pytest.raises(InvalidInput) as caught:
            compared(labeled, changed)
        assert caught.value.code == "compare.drafts-differ"


def test_without_a_draft_in_both_there_is_nothing_to_compare():
    first, second = drawn(5, 0.5, 1.0)
    with pytest.raises(InvalidInput) as caught:
        compared(first, [one.model_copy(update={"id": f"other {one.id}"}) for one in second])
    assert caught.value.code == "compare.no-pairs"
