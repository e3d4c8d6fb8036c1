"""Compares two sets of scores of the same drafts: how far apart they are, which people share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.errors import InvalidInput
from harness.rubric.calibration.agreement import Estimate, Resamples, Values, auc, linear, mean_of
from harness.rubric.calibration.bounds import (
    AtThreshold,
    RiskAim,
    at_threshold,
    library,
    named_threshold,
    steps_of,
)
from harness.rubric.calibration.calibration_files import Attempts
from harness.rubric.calibration.labels import COMPOSITE, HOLD, Labeled
from harness.rubric.calibration.score_figures import Reducer, Sample, reduced
from harness.rubric.calibration.tuning import (
    Rated,
    one_per_group,
    people_of,
    reached_by,
    scored_drafts,
    seen_in,
    shared_aim,
)
from harness.rubric.rubric import Rubric

Pair = tuple[Rated, Rated]
Rubrics = tuple[Rubric, Rubric]
Side = tuple[Sequence[Sample], Mapping[str, float]]  # and by score what is a success; else 1
# The most characters of a row's name in a message.
_LONG = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A statistic of either side, and by how much the second is higher."""

    first: float
    second: float
    difference: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far the second side's scores are from the first's, on the first's scale."""

    drafts: int
    """With scores of both."""
    mean: Difference
    pearson: Estimate
    """Whether one rises with the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Which side agrees better with people, and which thresholds they may have."""

    agreement: Mapping[str, Mapping[str, Difference]]
    """By dimension that both have, and of `composite`: `pearson` and `kappa` with the mean of
    people, `offset` from it, and `rho` of that with the length of drafts that have texts; of
    `composite`, also `auc`: how often a draft that people accept outscores one that they reject."""
    own: tuple[AtThreshold, AtThreshold]
    """At either rubric's own `pass_at`."""
    named: tuple[AtThreshold | None, AtThreshold | None]
    """The lowest threshold of either that keeps the aim."""
    aim: RiskAim
    """Shared by both, and by earlier looks at these labels."""
    attempts: Attempts
    """Includes these two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two sets of scores differ."""

    drafts: int
    """With scores of both."""
    groups: int
    shifts: Mapping[str, Shift]
    """By dimension that both have, and of `composite`."""
    only_first: tuple[str, ...] = ()
    """Drafts that pass by the first side's `pass_at` and not by the second's."""
    only_second: tuple[str, ...] = ()
    both_pass: int | None = None
    """None where nothing says what passes."""
    without_partner: tuple[int, int] = (0, 0)
    """Drafts, or rows, that only the first side has, and only the second."""
    unlabeled: int = 0
    """How many drafts were left out, since a file of labels of its own has none for them."""
    people: Preference | None = None
    """None without labels."""


def labeled_by(scores: Sequence[Labeled], labels: Sequence[Labeled]) -> list[Labeled]:
    """Scored drafts that have labels, by id, with the labels and texts that these have."""
    by_id = {draft.id: draft for draft in labels}
    pairs = [(draft, by_id[draft.id]) for draft in scores if draft.id in by_id]
    differ = [score.id for score, label in pairs if not _may_be_one(score, label)]
    if differ:
        raise InvalidInput(
            f"labels, groups or texts of {len(differ)} drafts differ between the files, for "
            f"example of '{differ[0]}'; compare scores of the same drafts",
            code="compare.drafts-differ",
        )
    names = ("draft", "task", "sources", "people", "accept", "group", "split")
    return [
        score.model_copy(update={n: getattr(label, n) for n in names if getattr(label, n)})
        for score, label in pairs
    ]


def _may_be_one(first: Labeled, second: Labeled) -> bool:
    """Whether no field that both files give differs: what one leaves out contradicts nothing."""
    names = first.people.keys() & second.people
    people = [(first.people[name], second.people[name]) for name in names]
    fields = ((getattr(first, n), getattr(second, n)) for n in ("content", "group", "accept"))
    return all(a == b for a, b in [*fields, *people] if a and b)


