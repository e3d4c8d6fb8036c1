"""Regular expressions and JSON Schemas that a draft must match."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    Field,
    JsonValue,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from harness.errors import EvaluationFailed, Mistake
from harness.rubric.checks import schema_faults
from harness.rubric.checks.base import (
    Check,
    Grade,
    mean_over_chapters,
    path_beside,
    quoted,
    range_in_words,
    share_in_range,
)
from harness.rubric.checks.schema_faults import faults_of, registry_with, validator_class
from harness.rubric.draft import Draft, Finding

# The most matches of a section, so that a pattern that matches everywhere does not fill the memory.
_MOST_MATCHES = 1_000

_PATTERNS = frozenset({"pattern", "patternProperties"})

_SEARCH = """
import itertools, json, re, sys
question = json.load(sys.stdin)
pattern = re.compile(question["pattern"], re.MULTILINE)
matches = [
    [match[0] for match in itertools.islice(pattern.finditer(text), question["most"])]
    for text in question["texts"]
]
json.dump(matches, sys.stdout)
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
        """What the author is told, in one sentence."""
        if self.max == 0:
            return f"This occurs nowhere: {self._meaning}."
        where = "In the whole text" if self.scope == "draft" else "In each section"
        times = range_in_words(self._least, self.max)
        return f"{where}, the number of these is {times}: {self._meaning}."

    def grade(self, draft: Draft) -> Grade:
        """1 in the range, else less, by the distance; with `scope: section`, the sections' mean."""
        by_section = self._matches(draft)
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
            title = None if index is None else draft.sections[index].title
            findings = (Finding(message, title, index, code="check.too-few"),)
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

    def _matches(self, draft: Draft) -> list[list[str]]:
        texts = [section.text for section in draft.sections]
        matches: list[list[str]] = _answer(
            # Without site-packages (-S) the process starts sooner; the search needs none.
            ["-S", "-c", _SEARCH],
            {"pattern": self.pattern, "texts": texts, "most": _MOST_MATCHES},
            what=f"the pattern {self.pattern}",
            timeout_s=self.timeout_s,
        )
        return matches


_Schema = Annotated[dict[str, JsonValue], WithJsonSchema({"type": ["object", "string"]})]


