"""Advice on rubrics: values that are valid, but that their author may not have meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.rubric.checks import AnyCheck
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.written import Place, Written
from harness.text.languages import has_trait


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricAdvice:
    """Something in a rubric that its author may not have meant."""

    path: Path | None = None
    """None for a rubric that was made in code, as is the line."""
    line: int | None = None
    code: str
    what: str
    remedy: str

    @property
    def message(self) -> str:
        """What was noticed, and what would change it."""
        return f"{self.what}; {self.remedy}"


_Remark = tuple[Place, RubricAdvice]
"""Advice without file and line, and the place of the value that it is on."""


def advice_on(rubric: Rubric, written: Written | None = None) -> tuple[RubricAdvice, ...]:
    """The advice on a rubric in the order of its lines, which are known from `written`."""
    advices = []
    for index, dimension in enumerate(rubric.dimensions):
        place = ("dimensions", index)
        for remarks_on in (_on_languages, _on_excluded_phrases, _on_anchors):
            for value_place, advice in remarks_on(rubric, dimension, place):
                value = written.at(value_place) if written else None
                placed = replace(advice, path=value.path, line=value.line) if value else advice
                advices.append(placed)
    return tuple(sorted(advices, key=lambda advice: (str(advice.path), advice.line or 0)))


def how_to_make_optional(rubric: Rubric, names: Iterable[str]) -> str:
    """What to write so that drafts pass without these dimensions of a rubric."""
    dimensions = ", ".join(f"{{ name: {name}, optional: true }}" for name in names)
    return (
        "name a rubric of your own where that is optional: a file rubrics/NAME.yaml with the lines "
        f"'extends: {rubric.id}' and 'dimensions: [{dimensions}]'"
    )


def _remark(place: Place, *, code: str, what: str, remedy: str) -> _Remark:
    return place, RubricAdvice(code=code, what=what, remedy=remedy)


def _on_languages(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    """Remarks on checks that cannot judge a draft in the rubric's language."""
    places: list[tuple[Place, AnyCheck, str]] = [  # with what to do instead
        ((*place, "checks", index), check, "have the dimension judged")
        for index, check in enumerate(dimension.checks)
    ]
    for index, cap in enumerate(dimension.caps):
        if cap.unless is not None:
            instead = "say by 'when' what the cap holds for"
            places.append(((*place, "caps", index), cap.unless, instead))
    for check_place, check, instead in places:
        if any(has_trait(rubric.language, trait) for trait in check.not_for):
            yield _remark(
                check_place,
                code="rubric.check-not-for-language",
                what=f"'{check.check}' judges no draft in '{rubric.language}', whose writing "
                "does not tell what it asks",
                remedy=f"take another check, or {instead}",
            )


def _on_excluded_phrases(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    """A remark if a draft with an excluded phrase passes when everything else is good."""
    kinds = [check.check for check in dimension.checks]
    # A floor holds for each of the checks: the others cannot outvote this one.
    if "excludes" not in kinds or dimension.floor is not None:
        return
    scale = rubric.scale_of(dimension.name)
    # A check that fails costs its part of the dimension's mean; on pass and fail, everything.
    share = 1.0 if scale.is_pass_fail else 1 / len(kinds)
    total_weight = sum(d.weight for d in rubric.dimensions)
    length = rubric.scale.max - rubric.scale.min
    composite = rubric.scale.max - length * share * dimension.weight / total_weight
    if composite >= rubric.pass_at:
        yield _remark(
            (*place, "checks", kinds.index("excludes")),
            code="rubric.must-not-outvoted",
            what=f"with these phrases, a draft that is good otherwise passes with {composite:.3g}",
            remedy=f"give '{dimension.name}' a floor of {scale.max:g}, alone or with 'gate'",
        )


def _on_anchors(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    """Remarks on a judged dimension without anchors, or with those of another scale."""
    if dimension.judge is None:
        return
    anchors = dimension.anchors
    scale = rubric.scale_of(dimension.name)
    if not anchors and not scale.is_pass_fail:
        yield _remark(
            (*place, "judge"),
            code="rubric.no-anchors",
            what=f"'{dimension.name}' has no anchors: small models then give nearly the same "
            "score to everything",
            remedy="say what a good, a middling and a poor text look like: { 9: …, 6: …, 3: … }",
        )
    if len(anchors) > 1 and max(anchors) <= scale.at(0.6):
        yield _remark(
            (*place, "anchors"),
            code="rubric.anchors-of-another-scale",
            what=f"the anchors of '{dimension.name}' end at {max(anchors):g}, and the scale at "
            f"{scale.max:g}: an evaluator that goes by them never gives more",
            remedy=f"spread them over {scale.min:g} to {scale.max:g}, or set the scale they are of",
        )
