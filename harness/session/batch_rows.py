"""The rows of a batch: what each gives the pipeline, and what tells it from others."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal
from zlib import crc32

import orjson

from harness.errors import (
    HarnessError,
    InvalidInput,
    NodeFailed,
    RunLimitReached,
    did_you_mean,
    message_of,
    who_left,
)
from harness.files import read_text
from harness.graph import Graph, bind_inputs, graph_inputs
from harness.graph.state import NO_DIGEST, digest_of_value
from harness.graph.values import digest
from harness.rows import Row, listed, read_rows
from harness.rubric import Draft
from harness.rubric.checks.target import texts_of
from harness.trace.records import node_of_all

Inputs = str | Path | Iterable[str | Path] | Iterable[Mapping[str, Any]]

BadRows = Literal["stop", "skip"]
"""Whether rows that do not fit stop a batch before anything runs, or fail alone."""

# Failures before their share says anything.
_JUDGED = 20
_SHOWN = 10
# Most places that a message names of rows with the same mistake.
_PLACES = 3
# In a row's name, before the number of its epoch; the first has none.
_EPOCH = "~"
# The first group is of two braces, which are text: `{{a}}` is `{a}`.
_BRACES = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}|\{\s*([^{}]+?)\s*\}")
_TABLE = "a table is a .csv, .jsonl (one object a line), .json (a list) or .parquet file"
# What in braces stands for a column even if there is none of this name.
_NAME = re.compile(r"[^\"'\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """A row that has no output, or none that was scored."""

    id: str
    file: str
    line: int | None
    row: int | None
    """Its number in the run: `rows[17]`. None if it was refused before."""
    reason: str
    code: str
    """The error's code, or the name of its class if it is not a `HarnessError`."""
    epoch: int = 1

    @property
    def place(self) -> str:
        """Its file, and its line there."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


def failure_of(
    row: Row, reason: str, *, code: str, number: int | None = None, epoch: int = 1
) -> RowFailure:
    """Why a row has no output."""
    return RowFailure(
        id=row.id,
        file=str(row.path),
        line=row.line,
        row=number,
        reason=reason,
        code=code,
        epoch=epoch,
    )


def refusal_of(row: Row | InvalidInput, error: InvalidInput) -> RowFailure:
    """Why a row is not run; one that could not be read is an error itself."""
    if isinstance(row, InvalidInput):
        row = Row(fields={}, path=error.path or Path(), line=error.line)
    return failure_of(row, error.statement, code=error.code)


class NoCode:
    """What the nodes of a batch close over, and what is yet no part of their code."""

    def code_parts(self) -> tuple[object, ...]:
        """See `fingerprint`: how other rows fail, and what rows hold, changes no output."""
        return ()


class RowsEnded(NoCode):
    """Counts the rows that end, and ends a batch whose rows fail for one reason.

    `allowed` are the failures for one reason: a count, or as a `float` a share of the rows that
    have ended, from 20 failures on. None for any number.
    """

    def __init__(self, allowed: float | None) -> None:
        self._allowed = allowed
        self._ended_rows: set[str] = set()
        self._rows_by_reason = defaultdict[tuple[str, str], set[str]](set)
        self._end: RunLimitReached | None = None
        # Node of the batch and row name → the code of the error by which the row failed.
        self.codes: dict[tuple[str, str], str] = {}

    def note_kept(self, rows: Iterable[str]) -> None:
        """Counts rows that need not be run, by their names."""
        # Else a retry, which runs only the rows that failed, would end after the first of them.
        self._ended_rows.update(rows)

    @contextmanager
    def counted(self, row: str, of: str) -> Iterator[None]:
        """Counts the row when the block, in which the node `of` of the batch handles it, ends.

        Raises:
            RunLimitReached: Too many rows have failed.
        """
        if self._end is not None:
            raise self._end.with_traceback(None)
        try:
            yield
        except RunLimitReached:
            raise
        except SystemExit as error:
            # A `SystemExit` would end the whole batch, with an exit code that says something else.
            failure = HarnessError(who_left(error), code="run.left")
            self._note(row, of, failure)
            raise failure from error
        except Exception as error:
            self._note(row, of, error)
            raise
        finally:
            self._ended_rows.add(row)

    def _note(self, row: str, of: str, error: Exception) -> None:
        cause: BaseException = error
        node = of
        while isinstance(cause, NodeFailed) and cause.__cause__ is not None:
            node, cause = node_of_all(cause.node), cause.__cause__
        code = cause.code if isinstance(cause, HarnessError) else type(cause).__name__
        self.codes[of, row] = code
        reason = node, code
        self._rows_by_reason[reason].add(row)
        failed = len(self._rows_by_reason[reason])
        ended = len(self._ended_rows) + (row not in self._ended_rows)
        if are_too_many(failed, ended=ended, allowed=self._allowed):
            self._end = RunLimitReached(
                f"no further row is begun, since {failed} of the {ended} that ended failed for one "
                f"reason ({code}), as {message_of(cause)}; mend it, or allow more (--max-failures, "
                "max_failures=)",
                limit="failures",
                code="batch.too-many-failures",
            )


def are_too_many(failed: int, *, ended: int, allowed: float | None) -> bool:
    """Whether so many failures for one reason end a batch; see `RowsEnded`."""
    if allowed is None:
        return False
    if isinstance(allowed, int):
        return failed > allowed
    return failed >= _JUDGED and failed > allowed * ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a table, such as 2/5: each row is in one, whatever the order of the rows."""

    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, name: str) -> bool:
        """Whether a row of this name is in it."""
        return crc32(name.encode()) % self.of + 1 == self.number

    def path(self, output: Path) -> Path:
        """Its output: `out.2-of-5.jsonl` of `out.jsonl`."""
        return output.with_name(f"{output.stem}.{self.number}-of-{self.of}{output.suffix}")


