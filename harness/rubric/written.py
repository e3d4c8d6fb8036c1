"""The values of a YAML file, each with its file and line.

If a file is not YAML, the second half explains what to fix, for people who do not know YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from harness.errors import Notice, Problem, RubricInvalid
from harness.files import read_bytes

Place = tuple[int | str, ...]
"""Where a value is: the names of fields and the numbers of items that lead to it."""

EMPTY = ...
"""The value of a field with nothing behind its colon. That of `null` is None."""

# A rubric has some hundred; aliases of aliases soon make millions.
_MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it stands in a file."""

    value: Any
    """Fields as `dict[str, Written]`, items as `list[Written]`, anything else as YAML reads it."""
    path: Path
    line: int
    """The line of the field's name, or of the item's beginning; counted from 1."""
    text_line: int | None = None
    """The line on which a text below a '|' begins; None for other values."""

    @property
    def fields(self) -> Mapping[str, Written]:
        """Name → value; empty if this is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> Sequence[Written]:
        """The items of a list; empty if this is none."""
        return self.value if isinstance(self.value, list) else []

    def problem(self, message: str, *, code: str) -> Problem:
        """A mistake, with the file and line of this value."""
        return Problem(path=self.path, line=self.line, message=message, code=code)

    def plain(self) -> Any:  # noqa: ANN401 - whatever a person wrote
        """The values alone, as YAML reads them."""
        if isinstance(self.value, dict):
            return {name: field.plain() for name, field in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def at(self, place: Place) -> Written:
        """The value at a place, or the innermost around it that stands in the file."""
        value = self
        for part in place:
            if isinstance(part, str):
                # A check's place holds its name too, which the file does not have as a field.
                value = value.fields.get(part, value)
            elif part < len(value.items):
                value = value.items[part]
        return value


# YAML takes a second to read as much, and a line of a gigabyte all of the memory.
_MOST_BYTES = 1 << 20
_BEGIN = "begin with 'title: …', or with a copy: harness new rubric"


def refusal(problems: Iterable[Problem]) -> RubricInvalid:
    """One error for all problems, in the order of their lines."""
    first, *rest = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    return RubricInvalid(
        first.message, code=first.code, path=first.path, line=first.line, further=rest
    )


def read_written(path: Path, *, begin: str = _BEGIN) -> Written:
    """The mapping that a file holds; `begin` says what to do if it holds nothing.

    Raises:
        RubricInvalid: It is missing, is no mapping in YAML, or has a name twice.
    """
    invalid = partial(RubricInvalid, path=path)
    try:
        # A byte more than is allowed shows that it is too long.
        content = read_bytes(path, max_bytes=_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise invalid("it is longer than 1 MiB, which no rubric is", code="rubric.too-long")
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        raise invalid("there is no such file", code="rubric.not-found") from error
    except OSError as error:
        raise invalid(f"cannot be read ({error.strerror})", code="rubric.unreadable") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise invalid(
            "not UTF-8 text; save it as UTF-8", line=line, code="rubric.not-utf-8"
        ) from error
    try:
        # The loader refuses control characters at once.
        root = _Loader(text, path).root()
    except yaml.MarkedYAMLError as error:
        notice, mistake_line = explain_yaml(error)
        raise invalid(notice.message, line=mistake_line, code=notice.code) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise invalid(
            "it holds a control character, which is not text; delete the line and write it again",
            line=line,
            code="rubric.control-character",
        ) from error
    except RecursionError as error:
        raise invalid("the values are nested too deeply", line=1, code="rubric.too-deep") from error
    if not isinstance(root.value, dict):
        holds = "nothing, or comments only" if root.value is EMPTY else "no fields"
        raise invalid(f"it holds {holds}; {begin}", line=1, code="rubric.no-fields")
    return root


class _Loader(yaml.SafeLoader):
    """YAML as editors know it (1.2): `yes`, `on`, dates and `12:30` are texts, `true` is not.

    It makes values with their lines.
    """

    def __init__(self, text: str, path: Path) -> None:
        super().__init__(text)
        self._path = path
        self._count = 0
        self._invalid = partial(RubricInvalid, path=path)

    def root(self) -> Written:
        """The value of the whole file."""
        try:
            node = self.get_single_node()
        except (ValueError, OverflowError) as error:  # such as "\U00110000"
            raise self._invalid(
                "a character is written by a number that none has",
                line=self.line + 1,
                code="rubric.no-such-character",
            ) from error
        return Written(EMPTY, self._path, 1) if node is None else self._written(node, 1)

    def _written(self, node: yaml.Node, line: int) -> Written:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise self._invalid(
                f"it holds more than {_MOST_VALUES:,} values, which no rubric does",
                line=line,
                code="rubric.too-many-values",
            )
        self._check_tag(node, line)
        value: Any
        text_line = None
        if isinstance(node, yaml.MappingNode):
            self._check_names(node)
            # Puts what `<<` names before the fields of its own, so that these count.
            self.flatten_mapping(node)
            pairs = [(key.value, value, key.start_mark.line + 1) for key, value in node.value]
            value = {name: self._written(field, field_line) for name, field, field_line in pairs}
        elif isinstance(node, yaml.SequenceNode):
            value = [self._written(item, item.start_mark.line + 1) for item in node.value]
        else:
            style = node.style if isinstance(node, yaml.ScalarNode) else None
            value = self.construct_object(node) if node.value or style else EMPTY
            if style == "|":
                # Counted from 1, and below the `|`.
                text_line = node.start_mark.line + 2
        return Written(value, self._path, line, text_line)

    def _check_names(self, node: yaml.MappingNode) -> None:
        """Refuses names that are no words, and a name that stands twice."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise self._invalid(
                    "a field's name is a plain word, such as 'title'",
                    line=line,
                    code="rubric.name-not-plain",
                )
            if key.value in lines:
                # YAML would silently keep the last one.
                raise self._invalid(
                    f"'{key.value}' occurs twice, first on line {lines[key.value]}; delete one, "
                    "or put '- ' before this if it begins the next item of a list",
                    line=line,
                    code="rubric.duplicate-field",
                )
            lines[key.value] = line

    def _check_tag(self, node: yaml.Node, line: int) -> None:
        """Refuses tags: one of its own, as in `!Is it short?`, would leave out the word."""
        is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if node.tag != self.resolve(type(node), node.value, (is_plain, False)):  # type: ignore[no-untyped-call]
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise self._invalid(
                f"'{tag}' is a tag of YAML, which no rubric has: delete it; if it begins a text, "
                f"{_QUOTE}",
                line=line,
                code=_FIRST.code,
            )


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?[0-9]+[eE][-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first
    )


