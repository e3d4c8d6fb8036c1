"""Advice on rubrics: valid lines that the author hardly means.

Each rule yields remarks; `advice_on` finds the line that each remark is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

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
        """What is so, and what would change it."""
        return f"{self.what}; {self.remedy}"


_Remark = tuple[Place, RubricAdvice]


def advice_on(rubric: Rubric, written: Written | None = None) -> tuple[RubricAdvice, ...]:
    """What may not be meant, in the order of the lines."""
    advices = [*_on_cut_texts(written)] if written else []
    for place, advice in _remarks(rubric):
        where = written.at(place) if written else None
        advices.append(replace(advice, path=where.path, line=where.line) if where else advice)
    return tuple(sorted(advices, key=lambda advice: (str(advice.path), advice.line or 0)))


def _on_cut_texts(written: Written) -> Iterator[RubricAdvice]:
    """Remarks on unquoted YAML texts that a ` #` has cut short, probably by mistake."""
    for inner in (*written.fields.values(), *written.items):
        yield from _on_cut_texts(inner)
    # YAML takes ` #` for a comment. `cut` is empty for `# `: a comment that somebody meant.
    if written.cut:
        yield RubricAdvice(
            path=written.path,
            line=written.line,
            code="rubric.text-cut",
            what=f"the text ends before '{written.cut}', which counts as a comment",
            remedy="put the text in quotes, or a space behind the '#'",
        )


def _remark(place: Place, *, code: str, what: str, remedy: str) -> _Remark:
    return place, RubricAdvice(code=code, what=what, remedy=remedy)


def _remarks(rubric: Rubric) -> Iterator[_Remark]:
    for index, dimension in enumerate(rubric.dimensions):
        for rule in (_on_languages, _on_must_not, _on_anchors):
            yield from rule(rubric, dimension, ("dimensions", index))


def _on_must_not(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    """Whether a draft with a phrase that must not occur passes when all else is good."""
    kinds = [check.check for check in dimension.checks]
    # A floor holds for each of the checks: the others cannot outvote this one.
    if "excludes" not in kinds or dimension.floor is not None:
        return
    total = sum(d.weight for d in rubric.dimensions)
    scale = rubric.scale_of(dimension.name)
    # A check that fails costs its part of the mean; on pass and fail, everything.
    share = 1.0 if scale.is_pass_fail else 1 / len(kinds)
    lost = (rubric.scale.max - rubric.scale.min) * share * dimension.weight / total
    if rubric.scale.max - lost >= rubric.pass_at:
        yield _remark(
            (*place, "checks", kinds.index("excludes")),
            code="rubric.must-not-outvoted",
            what=f"with these phrases, a draft that is good otherwise passes with "
            f"{rubric.scale.max - lost:.3g}",
            remedy=f"give '{dimension.name}' a floor of {scale.max:g}, alone or with 'gate'",
        )


def _on_languages(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    judged = "have the dimension judged"
    checks = [(("checks", at), check, judged) for at, check in enumerate(dimension.checks)]
    for at, cap in enumerate(dimension.caps):
        if cap.unless is not None:
            checks.append((("caps", at), cap.unless, "say by 'when' what the cap holds for"))
    for within, check, instead in checks:
        if any(has_trait(rubric.language, trait) for trait in check.not_for):
            yield _remark(
                (*place, *within),
                code="rubric.check-not-for-language",
                what=f"'{check.check}' judges no draft in '{rubric.language}', whose writing does "
                "not tell what it asks",
                remedy=f"take another check, or {instead}",
            )


def _on_anchors(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    anchors, scale = dimension.anchors, rubric.scale_of(dimension.name)
    if dimension.judge is None:
        for name in ("anchors", "feedback"):
            if getattr(dimension, name):
                yield _remark(
                    (*place, name),
                    code="rubric.judging-field-unread",
                    what=f"'{dimension.name}' is checked by code, which does not read its '{name}'",
                    remedy="leave it out, or have the dimension judged",
                )
        return
    if not anchors and not scale.is_pass_fail:
        yield _remark(
            (*place, "judge"),
            code="rubric.no-anchors",
            what=f"'{dimension.name}' has no anchors: small models then give nearly the same score "
            "to everything",
            remedy="say what a good, a middling and a poor text look like: { 9: …, 6: …, 3: … }",
        )
    top = max(anchors, default=scale.max)
    if len(anchors) > 1 and top <= scale.at(0.6):
        yield _remark(
            (*place, "anchors"),
            code="rubric.anchors-of-another-scale",
            what=f"the anchors of '{dimension.name}' end at {top:g}, and the scale at "
            f"{scale.max:g}: an evaluator that goes by them never gives more",
            remedy=f"spread them over {scale.min:g} to {scale.max:g}, or set the scale they are of",
        )
