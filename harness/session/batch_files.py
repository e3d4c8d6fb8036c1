"""The files of a batch, made of its journal: outputs row by row, failures with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import orjson

from harness.errors import HarnessError
from harness.rows import Row, RowFile, write_rows
from harness.session.batch_rows import RowFailure, failure_of
from harness.trace import NodeOutput, Record, RunStarted, SpanEnded, SpanStarted
from harness.trace.node_records import attempt_status
from harness.trace.secrets import Redactor

ROWS = "rows"
"""The node that calls the pipeline."""
SCORES = "scores"

Made = dict[str, Any]
"""What a row's nodes gave, by node, as JSON has it."""


class BatchFiles:
    """Writes outputs and failures as rows end; an observer of the run.

    Args:
        path: Of the outputs; None for no files.
        row_of: The row of a number.
        dimensions: Of the rubric that scores the outputs; None without one.
        inputs: The columns of the rows.
        redactor: Cleans what is written.
        begun: Told the run's id.

    Attributes:
        lines: What was written of each row, by its number.
        failures: Of this part, and rows that were refused.
        error: Why a file could not be written.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        row_of: Callable[[int], Row],
        dimensions: Sequence[str] | None,
        inputs: Sequence[str],
        redactor: Redactor,
        begun: Callable[[str], None],
    ) -> None:
        self._path = path
        self._row_of = row_of
        self._last = ROWS if dimensions is None else SCORES
        scores = [] if dimensions is None else ["passed", "composite"]
        scores += [f"score.{name}" for name in dimensions or ()]
        own = [f"inputs.{name}" for name in inputs]
        self._columns = ["row", "id", "file", "line", *own, "output", *scores]
        self._redactor = redactor
        self._begun = begun
        self._stack = ExitStack()
        self._file: RowFile | None = None
        self._failed: RowFile | None = None
        self._made: dict[int, Made] = {}
        self._open: dict[int, int] = {}
        self.lines: dict[int, dict[str, Any]] = {}
        self.failures: list[RowFailure] = []
        self.error: HarnessError | None = None
        self.failures_path = path and path.with_name(f"{path.name}.failures.jsonl")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._path is not None and self._path.suffix.lower() == ".parquet":
            # It cannot grow by a row.
            write_rows(self._path, (self._cells(line) for line in self.lines.values()))

    def begin(self, kept: Mapping[int, Made], refused: Sequence[RowFailure]) -> None:
        """Makes the files what the journal says.

        Args:
            kept: What earlier parts made, by row.
            refused: Rows that are not run.
        """
        if self._path is not None and self._path.suffix.lower() != ".parquet":
            partial = self._path.with_name(f".{self._path.stem}.partial{self._path.suffix}")
            partial.unlink(missing_ok=True)
            is_csv = self._path.suffix.lower() == ".csv"
            columns = self._columns if is_csv else ["row", "id", "output"]
            self._file = self._stack.enter_context(RowFile(partial, columns=columns))
            self._is_csv = is_csv
        for number, made in kept.items():
            self._note(number, made)
        if self._file is not None and self._path is not None:
            partial.replace(self._path)
        if self.failures_path is not None:
            self.failures_path.unlink(missing_ok=True)
        for failure in refused:
            self.fail(failure)

    def observe(self, record: Record) -> None:
        """Takes one record of the run, from the thread that writes the journal."""
        try:
            self._take(record)
        except HarnessError as error:
            self.error = self.error or error

    def _take(self, record: Record) -> None:
        match record:
            case SpanStarted(
                name="node", attributes={"node": "rows" | "scores", "item": int(item)}
            ):
                self._open[record.id] = item
            case SpanEnded() if record.id in self._open:
                number = self._open.pop(record.id)
                if attempt_status(record) == "failed":
                    reason = (record.error or "").removeprefix("NodeFailed: ")
                    self.fail(failure_of(self._row_of(number), reason, number))
            case NodeOutput(node="rows" | "scores" as node, item=int(item)):
                value = orjson.loads(orjson.dumps(record.value))
                before = {} if node == ROWS else self._made.pop(item)
                self._note(item, {**before, node: value})
            case RunStarted():
                self._begun(record.run_id)

    def _note(self, number: int, made: Made) -> None:
        """Writes a row's line, once all of it is there."""
        if self._last not in made:
            self._made[number] = made
            return
        row = self._row_of(number)
        line = {
            "row": number,
            "id": row.id,
            "file": str(row.path),
            "line": row.line,
            "inputs": dict(row.fields),
            "output": made[ROWS],
        }
        if SCORES in made:
            line["score"] = made[SCORES]
        self.lines[number] = line
        if self._file is not None:
            self._file.append(self._cleaned(self._cells(line) if self._is_csv else line))

    def fail(self, failure: RowFailure) -> None:
        """Writes down why a row has no output."""
        self.failures.append(failure)
        if self.failures_path is not None:
            if self._failed is None:
                file = RowFile(self.failures_path, columns=["id", "reason"])
                self._failed = self._stack.enter_context(file)
            self._failed.append(self._cleaned(asdict(failure)))

    def _cells(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """A line as a table has it."""
        score = line.get("score", {})
        cells = {
            **{name: line[name] for name in ("row", "id", "file", "line")},
            **{f"inputs.{name}": _text(one) for name, one in line["inputs"].items()},
            "output": _text(line["output"]),
            **{name: score.get(name) for name in ("passed", "composite")},
            **{f"score.{name}": one for name, one in score.get("scores", {}).items()},
        }
        return {name: cells.get(name) for name in self._columns}

    def _cleaned(self, row: Mapping[str, Any]) -> dict[str, Any]:
        data = orjson.dumps(row, default=str)
        read = orjson.loads(data)
        if self._redactor.finds_any(data):
            read = self._redactor.clean_values(read)
        return cast("dict[str, Any]", read)


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
