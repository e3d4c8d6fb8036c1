"""The rows of a batch: the inputs that they give the pipeline, and why rows fail."""

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
from harness.log import log_warning
from harness.rows import Row, listed, read_rows
from harness.rubric import Draft
from harness.rubric.checks.target import targets_for
from harness.text.value_text import text_of
from harness.trace.calls import grouped
from harness.trace.records import node_of_all

Inputs = str | Path | Iterable[str | Path] | Iterable[Mapping[str, Any]]

BadRows = Literal["stop", "skip"]
"""Whether rows that do not fit stop a batch before anything runs, or fail alone."""

_LEAST_FAILURES = 20  # with fewer, their share of the rows says nothing yet
# The most reasons that a message lists, and the most places for each of them.
_MAX_REASONS = 10
_MAX_PLACES = 3
_SHOWN_CHARS = 30  # of a template, in a warning
# In a row's name, stands before the number of its epoch. The first epoch has no number.
_EPOCH = "~"
# The first group is the text in double braces, which escape: `{{a}}` is the text `{a}`. The second
# is the text in single braces, which may be the name of a column.
_BRACES = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}|\{\s*([^{}]+?)\s*\}")
_TABLE = "a table is a .csv, .jsonl (one object a line), .json (a list) or .parquet file"
# A text in braces that looks like the name of a column, even if there is no such column.
_COLUMN_NAME = re.compile(r"[^\"'\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """A row that has no output, or an output that lacks a score."""

    id: str
    file: str
    line: int | None
    row: int | None
    """Its number in the run, 17 for `rows[17]`. None if it was refused before the run."""
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
    """The failure of a row."""
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
    """The failure of a row that is not run. `row` is an error if the row could not be read."""
    if isinstance(row, InvalidInput):
        row = Row(fields={}, path=error.path or Path(), line=error.line)
    return failure_of(row, error.statement, code=error.code)


class NoCode:
    """State that the nodes' functions close over, and that their fingerprints leave out."""

    def code_parts(self) -> tuple[object, ...]:
        """See `fingerprint`."""
        # A row's output depends neither on other rows nor on their failures.
        return ()


class RowsEnded(NoCode):
    """Counts the rows that end, and ends the batch if too many of them fail for one reason.

    `allowed` limits the failures for one reason. An `int` is a count. A `float` is a share of the
    rows that have ended, and holds from 20 failures on. None allows any number.
    """

    def __init__(self, allowed: float | None) -> None:
        self._allowed = allowed
        self._ended_rows: set[str] = set()
        # (node of the batch or the pipeline, the error's code) → names of rows that failed.
        self._rows_by_reason = defaultdict[tuple[str, str], set[str]](set)
        self._end: RunLimitReached | None = None  # raised for each row once too many failed
        self.codes: dict[tuple[str, str], str] = {}  # (node of the batch, row) → error code

    def note_kept(self, rows: Iterable[str]) -> None:
        """Counts rows that need not be run, by their names."""
        # Else a retry, which runs only the rows that failed, would end after the first of them.
        self._ended_rows.update(rows)

    @contextmanager
    def counted(self, row: str, of: str) -> Iterator[None]:
        """Counts the row at the end of the block, in which the batch's node `of` handles it.

        Raises `RunLimitReached` once too many rows have failed.
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
            self._count_failure(row, of, failure)
            raise failure from error
        except Exception as error:
            self._count_failure(row, of, error)
            raise
        finally:
            self._ended_rows.add(row)

    def _count_failure(self, row: str, of: str, error: Exception) -> None:
        self._ended_rows.add(row)
        cause: BaseException = error
        node = of
        # Down to the innermost node that failed, and its error.
        while isinstance(cause, NodeFailed) and cause.__cause__ is not None:
            node = node_of_all(cause.node)
            cause = cause.__cause__
        code = cause.code if isinstance(cause, HarnessError) else type(cause).__name__
        self.codes[of, row] = code
        rows = self._rows_by_reason[node, code]
        rows.add(row)
        failed, ended = len(rows), len(self._ended_rows)
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
    return failed >= _LEAST_FAILURES and failed > allowed * ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a table, such as 2/5. A row's name decides its shard, not its place."""

    number: int  # from 1
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, name: str) -> bool:
        """Whether the row of this name is in this shard."""
        return crc32(name.encode()) % self.of + 1 == self.number

    def path(self, output: Path) -> Path:
        """The shard's own output: `out.2-of-5.jsonl` if the batch's is `out.jsonl`."""
        return output.with_name(f"{output.stem}.{self.number}-of-{self.of}{output.suffix}")


