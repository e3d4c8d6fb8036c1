"""The base class of checks, their result, and functions that several checks share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    model_validator,
)

from harness.compress import Section
from harness.errors import Mistake
from harness.rubric.draft import Draft, Finding
from harness.text.languages import Trait

NO_TEXT = Finding("there is no text", code="check.no-text")

Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of a check."""

    share: float
    """From 0, nothing right, to 1, nothing wrong."""
    findings: tuple[Finding, ...] = ()
    """The reasons for a share below 1."""
    unjudged: str = ""
    """Why nothing could be judged; the share does not count then."""


def mean_of(grades: Sequence[Grade]) -> Grade:
    """The mean of the grades that judged something; unjudged if all are."""
    judged = [grade for grade in grades if not grade.unjudged]
    if not judged:
        return Grade(1.0, unjudged="; ".join(dict.fromkeys(grade.unjudged for grade in grades)))
    share = sum(grade.share for grade in judged) / len(judged)
    return Grade(share, tuple(finding for grade in judged for finding in grade.findings))


class Check(BaseModel):
    """The base of all checks; `check` in a rubric names which one."""

    # The schema of rubrics shows the docstrings of fields to those who write one.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    asks: ClassVar[str] = ""
    """The requirement; what stands in braces is filled in from the check, as `self`."""
    by_sources: ClassVar[bool] = False
    """Whether it compares a draft with its sources, and cannot judge one without any."""
    not_for: ClassVar[tuple[Trait, ...]] = ()
    """Traits of the languages in which it judges no draft: their writing does not show what it
    asks for."""

    @property
    def requirement(self) -> str:
        """What a draft must be like, in one sentence for its author."""
        return self.asks.format(self=self)

    @abstractmethod
    def grade(self, draft: Draft) -> Grade:
        """Scores a draft.

        Raises:
            EvaluationFailed: It cannot, and that is not the draft's fault.
        """


class InRange(Check):
    """A count that must lie between two bounds."""

    min: int = Field(default=0, ge=0)
    """The least allowed."""
    max: int | None = Field(default=None, ge=0)
    """The most allowed; no limit when left out, 0 for none."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        check_bounds(self.min, self.max)
        return self

    @property
    def _range(self) -> str:
        return range_in_words(self.min, self.max)

    def _grade(self, draft: Draft, count: int, what: str, index: int | None = None) -> Grade:
        """The grade of a count in the section with this index, or in the whole draft."""
        findings: tuple[Finding, ...] = ()
        if count < self.min:
            message = f"{count} {what}; at least {self.min} are needed"
            findings = (draft.finding(message, index, code="check.too-few"),)
        elif self.max is not None and count > self.max:
            message = f"{count} {what}; at most {self.max} are allowed"
            findings = (draft.finding(message, index, code="check.too-many"),)
        return Grade(share_in_range(count, self.min, self.max), findings)

    def _grade_each(self, draft: Draft, count: Callable[[Section], int], what: str) -> Grade:
        """The mean grade of the counts in the draft's chapters."""
        return mean_over_chapters(
            draft, lambda index, part: self._grade(draft, count(part), what, index), low=self.min
        )


def mean_over_chapters(draft: Draft, grade: Callable[[int, Section], Grade], *, low: int) -> Grade:
    """The mean grade of a draft's chapters; a draft without text gets 0 if `low` is above 0."""
    if not draft.chapters:
        return Grade(0.0, (NO_TEXT,)) if low else Grade(1.0)
    return mean_of([grade(index, section) for index, section in draft.chapters])


def check_bounds(low: int, high: int | None) -> None:
    """Refuses bounds that nothing or everything meets."""
    if high is not None and low > high:
        raise Mistake(f"min {low} is above max {high}", code="rubric.range-upside-down")
    if high is None and low == 0:
        raise Mistake("give 'min', 'max' or both", code="rubric.range-without-bounds")


def share_in_range(count: int, low: int, high: int | None) -> float:
    """1 inside the range, and less outside of it, by the distance."""
    if count < low:
        return count / low
    if high is not None and count > high:
        # 0 from twice the limit on. A limit of 0 counts as 1.
        return max(0.0, 1 - (count - high) / max(1, high))
    return 1.0


def range_in_words(low: int, high: int | None) -> str:
    """`at least 3`, `at most 9`, `3 to 9` or `3`, to be followed by what is counted."""
    if high is None:
        return f"at least {low}"
    if low == high:
        return str(low)
    return f"{low} to {high}" if low else f"at most {high}"


def share_without(findings: Iterable[Finding], total: int) -> float:
    """The share of `total` things without a finding, if none of them has two."""
    return 1 - len(tuple(findings)) / total if total else 1.0


def quoted(text: str, limit: int = 90) -> str:
    """The start of a text, in quotes and on one line."""
    line = " ".join(text.split())
    short = line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
    return f'"{short}"'


def path_beside(name: str, info: ValidationInfo) -> Path:
    """The file that a rubric names; if there is none, the first path at which it could be."""
    # The folders of the rubric and of those that it extends, in this order. A check made in Python
    # has none: its name is a path like any other.
    directories = (info.context or {}).get("directories", ())
    # `Path` joins: an absolute name stays as it is.
    places = [Path(directory, name) for directory in directories] or [Path(name)]
    return next((place for place in places if place.is_file()), places[0])
