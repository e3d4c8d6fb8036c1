"""What stands in a YAML file, each value with its file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from harness.errors import Problem, RubricInvalid
from harness.rubric.files.yaml_mistakes import explain_yaml

Place = tuple[int | str, ...]
"""Where a value is: the names of fields and the numbers of items that lead to it."""

_MOST_VALUES = 10_000
"""A rubric has some hundred; aliases of aliases soon make millions."""


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it stands in a file."""

    value: Any
    """Fields as `dict[str, Written]`, items as `list[Written]`, and anything else as YAML has
    it."""
    path: Path
    """The file."""
    line: int
    """Of the field's name, or of the item's beginning; counted from 1."""
    cut: str = ""
    """What stands behind a text, from a '#' on that no space follows: it may have been part of
    it."""

    @property
    def fields(self) -> Mapping[str, Written]:
        """By name; none where it is not a mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> Sequence[Written]:
        """In order; none where it is not a list."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:  # noqa: ANN401 - whatever a person wrote
        """The values alone."""
        if isinstance(self.value, dict):
            return {name: field.plain() for name, field in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def at(self, place: Place) -> Written:
        """The value at a place, or the innermost around it that stands in the file.

        A check's place holds its name too, which the file does not have as a field.
        """
        found = self
        for part in place:
            if isinstance(part, str):
                found = found.fields.get(part, found)
            elif part < len(found.items):
                found = found.items[part]
        return found


def read_written(path: Path) -> tuple[Written, tuple[Problem, ...]]:
    """The mapping that a file holds, and the names in it that stand twice.

    Raises:
        RubricInvalid: It is missing, or is no mapping in YAML.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        raise RubricInvalid("there is no such file", code="rubric.not-found", path=path) from error
    except OSError as error:
        raise RubricInvalid(
            f"cannot be read ({error.strerror})", code="rubric.unreadable", path=path
        ) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RubricInvalid(
            "not UTF-8 text; save it as UTF-8", code="rubric.not-utf-8", path=path, line=line
        ) from error
    try:
        reading = _Reading(path, _Loader(text))
        root = reading.root()
    except yaml.MarkedYAMLError as error:
        said, where = explain_yaml(error, text)
        raise RubricInvalid(said.message, code=said.code, path=path, line=where) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RubricInvalid(
            "it holds a control character, which is not text; delete the line and write it anew",
            code="rubric.control-character",
            path=path,
            line=line,
        ) from error
    except RecursionError as error:
        raise RubricInvalid(
            "the values are nested too deeply", code="rubric.too-deep", path=path, line=1
        ) from error
    if not isinstance(root.value, dict):
        holds = "nothing, or comments only" if root.value is None else "no fields"
        raise RubricInvalid(
            f"it holds {holds}; begin with 'title: …', or with a copy: harness rubric new",
            code="rubric.no-fields",
            path=path,
            line=1,
        )
    return root, tuple(reading.problems)


class _Loader(yaml.SafeLoader):
    """YAML as editors know it (1.2): `yes`, `on`, dates and `12:30` are texts, `true` is not."""


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


class _Reading:
    """One file on its way from YAML's nodes to values."""

    def __init__(self, path: Path, loader: _Loader) -> None:
        self.problems: list[Problem] = []
        self._path = path
        self._loader = loader
        self._count = 0

    def root(self) -> Written:
        node = self._loader.get_single_node()
        return Written(None, self._path, 1) if node is None else self._written(node, 1)

    def _written(self, node: yaml.Node, line: int) -> Written:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise RubricInvalid(
                f"it holds more than {_MOST_VALUES:,} values, which no rubric does",
                code="rubric.too-many-values",
                path=self._path,
                line=line,
            )
        value: Any
        cut = ""
        if isinstance(node, yaml.MappingNode):
            value = self._fields(node)
        elif isinstance(node, yaml.SequenceNode):
            value = [self._written(item, item.start_mark.line + 1) for item in node.value]
        else:
            value = self._scalar(node, line)
            cut = _cut_behind(node) if isinstance(value, str) else ""
        return Written(value, self._path, line, cut)

    def _fields(self, node: yaml.MappingNode) -> dict[str, Written]:
        self._note_repeated(node)
        self._loader.flatten_mapping(node)  # puts what `<<` names before the fields of its own
        return {
            key.value: self._written(value, key.start_mark.line + 1) for key, value in node.value
        }

    def _note_repeated(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise RubricInvalid(
                    "a field's name is a plain word, such as 'title'",
                    code="rubric.name-not-plain",
                    path=self._path,
                    line=line,
                )
            if key.value in lines:
                # YAML would silently keep the last one.
                self.problems.append(
                    Problem(
                        path=self._path,
                        line=line,
                        message=f"'{key.value}' stands twice, first on line {lines[key.value]}; "
                        "delete one, or put '- ' before this if it begins the next item of a list",
                        code="rubric.duplicate-field",
                    )
                )
                return  # without that '- ', all that follows stands twice
            lines.setdefault(key.value, line)

    def _scalar(self, node: yaml.Node, line: int) -> object:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # such as !!int without digits
            raise RubricInvalid(
                f"a value cannot be read ({error}); put it in quotes",
                code="rubric.value-unreadable",
                path=self._path,
                line=line,
            ) from error


def _cut_behind(node: yaml.Node) -> str:
    """`#3 and more` behind a text without quotes; comments have a space behind their '#'."""
    is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
    rest = str(node.end_mark.buffer)[node.end_mark.pointer :].partition("\n")[0].strip(" \r\0")
    return rest if is_plain and re.match(r"#\w", rest) else ""
