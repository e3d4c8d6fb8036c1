"""Advice on rubrics: valid lines that the author hardly means.

Each rule yields remarks; `advice_on` finds the line that each remark is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.rubric.checks import AnyCheck
from harness.rubric.checks.base import InRange
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.written import Place, Written
from harness.text.folding import folded
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
"""Advice before its line is known."""
_Checks = Sequence[tuple[Place, AnyCheck]]
"""All checks of a rubric, with their places."""


def advice_on(rubric: Rubric, written: Written | None = None) -> tuple[RubricAdvice, ...]:
    """What may not be meant, in the order of the lines."""
    advices = [*_on_cut_texts(written)] if written else []
    for place, advice in _remarks(rubric):
        where = written.at(place) if written else None
        advices.append(replace(advice, path=where.path, line=where.line) if where else advice)
    return tuple(sorted(advices, key=lambda advice: (str(advice.path), advice.line or 0)))


def _on_cut_texts(written: Written) -> Iterator[RubricAdvice]:
    """Texts that may go on behind their end: YAML takes ` #` for the beginning of a comment."""
    for inner in (*written.fields.values(), *written.items):
        yield from _on_cut_texts(inner)
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
    if rubric.pass_at == rubric.scale.max and rubric.judged:
        yield _remark(
            ("pass_at",),
            code="rubric.threshold-at-maximum",
            what="only a draft with the full score in every dimension reaches "
            f"{rubric.pass_at:g}, and models rarely give it",
            remedy="lower pass_at; 9 of 10 is strict",
        )
    checks = [
        (("dimensions", index, "checks", number), check)
        for index, dimension in enumerate(rubric.dimensions)
        for number, check in enumerate(dimension.checks)
    ]
    yield from _on_languages(rubric, checks)
    yield from _on_phrases(checks)
    yield from _on_lengths(checks)
    for index, dimension in enumerate(rubric.dimensions):
        yield from _on_caps(rubric, dimension, ("dimensions", index))
        yield from _on_must_not(rubric, dimension, ("dimensions", index))
        yield from _on_anchors(rubric, dimension, ("dimensions", index))


def _on_caps(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    for number, cap in enumerate(dimension.caps):
        if cap.at_most == rubric.scale_of(dimension.name).max:
            yield _remark(
                (*place, "caps", number, "at_most"),
                code="rubric.cap-at-maximum",
                what=f"a cap at {cap.at_most:g} holds nothing down: it is the highest score",
                remedy="lower at_most",
            )


def _on_must_not(rubric: Rubric, dimension: Dimension, place: Place) -> Iterator[_Remark]:
    """Whether a draft with a phrase that must not occur passes when all else is good."""
    kinds = [check.check for check in dimension.checks]
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


def _on_languages(rubric: Rubric, checks: _Checks) -> Iterator[_Remark]:
    for place, check in checks:
        if any(has_trait(rubric.language, trait) for trait in check.not_for):
            yield _remark(
                place,
                code="rubric.check-not-for-language",
                what=f"'{check.check}' judges no draft in '{rubric.language}', whose writing does "
                "not tell what it asks",
                remedy="take another check, or have the dimension judged",
            )


def _on_phrases(checks: _Checks) -> Iterator[_Remark]:
    """Phrases that must occur and must not."""
    required = {
        folded(p) for _, check in checks if check.check == "contains_all" for p in check.phrases
    }
    for place, check in checks:
        if check.check == "excludes" and (
            both := required.intersection(map(folded, check.phrases))
        ):
            yield _remark(
                place,
                code="rubric.required-and-excluded",
                what=f"'{min(both)}' must occur, by contains_all, and must not, here",
                remedy="take it out of one of them",
            )


def _on_lengths(checks: _Checks) -> Iterator[_Remark]:
    """Ranges of sections and of the whole that no text meets together."""
    ranges = {check.check: check for _, check in checks if isinstance(check, InRange)}
    whole, section, count = (ranges.get(kind) for kind in ("words", "section_words", "sections"))
    if whole is None or section is None or count is None:
        return
    # 0 without a limit: then no text is too short.
    fewest, highest = section.min * count.min, (section.max or 0) * (count.max or 0)
    if (whole.max is not None and fewest > whole.max) or (0 < highest < whole.min):
        yield _remark(
            next(place for place, check in checks if check is whole),
            code="rubric.lengths-contradict",
            what=f"{count.requirement} {section.requirement} That is not: {whole.requirement}",
            remedy="change the range of words, section_words or sections",
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