def paired(
    first: Sequence[Labeled], second: Sequence[Labeled], rubrics: Rubrics, *, accept_at: float
) -> list[Pair]:
    """The drafts that both have.

    Raises:
        InvalidInput: Labels or texts differ, or no draft has both scores.
    """
    labeled = labeled_by(second, first)
    sides = [
        {rated.labeled.id: rated for rated in scored_drafts(side, rubric, accept_at=accept_at)}
        for side, rubric in zip((first, labeled), rubrics, strict=True)
    ]
    pairs = [(rated, sides[1][name]) for name, rated in sides[0].items() if name in sides[1]]
    have_both = (
        a.scores.keys() & b.scores.keys() or not np.isnan(a.composite + b.composite)
        for a, b in pairs
    )
    if not any(have_both):
        raise InvalidInput(
            "no draft is scored in both files; drafts are matched by id", code="compare.no-pairs"
        )
    # Where people's scores decide, two thresholds would make two decisions of one draft.
    return [(a, replace(b, accept=a.accept)) for a, b in pairs]


def compare(
    pairs: Sequence[Pair], rubrics: Rubrics, aim: RiskAim, *, attempts: Attempts | None
) -> Comparison:
    """How the sides differ, and which of them agrees better with people.

    Args:
        pairs: As `paired` returns them.
        rubrics: Of the first side and of the second.
        aim: The risk that decides, and the confidence of intervals.
        attempts: Earlier looks at the labels; None leaves out what people say.
    """
    # Each resample holds both sides: what makes a draft hard for both does not widen the interval
    # of their difference.
    resamples = Resamples([rated.group for rated, _ in pairs])
    scores = _scores(pairs, rubrics)
    # 1. How far apart the sides are.
    shifts = _shifts(scores, resamples, confidence=aim.confidence)
    # 2. Which drafts pass by one side alone, of those that both have in full.
    whole = [pair for pair in pairs if not any(np.isnan(rated.composite) for rated in pair)]
    passed = {  # id → whether the draft passes by the first side, and by the second
        first.labeled.id: (
            first.reached >= rubrics[0].pass_at,
            second.reached >= rubrics[1].pass_at,
        )
        for first, second in whole
    }
    people = None
    if attempts is not None:
        held = [pair for pair in pairs if pair[0].labeled.split == HOLD] or pairs
        people = _preference(held, rubrics, aim=aim, attempts=attempts)
    return Comparison(
        drafts=max(shift.drafts for shift in shifts.values()),
        groups=len(set(resamples.codes)),
        shifts=shifts,
        only_first=tuple(name for name, sides in passed.items() if sides == (True, False)),
        only_second=tuple(name for name, sides in passed.items() if sides == (False, True)),
        both_pass=sum(sides == (True, True) for sides in passed.values()),
        people=people,
    )


def compare_evaluations(
    sides: Sequence[Side], reducer: Reducer, *, confidence: float
) -> Comparison:
    """How the scores of two evaluations differ on the rows that both have, epochs reduced.

    Raises:
        InvalidInput: They have no row, or no score, in common.
    """
    names_of_sides = [{name for one in samples for name in one.scores} for samples, _ in sides]
    names = sorted(names_of_sides[0] & names_of_sides[1])
    first, second = (reduced(samples, names, reducer, success) for samples, success in sides)
    shared = [row for row in first if row in second]
    if not shared or not names:
        what = "no row" if names else "no score of the same name"
        sides_to_show = (first, second) if names else names_of_sides
        examples = (f"'{min(side)[:_LONG]}'" if side else "none" for side in sides_to_show)
        raise InvalidInput(
            f"the evaluations have {what} in common, but for example {' and '.join(examples)}; "
            "rows are paired by id, or without one by all their inputs",
            code="compare.no-pairs",
        )
    clusters = [first[row].first.cluster for row in shared]
    values = np.array([[side[row].scores for row in shared] for side in (first, second)])
    scores = {name: values[:, :, number] for number, name in enumerate(names)}
    return Comparison(
        drafts=len(shared),
        groups=len(set(clusters)),
        shifts=_shifts(scores, Resamples(clusters), confidence=confidence),
        without_partner=(len(first) - len(shared), len(second) - len(shared)),
    )


