"""What of a verdict is settled before a model is asked, and what is left to ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.rubric.draft import Draft
from harness.rubric.judging.prompt import asked_of
from harness.rubric.judging.scoring import carried_score, checked_score
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.verdict import DimensionScore, Judges, Verdict, reach_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescore:
    """A revision that is to be judged only where it changed."""

    base: Verdict
    """On the draft that was revised."""
    dimensions: frozenset[str]
    """Judged dimensions that are judged anew; the others keep the score of `base`, unless it was
    held down by a check that is met now."""
    sections: frozenset[int]
    """Sections that changed, by index into `sections_of` of the revision: shown whole."""


class Settled:
    """The scores of a draft that code gives, those of an earlier verdict, and what lacks one.

    Args:
        rubric: What is scored by.
        draft: What is scored. Its checks run here.
        rescore: What alone is to be judged anew; everything when None.
        has_judges: Whether there are models to ask.

    Attributes:
        asked: The dimensions that models must judge; none when a gate is shut.
        sections: Those that changed, where only these are judged anew.

    Raises:
        EvaluationFailed: A check could not be made.
    """

    def __init__(
        self, rubric: Rubric, draft: Draft, *, rescore: Rescore | None = None, has_judges: bool
    ) -> None:
        self.draft = draft
        self.asked: tuple[Dimension, ...] = ()
        self.sections = rescore.sections if rescore else frozenset[int]()
        self._rubric = rubric
        self._base = rescore.base if rescore else None
        scores = [
            score for d in rubric.checked if (score := checked_score(d, draft, rubric)) is not None
        ]
        carried: list[DimensionScore] = []
        if has_judges and not _is_shut(rubric, scores):
            if rescore is not None:
                carried = list(_carried(rescore, rubric, draft))
            kept = {score.name for score in carried}
            self.asked = tuple(d for d in asked_of(rubric, draft) if d.name not in kept)
        self._scores = (*scores, *carried)
        self._carried = tuple(score.name for score in carried)

    def verdict(
        self, judged: Sequence[DimensionScore] = (), *, judges: Judges | None = None
    ) -> Verdict:
        """What the models' scores, with those that are settled, amount to.

        Raises:
            EvaluationFailed: There is no score at all.
        """
        if not judged and self._carried and self._base:
            judges = self._base.judges
        scores = [*self._scores, *judged]
        scored = {score.name for score in scores}
        return reach_verdict(
            self._rubric,
            scores,
            unjudged=tuple(d.name for d in self._rubric.dimensions if d.name not in scored),
            carried=self._carried,
            judges=judges,
        )


def _carried(rescore: Rescore, rubric: Rubric, draft: Draft) -> Iterator[DimensionScore]:
    """The scores of the earlier verdict that hold for this draft."""
    by_name = {dimension.name: dimension for dimension in rubric.judged}
    for score in rescore.base.scores:
        if score.name in by_name and score.name not in rescore.dimensions:
            kept = carried_score(by_name[score.name], score, draft)
            if kept is not None:
                yield kept


def _is_shut(rubric: Rubric, checked: Sequence[DimensionScore]) -> bool:
    """Whether a gate stops the draft."""
    by_name = {score.name: score.score for score in checked}
    return any(
        d.gate and d.floor is not None and d.name in by_name and by_name[d.name] < d.floor
        for d in rubric.checked
    )