class BatchRows(NoCode):
    """Reads a table, and checks which rows fit a pipeline; see `Pipeline.batch`.

    Only the rows of `shard` are taken. `check` raises `InvalidInput` for a row that does not fit
    for a further reason; it gets the row and all columns of the table. Raises `InvalidInput` if a
    row does not fit and that stops the batch, or if no row fits.
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
        self.epochs = epochs
        self._check = check
        takes = graph_inputs(pipeline)
        self._names = frozenset(takes)
        self._needed = {name: p.node.name for name, p in takes.items() if not p.has_default}
        self._every = every or {}
        if unknown := sorted(self._every.keys() - self._names):
            raise InvalidInput(
                f"'{unknown[0]}' is not an input of pipeline '{pipeline.name}'; "
                f"{did_you_mean(unknown[0], self._names)}",
                code="pipeline.unknown-input",
            )

        # 1. The rows of the table, or a sample of them.
        texts = [text for text in self._every.values() if isinstance(text, str)]
        named = {match[2] for text in texts for match in _BRACES.finditer(text) if match[2]}
        rows = [*_rows_of(inputs, columns or {}, self._names, named)]
        if not rows:
            raise InvalidInput("there is no row below the names of the columns", code="row.no-rows")
        if sample is not None:
            rows = _sample(rows, sample, seed)
        if "epoch" not in self._names:
            rows = _with_ids_by_epoch(rows)
        self._columns = {name for row in rows if isinstance(row, Row) for name in row.fields}

        # 2. Those that fit, and those that do not.
        # Row name → row that fits. A name is a digest of the row's inputs, with the contents of
        # files that they name, and ends with the epoch.
        self.given: dict[str, Row] = {}
        self._times = Counter[str]()  # how often each row came so far
        self.refused: list[RowFailure] = []
        self._add_all(rows, bad_rows)
        for name, value in self._every.items():
            if isinstance(value, str):
                self._warn_of_doubled_braces(name, value)

        # 3. The identity of the table, and the rows of the shard.
        names = [f"{name} {row.id}" for name, row in self.given.items()]
        names += map(_name_of, self.refused)
        # For the manifest. Sorted, since the same table in another order has the same shards.
        table = digest(orjson.dumps(sorted(names)))
        self.identity = {"shard": str(shard) if shard else None, "table": table}
        if shard is not None:
            self.given = {name: row for name, row in self.given.items() if shard.holds(name)}
            self.refused = [row for row in self.refused if shard.holds(_name_of(row))]

    def inputs(self, name: str) -> dict[str, object]:
        """The pipeline's inputs for the row of this name."""
        return self._inputs(self.given[name])

    def draft(self, name: str, output: object) -> Draft:
        """A row's output as a draft for a rubric; its task is the input `task`, or all inputs."""
        row, inputs = self.given[name], self.inputs(name)
        values = [inputs["task"]] if "task" in inputs else [*inputs.values()]
        if len(values) == 1:
            task = text_of(values[0])
        else:
            task = "\n\n".join(f"{key}: {text_of(value)}" for key, value in inputs.items())
        return Draft(
            text=text_of(output),
            task=task,
            sources=row.sources,
            targets=targets_for(output, target_of(row)),
        )

    def reference(self, name: str) -> str:
        """A digest of the row's target and sources, on which the scores of its output depend."""
        row = self.given[name]
        return digest(orjson.dumps([row.fields.get("target"), row.sources], default=str))[:16]

    def _add_all(self, rows: Sequence[Row | InvalidInput], bad_rows: BadRows) -> None:
        """Adds each row to `given` or to `refused`; raises `InvalidInput` if that stops a batch."""
        ids: set[str] = set()
        for row in rows:
            try:
                self._add(row, ids)
            except InvalidInput as error:
                self.refused.append(refusal_of(row, error))
        if self.refused and (bad_rows == "stop" or not self.given):
            for row in rows:
                # Without a line, the whole file could not be read, such as an empty one.
                if isinstance(row, InvalidInput) and row.line is None:
                    raise row
            of_pipeline = f"do not fit '{self.pipeline.name}'"
            raise mistakes_in(self.refused, of=len(rows), what=of_pipeline)

    def _add(self, row: Row | InvalidInput, ids: set[str]) -> None:
        """Adds a row to `given`, and its id to `ids`; raises `InvalidInput` if it does not fit."""
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
        content = sorted((name, digest_of_value(value)) for name, value in values.items())
        if any(value_digest == NO_DIGEST for _, value_digest in content):
            content = [("", row.place)]  # some value cannot be compared, so its place must do
        row_name = digest(orjson.dumps([row.fields.get("id"), content], default=str))
        self._times[row_name] += 1
        if self._times[row_name] > 1:  # rows without an id may be equal
            row_name += f"#{self._times[row_name]}"
        for epoch in range(1, self.epochs + 1):
            self.given[row_name if epoch == 1 else f"{row_name}{_EPOCH}{epoch}"] = row

    def _inputs(self, row: Row) -> dict[str, object]:
        """The columns of a row that are inputs, and the inputs of every row filled with them."""
        fields = {name: value for name, value in row.fields.items() if name in self._names}
        if not fields and not any(map(self._has_column, self._every.values())):
            # All rows would be the same, if the inputs have defaults. A row is without a line if
            # it is a whole text file.
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
        filled = {name: self._filled(row, name, value) for name, value in self._every.items()}
        return fields | filled

    def _warn_of_doubled_braces(self, name: str, template: str) -> None:
        """Warns of the first double braces, which elsewhere mean a column or a single brace."""
        opening = template.find("{{")
        if opening < 0:
            return
        match = _BRACES.match(template, opening)
        outcome = "both braces are sent; write one"
        if match is None or match[1] is None:
            shown = template[opening : opening + _SHOWN_CHARS].partition("\n")[0] + "…"
        else:
            shown = match[0]
            if (sent := _undoubled(match)) != shown:
                outcome = f"{sent} is sent; {did_you_mean(match[1], self._columns)}"
        line = template.count("\n", 0, opening) + 1
        more = f" (and {count - 1} more)" if (count := template.count("{{")) > 1 else ""
        log_warning(
            f"line {line} of '{name}' has {shown}{more}, which stands for no column: {outcome}",
            code="batch.braces-doubled",
        )

    def _has_column(self, template: object) -> bool:
        text = template if isinstance(template, str) else ""
        return any(map(self._means_column, _BRACES.finditer(text)))

    def _means_column(self, match: re.Match[str]) -> bool:
        """Whether a text in braces means a column, perhaps a misspelt one; JSON has braces too."""
        doubled, column = match.groups()
        if doubled or column in self._columns:  # a column in double braces is refused later
            return (doubled or column) in self._columns
        has_spaces = match[0] != f"{{{column}}}"
        is_name = not has_spaces and _COLUMN_NAME.fullmatch(column) is not None
        return is_name or bool(get_close_matches(column, self._columns, cutoff=0.8))

    def _filled(self, row: Row, name: str, value: object) -> object:
        """An input of every row, with this row's columns in place of `{column}`."""
        if not isinstance(value, str):
            return value

        def cell(match: re.Match[str]) -> str:
            doubled, column = match[1], match[2]
            if doubled in self._columns:
                problem = f"{match[0]} stands for no column; write {{{doubled}}}"
                raise row.refusal(problem, code="batch.no-column")
            if doubled:
                return _undoubled(match)
            if column in row.fields:
                value = row.fields[column]
                # As in the table: JSON has no True, and other quotation marks.
                is_json = isinstance(value, dict | list | tuple | bool)
                return text_of(value) if is_json else str(value)
            if not self._means_column(match):
                return match[0]
            hint = f"; it is one text, {_TABLE}" if row.line is None else ""
            if column not in self._columns and row.line is not None:
                hint = f"; {did_you_mean(column, self._columns)}"
            problem = f"it has no '{column}', which {match[0]} stands for{hint}"
            raise row.refusal(problem, code="batch.no-column")

        text = _BRACES.sub(cell, value)
        if value.startswith("@@"):
            return text[1:]
        # `@` names a file, and `@@` is a plain `@`. Not in `text`: a row's text names no file.
        if not value.startswith("@"):
            return text
        # A path with a column in it is relative to the table, else to the working directory.
        path = Path(text[1:]) if text == value else row.beside(text[1:])
        return read_text(f"input '{name}'", path)


