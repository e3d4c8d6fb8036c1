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
from typing import Literal, LiteralString

from harness.errors import did_you_mean
from harness.rubric.written import read_written

SHIPPED = Path(__file__).with_name("prompts.yaml")

PromptName = Literal[
    "draft",
    "section",
    "afresh",
    "edits",
    "whole",
    "opening",
    "judge_system",
    "judge",
    "judge_dimension",
    "judge_source",
    "judge_repair",
]
"""What each is for is said in `prompts.yaml`."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one prompt; names are separated by spaces."""

    needed: str = ""
    """A template without one of these would hide something that the model has to see."""
    others: str = ""
    flags: str = ""
    """They have no text: a template can only ask for them, by `{if …}`."""

    @property
    def texts(self) -> list[str]:
        """Those that a template can write down."""
        return [*self.needed.split(), *self.others.split()]


# A paragraph that has one of these is left out if it is.
_MAY_BE_EMPTY = {
    *("sources", "requirements", "requirements_in_a_line", "outline", "good", "history", "shown"),
    *("draft_chars", "draft_shown_chars", "sources_chars", "sources_shown_chars"),
    *("purpose", "anchors", "feedback", "rules", "target"),
}

FIELDS: Mapping[PromptName, Fields] = {
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

# What the evaluator is told; scores by other prompts do not compare.
OF_JUDGING = tuple(name for name in FIELDS if name.startswith("judge"))
OF_WRITING: tuple[PromptName, ...] = ("draft", "section", "afresh", "edits", "whole")

# Fields that change with every round of a loop; `sources` does where it is shortened.
_OF_A_ROUND = {
    *("draft", "draft_chars", "sources_chars", "history", "findings", "cut"),
    *("outline", "good", "whole", "shown"),
}
# Fields that change with every call on one draft.
_OF_A_CALL = {"asked", "part", "shape"}


@cache
def shipped_prompts() -> Mapping[PromptName, str]:
    """The templates that ship, by name."""
    return {name: text.strip() for name, text in read_written(SHIPPED).plain().items()}


_BLANK = re.compile(r"\n(?:[ \t]*\n)+")
FIELD = re.compile(r"(?P<escape>\\?)\{ *(?P<words>[^\W\d]\w*(?: +\w+)*) *\}")
_IF = re.compile(
    r"(?<!\\)\{ *if +(?P<asked>\w+) *\}(?P<then>.*?)"
    r"(?:(?<!\\)\{ *else *\}(?P<otherwise>.*?))?(?<!\\)\{ *end *\}",
    re.DOTALL,
)


def filled(template: str, values: Mapping[str, str | bool], *, before: Collection[str] = ()) -> str:
    """The template with its fields replaced, up to the first paragraph with a field of `before`."""

    def branch(block: re.Match[str]) -> str:
        return block["then"] if values[block["asked"]] else block["otherwise"] or ""

    def value(field: re.Match[str]) -> str:
        # Two braces that an `{if …}` stood between are no field's.
        return field[0][1:] if field["escape"] else str(values.get(field["words"], field[0]))

    texts = []
    for paragraph, names, may_hide in _paragraphs(template):
        if not names.isdisjoint(before):
            break
        if all(values[name] for name in may_hide):
            # Without the lines of which nothing is left; a value may have empty ones.
            lines = [FIELD.sub(value, line) for line in _IF.sub(branch, paragraph).split("\n")]
            texts.append("\n".join(line for line in lines if line.strip()))
    return "\n\n".join(text for text in texts if text)


@cache
def _paragraphs(template: str) -> list[tuple[str, set[str], set[str]]]:
    """Each with the fields that it has or asks for, and those without which it is left out."""
    # Parsed before anything is put in: braces in a text are no fields.
    paragraphs = []
    for paragraph in _BLANK.split(template):
        # `if cut` asks for `cut`.
        names = {words.split()[-1] for words in _asked(paragraph)}
        always = _asked(_IF.sub("", paragraph))
        paragraphs.append((paragraph, names, always & _MAY_BE_EMPTY))
    return paragraphs


def _asked(text: str) -> set[str]:
    """What stands in braces, without those that a backslash makes a text."""
    return {field["words"] for field in FIELD.finditer(text) if not field["escape"]}


def shared_chars(template: str, values: Mapping[str, str | bool]) -> tuple[int, ...]:
    """How much of the filled template further calls begin with, in later rounds and in this one."""
    changing = _OF_A_ROUND | ({"sources"} if values.get("sources_chars") else set())
    ends = [filled(template, values, before=changing)]
    if values.get("part"):
        ends.append(filled(template, values, before=_OF_A_CALL))
    return tuple(sorted({len(text) for text in ends if text}))


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake in a template."""

    message: str
    line: int
    """Counted from 0, as all lines here."""
    code: LiteralString


def faults_in(name: PromptName, template: str) -> list[Fault]:
    """What is wrong with a template."""
    misplaced, unknown = [*_misplaced(template)], _unknown(template, FIELDS[name])
    # What it lacks may follow from a misplaced brace.
    return [*misplaced, *unknown, *([] if misplaced else _lacking(template, FIELDS[name]))]


_MARK = r"(?<!\\)\{ *(?:if +\w+|else|end) *\}"
_INNER = rf"(?:(?!{_MARK}|{_BLANK.pattern}).)*"
_WHOLE_IF = re.compile(
    rf"(?s)(?<!\\)\{{ *if +\w+ *\}}{_INNER}(?:\{{ *else *\}}{_INNER})?\{{ *end *\}}"
)


def _misplaced(template: str) -> Iterator[Fault]:
    """The first `{if …}`, `{else}` or `{end}` that goes with no other in its paragraph."""
    # With their line ends, for the fault's line.
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
        words, line = field["words"].split(), template.count("\n", 0, field.start("words"))
        is_asked = words[0] == "if" and len(words) == 2
        name = words[1] if is_asked else field["words"]
        allowed = [*fields.texts, *flags] if is_asked else fields.texts
        is_known = name in {*allowed, "else", "end"} or (name, line) in reported
        if is_known or field["escape"]:
            continue
        reported.add((name, line))
        nearest = did_you_mean(name, allowed) if allowed else "this prompt has none"
        nearest = f"ask for it, as in {{if {name}}}…{{end}}" if name in flags else nearest
        yield Fault(
            f"there is no field {{{name}}} here; {nearest} (to write the braces: \\{{{name}}})",
            line,
            code="rubric.prompt-unknown-field",
        )


def _lacking(template: str, fields: Fields) -> Iterator[Fault]:
    """Needed fields that the template does not have, or that another one may hide."""
    names = [*fields.texts, *fields.flags.split()]
    full = defaultdict(str, {name: f"<{name}>" for name in names})
    for needed in fields.needed.split():
        # All others may be empty: each must show it even then.
        alone = defaultdict(str, {needed: full[needed]})
        if any(full[needed] not in filled(template, values) for values in (full, alone)):
            yield Fault(
                f"{{{needed}}} is missing, or stands in a paragraph or {{if …}} that is left out "
                "where another field is empty: the model would not be told",
                0,
                code="rubric.prompt-field-missing",
            )
