"""Advice on rubrics: what breaks no rule, and is hardly what its author means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.rubric.files.advice_on_judging import remarks_on_judging
from harness.rubric.files.advice_on_scores import remarks_on_scores
from harness.rubric.files.remark import Remark
from harness.rubric.files.written import Written
from harness.rubric.rubric import Rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something in a rubric that its author may not have meant."""

    path: Path | None
    """The file it stands in; None for a rubric that was made in code."""
    line: int | None
    """Its line there."""
    code: str
    """The same for programs, and as stable as an error's."""
    what: str
    """What is so, whether meant or not."""
    remedy: str
    """What would change that."""

    @property
    def message(self) -> str:
        """Both in one."""
        return f"{self.what}; {self.remedy}"


def advice_on(rubric: Rubric, written: Written | None = None) -> tuple[Advice, ...]:
    """What may not be meant, in the order of the lines.

    Args:
        rubric: What to look at.
        written: Where its values stand, as `read_rubric` says.
    """
    found = []
    for remark in (*remarks_on_scores(rubric), *remarks_on_judging(rubric)):
        where = _where(remark, written) if written else None
        found.append(
            Advice(
                path=where.path if where else None,
                line=where.line if where else None,
                code=remark.code,
                what=remark.what,
                remedy=remark.remedy,
            )
        )
    found += _on_cut_texts(written) if written else []
    return tuple(sorted(found, key=lambda advice: (str(advice.path), advice.line or 0)))


def _where(remark: Remark, written: Written) -> Written:
    """What its author would change: rather in the rubric's own file than in one it extends."""
    first, *others = (written.at(place) for place in (remark.place, remark.beside) if place)
    own = (one for one in (first, *others) if one.path == written.path and one is not written)
    return next(own, first)


def _on_cut_texts(written: Written) -> list[Advice]:
    """Texts that may go on behind their end: YAML takes ` #` for the beginning of a comment."""
    inner = (*written.fields.values(), *written.items)
    found = [advice for one in inner for advice in _on_cut_texts(one)]
    if written.cut:
        found.append(
            Advice(
                path=written.path,
                line=written.line,
                code="rubric.text-cut",
                what=f"the text ends before '{written.cut}', which counts as a comment",
                remedy="put the text in quotes, or a space behind the '#'",
            )
        )
    return found
