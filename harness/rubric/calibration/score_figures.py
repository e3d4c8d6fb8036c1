"""Figures of an evaluation: the epochs of each row reduced to a score, and means over the rows."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, cast

import numpy as np

from harness.errors import InvalidInput
from harness.rubric.calibration.agreement import Resamples, Values

ReducerKind = Literal["mean", "median", "mode", "max", "at_least", "pass_at"]
_REDUCER = re.compile(
    r"(?P<whole>mean|median|mode|max)"
    r"|(?P<of>at_least|pass_at)_(?P<k>\d+)(?::(?P<at>\d+\.?\d*|\.\d+))?"
)


@dataclass(frozen=True, slots=True)
class Reducer:
    """Makes one score of those that a row got in its epochs."""

    kind: ReducerKind
    k: int = 1
    at: float | None = None
    """The score that counts as a success; None for the scorer's own."""

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
        return cls(cast("ReducerKind", match["whole"] or match["of"]), int(match["k"] or 1), at)

    def __call__(self, scores: Sequence[float], *, success: float) -> float:  # noqa: PLR0911
        """The row's score; NaN if there is none, or too few for pass@k."""
        at = success if self.at is None else self.at
        passed = sum(score >= at for score in scores)
        match self.kind:
            case "pass_at":
                # The unbiased estimate of Chen et al. 2021, "Evaluating Large Language Models
                # Trained on Code".
                ways = math.comb(len(scores), self.k)
                return 1 - math.comb(len(scores) - passed, self.k) / ways if ways else math.nan
            case _ if not scores:
                return math.nan
            case "mean":
                return statistics.fmean(scores)
            case "median":
                return statistics.median(scores)
            case "mode":  # of several, the first
                return Counter(scores).most_common(1)[0][0]
            case "max":
                return max(scores)
            case "at_least":
                return float(passed >= self.k)


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
    """The scorers, or scores of a scorer, that gave it none."""


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
    and have no groups; else by a bootstrap over the groups, NaN below three or for equal scores."""
    high: float
    bootstrap_stderr: float
    accuracy: float
    """The mean of successes, 1 or 0, reduced as the scores are."""
    success: float
    """The score from which on an output is a success."""
    missing: int = 0
    """How many outputs its scorer gave no score: None."""
    categories: Mapping[str, MeanFigure] = field(default_factory=dict)


def reduced(
    samples: Iterable[Sample], names: Sequence[str], reducer: Reducer, success: Mapping[str, float]
) -> dict[str, tuple[Sample, Values]]:
    """By row, its first sample and `(2, names)`: its scores and its accuracies, NaN if missing."""
    by_row: dict[str, list[Sample]] = {}
    for sample in samples:
        by_row.setdefault(sample.row, []).append(sample)
    result = {}
    for row, epochs in by_row.items():
        scores = [[s.scores[name] for s in epochs if name in s.scores] for name in names]
        at = [success[name] if reducer.at is None else reducer.at for name in names]
        passed = [[float(v >= t) for v in of] for of, t in zip(scores, at, strict=True)]
        # Successes are 1 and 0 already, whatever score counts as one.
        bare = Reducer(reducer.kind, reducer.k)
        values = [reducer(of, success=t) for of, t in zip(scores, at, strict=True)]
        accuracies = [bare(of, success=1.0) for of in passed]
        result[row] = epochs[0], np.array([values, accuracies])
    return result


def summaries(
    samples: Sequence[Sample], *, reducer: Reducer, success: Mapping[str, float]
) -> tuple[ScoreSummary, ...]:
    """The figures of each score; `success` has the names, in order, and what counts as one."""
    names = list(success)
    rows = reduced(samples, names, reducer, success)
    if not rows:
        return ()
    without = Counter(name for sample in samples for name in sample.no_score)
    firsts = [sample for sample, _ in rows.values()]
    values = np.array([both for _, both in rows.values()])  # (rows, 2, names)
    has_groups = any(sample.group for sample in firsts)
    # A row without a group is one by itself.
    groups = np.array([f"g {s.group}" if s.group else f"r {s.row}" for s in firsts])
    categories = [sample.category for sample in firsts]
    resamples = Resamples(groups.tolist(), np.random.default_rng(0))
    scores = values[:, 0]
    there = ~np.isnan(scores)
    sums = resamples.sums(np.hstack([np.where(there, scores, 0.0), there]))
    with np.errstate(invalid="ignore"):
        means = sums[:, : len(names)] / sums[:, len(names) :]
    result = []
    for number, name in enumerate(names):
        has = there[:, number]
        if not has.any():
            continue
        figure = mean_figure(scores[has, number], groups[has] if has_groups else None)
        interval = resamples.estimate(means[:, number], confidence=0.95)
        low, high, of_rows = interval.low, interval.high, scores[has, number]
        # Equal scores have equal resamples, which is no sign of certainty.
        if not has_groups and np.isin(of_rows, (0, 1)).all():
            low, high = wilson(figure.mean, figure.rows)
        elif (of_rows == of_rows[0]).all() or len(set(groups[has])) < 3:
            low = high = math.nan
        result.append(
            ScoreSummary(
                name=name,
                **asdict(figure),
                groups=len(set(groups[has])) if has_groups else None,
                low=low,
                high=high,
                bootstrap_stderr=float(np.nanstd(means[1:, number])),
                accuracy=float(np.nanmean(values[has, 1, number])),
                success=success[name] if reducer.at is None else reducer.at,
                # A scorer that returned None gave none of its parts either.
                missing=sum(without[part] for part in {name, name.partition(".")[0]}),
                categories={
                    category: mean_figure(scores[of, number], groups[of] if has_groups else None)
                    for category in sorted(set(categories) - {""})
                    if (of := has & np.array([own == category for own in categories])).any()
                },
            )
        )
    return tuple(result)


def wilson(share: float, of: int) -> tuple[float, float]:
    """The interval of a share with 95 % confidence (Wilson 1927)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    middle = share + z * z / (2 * of)
    half = z * math.sqrt(share * (1 - share) / of + (z / (2 * of)) ** 2)
    whole = 1 + z * z / of
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def mean_figure(values: Values, groups: Values | None) -> MeanFigure:
    """The mean of `(rows,)` with its standard error; clustered if there are groups."""
    count, mean = len(values), float(values.mean())
    apart = values - mean
    if groups is None:
        clusters, squares = count, float(apart @ apart)
    else:
        _, codes = np.unique(groups, return_inverse=True)
        together = np.bincount(codes, weights=apart)
        clusters, squares = len(together), float(together @ together)
    stderr = math.sqrt(squares * clusters / (clusters - 1)) / count if clusters > 1 else None
    return MeanFigure(rows=count, mean=mean, stderr=stderr)