def _shifts(
    scores: Mapping[str, Values], resamples: Resamples, *, confidence: float
) -> dict[str, Shift]:
    """How far the scores of each name are apart; they are `(2, drafts)`, NaN where missing."""
    shifts = {}
    for name, (first, second) in scores.items():
        both = ~np.isnan(first + second)
        if both.any():
            sums = linear(resamples, both, first[both], second[both])
            shifts[name] = Shift(
                drafts=int(both.sum()),
                mean=Difference(
                    first=float(first[both].mean()),
                    second=float(second[both].mean()),
                    difference=resamples.estimate(sums["offset"], confidence=confidence),
                ),
                pearson=resamples.estimate(sums["pearson"], confidence=confidence),
            )
    return shifts


def _preference(
    pairs: Sequence[Pair], rubrics: Rubrics, *, aim: RiskAim, attempts: Attempts
) -> Preference:
    def difference(first: Values, second: Values) -> Difference:
        estimate = resamples.estimate(second - first, confidence=aim.confidence)
        return Difference(first=float(first[0]), second=float(second[0]), difference=estimate)

    # 1. Agreement, on the same drafts and resamples.
    rank = library("scipy.stats").rankdata
    scores, resamples = _scores(pairs, rubrics), Resamples([rated.group for rated, _ in pairs])
    lengths = np.array([rated.length for rated, _ in pairs])
    agreement: dict[str, dict[str, Difference]] = {}
    for name, sides in scores.items():
        firsts = (pair[0] for pair in pairs)
        people = mean_of(people_of(firsts, COMPOSITE if name == "composite" else name))
        both = ~np.isnan(people + sides[0] + sides[1])
        if both.any():
            first, second = (linear(resamples, both, people[both], side[both]) for side in sides)
            agreement[name] = {kind: difference(first[kind], second[kind]) for kind in first}
            if not np.isnan(lengths[both]).any():
                errors = (rank((side - people)[both]) for side in sides)
                rhos = (linear(resamples, both, rank(lengths[both]), e) for e in errors)
                agreement[name]["rho"] = difference(*(rho["pearson"] for rho in rhos))
    # The areas of both sides are of the same drafts.
    counted = np.array([not (a.lacks or b.lacks) for a, b in pairs])
    if not counted.any():
        raise InvalidInput(
            "no draft has labels and a composite of both; drafts are matched by id",
            code="compare.no-pairs",
        )
    accepted = np.array([rated.accept for rated, _ in pairs])
    composites = np.where(counted, scores["composite"], np.nan)
    areas = [auc(side, accepted, resamples=resamples) for side in composites]
    agreement["composite"] = {**agreement.get("composite", {}), "auc": difference(*areas)}

    # 2. Thresholds: both sides, and earlier looks, share the allowed risk.
    whole = [pair for pair, counts in zip(pairs, counted, strict=True) if counts]
    drafts = [one_per_group(pair[side] for pair in whole) for side in (0, 1)]
    for rubric, side in zip(rubrics, drafts, strict=True):
        attempts = attempts.after(rubric.pass_at, seen_in(side), drafts=len(side))
    aim = shared_aim(aim, attempts.on(seen_in(drafts[0])))
    a, b = map(reached_by, drafts)
    return Preference(
        agreement=agreement,
        own=(at_threshold(*a, rubrics[0].pass_at), at_threshold(*b, rubrics[1].pass_at)),
        named=(named_threshold(steps_of(*a), aim), named_threshold(steps_of(*b), aim)),
        aim=aim,
        attempts=attempts,
    )


def _scores(pairs: Sequence[Pair], rubrics: Rubrics) -> dict[str, Values]:
    """By dimension of both, and of the composite: `(2, drafts)`, NaN where missing."""
    shared = {dimension.name for dimension in rubrics[1].dimensions}
    names = [dimension.name for dimension in rubrics[0].dimensions if dimension.name in shared]
    scores = {
        name: np.array([[rated.scores.get(name, np.nan) for rated in pair] for pair in pairs]).T
        for name in names
    }
    scores["composite"] = np.array([[rated.composite for rated in pair] for pair in pairs]).T
    for name, (_, second) in scores.items():
        # All are on the first side's scale.
        a, b = (rubric.scale_of(name) for rubric in rubrics)
        if (a.min, a.max) != (b.min, b.max):
            second[:] = a.min + b.share(second) * (a.max - a.min)
    return scores
