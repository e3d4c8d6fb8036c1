"""What is wrong where a file is not YAML, for people who do not know what YAML is."""

from __future__ import annotations

import yaml


def explain_yaml(error: yaml.MarkedYAMLError, text: str) -> tuple[str, int | None]:
    """What to mend, and on which line: not always the one where the parser gave up."""
    problem, context = error.problem or "", error.context or ""
    start = error.context_mark.line + 1 if error.context_mark else None
    line = error.problem_mark.line + 1 if error.problem_mark else start
    if "quoted scalar" in context and "end of stream" in problem:
        said, line = "the quotation mark that opens here is never closed", start
    elif "simple key" in context:
        said, line = _NO_COLON, start
    elif "flow" in context and "'?'" in problem:
        said = f"between {{ … }} or [ … ], a question mark ends a text; {_QUOTE}"
    elif "flow" in context:
        bracket = "{ … }" if "mapping" in context else "[ … ]"
        said = (
            f"between here and line {line}, a comma or the closing bracket of {bracket} is missing"
        )
        line = start
    elif "block" in context and "found '<scalar>'" in problem:
        said, line = _QUOTATION, _odd_quotation(text) or line
    elif "block" in context and problem.startswith("expected <block end>"):
        said = _INDENTATION
    else:
        between = f"{context} (line {start}), " if context and start else ""
        known = (message for part, message in _MESSAGES.items() if part in problem)
        said = next(known, f"not YAML: {between}{problem}")
    return said, line


def _odd_quotation(text: str) -> int | None:
    """The first line that opens a quotation mark and does not close it."""
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if line.count('"') % 2), None)


_NO_COLON = (
    "this line has no colon with a space behind it after the field's name, or it belongs to the "
    "text above and is not indented below that one's name"
)
_QUOTATION = (
    "a text in quotation marks ends too early: one of them is not closed, or stands inside the "
    "text (then put the text in single ones: '…')"
)
_INDENTATION = (
    "this line is not indented like those it belongs to: the fields of one thing begin in one "
    "column, and each item of a list with '- '"
)
_QUOTE = "put the text in quotes"
_MESSAGES = {
    "mapping values are not allowed here": (
        "a colon in the midst of a text, or a line that is indented too far; in the first case, "
        f"{_QUOTE}"
    ),
    "'\\t'": "it begins with a tab; indent with spaces",
    "that cannot start any token": f"a text cannot begin with this character; {_QUOTE}",
    "found undefined alias": f"a text cannot begin with '*'; {_QUOTE}",
    "could not determine a constructor": f"a text cannot begin with '!'; {_QUOTE}",
    "but found another document": "a line '---' begins a second document; delete it",
    "expected alphabetic or numeric character": (f"a text cannot begin with '*' or '&'; {_QUOTE}"),
    "expected '<document start>'": _INDENTATION,
    "sequence entries are not allowed here": (
        "an item of a list ('- ') begins a line of its own, below the list's name"
    ),
    "expected chomping or indentation": f"a text cannot begin with '>' or '|'; {_QUOTE}",
    "expected a comment or a line break": f"a text cannot begin with '>' or '|'; {_QUOTE}",
    "unknown escape character": (
        "in double quotes a backslash has a meaning of its own; use single quotes"
    ),
}
"""By what the parser says."""
