"""What is wrong where a file is not YAML, for people who do not know what YAML is."""

from __future__ import annotations

import re
from dataclasses import replace

import yaml

from harness.errors import Notice


def explain_yaml(error: yaml.MarkedYAMLError, text: str) -> tuple[Notice, int | None]:
    """What to mend, and on which line: not always the one where the parser gave up."""
    problem, context = error.problem or "", error.context or ""
    start = error.context_mark.line + 1 if error.context_mark else None
    line = error.problem_mark.line + 1 if error.problem_mark else start
    if (odd := _odd_character(text, line)) is not None:
        said, line = odd
    elif "quoted scalar" in context and "end of stream" in problem:
        said, line = _OPEN_QUOTATION, start
    elif "simple key" in context:
        said, line = _NO_COLON, start
    elif "flow" in context and "'?'" in problem:
        said = Notice(
            code="rubric.yaml-question-mark",
            message=f"between {{ … }} or [ … ], a question mark ends a text; {_QUOTE}",
        )
    elif "flow" in context:
        bracket = "{ … }" if "mapping" in context else "[ … ]"
        where = "in this line" if start == line else f"between here and line {line}"
        said = Notice(
            code="rubric.yaml-brackets",
            message=f"{where}, a comma or the closing bracket of {bracket} is missing, or a text "
            "with one of , : [ ] { } in it is not in quotes",
        )
        line = start
    elif "block" in context and "found '<scalar>'" in problem:
        said, line = _after_a_value(text, line)
    elif "block" in context and problem.startswith("expected <block end>"):
        said = _and(_INDENTATION, _or_the_one_above(text, line))
    elif problem.startswith("mapping values are not allowed"):
        said = _and(_COLON, _or_no_colon_above(text, line))
    else:
        between = f"{context} (line {start}), " if context and start else ""
        known = (notice for part, notice in _MESSAGES.items() if part in problem)
        other = Notice(code="rubric.yaml-invalid", message=f"not YAML: {between}{problem}")
        said = next(known, other)
    if _QUOTE in said.message and set("„“”«»") & set(_written_at(text, line or 0)):
        said = _and(said, "; only \" and ' are quotes to YAML")
    return said, line


def _and(said: Notice, more: str) -> Notice:
    return replace(said, message=said.message + more)


def _odd_character(text: str, line: int | None) -> tuple[Notice, int] | None:
    """A character that looks like one of YAML's and is none, on the line or the one above it."""
    for number in (_line_above(text, line or 0), line):
        if number and (found := _ODD.match(_written_at(text, number))):
            return _NO_BREAK if "\xa0" in found[0] else _WIDE_COLON, number
    return None


def _after_a_value(text: str, line: int | None) -> tuple[Notice, int | None]:
    """What is wrong where a value has ended, and more stands behind it."""
    written = _written_at(text, line or 0)
    if bracket := _BRACKETS.search(written):
        said = Notice(
            code="rubric.yaml-behind-bracket",
            message=f"something stands behind '{bracket[2]}'; delete it, or, where a text begins "
            f"with '{bracket[1]}', {_QUOTE}",
        )
        return said, line
    in_single = re.search(r"[:-] '", written)
    other = 'double ones: "…"' if in_single else "single ones: '…'"
    said = Notice(
        code="rubric.yaml-quotation",
        message="a text in quotation marks ends too early: one of them is not closed, or stands "
        f"inside the text (then put the text in {other})",
    )
    return said, _odd_quotation(text) or line


def _or_the_one_above(text: str, line: int | None) -> str:
    """The parser gives up one line after the one that was moved."""
    above = _line_above(text, line or 0)
    return f"; if this line is right, line {above} is not" if above else ""


def _or_no_colon_above(text: str, line: int | None) -> str:
    """A line without a colon is taken for the beginning of a text that goes on in the next."""
    above = _line_above(text, line or 0)
    if above is None or _FIELD.match(_written_at(text, above)):
        return ""
    return f"; or line {above} has no colon after its field's name"


def _line_above(text: str, line: int) -> int | None:
    """The number of the nearest line that says something."""
    lines = text.splitlines()[: max(0, line - 1)]
    said = (n for n, one in enumerate(lines, start=1) if one.strip() and one.strip()[0] != "#")
    return max(said, default=None)


def _written_at(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else ""


def _odd_quotation(text: str) -> int | None:
    """The first line that opens a quotation mark and does not close it."""
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if line.count('"') % 2), None)


_QUOTE = "put the text in quotes"
_NO_COLON = Notice(
    code="rubric.yaml-no-colon",
    message="this line has no colon with a space behind it after the field's name, or it belongs "
    "to the text above and is not indented below that one's name",
)
_OPEN_QUOTATION = Notice(
    code="rubric.yaml-quotation", message="the quotation mark that opens here is never closed"
)
_INDENTATION = Notice(
    code="rubric.yaml-indentation",
    message="this line is not indented like those it belongs to: the fields of one thing begin in "
    "one column, and each item of a list with '- '",
)
_COLON = Notice(
    code="rubric.yaml-colon",
    message="a colon in the midst of a text, or a line that is indented too far; in the first "
    f"case, {_QUOTE}",
)
_BLOCK = Notice(
    code="rubric.yaml-block-text",
    message=f"a text cannot begin with '>' or '|'; {_QUOTE}, or begin it on the next line, "
    "indented",
)
_NO_BREAK = Notice(
    code="rubric.yaml-no-break-space",
    message="it has a no-break space, as pasted texts do, where a space belongs; type it anew",
)
_WIDE_COLON = Notice(
    code="rubric.yaml-wide-colon",
    message="its colon is not ':' but the wide one of East Asian fonts; type it anew",
)
_ODD = re.compile(r"[ -]*(?:\xa0|[a-z_]+(?::\xa0|\uff1a))")
_FIELD = re.compile(r"\s*(?:- +)*[^\s:]+:(?:\s|$)")
_BRACKETS = re.compile(r"[:-] +([\[{]).*([\]}]) *[^\s\]},#]")
_MESSAGES = {
    "'\\t'": Notice(code="rubric.yaml-tab", message="a tab stands here; put spaces in its place"),
    "that cannot start any token": Notice(
        code="rubric.yaml-first-character",
        message=f"a text cannot begin with this character; {_QUOTE}",
    ),
    "found undefined alias": Notice(
        code="rubric.yaml-first-character", message=f"a text cannot begin with '*'; {_QUOTE}"
    ),
    "could not determine a constructor": Notice(
        code="rubric.yaml-first-character", message=f"a text cannot begin with '!'; {_QUOTE}"
    ),
    "but found another document": Notice(
        code="rubric.yaml-two-documents",
        message="a line '---' begins a second document; delete it",
    ),
    "expected alphabetic or numeric character": Notice(
        code="rubric.yaml-first-character",
        message=f"a text cannot begin with '*' or '&'; {_QUOTE}",
    ),
    "expected '<document start>'": _INDENTATION,
    "sequence entries are not allowed here": Notice(
        code="rubric.yaml-item-in-line",
        message="an item of a list ('- ') begins a line of its own, below the list's name",
    ),
    "expected chomping or indentation": _BLOCK,
    "expected a comment or a line break": _BLOCK,
    "mapping keys are not allowed": Notice(
        code="rubric.yaml-first-character", message=f"a text cannot begin with '?'; {_QUOTE}"
    ),
    "unknown escape character": Notice(
        code="rubric.yaml-backslash",
        message="in double quotes a backslash has a meaning of its own; use single quotes",
    ),
}
"""By what the parser says."""
