"""The threshold that labeled drafts support, at a stated error rate and confidence.

A claim such as "at most 10 % of the accepted are wrong, 90 % sure" means: over label sets of this
size, the threshold that is named has a true rate above 10 % in at most 10 % of them. Drafts are
taken to be independent: give one of each group.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput

Risk = Literal["accepted", "rejected", "all"]
"""The drafts of which an error rate is a share."""

Counts = NDArray[np.int64]

# The sequence begins where this share of the drafts is accepted, unless that is too few.
_STRICTEST_SHARE = 0.1


def library(name: str) -> Any:  # noqa: ANN401 - a module without types
    """A module of the extra `tune`.

    Raises:
        InvalidInput: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"tuning a rubric needs a package that is not installed ({error.name}): "
            "pip install 'wiggum-harness[tune]'",
            code="tune.package-missing",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskAim:
    """The error rate that a threshold must keep."""

    target: float = 0.1
    """The rate, between 0 and 1."""
    risk: Risk = "accepted"
    confidence: float = 0.9
    """The share of label sets in which the claim must hold."""
    looks: int = 1
    """How many looks at these labels, with other scores or fewer labels, share the error."""

    @property
    def error(self) -> float:
        """The share of label sets in which the claim may be false."""
        return (1 - self.confidence) / self.looks


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """What a threshold does to labeled drafts."""

    threshold: float
    accepted: int
    wrong: int
    """Accepted drafts that people reject."""
    drafts: int
    rejects: int
    """Drafts that people reject."""

    def trials(self, risk: Risk) -> int:
        """The number of drafts of which `wrong` is a share."""
        return {"accepted": self.accepted, "rejected": self.rejects, "all": self.drafts}[risk]

    @property
    def good_lost(self) -> int:
        """Drafts that people accept and the threshold does not."""
        return self.drafts - self.rejects - (self.accepted - self.wrong)


def at_threshold(
    scores: NDArray[np.float64], wrong: NDArray[np.bool_], threshold: float
) -> AtThreshold:
    """What a threshold does to drafts; `wrong` marks those that people reject."""
    accepted = scores >= threshold
    return AtThreshold(
        threshold=threshold,
        accepted=int(accepted.sum()),
        wrong=int((accepted & wrong).sum()),
        drafts=len(scores),
        rejects=int(wrong.sum()),
    )


def steps_of(scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> tuple[AtThreshold, ...]:
    """What each distinct score does as a threshold, from the strictest on.

    A draft that no threshold accepts scores `-inf`.
    """
    thresholds = np.unique(scores[np.isfinite(scores)])[::-1]
    return tuple(at_threshold(scores, wrong, float(threshold)) for threshold in thresholds)


def upper_bound(wrong: int, drafts: int, *, error: float) -> float:
    """The one-sided exact bound on a rate (Clopper and Pearson 1934); 1 if there is no draft."""
    if wrong >= drafts:
        return 1.0
    return float(library("scipy.special").betaincinv(wrong + 1, drafts - wrong, 1 - error))


def interval(wrong: int, drafts: int, *, confidence: float) -> tuple[float, float]:
    """The two-sided exact interval around a rate."""
    error = (1 - confidence) / 2
    low = 1 - upper_bound(drafts - wrong, drafts, error=error)
    return low, upper_bound(wrong, drafts, error=error)


def most_wrong(drafts: int, aim: RiskAim) -> Counts:
    """`(1 + drafts,)`: the most wrong ones of 0, 1, 2 … drafts; -1 if so few prove nothing."""
    binom = library("scipy.stats").binom
    sizes = np.arange(drafts + 1)
    # The quantile is the first number whose probability is not below the error: mostly one more.
    quantiles = np.nan_to_num(binom.ppf(aim.error, sizes, aim.target)).astype(np.int64)
    return np.asarray(quantiles - (binom.cdf(quantiles, sizes, aim.target) > aim.error))


def least_drafts(aim: RiskAim) -> int:
    """The fewest drafts with which anything can be claimed."""
    # A sequence of thresholds begins where one wrong draft is allowed for: see `_first_size`.
    allowed = int(aim.risk == "accepted")
    # Long enough: without a wrong draft, about -log(error) / target are needed; with one, more.
    tried = math.ceil(10 * (1 - math.log(aim.error)) / aim.target)
    return int(np.argmax(most_wrong(tried, aim) >= allowed))


def named_threshold(steps: Sequence[AtThreshold], aim: RiskAim) -> AtThreshold | None:
    """The lowest threshold of one label set that keeps the aim; None if none does."""
    drafts = steps[0].drafts if steps else 0
    limits = most_wrong(drafts, aim)
    # The share of wrong ones among the accepted may rise with the threshold, where a judge is
    # fooled. So thresholds are tested in a fixed sequence, strictest first, and the first failure
    # ends it (Bauer 1991; "learn then test", Angelopoulos et al. 2022). The other shares, of what
    # people reject and of all drafts, only fall: their exact bounds need no correction.
    fewest = _first_size(limits, drafts) if aim.risk == "accepted" else 0
    named = None
    for step in steps:
        # A threshold that accepts fewer drafts is not tested, so it is not named and ends nothing.
        if step.accepted < fewest:
            continue
        if step.wrong > limits[step.trials(aim.risk)]:
            break
        named = step
    return named


def _first_size(limits: Counts, drafts: int) -> int:
    """The fewest drafts that the strictest threshold of the sequence must accept."""
    # One wrong draft must not end the sequence at its beginning; and begun with very few, it would
    # get stuck where a judge errs at the very top.
    with_one = np.flatnonzero(limits >= 1)
    fewest = int(with_one[0]) if len(with_one) else drafts + 1
    return max(fewest, math.ceil(_STRICTEST_SHARE * drafts))
