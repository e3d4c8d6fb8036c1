"""Tunes a rubric on labeled drafts: the threshold they support, and how well the scores agree."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput
from harness.rubric.calibration.agreement import Agreement, Resamples, Votes, agreement, auc
from harness.rubric.calibration.bounds import (
    AtThreshold,
    RiskAim,
    at_threshold,
    drafts_for,
    least_drafts,
    named_threshold,
    steps_of,
    upper_bound,
)
from harness.rubric.calibration.calibration_files import Attempt, Attempts
from harness.rubric.calibration.labels import COMPOSITE, HOLD, Labeled
from harness.rubric.load import at_any_threshold
from harness.rubric.rubric import Rubric
from harness.rubric.scoring import checked_score
from harness.rubric.verdict import DimensionScore, half_up, reach_verdict, shut_gates

_DISAGREEMENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A labeled draft with its composite."""

    labeled: Labeled
    accept: bool = False
    """Whether people accept it."""
    composite: float = math.nan
    """NaN if not all that it needs was scored."""
    lacks: str = ""
    """Why thresholds cannot count it; empty if they can. Agreement uses what scores it has."""
    blocked: bool = False
    """Whether it fails at every threshold: a floor is not reached, or not all was scored."""
    scores: Mapping[str, float]
    """Dimension or `COMPOSITE` → the mean of the samples."""

    @property
    def group(self) -> str:
        """The name of its group; a draft without a group is one by itself."""
        return self.labeled.group or f"draft {self.labeled.id}"

    @property
    def length(self) -> float:
        """The length of its text; NaN if unknown."""
        return len(self.labeled.draft or "") or math.nan

    @property
    def reached(self) -> float:
        """The highest threshold at which it passes; minus infinity if it passes at none."""
        return -math.inf if self.blocked else self.composite


class Tuning:
    """What labels say of a rubric and its evaluator.

    Where people did not decide, they accept from a mean of `accept_at` on. `attempts` are earlier
    looks at labels.

    Raises:
        InvalidInput: No draft has both scores and labels.
    """

    def __init__(
        self,
        drafts: Sequence[Labeled],
        rubric: Rubric,
        aim: RiskAim,
        *,
        accept_at: float,
        attempts: Attempts,
    ) -> None:
        self._drafts = drafts
        self._rubric = rubric
        # 1. Drafts with a composite and a decision; those that count are independent.
        rated = scored_drafts(drafts, rubric, accept_at=accept_at)
        self._scored = [draft for draft in rated if not draft.lacks]
        self.dropped: dict[str, list[str]] = {}  # reason → drafts that thresholds do not count
        for draft in rated:
            if draft.lacks:
                self.dropped.setdefault(draft.lacks, []).append(draft.labeled.id)
        # The mean of people's scores from which they accept; None if they decided themselves.
        self.accept_at = None if any(draft.accept for draft in drafts) else accept_at
        self._check_counts()
        eligible = held_back(self._scored)
        self.counted = one_per_group(eligible)  # the drafts that thresholds rest on
        self.held_back = len(self._scored) - len(eligible)  # drafts that others kept from counting
        self.grouped = len(eligible) - len(self.counted)  # those that others of their group did

        # 2. All looks at these labels share the allowed risk.
        self.attempts = attempts.after(
            rubric.pass_at, seen_in(self.counted), drafts=len(self.counted)
        )
        looks = self.attempts.on(seen_in(self.counted))
        seen = {label for other in looks[:-1] for label in other.scores}  # the last is this one
        self.seen_before = [d.labeled.id for d in self.counted if d.labeled.digest in seen]
        self.aim = shared_aim(aim, looks)

        # 3. What the rubric's own threshold does, with the upper bound on its error rate if it was
        # chosen before the labels were seen; and the lowest threshold that keeps the aim, if any.
        reached, wrong = reached_by(self.counted)
        self.votes = Votes.of(draft.labeled.accept for draft in self.counted)
        self.own = at_threshold(reached, wrong, rubric.pass_at)
        # Each threshold that the rubric had so far was a claim.
        own_aim = replace(aim, looks=sum(len(look.pass_at) for look in looks))
        trials = self.own.trials(aim.risk)
        self.own_bound = upper_bound(self.own.wrong, trials, error=own_aim.error)
        self.steps = steps_of(reached, wrong)
        self.named = named_threshold(self.steps, self.aim)
        # If none is named: the fewest further drafts, none of them wrong, that could name one, and
        # at which threshold. Which drafts count depends on the risk.
        self.missing = None if self.named else _missing(self.steps, self.aim)

        # 4. How well the evaluator agrees: in each dimension, and by the area under the ROC curve
        # of the composite against people's decision.
        rated = held_back(rated)
        resamples = Resamples([draft.group for draft in rated])
        self.agreements = tuple(_agreements(rated, rubric, resamples, aim.confidence))
        composites = np.array([math.nan if draft.lacks else draft.composite for draft in rated])
        accepted = np.array([draft.accept for draft in rated])
        areas = auc(composites, accepted, resamples=resamples)
        self.discrimination = resamples.estimate(areas, confidence=aim.confidence)

    def _check_counts(self) -> None:
        if not self._scored:
            reasons = "; ".join(f"{len(ids)}: {reason}" for reason, ids in self.dropped.items())
            raise InvalidInput(
                f"no draft has both the evaluator's scores and people's label ({reasons}); "
                "harness rubric score gives scores, for --scores",
                code="tune.nothing-to-count",
            )
        if self.accept_at is not None and not any(draft.accept for draft in self._scored):
            raise InvalidInput(
                f"no draft has a mean human score of {self.accept_at:g} or more; set the score "
                "from which people accept a draft: --accept-at",
                code="tune.nobody-accepts",
            )

    @property
    def disagreements(self) -> tuple[Rated, ...]:
        """Drafts on which the rubric's threshold and people disagree, the farthest from it first.

        None of those that were held back.
        """
        pass_at = self._rubric.pass_at
        wrong = [
            draft
            for draft in self._scored
            if draft.labeled.split != HOLD and (draft.reached >= pass_at) != draft.accept
        ]
        wrong.sort(key=lambda draft: -abs(draft.composite - pass_at))
        return tuple(wrong[:_DISAGREEMENTS])

    @property
    def left_out(self) -> tuple[str, ...]:
        """Optional dimensions that no evaluator scored."""
        names = {name for draft in self._scored for name in draft.scores}
        # A score for the whole draft leaves no dimension out.
        optional = () if COMPOSITE in names else (d.name for d in self._rubric.judged if d.optional)
        return tuple(name for name in optional if name not in names)

    @property
    def outdated(self) -> tuple[str, ...]:
        """Ids of drafts with scores by another version of the rubric."""
        # Scores do not depend on the threshold.
        versions = {"", self._rubric.sha256, *at_any_threshold(self._rubric)}
        return tuple(draft.id for draft in self._drafts if draft.rubric_sha256 not in versions)

    @property
    def uneven(self) -> tuple[str, ...]:
        """Ids of drafts that were judged more often only if they are near the threshold."""
        if self._rubric.repeats == 1:
            return ()
        judged = (draft for draft in self._drafts if draft.rubric_sha256 and draft.evaluator)
        return tuple(draft.id for draft in judged if not draft.samples)

    @property
    def samples(self) -> tuple[int, ...]:
        """How many samples the evaluator's scores have: one number if all have as many."""
        judged = {COMPOSITE, *(dimension.name for dimension in self._rubric.judged)}
        scores = (score for draft in self.counted for score in draft.labeled.scores.items())
        return tuple(sorted({len(values) for name, values in scores if name in judged}))

    @property
    def evaluators(self) -> str | None:
        """The evaluators that gave the scores; None if a draft with scores does not name one."""
        names = {draft.labeled.evaluator for draft in self.counted if draft.labeled.scores}
        return None if "" in names else ", ".join(sorted(names)) or None

    @property
    def labels_sha256(self) -> str:
        """The digest of what people say of the drafts that count."""
        texts = sorted(draft.labeled.identified_labels for draft in self.counted)
        return hashlib.sha256("".join(texts).encode()).hexdigest()


