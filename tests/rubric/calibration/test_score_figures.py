"""Epochs reduced to scores, and the figures over rows, beside those of Inspect AI."""

import math

import numpy as np
import pytest

from harness.errors import InvalidInput
from harness.rubric.calibration.score_figures import Reducer, Sample, mean_figure, summaries

ROWS = {
    "a": ("g1", [1, 0, 1]),
    "b": ("g1", [1, 1, 1]),
    "c": ("g2", [0, 0, 0]),
    "d": ("g2", [0, 1, 0]),
    "e": ("g2", [1, 1, 0]),
    "f": ("g3", [0.5, 0.25, 1]),
    "g": ("g4", [0.75, 0.75, 0.5]),
    "h": ("g4", [1, 0.5, 0]),
    "i": ("g5", [0, 0, 1]),
    "j": ("g5", [0.5, 0.5, 0.5]),
}
# Of inspect_ai 0.3.285 on these rows: its reducer, then `mean()`, `stderr()` and
# `stderr(cluster="group")` (tests/benchmarks/figures_of_inspect.py prints them).
INSPECT = {
    "mean": (0.525, 0.0843, 0.098416),
    "median": (0.525, 0.131498, 0.140368),
    "mode": (0.575, 0.139692, 0.15954),
    "max": (0.825, 0.105738, 0.071698),
    "at_least_2": (0.3, 0.152753, 0.186414),
    "at_least_2:0.5": (0.7, 0.152753, 0.165076),
    "pass_at_1": (0.366667, 0.104822, 0.122588),
    "pass_at_2": (0.566667, 0.131937, 0.122361),
    "pass_at_2:0.5": (0.833333, 0.102439, 0.108653),
    "pass_at_3": (0.7, 0.152753, 0.098742),
}


def samples(rows=None, *, grouped=True):
    return [
        Sample(row=row, scores={"right": float(score)}, group=group if grouped else "")
        for row, (group, scores) in (rows or ROWS).items()
        for score in scores
    ]


def summary(reduce, rows=None, *, epochs=3, **how):
    (figures,) = summaries(
        samples(rows, **how), reducer=Reducer.named(reduce, epochs=epochs), success={"right": 1.0}
    )
    return figures


@pytest.mark.parametrize("reduce", INSPECT)
def test_mean_and_standard_errors_are_those_of_inspect(reduce):
    mean, stderr, clustered = INSPECT[reduce]
    alone, together = summary(reduce, grouped=False), summary(reduce)

    assert alone.mean == together.mean == pytest.approx(mean, abs=5e-5)
    assert (alone.stderr, alone.groups) == (pytest.approx(stderr, abs=5e-5), None)
    assert (together.stderr, together.groups) == (pytest.approx(clustered, abs=5e-5), 5)


def test_pass_at_k_is_another_name():
    assert Reducer.named("pass@2", epochs=3) == Reducer.named("pass_at_2", epochs=3)


@pytest.mark.parametrize("text", ["best", "at_least", "at_least_4", "pass_at_0", "mean_2", ""])
def test_a_reducer_that_is_none_or_needs_more_epochs_is_refused(text):
    with pytest.raises(InvalidInput) as refused:
        Reducer.named(text, epochs=3)
    assert refused.value.code == "evaluation.reducer-unknown"


def test_accuracy_counts_successes_and_the_mean_partial_credit():
    rows = {"a": ("", [0.5, 0.5]), "b": ("", [1, 1])}
    figures = summary("mean", rows, epochs=2)
    assert (figures.mean, figures.accuracy) == (0.75, 0.5)


@pytest.mark.parametrize(
    ("reduce", "mean", "accuracy"),
    [
        ("mean", 8.5, 0.25),
        ("at_least_1", 0.5, 0.5),
        ("pass_at_1", 0.25, 0.25),
        ("pass_at_2", 0.5, 0.5),
        ("pass_at_1:8", 1.0, 1.0),
    ],
)
def test_a_success_of_a_rubric_is_a_draft_that_passes_it(reduce, mean, accuracy):
    # A floor fails drafts whose composite is over `pass_at`.
    epochs = [("a", 8, 0), ("a", 9, 0), ("b", 8, 1), ("b", 9, 0)]
    scored = [Sample(row=row, scores={"r": c, "r.passed": p}) for row, c, p in epochs]
    figures, passed = summaries(
        scored, reducer=Reducer.named(reduce, epochs=2), success={"r": 7.0, "r.passed": 1.0}
    )
    assert (figures.mean, figures.accuracy) == (mean, accuracy)
    assert figures.accuracy == passed.accuracy or ":8" in reduce


def test_a_row_with_too_few_epochs_for_pass_at_k_is_left_out():
    figures = summary("pass_at_2", {"a": ("", [1]), "b": ("", [1, 0])})
    assert (figures.rows, figures.mean) == (1, 1.0)


@pytest.mark.parametrize(
    ("left", "score"),
    [([1, 1], 1.0), ([1, 0], None), ([0], None), ([0, 0], 0.0), ([], None)],
    ids=str,
)
def test_an_epoch_without_a_score_is_no_failure_for_at_least_k(left, score):
    # Row "b" has a score, so that there are figures.
    rows = {"a": ("", left), "b": ("", [1, 1, 1])}
    figures = summary("at_least_2", rows)
    assert (figures.rows, figures.mean) == ((1, 1.0) if score is None else (2, (1 + score) / 2))


def test_one_row_or_one_group_has_no_standard_error():
    one = mean_figure(np.array([1.0]), np.array(["r"]))
    assert (one.mean, one.stderr) == (1.0, None)
    assert mean_figure(np.array([1.0, 0.0]), np.array(["g", "g"])).stderr is None
    alone = summary("mean", {"a": ("", [0.5])})
    assert (math.isnan(alone.low), alone.bootstrap_stderr) == (True, None)


def test_the_interval_of_a_share_is_wilsons_and_equal_scores_have_none():
    right = summary("mean", {f"r{n}": ("", [1]) for n in range(12)}, epochs=1)
    assert (right.low, right.high) == (pytest.approx(0.7575, abs=1e-4), 1.0)
    half = summary("mean", {f"r{n}": ("", [n % 2]) for n in range(10)}, epochs=1)
    assert (half.low, half.high) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    for group, score in (("", 0.7), ("g{}", 1)):
        rows = {f"r{n}": (group.format(n), [score]) for n in range(12)}
        assert math.isnan(summary("mean", rows, epochs=1).high)


def test_the_bootstrap_resamples_whole_groups():
    rng = np.random.default_rng(1)
    rows = {}
    for group in range(40):
        base = rng.random()
        rows |= {f"{group} {n}": (f"g{group}", [base]) for n in range(5)}
    together, alone = (
        summary("mean", rows, epochs=1),
        summary("mean", rows, epochs=1, grouped=False),
    )

    assert together.bootstrap_stderr == pytest.approx(together.stderr, rel=0.1)
    assert alone.bootstrap_stderr == pytest.approx(alone.stderr, rel=0.1)
    assert together.stderr > 2 * alone.stderr
    assert together.low < together.mean < together.high


def test_categories_have_figures_of_their_own():
    rows = [Sample(row=str(n), scores={"x": n % 2}, category="ab"[n // 4]) for n in range(8)]
    rows.append(Sample(row="8", scores={"x": 1}))
    (figures,) = summaries(rows, reducer=Reducer("mean"), success={"x": 1.0})
    assert {name: (of.rows, of.mean) for name, of in figures.categories.items()} == {
        "a": (4, 0.5),
        "b": (4, 0.5),
    }
    assert figures.rows == 9