class BatchRows(NoCode):
    """The rows that fit a pipeline, and those that do not; reads them, as `Pipeline.batch` does.

    Of a table with a `shard`, only that part is taken. `check` raises `InvalidInput` for a row that
    does not fit for another reason; it gets the row and all columns of the table.

    Raises:
        InvalidInput: One does not fit, and that stops the batch; or none does.
    """

    def __init__(
        self,
        pipeline: Graph,
        inputs: Inputs,
        *,
        columns: Mapping[str, str] | None = None,
        every: Mapping[str, object] | None = None,
        bad_rows: BadRows = "stop",
        sample: int | None = None,
        seed: int = 0,
        shard: Shard | None = None,
        epochs: int = 1,
        check: Callable[[Row, AbstractSet[str]], object] = lambda _, __: None,
    ) -> None:
        pipeline.check()
        self.pipeline = pipeline
        self._epochs = epochs
        self._check = check
        takes = graph_inputs(pipeline)
        self._names = frozenset(takes)
        self._needed = {
            name: parameter.node.name
            for name, parameter in takes.items()
            if not parameter.has_default
        }
        self._every = every or {}
        if unknown := sorted(self._every.keys() - self._names):
            raise InvalidInput(
                f"'{unknown[0]}' is not an input of pipeline '{pipeline.name}'; "
                f"{did_you_mean(unknown[0], self._names)}",
                code="pipeline.unknown-input",
            )
        rows = [*_rows_of(inputs, columns or {}, self._names)]
        if not rows:
            raise InvalidInput("there is no row below the names of the columns", code="row.no-rows")
        if sample is not None:
            # A larger sample by the same seed holds the smaller one.
            drawn = random.Random(seed).sample(range(len(rows)), len(rows))[:sample]  # noqa: S311
            rows = [rows[n] for n in sorted(drawn)]
        if "epoch" not in self._names:
            rows = _epochs_apart(rows)
        self._columns = {name for row in rows if isinstance(row, Row) for name in row.fields}
        # By a name that says what the row holds, also what is in a file that it names, and which
        # epoch it is.
        self.given: dict[str, Row] = {}
        self.refused: list[RowFailure] = []
        ids: set[str] = set()
        for row in rows:
            try:
                self._take(row, ids)
            except InvalidInput as error:
                self.refused.append(refusal_of(row, error))
        if self.refused and (bad_rows == "stop" or not self.given):
            for file in (error for error in rows if isinstance(error, InvalidInput)):
                if file.line is None:  # all of it, such as an empty one
                    raise file
            raise mistakes_in(self.refused, of=len(rows), what=f"do not fit '{pipeline.name}'")
        fitting = [f"{name} {row.id}" for name, row in self.given.items()]
        table = digest(orjson.dumps(sorted([*fitting, *map(_name_of, self.refused)])))
        # For the manifest. Sorted: a table in another order is the same one.
        self.identity = {"shard": str(shard) if shard else None, "table": table}
        if shard is not None:
            self.given = {name: row for name, row in self.given.items() if shard.holds(name)}
            self.refused = [row for row in self.refused if shard.holds(_name_of(row))]

    def inputs(self, name: str) -> dict[str, object]:
        """What the pipeline takes of a row."""
        return self._inputs(self.given[name])

    def draft(self, name: str, output: object) -> Draft:
        """What a rubric scores of a row; the task is the input `task`, or all inputs."""
        row, inputs = self.given[name], self.inputs(name)
        values = [inputs["task"]] if "task" in inputs else [*inputs.values()]
        named = (f"{key}: {text_of(value)}" for key, value in inputs.items())
        target = target_of(row)
        return Draft(
            text=text_of(output),
            task=text_of(values[0]) if len(values) == 1 else "\n\n".join(named),
            sources=row.sources,
            targets=texts_of(listed(target)) if target is not None else (),
        )

    def reference(self, name: str) -> str:
        """Digest of what an output is scored by, beside the row's inputs."""
        row = self.given[name]
        return digest(orjson.dumps([row.fields.get("target"), row.sources], default=str))[:16]

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
        bind_inputs(self.pipeline, values)
        self._check(row, self._columns)
        held = sorted((name, digest_of_value(value)) for name, value in values.items())
        if any(digest == NO_DIGEST for _, digest in held):
            held = [("", row.place)]  # such values cannot be compared
        name = digest(orjson.dumps([row.fields.get("id"), held], default=str))
        count = 1
        while name in self.given:  # a row without an id may stand there twice
            count += 1
            name = f"{name.partition('#')[0]}#{count}"
        for epoch in range(1, self._epochs + 1):
            self.given[name if epoch == 1 else f"{name}{_EPOCH}{epoch}"] = row

    def _inputs(self, row: Row) -> dict[str, object]:
        """The columns that are inputs, and what is set for all, with the row's columns in it."""
        fields = {name: value for name, value in row.fields.items() if name in self._names}
        if not fields and not any(map(self._has_column, self._every.values())):
            # With defaults for all inputs, every row would be the same.
            if row.line is None:
                raise row.refusal(
                    f"it is one text, and no input takes it: say --set INPUT=@{{path}}; {_TABLE}, "
                    "or - for JSON Lines from a pipe",
                    code="batch.no-table",
                )
            raise row.refusal(
                f"none of its columns ({', '.join(row.fields) or 'all empty'}) is an input "
                f"({', '.join(sorted(self._names))}); say --columns INPUT=COLUMN, or write "
                "{COLUMN} into what is set for every row",
                code="batch.no-input",
            )
        return fields | {
            name: self._filled(row, name, value) for name, value in self._every.items()
        }

    def _has_column(self, template: object) -> bool:
        text = template if isinstance(template, str) else ""
        return any(map(self._is_column, _BRACES.finditer(text)))

    def _is_column(self, match: re.Match[str]) -> bool:
        """Whether braces stand for a column, perhaps a misspelt one; others are text, as JSON."""
        doubled, column = match.groups()
        if doubled or column in self._columns:
            return (doubled or column) in self._columns
        is_name = match[0] == f"{{{column}}}" and _NAME.fullmatch(column) is not None
        return is_name or bool(get_close_matches(column, self._columns, cutoff=0.8))

    def _filled(self, row: Row, name: str, value: object) -> object:
        """An input of every row, with this row's columns in it."""
        if not isinstance(value, str):
            return value

        def cell(match: re.Match[str]) -> str:
            doubled, column = match[1], match[2]
            if doubled in row.fields:
                problem = f"{match[0]} stands for no column; write {{{doubled}}}"
                raise row.refusal(problem, code="batch.no-column")
            if doubled:
                return match[0][1:-1] if _NAME.fullmatch(doubled) else match[0]
            if column in row.fields:
                return str(row.fields[column])
            if not self._is_column(match):
                return match[0]
            hint = f"; it is one text, {_TABLE}" if row.line is None else ""
            if column not in self._columns and row.line is not None:
                hint = f"; {did_you_mean(column, self._columns)}"
            problem = f"it has no '{column}', which {match[0]} stands for{hint}"
            raise row.refusal(problem, code="batch.no-column")

        text = _BRACES.sub(cell, value)
        if value.startswith("@@"):
            return text[1:]
        if not value.startswith("@"):  # a row's own text names no file
            return text
        path = Path(text[1:]) if text == value else row.beside(text[1:])
        return read_text(f"input '{name}'", path)


