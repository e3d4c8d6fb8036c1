"""The files of a batch, made of its journal: outputs row by row, failures with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import orjson

from harness.errors import HarnessError, NodeFailed
from harness.rows import Row, RowFile, write_rows
from harness.session.batch_rows import (
    BatchRows,
    DraftRows,
    RowFailure,
    epoch_of,
    failure_of,
    text_of,
)
from harness.trace import (
    Instant,
    NodeOutput,
    Record,
    RunStarted,
    SpanEnded,
    SpanStarted,
    describe,
    events,
)
from harness.trace.node_records import attempt_status
from harness.trace.records import error_class
from harness.trace.secrets import Redactor

ROWS = "rows"
"""The node that calls the pipeline."""
SCORES = "scores"
"""The node by which a rubric scores them."""
USES = "uses"
_DIGEST = "digest"

Made = dict[str, Any]
"""What a row's nodes gave, by node, as JSON has it, None of a scorer that failed; and what their
calls used."""


def state_of(output: Path) -> Path:
    """The file that names the run that an output is of."""
    return output.with_name(f"{output.name}.batch")


def manifest_of(output: Path) -> dict[str, Any]:
    """What is noted beside an output; empty if that is missing or torn."""
    try:
        manifest = orjson.loads(state_of(output).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def failures_of(output: Path) -> Path:
    """The file of the rows that have no output."""
    return output.with_name(f"{output.name}.failures.jsonl")


class BatchFiles:
    """Writes outputs and failures as rows end; an observer of the run.

    Another class of it may write other `columns` and `line`s.

    Args:
        path: Of the outputs; None for no files.
        rows: All of them.
        order: Their names, by their numbers in the run.
        codes: Of the errors of rows that failed, by the node of the batch and name; grows.
        nodes: Those whose outputs a line is made of.
        redactor: Cleans what is written.
        begun: Told the run's id.

    Attributes:
        lines: What was written of each row, by its number.
        outdated: The same of rows whose output no longer holds, until they have another.
        failures: Of this part, and rows that were refused.
        error: Why a file could not be written.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        rows: BatchRows | DraftRows,
        order: Sequence[str],
        codes: Mapping[tuple[str, str], str],
        nodes: Sequence[str],
        redactor: Redactor,
        begun: Callable[[str], None],
    ) -> None:
        self._path = path
        self._rows = rows
        self._order = order
        self._codes = codes
        self._nodes = frozenset(nodes)
        inputs = dict.fromkeys(name for row in rows.given.values() for name in row.fields)
        columns = [f"inputs.{name}" for name in inputs]
        self.columns = [
            "row",
            "id",
            "file",
            "line",
            *columns,
            "output",
            "models",
            "outdated",
        ]
        self._redactor = redactor
        self._begun = begun
        self._stack = ExitStack()
        self._is_csv = path is not None and path.suffix.lower() == ".csv"
        self._file: RowFile | None = None
        self._failed: RowFile | None = None
        self._made: dict[int, Made] = {}
        self._open: dict[int, tuple[str, int]] = {}
        self.lines: dict[int, dict[str, Any]] = {}
        self.outdated: dict[int, dict[str, Any]] = {}
        self._is_replaced = False
        self.failures: list[RowFailure] = []
        self.error: HarnessError | None = None
        self.failures_path = path and failures_of(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_replaced and self._file is not None:
            self._write_all()
        self._stack.close()
        if self._path is not None and self._path.suffix.lower() == ".parquet":
            # It cannot grow by a row.
            write_rows(self._path, map(self.cells, self._all_lines()))

    def begin(
        self,
        before: Iterable[tuple[int, Made, str | None]],
        refused: Sequence[RowFailure],
        reused: Callable[[str, int, str], object],
    ) -> None:
        """Makes the files what the journal says.

        Args:
            before: What earlier parts made of rows; with a reason, if it no longer holds. Then it
                stays until it is replaced, so that a batch that is interrupted has lost nothing.
            refused: Rows that are not run.
            reused: What a node gave earlier for a row, by its name, the row's number and the digest
                of the row's output.
        """
        self._reused = reused
        for number, row_state, reason in before:
            if reason is None:
                self._note(number, row_state)
            if number not in self.lines and (ROWS in row_state or self._nodes <= row_state.keys()):
                # A scorer that failed, or is new, has given it nothing yet.
                line = self.line(number, self._row(number), dict.fromkeys(self._nodes) | row_state)
                why = reason or "not all scorers have scored it yet"
                self.outdated.setdefault(number, line | {"outdated": why})
        if self._path is not None and self._path.suffix.lower() != ".parquet":
            self._write_all()
        if self.failures_path is not None:
            self.failures_path.unlink(missing_ok=True)
        for failure in refused:
            self.fail(failure)

    def _all_lines(self) -> list[dict[str, Any]]:
        lines = self.outdated | self.lines
        return [lines[number] for number in sorted(lines)]

    def _write_all(self) -> None:
        """Replaces the file by one with all lines, each row once; further ones are added to it."""
        assert self._path is not None
        partial = self._path.with_name(f".{self._path.stem}.partial{self._path.suffix}")
        partial.unlink(missing_ok=True)
        file = RowFile(partial, columns=self.columns if self._is_csv else ["id"])
        self._file = self._stack.enter_context(file)
        for line in self._all_lines():
            self._append(line)
        partial.replace(self._path)

    def observe(self, record: Record) -> None:
        """Takes one record of the run, from the thread that writes the journal."""
        try:
            self._take(record)
        except HarnessError as error:
            self.error = self.error or error
        except Exception as error:  # noqa: BLE001 - a line must not be lost without a word
            failure = HarnessError(f"an output cannot be written: {describe(error)}")
            self.error = self.error or failure

    def _take(self, record: Record) -> None:
        match record:
            case SpanStarted():
                attempt = events.NodeAttempt.of(record)
                if attempt and attempt.node in self._nodes and attempt.item is not None:
                    self._open[record.id] = attempt.node, attempt.item
            case SpanEnded() if record.id in self._open:
                attempt_node, number = self._open.pop(record.id)
                if attempt_status(record) == "failed":
                    kind, reason = error_class(record.error), record.error or ""
                    if kind == NodeFailed.__name__:
                        reason = reason[len(f"{kind}: ") :]
                    code = self._codes.get((attempt_node, self._order[number]), NodeFailed.code)
                    self.fail_row(number, reason, code=code)
                    if attempt_node != ROWS and ROWS in self._made.get(number, {}):
                        # Its output has no score of this one, and those of the others.
                        self._note(number, {**self._made.pop(number), attempt_node: None})
            case NodeOutput(node=node, item=int(item)) if node in self._nodes:
                value = orjson.loads(orjson.dumps(record.value))
                before = {} if node == ROWS else self._made.pop(item, {})
                uses = {**before.get(USES, {}), **(record.uses or {})}
                digests = {_DIGEST: record.digest} if node == ROWS else {}
                self._note(item, {**before, **digests, node: value, USES: uses})
            case Instant():
                # The output of a row was made again, and came to the same as before.
                reuse = events.Reuse.of(record)
                if reuse and reuse.item is not None and reuse.node in self._nodes - {ROWS}:
                    made = self._made.get(reuse.item, {})
                    if made.get(_DIGEST):
                        value = self._reused(reuse.node, reuse.item, str(made[_DIGEST]))
                        self._note(reuse.item, self._made.pop(reuse.item) | {reuse.node: value})
            case RunStarted():
                self._begun(record.run_id)

    def _note(self, number: int, row_state: Made) -> None:
        """Writes a row's line, once all of it is there."""
        if not self._nodes <= row_state.keys():
            self._made[number] = row_state
            return
        line = self.lines[number] = self.line(number, self._row(number), row_state)
        self._is_replaced |= self.outdated.pop(number, None) is not None
        if self._file is not None:
            self._append(line)

    def line(self, number: int, row: Row, row_state: Made) -> dict[str, Any]:
        """What is written of a row, as JSON has it."""
        return {
            "row": number,
            "id": row.id,
            "file": str(row.path),
            "line": row.line,
            "inputs": row.fields,  # packed, until they are written
            "output": row_state[ROWS],
            "models": [
                {"role": role, "endpoint": endpoint, "model": model}
                for name, model in row_state.get(USES, {}).items()
                for kind, role, endpoint in [(*name.split(":", 2), "", "")[:3]]
                if kind == "reply"
            ],
        }

    def cells(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """A line as a table has it."""
        cells = {
            **{name: line[name] for name in ("row", "id", "file", "line")},
            **{f"inputs.{name}": text_of(value) for name, value in line["inputs"].items()},
            "output": text_of(line["output"]),
            "models": text_of(line["models"]),
            "outdated": line.get("outdated", ""),  # of one type in Parquet
        }
        return {name: cells.get(name) for name in self.columns}

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.append(self._cleaned(self.cells(line) if self._is_csv else line))

    def fail_row(self, number: int, reason: str, *, code: str) -> None:
        """Writes down why a row that was begun has no output."""
        self.fail(
            failure_of(
                self._row(number),
                reason,
                code=code,
                number=number,
                epoch=epoch_of(self._order[number]),
            )
        )

    def _row(self, number: int) -> Row:
        return self._rows.given[self._order[number]]

    def fail(self, failure: RowFailure) -> None:
        """Writes down why a row has no output."""
        self.failures.append(failure)
        if self.failures_path is not None:
            if self._failed is None:
                file = RowFile(self.failures_path, columns=["id", "reason"])
                self._failed = self._stack.enter_context(file)
            self._failed.append(self._cleaned(asdict(failure)))

    def _cleaned(self, row: Mapping[str, Any]) -> dict[str, Any]:
        data = orjson.dumps(row, default=lambda v: dict(v) if isinstance(v, Mapping) else str(v))
        read = orjson.loads(data)
        if self._redactor.finds_any(data):
            read = self._redactor.clean_values(read)
        return cast("dict[str, Any]", read)