def explain_yaml(error: yaml.MarkedYAMLError) -> tuple[Notice, int | None]:
    """What to mend, and the line to mend it on; the parser may have given up on another one."""
    problem = error.problem or ""
    context = error.context or ""
    start_line = error.context_mark.line + 1 if error.context_mark else None
    end_line = error.problem_mark.line + 1 if error.problem_mark else start_line
    for (context_part, problem_part), notice in _RULES.items():
        if context_part in context and problem_part in problem:
            # What was opened and has no end is mended where it was opened.
            return notice, start_line if context_part in _OPENED else end_line
    beginning = f"{context} (line {start_line}), " if context and start_line else ""
    message = f"not YAML: {beginning}{problem}"
    return Notice(code="rubric.yaml-invalid", message=message), end_line


_QUOTE = "put the text in quotes"
_FIRST = Notice(
    code="rubric.yaml-first-character",
    message=f"a text cannot begin with this character, which YAML reads as its own; {_QUOTE}",
)
_INDENTATION = Notice(
    code="rubric.yaml-indentation",
    message="this line, or the one above it, is not indented like those it belongs to: the fields "
    "of one thing begin in one column, and each item of a list with '- ' on a line of its own",
)
_OPENED = ("quoted scalar", "simple key", "flow")
# (part of PyYAML's context, part of its problem) → what to mend; the first that fits counts.
_RULES = {
    ("quoted scalar", "end of stream"): Notice(
        code="rubric.yaml-quotation", message="the quotation mark that opens here is never closed"
    ),
    ("simple key", ""): Notice(
        code="rubric.yaml-no-colon",
        message="this line has no colon with a space behind it after the field's name, or it "
        "belongs to the text above and is not indented below that one's name",
    ),
    ("flow", ""): Notice(
        code="rubric.yaml-brackets",
        message="of the { … } or [ … ] that begins here, a comma or the closing bracket is "
        f"missing, or a text in it has one of , : ? [ ] {{ }}: then {_QUOTE}",
    ),
    ("block", "found '<scalar>'"): Notice(
        code="rubric.yaml-behind-value",
        message="something stands behind the end of a text in quotation marks or of a list in "
        "brackets; delete it, or put the whole text in quotation marks of the other kind",
    ),
    ("block", "expected <block end>"): _INDENTATION,
    ("", "sequence entries are not allowed here"): _INDENTATION,
    ("", "mapping values are not allowed"): Notice(
        code="rubric.yaml-colon",
        message="a colon in the midst of a text, a line that is indented too far, or no colon "
        f"behind the field's name in the line above; in the first case, {_QUOTE}",
    ),
    ("", "'\\t'"): Notice(
        code="rubric.yaml-tab", message="a tab stands here; put spaces in its place"
    ),
    ("", "that cannot start any token"): _FIRST,
    ("scanning a block scalar", ""): _FIRST,  # `>= 3`
    ("scanning an a", ""): _FIRST,  # an alias or an anchor: `*`, `&`
}