def _undoubled(match: re.Match[str]) -> str:
    """What a text in double braces, which is no column, stands for: a JSON text for itself."""
    return match[0][1:-1] if _COLUMN_NAME.fullmatch(match[1]) else match[0]


def _sample(rows: Sequence[Row | InvalidInput], size: int, seed: int) -> list[Row | InvalidInput]:
    """Draws rows, in the order of the table; a larger sample by the same seed holds a smaller."""
    shuffled = random.Random(seed).sample(range(len(rows)), len(rows))  # noqa: S311
    return [rows[n] for n in sorted(shuffled[:size])]


def _with_ids_by_epoch(rows: Sequence[Row | InvalidInput]) -> list[Row | InvalidInput]:
    """Makes ids unique that several epochs share; such rows get the old id as their `group`.

    Outputs of evaluations and logs of Inspect AI have such rows.
    """
    counts = Counter(row.id for row in rows if isinstance(row, Row) and "epoch" in row.fields)
    result: list[Row | InvalidInput] = []
    for row in rows:
        if isinstance(row, Row) and counts[row.id] > 1:
            id_ = f"{row.id} epoch {row.fields.get('epoch')}"
            row = replace(row, fields={"group": row.id, **row.fields, "id": id_})  # noqa: PLW2901
        result.append(row)
    return result