def scored_drafts(drafts: Sequence[Labeled], rubric: Rubric, *, accept_at: float) -> list[Rated]:
    """All drafts with their scores; `lacks` says which have no composite or no decision."""
    names_by_people = {name for draft in drafts for name in draft.people}
    if any(draft.accept for draft in drafts):
        # A draft on which nobody decided is left out, whatever its scores.
        accepts = [statistics.fmean(d.accept.values()) > 0.5 if d.accept else None for d in drafts]
    else:
        accepts = [_is_accepted(d, rubric, names_by_people, accept_at) for d in drafts]
    # Without any score of an optional dimension, there was no evaluator to ask.
    names = {name for draft in drafts for name in draft.scores}
    left_out = {d.name for d in rubric.judged if d.optional and d.name not in names}
    scored = [_scored(draft, rubric, left_out) for draft in drafts]
    return [
        replace(rated, lacks="no label by people")
        if accept is None
        else replace(rated, accept=accept)
        for rated, accept in zip(scored, accepts, strict=True)
    ]


def _is_accepted(draft: Labeled, rubric: Rubric, names: set[str], accept_at: float) -> bool | None:
    """Whether people's mean scores come to `accept_at`; None if one of these names has no score."""
    if not draft.people or names - draft.people.keys():
        return None
    means = {
        name: rubric.shared(name, statistics.fmean(score_by_rater.values()))
        for name, score_by_rater in draft.people.items()
    }
    weights = {d.name: d.weight for d in rubric.dimensions if d.name in means}
    total = sum(weights[name] * means[name] for name in weights)
    return means.get(COMPOSITE, total / (sum(weights.values()) or 1)) >= accept_at


