"""Agreement of an evaluator with people, as other libraries and plain definitions have it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rubric.calibration.agreement import Resamples, agreement, auc

stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")


def of(evaluator, people, *, groups=None, lengths=None, seed=0):
    evaluator, people = np.asarray(evaluator, float), np.asarray(people, float)
    if people.ndim == 1:
        people = people[:, None]
    names = groups or [str(number) for number in range(len(evaluator))]
    lengths = np.full(len(evaluator), np.nan) if lengths is None else np.asarray(lengths, float)
    return agreement(
        "clear",
        evaluator=evaluator,
        people=people,
        resamples=Resamples(names, seed=seed),
        lengths=lengths,
        confidence=0.9,
    )


@given(st.integers(0, 10_000), st.integers(3, 60))
def test_statistics_are_those_of_their_definitions(seed, count):
    generator = np.random.default_rng(seed)
    people = generator.integers(0, 11, count).astype(float)
    evaluator = np.clip(people + generator.integers(-3, 4, count), 0, 10)
    found = of(evaluator, people)
    values = {name: one.value for name, one in found.estimates.items()}
    if np.ptp(people) == 0 or np.ptp(evaluator) == 0:
        assert np.isnan(values["pearson"])
        return
    line = stats.linregress(people, evaluator)

    expected = {
        "pearson": line.rvalue,
        "spearman": stats.spearmanr(people, evaluator).statistic,
        "kappa": quadratic_kappa(people, evaluator),
        "offset": np.mean(evaluator - people),
    }
    assert values == pytest.approx(expected)


def quadratic_kappa(one, other):
    """By the table of both scores."""
    table, _, _ = np.histogram2d(one, other, bins=np.arange(12) - 0.5)
    table /= table.sum()
    by_chance = np.outer(table.sum(axis=1), table.sum(axis=0))
    weights = np.subtract.outer(np.arange(11), np.arange(11)) ** 2
    return 1 - (weights * table).sum() / (weights * by_chance).sum()


def test_intervals_are_as_wide_as_groups_that_are_alike_make_them():
    generator = np.random.default_rng(5)
    groups = np.repeat(range(40), 6).tolist()

    def drawn():
        shared = np.repeat(generator.normal(size=(40, 2)), 6, axis=0)
        return (0.8 * shared + 0.6 * generator.normal(size=(240, 2))).T

    true = np.std([np.corrcoef(*drawn())[0, 1] for _ in range(1_000)])
    widths = {"drafts": [], "groups": []}
    for _ in range(15):
        people, evaluator = drawn()
        for kind, names in (("drafts", None), ("groups", groups)):
            one = of(evaluator, people, groups=names).estimates["pearson"]
            widths[kind].append((one.high - one.low) / (2 * 1.645))

    assert np.mean(widths["groups"]) == pytest.approx(true, rel=0.15)
    assert np.mean(widths["drafts"]) < 0.75 * true


def test_missing_scores_are_left_out():
    nan = np.nan
    found = of([7, nan, 9, 3], [[8, nan], [5, 6], [9, 10], [nan, nan]])

    assert found.drafts == 2
    assert found.estimates["offset"].value == pytest.approx(-0.75)


def test_the_ceiling_is_one_person_against_the_others():
    generator = np.random.default_rng(1)
    quality = generator.normal(6, 1.5, 400)
    people = quality[:, None] + generator.normal(0, 1, (400, 3))
    found = of(quality, people)
    by_hand = [
        np.corrcoef(people[:, rater], np.delete(people, rater, axis=1).mean(axis=1))[0, 1]
        for rater in range(3)
    ]

    assert found.ceiling == pytest.approx(np.mean(by_hand))
    assert np.isnan(of(quality, people[:, 0]).ceiling)


def test_constant_scores_and_a_taste_for_length_are_noticed():
    people = [4, 5, 6, 7, 8, 10]
    frozen = of([7] * 6, people)
    long_winded = of([5, 6, 7, 8, 9, 9], [9, 8, 7, 6, 5, 4], lengths=[10, 20, 30, 40, 50, 60])

    assert frozen.is_frozen
    assert np.isnan(frozen.estimates["pearson"].value)
    assert not long_winded.is_frozen
    assert long_winded.length_bias > 0.9


def test_discrimination_is_the_share_of_pairs_in_order():
    generator = np.random.default_rng(2)
    scores = generator.integers(0, 8, 80).astype(float)
    accepted = generator.random(80) < scores / 8
    resamples = Resamples([str(n) for n in range(80)])
    found = resamples.estimate(auc(scores, accepted, resamples=resamples), confidence=0.9)
    good, bad = scores[accepted], scores[~accepted]
    pairs = np.sign(np.subtract.outer(good, bad)) / 2 + 0.5

    assert found.value == pytest.approx(pairs.mean())
    assert found.low < found.value < found.high
