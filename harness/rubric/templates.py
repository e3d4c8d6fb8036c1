"""Prompts as templates: texts with fields, that a rubric can replace.

`prompts.yaml` beside this file holds the shipped templates and explains their syntax. Only a
template is parsed, never the text put into it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
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


_MAY_BE_EMPTY = {
    *("sources", "requirements", "requirements_in_a_line", "outline", "good", "history", "shown"),
    *("draft_chars", "draft_shown_chars", "sources_chars", "sources_shown_chars"),
    *("purpose", "anchors", "feedback", "rules"),
}
"""A paragraph that has one of these is left out if it is."""

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
        "title purpose lowest highest step "
        "draft_chars draft_shown_chars sources_chars sources_shown_chars",
        flags="part",
    ),
    "judge_dimension": Fields("name question anchors rules", "feedback"),
    "judge_source": Fields("source", "number"),
    "judge_repair": Fields("asked shape", flags="part"),
}

OF_JUDGING = tuple(name for name in FIELDS if name.startswith("judge"))
"""What the evaluator is told; scores by other prompts do not compare."""
OF_WRITING: tuple[PromptName, ...] = ("draft", "section", "afresh", "edits", "whole")


_OF_A_ROUND = {
    *("draft", "draft_chars", "sources_chars", "history", "findings", "cut"),
    *("outline", "good", "whole", "shown"),
}
"""Fields that change with every round of a loop; `sources` does where it is shortened."""
_OF_A_CALL = {"asked", "part", "shape"}
"""Fields that change with every call on one draft."""


@cache
def shipped_prompts() -> Mapping[PromptName, str]:
    """The templates that ship, by name."""
    written, _ = read_written(SHIPPED)
    return {name: text.strip() for name, text in written.plain().items()}


def filled(template: str, values: Mapping[str, str | bool], *, before: Collection[str] = ()) -> str:
    """The template with its fields replaced.

    It ends before the first paragraph that has a field of `before`.
    """
    paragraphs = [
        _said(paragraph, values)
        for paragraph in takewhile(
            lambda pieces: not any(one.field in before or one.asks in before for one in pieces),
            _parsed(template).paragraphs,
        )
        if all(values[one.field] for one in paragraph if one.may_hide)
    ]
    return "\n\n".join(text for text in paragraphs if text.strip())


def _said(paragraph: Iterable[_Piece], values: Mapping[str, str | bool]) -> str:
    """A paragraph with its values, without the template's lines of which nothing is left."""
    lines = [""]
    for piece in paragraph:
        first, *others = [piece.said(values)] if piece.field else piece.said(values).split("\n")
        lines[-1] += first
        lines += others
    return "\n".join(line for line in lines if line.strip())


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
    parsed, fields = _parsed(template), FIELDS[name]
    if parsed.faults:
        return [*parsed.faults, *_unknown(parsed, fields)]  # what it lacks may follow from these
    return [*_unknown(parsed, fields), *_lacking(parsed, fields)]


def _unknown(parsed: _Parsed, fields: Fields) -> Iterator[Fault]:
    """Fields that this prompt does not have."""
    flags = fields.flags.split()
    known = [*fields.texts, *flags]
    used = {(one.field, one.line): fields.texts for one in parsed.pieces if one.field}
    asked = {(one.asks, one.asked_on): known for one in parsed.pieces if one.asks}
    for (name, line), allowed in (used | asked).items():
        if name in flags and allowed is not known:
            yield Fault(
                f"{{{name}}} has no text; ask for it, as in {{if {name}}}…{{end}}",
                line,
                code="rubric.prompt-flag-as-field",
            )
        elif name not in known:
            such = did_you_mean(name, allowed) if allowed else "this prompt has none"
            yield Fault(
                f"there is no field {{{name}}} here; {such} (to write the braces: \\{{{name}}})",
                line,
                code="rubric.prompt-unknown-field",
            )