def _epochs_apart(rows: Sequence[Row | InvalidInput]) -> list[Row | InvalidInput]:
    """Gives rows of one id that are epochs of it ids of their own, and the old one as group.

    So are outputs of evaluations, and logs of Inspect AI.
    """
    ids = Counter(row.id for row in rows if isinstance(row, Row) and "epoch" in row.fields)
    apart: list[Row | InvalidInput] = []
    for row in rows:
        if isinstance(row, Row) and ids[row.id] > 1:
            id_ = f"{row.id} epoch {row.fields.get('epoch')}"
            row = replace(row, fields={"group": row.id, **row.fields, "id": id_})  # noqa: PLW2901
        apart.append(row)
    return apart


def _name_of(refused: RowFailure) -> str:
    return f"{refused.id} {refused.place}"


def target_of(row: Row) -> Any:  # noqa: ANN401 - a value of any table
    """What a right output says: a value, or a list of them, which a table may have as JSON.

    None if it is empty.
    """
    target = row.fields.get("target")
    several = [part for part in listed(target) if part is not None and str(part).strip()]
    if not several:
        return None
    return target if several == [target] else several


def epoch_of(name: str) -> int:
    """Which epoch a name is of, from 1."""
    return int(name.partition(_EPOCH)[2] or 1)


