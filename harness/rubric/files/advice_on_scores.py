"""Advice on numbers: weights, floors, caps and thresholds that do not do what they seem to."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from harness.rubric.files.remark import Remark
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.verdict import half_up

_COMPOSITE_STEP = 0.1
_MOST_COMPOSITES = 20_000
"""With weights such as 0.137 there are millions, and no gaps worth a word."""


def remarks_on_scores(rubric: Rubric) -> Iterator[Remark]:
    """What may not be meant about the numbers."""
    yield from _on_weights(rubric)
    yield from _on_defaults(rubric)
    yield from _on_threshold(rubric)
    yield from _on_focus(rubric)
    for index, dimension in enumerate(rubric.dimensions):
        yield from _on_floor(rubric, dimension, index)
        yield from _on_caps(rubric, dimension, index)


def _on_weights(rubric: Rubric) -> Iterator[Remark]:
    weights = [d.weight for d in rubric.dimensions]
    given = all("weight" in d.model_fields_set for d in rubric.dimensions)
    if given and len(set(weights)) == 1 and weights[0] != 1:
        yield Remark(
            place=("dimensions", 0, "weight"),
            code="rubric.weights-equal",
            what=f"every dimension has weight {weights[0]:g}, which is as if none had any",
            remedy="leave 'weight' out, or give more to what matters more",
        )
    for index, dimension in enumerate(rubric.dimensions):
        moves = (rubric.scale.max - rubric.scale.min) * dimension.weight / sum(weights)
        if moves < _COMPOSITE_STEP and dimension.floor is None:
            yield Remark(
                place=("dimensions", index, "weight"),
                code="rubric.weight-negligible",
                what=f"between its worst and its best score, dimension '{dimension.name}' moves "
                f"the composite by less than {_COMPOSITE_STEP:g}",
                remedy="give it more weight, or a floor, or leave it out",
            )


def _on_defaults(rubric: Rubric) -> Iterator[Remark]:
    """Thresholds of a scale to 10, on one to 100."""
    scale = rubric.scale
    for name, value, share in (
        ("pass_at", rubric.pass_at, 0.8),
        ("focus_below", rubric.focus_below, 0.7),
    ):
        if name not in rubric.model_fields_set and value < (scale.min + scale.max) / 2:
            usual = scale.min + share * (scale.max - scale.min)
            yield Remark(
                place=("scale",),
                code="rubric.default-off-center",
                what=f"{name}, unless given, is {value:g}, in the lower half of the scale "
                f"{scale.min:g} to {scale.max:g}",
                remedy=f"write {name}, such as {usual:g}",
            )


def _on_threshold(rubric: Rubric) -> Iterator[Remark]:
    scale, wanted = rubric.scale, rubric.pass_at
    floors = [d.floor for d in rubric.dimensions]
    if wanted == scale.min:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-at-minimum",
            what=f"every draft reaches {wanted:g}"
            + (", so the floors alone decide" if any(f is not None for f in floors) else ""),
            remedy="raise pass_at",
        )
    elif wanted == scale.max and rubric.judged:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-at-maximum",
            what=f"only a draft with the full score in every dimension reaches {wanted:g}, which "
            "models hardly give",
            remedy="lower pass_at; 9 of 10 is strict",
        )
    elif None not in floors and (least := _composite_of_floors(rubric)) >= wanted:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-under-floors",
            what=f"a draft with every dimension at its floor has {least:g}, so pass_at {wanted:g} "
            "decides nothing",
            remedy="raise pass_at, or lower the floors",
        )
    elif (reached := _next_composite(rubric)) is not None and reached > wanted:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-between-scores",
            what=f"no composite lies between {wanted:g} and {reached:g}, so a draft passes from "
            f"{reached:g} on",
            remedy=f"write {reached:g}, or a smaller step",
        )


def _composite_of_floors(rubric: Rubric) -> float:
    total = sum(d.weight for d in rubric.dimensions)
    return half_up(
        sum((d.floor or 0) * d.weight for d in rubric.dimensions) / total, _COMPOSITE_STEP
    )


def _next_composite(rubric: Rubric) -> float | None:
    """The least composite from `pass_at` on; None where that cannot be told."""
    rounded = half_up(rubric.pass_at, _COMPOSITE_STEP)
    next_tenth = rounded if rounded >= rubric.pass_at else rounded + _COMPOSITE_STEP
    if rubric.judged or any(d.caps for d in rubric.dimensions):
        return half_up(next_tenth, _COMPOSITE_STEP)  # means of judgements leave no gaps
    composites = _composites(rubric)
    return min((c for c in composites if c >= rubric.pass_at), default=None)


def _composites(rubric: Rubric) -> set[float]:
    """All that checks can amount to; none when there are too many to say."""
    low, high, step = (
        Fraction(str(n)) for n in (rubric.scale.min, rubric.scale.max, rubric.scale.step)
    )
    scores = [low + n * step for n in range(int((high - low) / step) + 1)]
    sums = {Fraction(0)}
    for dimension in rubric.dimensions:
        weight = Fraction(str(dimension.weight))
        if len(sums) * len(scores) > 100 * _MOST_COMPOSITES:
            return set()
        sums = {so_far + weight * score for so_far in sums for score in scores}
        if len(sums) > _MOST_COMPOSITES:
            return set()
    total = sum(Fraction(str(d.weight)) for d in rubric.dimensions)
    return {half_up(float(one / total), _COMPOSITE_STEP) for one in sums}


def _on_focus(rubric: Rubric) -> Iterator[Remark]:
    focus = rubric.focus_below
    place = ("focus_below",) if "focus_below" in rubric.model_fields_set else ("pass_at",)
    floors = [d.floor for d in rubric.dimensions]
    if focus > rubric.pass_at:
        yield Remark(
            place=place,
            code="rubric.focus-above-threshold",
            what=f"focus_below {focus:g} is above pass_at {rubric.pass_at:g}: revisions also work "
            "on dimensions that are good enough to pass",
            remedy=f"set focus_below to {rubric.pass_at:g} or less",
            beside=("pass_at",),
        )
    elif focus == rubric.scale.min:
        yield Remark(
            place=place,
            code="rubric.focus-at-minimum",
            what=f"no score is below {focus:g}, so a revision always works on the two lowest "
            "dimensions",
            remedy="raise focus_below, usually to a little below pass_at",
        )
    elif place == ("focus_below",) and all(f is not None and focus <= f for f in floors):
        yield Remark(
            place=place,
            code="rubric.focus-under-floors",
            what=f"every dimension has a floor of {focus:g} or more, and what is under its floor "
            f"is revised anyway: focus_below {focus:g} changes nothing",
            remedy="raise focus_below above the floors, or leave it out",
        )


def _on_floor(rubric: Rubric, dimension: Dimension, index: int) -> Iterator[Remark]:
    floor, scale = dimension.floor, rubric.scale
    place = ("dimensions", index, "floor")
    if floor is None:
        return
    on_step = half_up(floor, scale.step, start=scale.min)
    if floor == scale.min:
        yield Remark(
            place=place,
            code="rubric.floor-at-minimum",
            what=f"no score is below {floor:g}, so this floor changes nothing",
            remedy="raise it",
        )
    elif dimension.judge and floor > rubric.pass_at:
        yield Remark(
            place=place,
            code="rubric.floor-above-threshold",
            what=f"the floor {floor:g} is above pass_at {rubric.pass_at:g}: a draft whose "
            f"dimensions all score {rubric.pass_at:g} has the composite, and fails for "
            f"'{dimension.name}'",
            remedy=f"lower it to {rubric.pass_at:g} or less",
        )
    elif dimension.checks and not dimension.caps and on_step != floor:
        reached = on_step if on_step > floor else on_step + scale.step
        yield Remark(
            place=place,
            code="rubric.floor-between-scores",
            what=f"scores go in steps of {scale.step:g}, so this floor is in effect {reached:g}",
            remedy=f"write {reached:g}",
        )


def _on_caps(rubric: Rubric, dimension: Dimension, index: int) -> Iterator[Remark]:
    for number, cap in enumerate(dimension.caps):
        place = ("dimensions", index, "caps", number, "at_most")
        if cap.at_most == rubric.scale.max:
            yield Remark(
                place=place,
                code="rubric.cap-at-maximum",
                what=f"no score is above {cap.at_most:g}, so this cap changes nothing",
                remedy="lower at_most",
            )
        elif dimension.floor is not None and cap.at_most < dimension.floor:
            yield Remark(
                place=place,
                code="rubric.cap-under-floor",
                what=f"the cap {cap.at_most:g} is under the floor {dimension.floor:g}: where it "
                "applies, the draft fails",
                remedy=f"raise it to {dimension.floor:g} or more, unless that is meant",
            )
