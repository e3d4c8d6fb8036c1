"""Patterns that must, or must not, match.

Some patterns take longer than anyone lives on some texts (`(a+)+$` on thirty letters), which
cannot be told by looking at them, and Python cannot break off a search. So they are searched in a
process of their own, which can be ended.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.compress import Section
from harness.errors import EvaluationFailed, Mistake
from harness.rubric.checks.check import NO_TEXT, Check, Grade, quoted, range_in_words
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

_MOST_MATCHES = 1_000
"""Kept of one section, lest a pattern that matches everywhere fill the memory."""

_SEARCH = """
import itertools, json, re, sys
asked = json.load(sys.stdin)
pattern = re.compile(asked["pattern"], re.MULTILINE)
found = [
    [match[0] for match in itertools.islice(pattern.finditer(text), asked["most"])]
    for text in asked["texts"]
]
json.dump(found, sys.stdout)
"""


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
        if self.max is not None and self._least > self.max:
            raise Mistake(
                f"min {self.min} is above max {self.max}", code="rubric.range-upside-down"
            )
        if self.min == 0 and self.max is None:
            raise Mistake("with 'min: 0', give 'max' too", code="rubric.range-without-bounds")
        return self

    @property
    def requirement(self) -> str:
        """For the author."""
        if self.max == 0:
            return f"This occurs nowhere: {self._meaning}."
        where = "In the whole text" if self.scope == "draft" else "In each section"
        times = range_in_words(self._least, self.max)
        return f"{where}, the number of these is {times}: {self._meaning}."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range; with `scope: section`, the mean of them."""
        found = self._matches(draft)
        if self.scope == "draft":
            return self._grade_all(draft, found)
        if not draft.chapters:
            return Grade(self._share(0), (NO_TEXT,) if self._least else ())
        shares: list[float] = []
        findings: list[Finding] = []
        for index, section in draft.chapters:
            shares.append(self._share(len(found[index])))
            findings += self._findings(found[index], section, index)
        return Grade(sum(shares) / len(shares), tuple(findings))

    def _grade_all(self, draft: Draft, found: list[list[str]]) -> Grade:
        every = [match for matches in found for match in matches]
        share = self._share(len(every))
        findings = self._findings(every)
        if len(every) < self._least or not findings:
            return Grade(share, findings)
        # What is too much stands somewhere: those sections are to be mended, each for its part.
        return Grade(
            share,
            tuple(
                self._too_many(found[index], len(every), section, index)
                for index, section in enumerate(draft.sections)
                if found[index]
            ),
        )

    @property
    def _least(self) -> int:
        if self.min is not None:
            return self.min
        return 1 if self.max is None else 0

    @property
    def _meaning(self) -> str:
        return self.meaning.strip().rstrip(".") or f"what matches {self.pattern}"

    def _share(self, count: int) -> float:
        if count < self._least:
            return count / self._least
        if self.max is not None and count > self.max:
            return max(0.0, 1 - (count - self.max) / max(1, self.max))
        return 1.0

    def _findings(
        self, matches: list[str], section: Section | None = None, index: int | None = None
    ) -> tuple[Finding, ...]:
        if len(matches) < self._least:
            message = f"{len(matches)} of this: {self._meaning}; at least {self._least} are needed"
            title = section.title if section else None
            return (Finding(message, title, index, code="check.too-few"),)
        if self.max is not None and len(matches) > self.max:
            return (self._too_many(matches, len(matches), section, index),)
        return ()

    def _too_many(
        self, matches: list[str], count: int, section: Section | None, index: int | None
    ) -> Finding:
        title = section.title if section else None
        shown = ", ".join(dict.fromkeys(quoted(match, 40) for match in matches[:20]))
        if self.max == 0:
            message = f"remove {shown}: there must be none of this: {self._meaning}"
            return Finding(message, title, index, code="check.match-forbidden")
        message = f"{count} of this: {self._meaning}; at most {self.max} are allowed; here: {shown}"
        return Finding(message, title, index, code="check.too-many")

    def _matches(self, draft: Draft) -> list[list[str]]:
        """What matches, section by section."""
        texts = [section.text for section in draft.sections]
        asked = {"pattern": self.pattern, "texts": texts, "most": _MOST_MATCHES}
        try:
            found: list[list[str]] = ask_program(
                ["-S", "-c", _SEARCH], asked, timeout_s=self.timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise EvaluationFailed(
                f"the pattern {self.pattern} was not through with this draft after "
                f"{self.timeout_s:g} s: it tries too many ways to match; write repeats inside "
                "repeats so that they give nothing back (`++`, `*+`, `(?>...)`)"
            ) from error
        except (OSError, subprocess.CalledProcessError) as error:
            raise EvaluationFailed(
                f"the pattern {self.pattern} could not be searched for ({error})"
            ) from error
        return found


def ask_program(program: Sequence[str], asked: object, *, timeout_s: float) -> Any:  # noqa: ANN401
    """What a program of this package answers, that a pattern may keep from ever ending.

    Raises:
        subprocess.SubprocessError: It took too long, or failed.
        OSError: It cannot be run.
    """
    done = subprocess.run(  # noqa: S603 - this Python, and a program of ours
        [sys.executable or "", "-I", *program],
        input=json.dumps(asked),
        capture_output=True,
        encoding="ascii",
        timeout=timeout_s,
        check=True,
    )
    return json.loads(done.stdout)