def mistakes_in(refused: Sequence[RowFailure], *, of: int, what: str) -> InvalidInput:
    """All rows that are refused, each reason once, with its first places."""
    places: dict[str, list[str]] = {}
    for error in refused:
        places.setdefault(error.reason, []).append(error.place)
    lines = []
    for reason, where in places.items():
        omitted = len(where) - _PLACES
        listed = ", ".join(where[:_PLACES]) + (f" and {omitted} more" if omitted > 0 else "")
        lines.append(f"  {listed}: {reason}")
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"  … and {len(lines) - _SHOWN} more"]
    return InvalidInput(
        f"{len(refused)} of {of} rows {what}, so nothing was run; mend them, or let them fail "
        'alone (--bad-rows skip, bad_rows="skip"):\n' + "\n".join(lines),
        code="batch.rows-mistaken",
    )


@dataclass(frozen=True, kw_only=True)
class DraftRows(NoCode):
    """Drafts that are scored as they are, by their ids: the rows of a batch without a pipeline."""

    drafts: Mapping[str, Draft]
    rows: Mapping[str, Row]
    labels: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What people said of them, by the columns of `wide`."""
    refused: Sequence[RowFailure] = ()
    pipeline: ClassVar[None] = None
    identity: ClassVar[Mapping[str, str | None]] = {}

    @cached_property
    def given(self) -> Mapping[str, Row]:
        """See `BatchRows`."""
        return {
            digest(orjson.dumps([id_, draft.sha256])): self.rows[id_]
            for id_, draft in self.drafts.items()
        }

    def draft(self, name: str, _: object = None) -> Draft:
        """What a rubric scores."""
        return self.drafts[self.given[name].id]


def text_of(value: object) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _is_missing(value: object) -> bool:
    """Whether a value stands for none, as pandas writes these: NaN, NA, NaT."""
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, str):
        return not value
    return value is None or type(value).__name__ in {"NAType", "NaTType"}


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any library
    """A number of NumPy as one of Python."""
    return value.item() if getattr(value, "shape", None) == () else value


def _rows_of(
    inputs: Inputs, columns: Mapping[str, str], whole: frozenset[str]
) -> Iterator[Row | InvalidInput]:
    """The rows of files and folders, or those that a program has."""
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    for number, source in enumerate(inputs, start=1):
        if isinstance(source, Mapping):
            ours = {theirs: mine for mine, theirs in columns.items()}
            renamed = ((ours.get(name, name), value) for name, value in source.items())
            # None is a value of an input; in a column about the row, such as `id`, it is none.
            fields = {
                name: value if name in whole else _plain(value)
                for name, value in renamed
                if name in whole or not _is_missing(value)
            }
            row = Row(fields=fields, path=Path("inputs"), line=number)
            try:
                orjson.dumps(fields, default=str)
            except TypeError as error:
                yield row.refusal(f"it has no JSON ({error})", code="batch.row-not-json")
            else:
                yield row
        elif isinstance(source, str | Path):
            yield from read_rows(
                [str(source)], columns=columns, whole=whole | {"target", "sources"}
            )
        else:
            raise InvalidInput(
                f"a row is {type(source).__name__}; give mappings of inputs, or names of files",
                code="batch.row-not-mapping",
            )
