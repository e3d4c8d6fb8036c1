"""Prompts as templates: texts with fields, that a rubric can replace.

`prompts.yaml` beside this file holds the shipped templates and explains their syntax.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import LiteralString, NamedTuple

from harness.errors import did_you_mean
from harness.rubric.written import read_written

SHIPPED = Path(__file__).with_name("prompts.yaml")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one prompt; names are separated by spaces."""

    needed: str = ""
    """Fields that every template must show: the model has to see them."""
    others: str = ""
    flags: str = ""
    """Fields without a text: a template can only ask for them, by `{if …}`."""

    @property
    def texts(self) -> list[str]:
        """The fields that have a text."""
        return [*self.needed.split(), *self.others.split()]


# A paragraph with one of these fields is left out if the field is empty.
_MAY_BE_EMPTY = {
    *("sources", "requirements", "requirements_in_a_line", "outline", "good", "history", "shown"),
    *("draft_chars", "draft_shown_chars", "sources_chars", "sources_shown_chars"),
    *("purpose", "anchors", "feedback", "rules", "target"),
}

# Prompt → its fields; `prompts.yaml` says what each is for.
FIELDS: Mapping[str, Fields] = {
    "draft": Fields("sources task", "requirements"),
    "section": Fields(
        "sources section findings",
        "task requirements requirements_in_a_line outline good history",
        flags="whole",
    ),
    "afresh": Fields("sources section", "task", flags="short"),
    "edits": Fields("sources task draft findings", "requirements history shown"),
    "whole": Fields("sources task draft findings", "requirements history", flags="cut"),
    "opening": Fields(),
    "judge_system": Fields(),
    "judge": Fields(
        "dimensions task sources draft asked shape",
        "title purpose lowest highest step target "
        "draft_chars draft_shown_chars sources_chars sources_shown_chars",
        flags="part",
    ),
    "judge_dimension": Fields("name question anchors rules", "feedback"),
    "judge_source": Fields("source", "number"),
    "judge_repair": Fields("asked shape", flags="part"),
}

# The evaluator's prompts; scores by other prompts do not compare.
OF_JUDGING = tuple(name for name in FIELDS if name.startswith("judge"))
OF_WRITING: tuple[str, ...] = ("draft", "section", "afresh", "edits", "whole")

# Fields that change with every round of a loop. So does `sources` where it is shortened.
_OF_A_ROUND = {
    *("draft", "draft_chars", "sources_chars", "history", "findings", "cut"),
    *("outline", "good", "whole", "shown"),
}
# Fields that change with every call on one draft.
_OF_A_CALL = {"asked", "part", "shape"}


@cache
def shipped_prompts() -> Mapping[str, str]:
    """The templates that ship, by name."""
    return {name: text.strip() for name, text in read_written(SHIPPED).plain().items()}


_BLANK = re.compile(r"\r?\n(?:[ \t]*\r?\n)+")
FIELD = re.compile(r"(?P<escape>\\?)\{ *(?P<words>[^\W\d]\w*(?: +\w+)*) *\}")
_IF = re.compile(
    r"(?<!\\)\{ *if +(?P<asked>\w+) *\}(?P<then>.*?)"
    r"(?:(?<!\\)\{ *else *\}(?P<otherwise>.*?))?(?<!\\)\{ *end *\}",
    re.DOTALL,
)


def filled(template: str, values: Mapping[str, str | bool], *, before: Collection[str] = ()) -> str:
    """The template with its fields replaced, up to the first paragraph with a field of `before`."""

    def chosen_branch(block: re.Match[str]) -> str:
        return block["then"] if values[block["asked"]] else block["otherwise"] or ""

    def value_of(field: re.Match[str]) -> str:
        if field["escape"]:
            return field[0].removeprefix("\\")
        # Braces that meet where an `{if …}` was taken out may look like a field, and are none.
        return str(values.get(field["words"], field[0]))

    texts = []
    for paragraph in _paragraphs(template):
        if not paragraph.fields.isdisjoint(before):
            break
        if all(values[name] for name in paragraph.hiding):
            lines = _IF.sub(chosen_branch, paragraph.text).split("\n")
            # Lines are dropped one by one here, since a value may have empty lines.
            filled_lines = (FIELD.sub(value_of, line) for line in lines)
            texts.append("\n".join(line for line in filled_lines if line.strip()))
    return "\n\n".join(text for text in texts if text)


class _Paragraph(NamedTuple):
    text: str
    fields: set[str]
    """The fields that it shows or asks for."""
    hiding: set[str]
    """The fields that hide it when they are empty."""


