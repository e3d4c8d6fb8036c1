"""The rows of a batch: what each gives the pipeline, and what tells it from others."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import InvalidInput, did_you_mean
from harness.files import read_text
from harness.graph import Graph, bind_inputs, graph_inputs
from harness.graph.state import NO_DIGEST, digest_of_value
from harness.graph.values import digest
from harness.rows import Row, read_rows

Inputs = str | Path | Iterable[str | Path] | Iterable[Mapping[str, Any]]

_CHECKED = 100
"""Rows of which none may be mistaken before anything runs."""
_SHOWN = 10
_PLACES = 3
"""Of rows with the same mistake."""
_COLUMN = re.compile(r"\{([^{}\"'\s]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """A row that has no output, or none that was scored."""

    id: str
    file: str
    line: int | None
    row: int | None
    """Its number in the run: `rows[17]`. None if it was refused before."""
    reason: str


def failure_of(row: Row, reason: str, number: int | None = None) -> RowFailure:
    """Why a row has no output."""
    return RowFailure(id=row.id, file=str(row.path), line=row.line, row=number, reason=reason)


class BatchRows:
    """The rows that fit a pipeline, and those that do not; reads them.

    Args:
        pipeline: What each row runs.
        inputs: The rows; see `Pipeline.batch`, as are the others.
        columns: What a column is called, by the input's name.
        every: Inputs of every row.
        sample: How many to draw; all if None.
        seed: Draws them.

    Attributes:
        given: By a name that says what the row holds, also what is in a file that it names.
        refused: Why others do not fit.
        total: How many there are.

    Raises:
        InvalidInput: One of the first 100 does not fit, or there is none.
    """

    def __init__(
        self,
        pipeline: Graph,
        inputs: Inputs,
        *,
        columns: Mapping[str, str],
        every: Mapping[str, object],
        sample: int | None,
        seed: int,
    ) -> None:
        self._pipeline = pipeline
        takes = graph_inputs(pipeline)
        self._names = frozenset(takes)
        self._needed = {name: one.node.name for name, one in takes.items() if not one.has_default}
        self._every = every
        if unknown := sorted(every.keys() - self._names):
            raise InvalidInput(
                f"'{unknown[0]}' is not an input of pipeline '{pipeline.name}'; "
                f"{did_you_mean(unknown[0], self._names)}",
                code="pipeline.unknown-input",
            )
        found = [*_rows_of(inputs, columns, self._names)]
        if not found:
            raise InvalidInput("there is no row", code="row.no-rows")
        if sample is not None:
            # A larger sample by the same seed holds the smaller one.
            drawn = random.Random(seed).sample(range(len(found)), len(found))[:sample]  # noqa: S311
            found = [found[n] for n in sorted(drawn)]
        self.total = len(found)
        self.given: dict[str, Row] = {}
        self.refused: list[RowFailure] = []
        ids: set[str] = set()
        for number, row in enumerate(found, start=1):
            try:
                self._take(row, ids)
            except InvalidInput as error:
                where = row
                if isinstance(where, InvalidInput):
                    where = Row(fields={}, path=error.path or Path(), line=error.line)
                said = str(error).removeprefix(f"{where.place}: ")
                self.refused.append(failure_of(where, said))
            if number == min(_CHECKED, len(found)) and self.refused:
                raise self._mistakes(number)

    def code_parts(self) -> tuple[object, ...]:
        """See `fingerprint`: what rows hold is an input, and no part of the code."""
        return ()

    def inputs(self, name: str) -> dict[str, object]:
        """What the pipeline takes of a row."""
        return self._inputs(self.given[name])

    def _take(self, row: Row | InvalidInput, ids: set[str]) -> None:
        if isinstance(row, InvalidInput):
            raise row
        if row.id in ids:
            raise row.refusal(f"the id '{row.id}' occurs twice", code="row.id-twice")
        ids.add(row.id)
        values = self._inputs(row)
        for name, node in self._needed.items():
            if name not in values:
                raise row.refusal(
                    f"it has no '{name}', which node '{node}' needs; add a column `{name}`, or "
                    f"--set {name}=...",
                    code="batch.input-missing",
                )
        bind_inputs(self._pipeline, values)
        held = sorted((name, digest_of_value(value)) for name, value in values.items())
        if any(one == NO_DIGEST for _, one in held):
            held = [("", row.place)]  # such values cannot be compared
        name = digest(orjson.dumps([row.fields.get("id"), held], default=str))
        count = 1
        while name in self.given:  # a row without an id may stand there twice
            count += 1
            name = f"{name.partition('#')[0]}#{count}"
        self.given[name] = row

    def _inputs(self, row: Row) -> dict[str, object]:
        """The columns that are inputs, and what is set for all, with the row's columns in it."""
        own = {name: value for name, value in row.fields.items() if name in self._names}
        if not own and not any(_COLUMN.search(str(one)) for one in self._every.values()):
            # With defaults for all inputs, every row would be the same.
            raise row.refusal(
                f"none of its columns ({', '.join(row.fields)}) is an input "
                f"({', '.join(sorted(self._names))}); say --columns INPUT=COLUMN",
                code="batch.no-input",
            )
        return own | {name: _filled(row, name, value) for name, value in self._every.items()}

    def _mistakes(self, read: int) -> InvalidInput:
        places: dict[str, list[str]] = {}
        for one in self.refused:
            place = one.file if one.line is None else f"{one.file}:{one.line}"
            places.setdefault(one.reason, []).append(place)
        told = []
        for reason, where in places.items():
            more = len(where) - _PLACES
            shown = ", ".join(where[:_PLACES]) + (f" and {more} more" if more > 0 else "")
            told.append(f"  {shown}: {reason}")
        if len(told) > _SHOWN:
            told[_SHOWN:] = [f"  … and {len(told) - _SHOWN} more"]
        return InvalidInput(
            f"{len(self.refused)} of the first {read} rows do not fit pipeline "
            f"'{self._pipeline.name}', so nothing was run:\n" + "\n".join(told),
            code="batch.rows-mistaken",
        )


def _filled(row: Row, name: str, value: object) -> object:
    """An input of every row, with this row's columns in it."""
    if not isinstance(value, str):
        return value

    def cell(found: re.Match[str]) -> str:
        if found[1] not in row.fields:
            said = f"it has no '{found[1]}', which {found[0]} stands for"
            raise row.refusal(said, code="batch.no-column")
        return str(row.fields[found[1]])

    text = _COLUMN.sub(cell, value)
    if not text.startswith("@"):
        return text
    return read_text(f"input '{name}'", Path(text[1:]) if text == value else row.beside(text[1:]))


def _rows_of(
    inputs: Inputs, columns: Mapping[str, str], whole: frozenset[str]
) -> Iterator[Row | InvalidInput]:
    """The rows of files and folders, or those that a program has."""
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    for number, one in enumerate(inputs, start=1):
        if isinstance(one, Mapping):
            ours = {theirs: mine for mine, theirs in columns.items()}
            fields = {ours.get(name, name): value for name, value in one.items()}
            yield Row(fields=fields, path=Path("inputs"), line=number)
        elif isinstance(one, str | Path):
            yield from read_rows([str(one)], columns=columns, whole=whole)
        else:
            raise InvalidInput(
                f"a row is {type(one).__name__}; give mappings of inputs, or names of files",
                code="batch.row-not-mapping",
            )
