"""Figures of an evaluation: the epochs of each row reduced to a score, and means over the rows."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput
from harness.rubric.calibration.agreement import Resamples, Values

ReducerKind = Literal["mean", "median", "mode", "max", "at_least", "pass_at"]
_REDUCER = re.compile(
    r"(?P<whole>mean|median|mode|max)"
    r"|(?P<of>at_least|pass_at)_(?P<k>\d+)(?::(?P<at>\d+\.?\d*|\.\d+))?"
)


@dataclass(frozen=True, slots=True)
class Reducer:
    """Makes one score of the scores that a row got in its epochs."""

    kind: ReducerKind
    k: int = 1
    at: float | None = None
    """The score that counts as a success; None for the scorer's own."""
    epochs: int = 1
    """How many epochs a row has, with those that failed."""

    @classmethod
    def named(cls, text: str, *, epochs: int) -> Reducer:
        """`mean`, `median`, `mode`, `max`, `at_least_2`, `pass_at_2`; `at_least_2:0.5`.

        Raises:
            InvalidInput: There is no such reducer, or it needs more epochs.
        """
        match = _REDUCER.fullmatch(text.replace("pass@", "pass_at_"))
        if match is None or (match["k"] is not None and not 1 <= int(match["k"]) <= epochs):
            raise InvalidInput(
                f"reduce = {text!r}: write mean, median, mode, max, at_least_K or pass_at_K, with "
                f"K from 1 to the number of epochs ({epochs}), as at_least_2, or at_least_2:0.5 "
                "for another score that counts as a success",
                code="evaluation.reducer-unknown",
            )
        at = None if match["at"] is None else float(match["at"])
        kind = cast("ReducerKind", match["whole"] or match["of"])
        return cls(kind, int(match["k"] or 1), at, epochs)

    def __call__(self, scores: Sequence[float], successes: Sequence[bool], *, epochs: int) -> float:
        """The row's score; NaN if there is none, or too few of so many epochs have a score."""
        passed = sum(successes)
        if self.kind == "pass_at":
            # The unbiased estimate of Chen et al. 2021, "Evaluating Large Language Models Trained
            # on Code".
            ways = math.comb(len(scores), self.k)
            return 1 - math.comb(len(scores) - passed, self.k) / ways if ways else math.nan
        if not scores:
            return math.nan
        if self.kind != "at_least":
            return _WHOLE[self.kind](scores)
        # An epoch without a score is no failure: it might have been the success that lacks.
        missing = epochs - len(scores)
        return math.nan if passed < self.k <= passed + missing else float(passed >= self.k)