def _scored(labeled: Labeled, rubric: Rubric, left_out: set[str]) -> Rated:
    """The draft with its composite, or with what it lacks for one."""
    # Rounded as `combined` rounds the mean of several judgements.
    means = {name: half_up(statistics.fmean(s), 0.01) for name, s in labeled.scores.items()}
    if COMPOSITE in means:
        whole = half_up(statistics.fmean(labeled.scores[COMPOSITE]), rubric.scale.composite_step)
        return Rated(labeled=labeled, composite=whole, scores=means)
    draft = labeled.text and replace(labeled.text, language=rubric.language)
    scores: list[DimensionScore] = []
    lacks: list[str] = []
    # The checked ones first: their gates say what had to be judged at all.
    for dimension in (*rubric.checked, *rubric.judged):
        name = dimension.name
        if name in means:
            scores.append(DimensionScore(name=name, score=means[name], source="judged", reason=""))
        elif dimension.checks and draft is not None:
            score = checked_score(dimension, draft, rubric)
            scores += [score] if isinstance(score, DimensionScore) else []
        elif dimension.checks:
            if name not in labeled.unjudged:
                lacks.append(f"no 'score.{name}', nor a text to check")
        elif not (
            name in left_out
            or (dimension.needs_sources and not labeled.sources)
            or shut_gates(rubric, scores)
        ):
            lacks.append(f"no 'score.{name}'")
    if lacks or not scores:
        reason = "; ".join(lacks) or "no score"
        return Rated(labeled=labeled, lacks=reason, scores={s.name: s.score for s in scores})
    # A draft that fails at the lowest threshold fails at every threshold.
    lowest = rubric.model_copy(update={"pass_at": rubric.scale.min})
    verdict = reach_verdict(lowest, scores)
    return Rated(
        labeled=labeled,
        composite=verdict.composite,
        blocked=not verdict.passed,
        scores=verdict.vector,
    )


def held_back(drafts: list[Rated]) -> list[Rated]:
    """The drafts that stayed unseen while the rubric was written; all if none did."""
    return [draft for draft in drafts if draft.labeled.split == HOLD] or drafts


def people_of(drafts: Iterable[Rated], name: str) -> NDArray[np.float64]:
    """`(drafts, raters)`: people's scores in a dimension, NaN where missing."""
    by_rater = [draft.labeled.people.get(name, {}) for draft in drafts]
    raters = sorted({rater for scores in by_rater for rater in scores})
    rows = [[scores.get(rater, np.nan) for rater in raters] for scores in by_rater]
    return np.array(rows, dtype=float).reshape(len(by_rater), -1)


def one_per_group(drafts: Iterable[Rated]) -> tuple[Rated, ...]:
    """One draft of each group."""
    by_group: dict[str, Rated] = {}
    # Picked by the id alone: a choice by score or label would be a look.
    for draft in sorted(drafts, key=lambda d: hashlib.sha256(d.labeled.id.encode()).digest()):
        by_group.setdefault(draft.group, draft)
    return tuple(by_group.values())


def reached_by(drafts: Sequence[Rated]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """`(drafts,)`: the highest threshold at which each passes, and whether people reject it."""
    reached = np.array([rated.reached for rated in drafts])
    return reached, np.array([not rated.accept for rated in drafts], dtype=bool)


def seen_in(counted: Iterable[Rated]) -> dict[str, float | None]:
    """The scores that a look at these drafts sees, by the labels' digests, as in `Attempt`."""
    return {rated.labeled.digest: None if rated.blocked else rated.composite for rated in counted}


def shared_aim(aim: RiskAim, looks: Iterable[Attempt]) -> RiskAim:
    """The aim, whose error all looks share from which a claim could have come."""
    fewest = least_drafts(aim)
    # A look at too few drafts could claim nothing, and takes no share.
    claims = sum(size >= fewest for look in looks for size in look.drafts)
    return replace(aim, looks=max(1, claims))


def _missing(steps: Sequence[AtThreshold], aim: RiskAim) -> tuple[int, float] | None:
    """How many more drafts could support a claim, and the threshold that needs fewest.

    None if every draft fails at every threshold.
    """
    # Such a sequence begins where one wrong draft is allowed.
    least_wrong = 1 if aim.risk == "accepted" else 0
    needed = drafts_for([max(step.wrong, least_wrong) for step in steps], aim).tolist()
    missing = (max(1, n - step.trials(aim.risk)) for n, step in zip(needed, steps, strict=True))
    return min(zip(missing, (step.threshold for step in steps), strict=True), default=None)


def _agreements(
    scored: Sequence[Rated], rubric: Rubric, resamples: Resamples, confidence: float
) -> Iterator[Agreement]:
    """The agreement in each dimension, and of scores for whole drafts."""
    lengths = np.array([rated.length for rated in scored])
    for name in (*(dimension.name for dimension in rubric.dimensions), COMPOSITE):
        people = people_of(scored, name)
        evaluator = np.array([rated.scores.get(name, np.nan) for rated in scored])
        if people.size and not np.isnan(evaluator).all():
            yield agreement(
                "composite" if name == COMPOSITE else name,
                evaluator=evaluator,
                people=people,
                resamples=resamples,
                lengths=lengths,
                confidence=confidence,
            )
