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


def drafts_for(wrong: Sequence[int], aim: RiskAim) -> NDArray[np.int64]:
    """`(k,)`: among how many drafts so many wrong ones keep the aim, each by itself."""
    further = 1 + np.asarray(wrong, dtype=np.int64)
    # At the target rate, so many good drafts before one further is wrong are rarer than the error.
    good = library("scipy.stats").nbinom.isf(aim.error, further, aim.target)
    return np.asarray(further + good, dtype=np.int64)


def least_drafts(aim: RiskAim) -> int:
    """The fewest drafts with which anything can be claimed."""
    # One wrong draft must not end a sequence of thresholds at its beginning.
    return int(drafts_for([int(aim.risk == "accepted")], aim)[0])


def named_threshold(steps: Sequence[AtThreshold], aim: RiskAim) -> AtThreshold | None:
    """The lowest threshold of one label set that keeps the aim; None if none does."""
    needed = drafts_for([step.wrong for step in steps], aim)
    # The share of wrong ones among the accepted may rise with the threshold, where a judge is
    # fooled. So thresholds are tested in a fixed sequence, strictest first, and the first failure
    # ends it (Bauer 1991; "learn then test", Angelopoulos et al. 2022). The other shares, of what
    # people reject and of all drafts, only fall: their exact bounds need no correction.
    fewest = 0
    if steps and aim.risk == "accepted":
        # Begun with very few, it would get stuck where a judge errs at the very top.
        fewest = max(least_drafts(aim), math.ceil(_STRICTEST_SHARE * steps[0].drafts))
    named = None
    for step, least in zip(steps, needed, strict=True):
        # A threshold that accepts fewer drafts is not tested, so it is not named and ends nothing.
        if step.accepted < fewest:
            continue
        if step.trials(aim.risk) < least:
            break
        named = step
    return named