_WHOLE: Mapping[ReducerKind, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "mode": statistics.mode,  # of several, the first
    "max": max,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The scores of one output: of one epoch of one row."""

    row: str
    """The row's id."""
    scores: Mapping[str, float]
    group: str = ""
    """What the row shares with others, such as a text that all ask about; empty if nothing."""
    category: str = ""
    no_score: Sequence[str] = ()
    """The scorers that gave it no score, or single scores that a scorer left out."""

    @property
    def cluster(self) -> str:
        """The name of its group; a row without a group is one by itself."""
        return f"g {self.group}" if self.group else f"r {self.row}"

    def succeeds(self, name: str, *, at: float | None, success: float) -> bool:
        """Whether its score of this name is a success: from `at` on, or by the scorer's own rule.

        That is `success`, or where the verdict stands beside it (`NAME.passed`), the verdict.
        """
        # A floor, a gate or a cap fails a draft whose composite is high enough.
        passed = self.scores.get(f"{name}.passed")
        if at is None and passed is not None:
            return passed >= 1
        return self.scores[name] >= (success if at is None else at)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFigure:
    """A mean over rows."""

    rows: int
    mean: float
    stderr: float | None
    """Its standard error; None below two rows, or two groups. With groups, robust to what their
    rows share: Miller 2024, "Adding Error Bars to Evals", with the correction for few groups that
    Inspect makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary(MeanFigure):
    """What an evaluation came to, by one score, over the rows that have it."""

    name: str
    groups: int | None
    """How many groups the error is clustered by; None without groups."""
    low: float
    """The lower end of the mean's interval with 95 % confidence: Wilson's if all rows score 0 or 1
    and have no groups; else by a bootstrap over the groups. NaN for fewer than three groups, and
    for equal scores."""
    high: float
    bootstrap_stderr: float | None
    accuracy: float
    """The mean of successes, 1 or 0, reduced as the scores are."""
    success: float
    """The score from which on an output is a success; a rubric's verdict asks for more than it."""
    missing: int = 0
    """How many outputs got no score, since the scorer returned None."""
    categories: Mapping[str, MeanFigure] = field(default_factory=dict)


class ReducedRow(NamedTuple):
    """A row with its epochs reduced; scores that it lacks are NaN."""

    first: Sample
    """Its first epoch."""
    scores: list[float]
    """One for each name."""
    accuracies: list[float]
    """One for each name: the successes of the epochs, 1 or 0, reduced as the scores are."""


def reduced(
    samples: Iterable[Sample], names: Sequence[str], reducer: Reducer, success: Mapping[str, float]
) -> dict[str, ReducedRow]:
    """Each row's scores of these names, by the row's id; a row has a sample for each epoch."""
    samples_by_row: dict[str, list[Sample]] = {}
    for sample in samples:
        samples_by_row.setdefault(sample.row, []).append(sample)
    # An epoch without a score is unknown, not a failure: a reducer such as `at_least_2` must know
    # how many epochs there were. Of two evaluations compared, one may have more than the reducer's.
    most_epochs = max([reducer.epochs, *map(len, samples_by_row.values())])
    reduce = partial(reducer, epochs=most_epochs)
    rows = {}
    for row, of_row in samples_by_row.items():
        rows[row] = ReducedRow(first=of_row[0], scores=[], accuracies=[])
        for name in names:
            scored = [sample for sample in of_row if name in sample.scores]
            scores = [sample.scores[name] for sample in scored]
            least = success.get(name, 1.0)
            successes = [s.succeeds(name, at=reducer.at, success=least) for s in scored]
            rows[row].scores.append(reduce(scores, successes))
            rows[row].accuracies.append(reduce([*map(float, successes)], successes))
    return rows


def summaries(
    samples: Sequence[Sample], *, reducer: Reducer, success: Mapping[str, float]
) -> tuple[ScoreSummary, ...]:
    """The figures of each score; `success` has the scores' names, and what counts as a success."""
    names = list(success)
    rows = list(reduced(samples, names, reducer, success).values())
    if not rows:
        return ()
    without_score = Counter(name for sample in samples for name in sample.no_score)
    scores = np.array([row.scores for row in rows])  # (rows, names)
    accuracies = np.array([row.accuracies for row in rows])
    has_groups = any(row.first.group for row in rows)
    clusters = np.array([row.first.cluster for row in rows])
    categories = np.array([row.first.category for row in rows])
    resamples = Resamples(clusters.tolist())
    is_scored = ~np.isnan(scores)
    sums = resamples.sums(np.hstack([np.where(is_scored, scores, 0.0), is_scored]))
    with np.errstate(invalid="ignore"):
        means = sums[:, : len(names)] / sums[:, len(names) :]  # (1 + draws, names)
    result = []
    for number, name in enumerate(names):
        has_score = is_scored[:, number]
        if not has_score.any():
            continue
        values = scores[has_score, number]
        clusters_of_values = clusters[has_score]
        groups = len(set(clusters_of_values)) if has_groups else None
        mean = mean_figure(values, clusters_of_values)
        low, high = _interval(values, groups, resamples, means[:, number])
        result.append(
            ScoreSummary(
                name=name,
                **asdict(mean),
                groups=groups,
                low=low,
                high=high,
                # Of one row or group, all resamples are equal, and no error is known.
                bootstrap_stderr=None
                if mean.stderr is None
                else float(np.nanstd(means[1:, number])),
                accuracy=float(np.nanmean(accuracies[has_score, number])),
                success=success[name] if reducer.at is None else reducer.at,
                # A scorer that returned None gave none of its parts either.
                missing=sum(without_score[part] for part in {name, name.partition(".")[0]}),
                categories=_by_category(values, categories[has_score], clusters_of_values),
            )
        )
    return tuple(result)


def _interval(
    values: Values, groups: int | None, resamples: Resamples, means: Values
) -> tuple[float, float]:
    """The interval of the mean of the rows' scores, as in `ScoreSummary`."""
    if groups is None and np.isin(values, (0, 1)).all():
        return wilson(float(values.mean()), len(values))
    # Equal scores have equal resamples, which is no sign of certainty.
    if (groups or len(values)) < 3 or (values == values[0]).all():
        return math.nan, math.nan
    estimate = resamples.estimate(means, confidence=0.95)
    return estimate.low, estimate.high


def _by_category(
    values: Values, categories: NDArray[np.str_], clusters: NDArray[np.str_]
) -> dict[str, MeanFigure]:
    chosen = {name: categories == name for name in sorted(set(categories.tolist()) - {""})}
    return {name: mean_figure(values[rows], clusters[rows]) for name, rows in chosen.items()}


def wilson(share: float, rows: int) -> tuple[float, float]:
    """The interval of a share of so many rows, with 95 % confidence (Wilson 1927)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    middle = share + z * z / (2 * rows)
    half = z * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    whole = 1 + z * z / rows
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def mean_figure(values: Values, clusters: NDArray[np.generic]) -> MeanFigure:
    """The mean of `(rows,)` with its standard error; a row without a group is its own cluster."""
    rows = len(values)
    mean = float(values.mean())
    _, codes = np.unique(clusters, return_inverse=True)
    deviations = np.bincount(codes, weights=values - mean)  # (clusters,)
    count = len(deviations)
    stderr = None
    if count > 1:
        squares = float(deviations @ deviations)
        stderr = math.sqrt(squares * count / (count - 1)) / rows
    return MeanFigure(rows=rows, mean=mean, stderr=stderr)
