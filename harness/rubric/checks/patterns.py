"""Regular expressions that a draft must match."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.errors import EvaluationFailed, Mistake
from harness.rubric.checks.base import (
    Check,
    Grade,
    check_bounds,
    mean_over_chapters,
    quoted,
    range_in_words,
    share_in_range,
)
from harness.rubric.draft import Draft, Finding

# The most matches of a section, so that a pattern that matches everywhere does not fill the memory.
_MOST_MATCHES = 1_000


class Regex(Check):
    """How often a pattern matches: at least once, unless `min` and `max` say otherwise.

    Each section is searched for itself, heading included: no match reaches over a heading.
    """

    check: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1)
    """A regular expression as Python knows it; `^` and `$` are the ends of lines. In YAML, put it
    in single quotes."""
    meaning: str = ""
    """What it stands for, in words (`a year in brackets`): said to the author in its place."""
    min: int | None = Field(default=None, ge=0)
    """How often it must match; once, when neither this nor `max` is given."""
    max: int | None = Field(default=None, ge=0)
    """How often it may match; 0 for never."""
    scope: Literal["draft", "section"] = "draft"
    """Where the matches are counted: in the whole draft, or in each section for itself."""
    timeout_s: float = Field(default=5, gt=0, le=60)
    """How long the search may take, in seconds. 50,000 characters take some milliseconds; a pattern
    that takes longer than this tries too many ways to match, and there is no verdict."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern, re.MULTILINE)
        except re.error as error:
            at = "" if error.pos is None else f" at character {error.pos + 1}"
            raise Mistake(
                f"not a regular expression: {error.msg}{at}", code="rubric.pattern-invalid"
            ) from error
        except (OverflowError, RecursionError) as error:
            raise Mistake(
                f"not a regular expression that can be used: {error}", code="rubric.pattern-invalid"
            ) from error
        return pattern

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        check_bounds(self._least, self.max)
        return self

    @property
    def requirement(self) -> str:
        """What the author is told, in one sentence."""
        if self.max == 0:
            return f"This occurs nowhere: {self._meaning}."
        where = "In the whole text" if self.scope == "draft" else "In each section"
        times = range_in_words(self._least, self.max)
        return f"{where}, the number of these is {times}: {self._meaning}."

    def grade(self, draft: Draft) -> Grade:
        """1 in the range, else less, by the distance; with `scope: section`, the sections' mean."""
        deadline = time.monotonic() + self.timeout_s
        by_section = []
        for section in draft.sections:
            text = section.text.replace("\r\n", "\n")  # `$` does not match before `\r`
            matches = matches_in(
                text, self.pattern, deadline, timeout_s=self.timeout_s, flags=re.MULTILINE
            )
            by_section.append([match[0] for match in islice(matches, _MOST_MATCHES)])
        if self.scope == "section":
            return mean_over_chapters(
                draft, lambda i, _: self._grade(draft, {i: by_section[i]}), low=self._least
            )
        return self._grade(draft, dict(enumerate(by_section)))

    @property
    def _least(self) -> int:
        if self.min is not None:
            return self.min
        return 1 if self.max is None else 0

    @property
    def _meaning(self) -> str:
        return self.meaning.strip().rstrip(".") or f"what matches {self.pattern}"

    def _grade(self, draft: Draft, by_section: Mapping[int, list[str]]) -> Grade:
        """The grade of matches that are counted together; `by_section` has those of each index."""
        count = sum(map(len, by_section.values()))
        findings: tuple[Finding, ...] = ()
        if count < self._least:
            message = f"{count} of this: {self._meaning}; at least {self._least} are needed"
            # A finding about the whole draft names no section.
            index = next(iter(by_section)) if self.scope == "section" else None
            findings = (draft.finding(message, index, code="check.too-few"),)
        elif self.max is not None and count > self.max:
            # A surplus match is in some section: each such section gets a finding.
            findings = tuple(
                self._too_many(draft, index, matches, count)
                for index, matches in by_section.items()
                if matches
            )
        return Grade(share_in_range(count, self._least, self.max), findings)

    def _too_many(self, draft: Draft, index: int, matches: list[str], count: int) -> Finding:
        texts = ", ".join(dict.fromkeys(quoted(match, 40) for match in matches[:20]))
        if self.max == 0:
            message = f"remove {texts}: there must be none of this: {self._meaning}"
            return draft.finding(message, index, code="check.match-forbidden")
        message = f"{count} of this: {self._meaning}; at most {self.max} are allowed; here: {texts}"
        return draft.finding(message, index, code="check.too-many")


# A brace that is none of a repeat stands for itself to `re`. To `regex`, `{e}` allows errors.
_LITERAL_BRACE = re.compile(r"(\\N\{[^}]*\}|\\.)|\{(?!\d+\}|\d*,\d*\})", re.DOTALL)


def matches_in(
    text: str, pattern: str, deadline: float, *, timeout_s: float, flags: re.RegexFlag = re.NOFLAG
) -> Iterator[re.Match[str]]:
    """The matches of a pattern of Python's; raises `EvaluationFailed` if they take too long.

    `deadline`, by `time.monotonic`, is that of all searches in a draft, which may take `timeout_s`.
    """
    # Some patterns never finish on some texts (`(a|a)+$` on forty letters), which cannot be
    # foreseen, and a search of `re` cannot be interrupted. Imported at the first use: it takes
    # 20 ms, which most rubrics never need.
    import regex  # type: ignore[import-untyped]  # noqa: PLC0415

    literal = _LITERAL_BRACE.sub(lambda brace: brace[1] or r"\{", pattern)
    # Some time is left to any search, since most take microseconds.
    left_s = max(deadline - time.monotonic(), 0.01)
    try:
        yield from regex.finditer(literal, text, flags, timeout=left_s, concurrent=True)
    except TimeoutError as error:
        raise EvaluationFailed(
            f"the pattern {pattern} did not finish with this draft within {timeout_s:g} s: it "
            "tries too many ways to match; make repeats inside repeats possessive or atomic "
            "(`++`, `*+`, `(?>...)`)"
        ) from error
    except regex.error as error:
        raise EvaluationFailed(f"the pattern {pattern} cannot be used ({error})") from error