def _name_of(refused: RowFailure) -> str:
    return f"{refused.id} {refused.place}"


def target_of(row: Row) -> Any:  # noqa: ANN401 - a value of any table
    """The target, which a right output says: a value or a list of them; None if it is empty."""
    target = row.fields.get("target")
    values = [value for value in listed(target) if value is not None and str(value).strip()]
    if not values:
        return None
    return target if values == [target] else values


def epoch_of(name: str) -> int:
    """The epoch in a row's name, from 1."""
    return int(name.partition(_EPOCH)[2] or 1)


def id_of(name: str, row: Row | None) -> str:
    """The id of a row of this name, with its epoch from the second on; empty without an id."""
    if row is None or "id" not in row.fields:
        return ""
    epoch = epoch_of(name)
    return row.id if epoch == 1 else f"{row.id} epoch {epoch}"


def mistakes_in(refused: Sequence[RowFailure], *, of: int, what: str) -> InvalidInput:
    """An error, "3 of 5 rows WHAT", that lists each reason of refusals with its first places."""
    lines = []
    for reason, failures in grouped(refused, by=lambda failure: failure.reason).items():
        shown = ", ".join(failure.place for failure in failures[:_MAX_PLACES])
        omitted = len(failures) - _MAX_PLACES
        more = f" and {omitted} more" if omitted > 0 else ""
        lines.append(f"  {shown}{more}: {reason}")
    if len(lines) > _MAX_REASONS:
        lines[_MAX_REASONS:] = [f"  … and {len(lines) - _MAX_REASONS} more"]
    return InvalidInput(
        f"{len(refused)} of {of} rows {what}, so nothing was run; mend them, or let them fail "
        'alone (--bad-rows skip, bad_rows="skip"):\n' + "\n".join(lines),
        code="batch.rows-mistaken",
    )


@dataclass(frozen=True, kw_only=True)
class DraftRows(NoCode):
    """The rows of a batch without a pipeline: drafts that are scored as they are."""

    drafts: Mapping[str, Draft]  # row id → draft
    rows: Mapping[str, Row]  # row id → row
    labels: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Row id → the scores that people gave the draft, by the columns of `wide`."""
    refused: Sequence[RowFailure] = ()
    pipeline: ClassVar[None] = None
    epochs: ClassVar[int] = 1
    identity: ClassVar[Mapping[str, str | None]] = {}

    @cached_property
    def given(self) -> Mapping[str, Row]:
        """See `BatchRows`."""
        return {
            digest(orjson.dumps([id_, draft.sha256])): self.rows[id_]
            for id_, draft in self.drafts.items()
        }

    def draft(self, name: str, _: object = None) -> Draft:
        """The draft of a row."""
        return self.drafts[self.given[name].id]


def _is_missing(value: object) -> bool:
    """Whether a value means that there is none: `None`, "", and NaN, NA and NaT of pandas."""
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, str):
        return not value
    return value is None or type(value).__name__ in {"NAType", "NaTType"}


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any library
    """A number of NumPy as a number of Python; any other value as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def _rows_of(
    inputs: Inputs,
    columns: Mapping[str, str],
    input_names: frozenset[str],
    template_columns: AbstractSet[str],
) -> Iterator[Row | InvalidInput]:
    """The rows of files, folders and mappings, or an error for one that cannot be read."""
    if isinstance(inputs, Mapping):
        raise InvalidInput("this is one row; give a list of rows", code="batch.row-not-mapping")
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    for number, source in enumerate(inputs, start=1):
        if isinstance(source, Mapping):
            yield _row_of_mapping(source, number, columns, input_names)
        elif isinstance(source, str | Path):
            whole = input_names | {"target", "sources"}
            yield from read_rows(
                [str(source)], columns=columns, whole=whole, named=template_columns
            )
        else:
            raise InvalidInput(
                f"a row is {type(source).__name__}; give mappings of inputs, or names of files",
                code="batch.row-not-mapping",
            )


def _row_of_mapping(
    source: Mapping[str, object], number: int, columns: Mapping[str, str], names: frozenset[str]
) -> Row | InvalidInput:
    name_by_column = {column: name for name, column in columns.items()}
    fields = {}
    for column, value in source.items():
        name = name_by_column.get(column, column)
        # An input is passed on as it is, also None. Other columns are as in a file.
        if name in names:
            fields[name] = value
        elif not _is_missing(value):
            fields[name] = _plain(value)
    row = Row(fields=fields, path=Path("inputs"), line=number)
    try:
        orjson.dumps(fields, default=str)
    except TypeError as error:
        return row.refusal(f"it has no JSON ({error})", code="batch.row-not-json")
    return row