def _lacking(parsed: _Parsed, fields: Fields) -> Iterator[Fault]:
    """Needed fields that the template does not have, or that another one may hide."""
    for field in fields.needed.split():
        found = [p for p in parsed.paragraphs if any(piece.shows(field) for piece in p)]
        hiding = [[one for one in p if one.may_hide and one.field != field] for p in found]
        if not found:
            yield Fault(
                f"{{{field}}} is missing: the model would not be told; write it where it belongs",
                0,
                code="rubric.prompt-field-missing",
            )
        elif all(hiding):
            other = hiding[0][0].field
            yield Fault(
                f"if {{{other}}} is empty its paragraph is left out, and {{{field}}} with it; put "
                f"a blank line between them, or write {{if {other}}}…{{end}}",
                hiding[0][0].line,
                code="rubric.prompt-field-hidden",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A piece of a template: a text, or a field."""

    text: str = ""
    field: str = ""
    line: int
    asks: str = ""
    """The field of the `{if …}` that it stands behind; empty if there is none."""
    asked_on: int = 0
    """The line of that."""
    negated: bool = False
    """Whether it stands behind `{else}`."""

    @property
    def may_hide(self) -> bool:
        """Whether its paragraph is left out if it is empty, which it may be."""
        return self.field in _MAY_BE_EMPTY and not self.asks

    def shows(self, field: str) -> bool:
        """Whether it says this field, whenever that has a text."""
        return self.field == field and (not self.asks or (self.asks == field and not self.negated))

    def said(self, values: Mapping[str, str | bool]) -> str:
        if self.asks and bool(values[self.asks]) is self.negated:
            return ""
        return str(values[self.field]) if self.field else self.text


@dataclass(frozen=True, slots=True)
class _Parsed:
    paragraphs: tuple[tuple[_Piece, ...], ...]
    faults: tuple[Fault, ...]

    @property
    def pieces(self) -> list[_Piece]:
        return [piece for paragraph in self.paragraphs for piece in paragraph]


_BLANK = re.compile(r"\n(?:[ \t]*\n)+")
FIELD = re.compile(r"(?P<written>\\?)\{ *(?P<words>[^\W\d]\w*(?: +\w+)*) *\}")


@cache
def _parsed(template: str) -> _Parsed:
    faults: list[Fault] = []
    paragraphs, start = [], 0
    for end, following in [*(gap.span() for gap in _BLANK.finditer(template)), (None, 0)]:
        line = template.count("\n", 0, start)
        paragraphs.append(tuple(_pieces(template[start:end], line, faults)))
        start = following
    return _Parsed(tuple(paragraphs), tuple(faults))


def _pieces(paragraph: str, first_line: int, faults: list[Fault]) -> Iterator[_Piece]:
    """The pieces of a paragraph that begins on this line."""
    behind, done = _Piece(line=first_line), 0
    for found in FIELD.finditer(paragraph):
        yield replace(behind, text=paragraph[done : found.start()])
        line = first_line + paragraph.count("\n", 0, found.start())
        done, words = found.end(), found["words"].split()
        if found["written"]:
            yield replace(behind, text=found[0][1:])
        elif paragraph[: found.start()].endswith("{") and paragraph[done:].startswith("}"):
            name = found["words"]
            faults.append(
                Fault(
                    f"a field has one brace on each side: {{{name}}}",
                    line,
                    code="rubric.prompt-two-braces",
                )
            )
        elif words[0] == "if" and len(words) == 2:
            if behind.asks:
                faults.append(_open(behind))
            behind = _Piece(line=line, asks=words[1], asked_on=line)
        elif words in (["else"], ["end"]):
            if not behind.asks or (behind.negated and words == ["else"]):
                faults.append(
                    Fault(
                        f"{{{words[0]}}} has no {{if …}} before it in its paragraph",
                        line,
                        code="rubric.prompt-if-missing",
                    )
                )
            behind = replace(behind, negated=True) if words == ["else"] else _Piece(line=line)
        else:
            yield replace(behind, field=found["words"], line=line)
    yield replace(behind, text=paragraph[done:])
    if behind.asks:
        faults.append(_open(behind))


def _open(piece: _Piece) -> Fault:
    return Fault(
        f"{{if {piece.asks}}} has no {{end}} before the next {{if …}} or the end of its paragraph",
        piece.asked_on,
        code="rubric.prompt-if-open",
    )