class Json(Check):
    """The draft, or the first fence labelled `json` in it, is JSON that follows a schema."""

    check: Literal["json"] = "json"
    against: _Schema
    """The JSON Schema: written here, or the name of the file that holds it, from this rubric's
    directory. References must stay inside it, since nothing is fetched. A `pattern` in it
    is limited in time, as in `regex`."""
    timeout_s: float = Field(default=5, gt=0, le=60, exclude=True)
    """How long a draft may take, in seconds, where there is a pattern in the schema. One that takes
    longer than this tries too many ways to match, and there is no verdict."""

    @field_validator("against", mode="before")
    @classmethod
    def _read(cls, against: object, info: ValidationInfo) -> object:
        if not isinstance(against, str):
            return against
        path = path_beside(against, info)
        try:
            # A file's content in place of its name: the rubric, and its digest, hold all it asks.
            return json.loads(path.read_bytes())
        except OSError as error:
            raise Mistake(
                f"{path} cannot be read ({error.strerror})", code="rubric.named-file-unreadable"
            ) from error
        except (ValueError, RecursionError) as error:
            raise Mistake(
                f"{path} is not JSON ({error})", code="rubric.named-file-not-json"
            ) from error

    @field_validator("against")
    @classmethod
    def _check(cls, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
        # Imported at the first use: 80 ms that most rubrics never need.
        from jsonschema import SchemaError  # noqa: PLC0415
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        validator = validator_class(schema)
        if validator is None:
            raise Mistake(
                f"'$schema: {schema['$schema']}' is not a known draft of JSON Schema",
                code="rubric.schema-draft",
            )
        try:
            # Formats too: one of them is for a `pattern`.
            validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)
        except SchemaError as error:
            raise Mistake(
                f"not a JSON Schema: {error.json_path}: {error.message}",
                code="rubric.schema-invalid",
            ) from error
        # A part may be referred to by an `$id` of its own: such a reference is first looked up when
        # a draft is graded.
        if any(key == "$id" for key, _ in _members_of([*schema.values()])):
            return schema
        resolver = registry_with(schema).resolver(str(schema.get("$id", "")))
        try:
            for key, reference in _members_of(schema):
                if key == "$ref" and isinstance(reference, str):
                    resolver.lookup(reference)
        except Unresolvable as error:
            raise Mistake(
                f"'$ref: {error.ref}' leads to nothing inside the schema",
                code="rubric.schema-reference",
            ) from error
        return schema

    @property
    def requirement(self) -> str:
        """What the author is told, in one sentence."""
        schema = json.dumps(self.against, ensure_ascii=False)
        return f"It is JSON, or has it in a fence labelled json, by this schema: {schema}."

    def grade(self, draft: Draft) -> Grade:
        """0 for what is not JSON; else a half, a third … for one fault, two …; 1 without any."""
        index, text = _json_in(draft)
        title = None if index is None else draft.sections[index].title
        try:
            faults = self._faults(json.loads(text, parse_constant=_refuse))
        except ValueError as error:  # JSONDecodeError, and numbers of 5,000 digits
            message = f"this is not JSON: {error}"
            return Grade(0.0, (Finding(message, title, index, code="check.json-invalid"),))
        except RecursionError:
            message = "this JSON is nested too deeply"
            return Grade(0.0, (Finding(message, title, index, code="check.json-too-deep"),))
        findings = tuple(
            Finding(fault, title, index, code="check.schema-violated") for fault in faults
        )
        return Grade(1 / (1 + len(findings)), findings)

    def _faults(self, instance: object) -> list[str]:
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above

        # Without a pattern the validation always ends, and needs no process of its own.
        if not any(key in _PATTERNS for key, _ in _members_of(self.against)):
            try:
                return faults_of(self.against, instance)
            except Unresolvable as error:
                raise EvaluationFailed(
                    f"the JSON Schema of a check refers to '{error.ref}', which is not in it"
                ) from error
        faults = _answer(
            [schema_faults.__file__],
            {"path": sys.path, "schema": self.against, "instance": instance},
            what="a pattern in a JSON Schema",
            timeout_s=self.timeout_s,
        )
        if faults is None:
            raise RecursionError
        return [str(fault) for fault in faults]


def _json_in(draft: Draft) -> tuple[int | None, str]:
    """The first fence labelled `json`, with its section's index; without one, the whole text."""
    for index, _, fence in draft.fences:
        if fence.language == "json":
            return index, fence.code
    return None, draft.text


def _answer(program: Sequence[str], question: object, *, what: str, timeout_s: float) -> Any:  # noqa: ANN401
    """The answer of a Python program that reads a question as JSON and prints its answer so."""
    # Some patterns never finish on some texts (`(a+)+$` on thirty letters). That cannot be
    # foreseen, and Python cannot interrupt a search: a process of its own can be ended.
    try:
        done = subprocess.run(  # noqa: S603 - this Python, and a program of ours
            # Isolated (-I): no variable and no file of this folder decides what is imported. A
            # Python without an executable of its own is an OSError.
            [sys.executable or "", "-I", *program],
            input=json.dumps(question),
            capture_output=True,
            # As `json` writes it.
            encoding="ascii",
            timeout=timeout_s,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise EvaluationFailed(
            f"{what} did not finish with this draft within {timeout_s:g} s: it tries too many "
            "ways to match; make repeats inside repeats possessive or atomic (`++`, `*+`, "
            "`(?>...)`)"
        ) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise EvaluationFailed(f"{what} could not be run ({error})") from error
    return json.loads(done.stdout)


def _members_of(schema: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Every key with its value, at any depth."""
    if isinstance(schema, dict):
        yield from schema.items()
        for value in schema.values():
            yield from _members_of(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _members_of(item)


def _refuse(constant: str) -> NoReturn:
    # `NaN` and `Infinity` are not JSON, though Python would read them.
    raise ValueError(f"it holds {constant}")