@cache
def _paragraphs(template: str) -> list[_Paragraph]:
    # Parsed before anything is put in: braces in a value are no fields.
    paragraphs = []
    for text in _BLANK.split(template):
        # `if cut` asks for `cut`.
        fields = {words.split()[-1] for words in _words_in_braces(text)}
        always_shown = _words_in_braces(_IF.sub("", text))
        paragraphs.append(_Paragraph(text, fields, always_shown & _MAY_BE_EMPTY))
    return paragraphs


def _words_in_braces(text: str) -> set[str]:
    """What stands in braces that no backslash precedes."""
    return {field["words"] for field in FIELD.finditer(text) if not field["escape"]}


def shared_chars(template: str, values: Mapping[str, str | bool]) -> tuple[int, ...]:
    """The lengths of the beginnings that the filled template shares with further calls.

    Calls of later rounds share all before the first field that changes with a round; calls of this
    round, all before the first that changes with a call.
    """
    changing = _OF_A_ROUND | ({"sources"} if values.get("sources_chars") else set())
    beginnings = [filled(template, values, before=changing)]
    if values.get("part"):
        beginnings.append(filled(template, values, before=_OF_A_CALL))
    return tuple(sorted({len(text) for text in beginnings if text}))


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake in a template."""

    message: str
    line: int
    """Counted from 0, as all lines here."""
    code: LiteralString


def faults_in(name: str, template: str) -> list[Fault]:
    """The mistakes in a template."""
    fields = FIELDS[name]
    misplaced = [*_misplaced(template)]
    # A field may only seem to be missing because of a misplaced brace.
    missing = [] if misplaced else _missing(template, fields)
    return [*misplaced, *_unknown(template, fields), *missing]


_MARK = r"(?<!\\)\{ *(?:if +\w+|else|end) *\}"
_INNER = rf"(?:(?!{_MARK}|{_BLANK.pattern}).)*"
_WHOLE_IF = re.compile(
    rf"(?s)(?<!\\)\{{ *if +\w+ *\}}{_INNER}(?:\{{ *else *\}}{_INNER})?\{{ *end *\}}"
)


def _misplaced(template: str) -> Iterator[Fault]:
    """The first `{if …}`, `{else}` or `{end}` that goes with no other in its paragraph."""
    # Whole blocks leave their line ends, from which the fault's line is counted.
    rest = _WHOLE_IF.sub(lambda block: "\n" * block[0].count("\n"), template)
    if mark := re.search(_MARK, rest):
        yield Fault(
            f"{mark[0]} is alone: {{if …}}, perhaps {{else}}, and {{end}} stand in one paragraph, "
            "and none within another",
            rest.count("\n", 0, mark.start()),
            code="rubric.prompt-if",
        )


def _unknown(template: str, fields: Fields) -> Iterator[Fault]:
    """Fields that this prompt does not have."""
    flags = fields.flags.split()
    reported: set[tuple[str, int]] = set()
    for field in FIELD.finditer(template):
        words = field["words"].split()
        line = template.count("\n", 0, field.start("words"))
        is_condition = words[0] == "if" and len(words) == 2
        name = words[1] if is_condition else field["words"]
        allowed = [*fields.texts, *flags] if is_condition else fields.texts
        is_known = name in {*allowed, "else", "end"} or (name, line) in reported
        if is_known or field["escape"]:
            continue
        reported.add((name, line))
        nearest = did_you_mean(name, allowed) if allowed else "this prompt has none"
        if name in flags:
            nearest = f"ask for it, as in {{if {name}}}…{{end}}"
        yield Fault(
            f"there is no field {{{name}}} here; {nearest} (to write the braces: \\{{{name}}})",
            line,
            code="rubric.prompt-unknown-field",
        )


def _missing(template: str, fields: Fields) -> Iterator[Fault]:
    """Needed fields that the template does not have, or that another one may hide."""
    names = [*fields.texts, *fields.flags.split()]
    full = defaultdict(str, {name: f"<{name}>" for name in names})
    for needed in fields.needed.split():
        # Both must show it: all fields, and this one while all others are empty.
        alone = defaultdict(str, {needed: full[needed]})
        if any(full[needed] not in filled(template, values) for values in (full, alone)):
            yield Fault(
                f"{{{needed}}} is missing, or stands in a paragraph or {{if …}} that is left out "
                "where another field is empty: the model would not be told",
                0,
                code="rubric.prompt-field-missing",
            )
