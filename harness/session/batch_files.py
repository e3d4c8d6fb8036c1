"""The files of a batch: its outputs row by row, and its failures with their reasons.

`merge_shards` joins the files of a batch that was run in parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from harness.errors import HarnessError, InvalidInput, NodeFailed
from harness.files import write_whole, writing
from harness.graph.values import plain_json
from harness.rows import Row, RowFile, check_output, replace_rows, rows_saved, write_rows
from harness.rubric import Scored
from harness.session.batch_rows import (
    BatchRows,
    DraftRows,
    RowFailure,
    Shard,
    epoch_of,
    failure_of,
)
from harness.session.result import RunResult
from harness.text.value_text import text_of
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
from harness.trace.run_trace import RunLock
from harness.trace.secrets import Redactor

SCORED = TypeAdapter(Scored)
"""Reads an output of the node `scores`."""
ROWS = "rows"
"""The node that calls the pipeline."""
SCORES = "scores"
"""The node that scores the pipeline's outputs by a rubric."""
_ROW = ["row", "id", "file", "line"]
_FAILURE_COLUMNS = ["id", "reason"]
_FAILURE = TypeAdapter(RowFailure)

Line = Mapping[str, Any]
"""A row's line in the output, as JSON values."""


@dataclass(slots=True, kw_only=True)
class Made:
    """What was made of a row."""

    outputs: dict[str, Any] = field(default_factory=dict)
    """Node → its output as a JSON value, or None for a scorer that failed."""
    uses: dict[str, str] = field(default_factory=dict)
    """What the calls used: a name such as `reply:producer:qwen` → the model."""
    digest: str | None = None
    """Of the pipeline's output, if this part of the run made it."""
    passed: bool | None = None  # as `NodeOutput.passed`

    def add(self, node: str, value: object, uses: Mapping[str, str] | None = None) -> None:
        """Adds a node's output, and what its call used."""
        self.outputs[node] = value
        self.uses |= uses or {}


@dataclass(slots=True, kw_only=True)
class MadeBefore:
    """What earlier parts of the run made of a row."""

    number: int  # the row's number in the run
    valid: Made = field(default_factory=Made)  # the outputs that still hold
    last: Made = field(default_factory=Made)  # the last outputs, whether they still hold or not
    reason: str | None = None  # why some of the last outputs do not hold


def state_of(output: Path) -> Path:
    """The manifest beside an output, which names the run that made it."""
    return output.with_name(f"{output.name}.batch")


def manifest_of(output: Path) -> dict[str, Any]:
    """The content of the manifest beside an output; empty if it is missing or torn."""
    try:
        manifest = orjson.loads(state_of(output).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


@contextmanager
def only_writer(output: Path | None) -> Iterator[None]:
    """Locks the files of an output; raises `InvalidInput` if another batch is writing them."""
    if output is None:
        yield
        return
    # The lock is on a third file, since the output and its manifest are replaced meanwhile.
    path = output.with_name(f".{output.name}.lock")
    with writing(output):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    try:
        lock = RunLock(path)
    # The file is missing if its holder removed it after our `touch`.
    except (InvalidInput, FileNotFoundError) as error:
        problem = "another command is writing it"
        raise InvalidInput(problem, path=output, code="row.output-locked") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def failures_of(output: Path) -> Path:
    """The file of the failures beside an output."""
    return output.with_name(f"{output.name}.failures.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a batch."""

    run: RunResult = field(repr=False)
    """The batch as a run; its status is `failed` if a row failed."""
    rows: int
    outputs: Mapping[str, Any] = field(repr=False)
    """Row id → output as strict JSON: NaN is None, an integer beyond 64 bits a text."""
    kept: int
    """How many of the outputs earlier parts of the run made."""
    not_passed: int | None
    """How many outputs have a revise loop whose draft did not pass; None if only scored again."""
    failures: tuple[RowFailure, ...]
    output: Path | None
    failures_file: Path | None
    """None if no row failed."""

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, without the outputs."""
        return {
            "run_id": self.run.run_id,
            "status": self.run.status,
            "rows": self.rows,
            "done": len(self.outputs),
            "kept": self.kept,
            "not_passed": self.not_passed,
            "had_finished": self.run.had_finished,
            "failures": [asdict(row) for row in self.failures],
            "stopped_by": self.run.stopped_by,
            "output": self.output and str(self.output),
            "failures_file": self.failures_file and str(self.failures_file),
            "spent": asdict(self.run.spent),
            "warnings": [asdict(item) for item in self.run.warnings],
            "journal": str(self.run.files.journal),
        }


class OutputForm:
    """What a batch writes for each row, and its result; evaluations and scored drafts differ."""

    about: Mapping[str, object] = {}  # further fields of the manifest

    def __init__(self, rows: BatchRows | DraftRows) -> None:
        self.rows = rows
        self.lines: dict[int, Line] = {}  # row number in the run → line of a row that is done
        self.loops_passed: dict[int, bool | None] = {}  # row number → as `Made.passed`
        # Failures in this part of the run and of rows that were refused. When the batch ends, also
        # those of an earlier part whose rows have not ended since.
        self.failures: list[RowFailure] = []

    @property
    def in_order(self) -> list[Line]:
        """The lines, by the rows' numbers."""
        return [line for _, line in sorted(self.lines.items())]

    @property
    def columns(self) -> list[str]:
        """The columns of a table."""
        return self._base_columns

    @cached_property
    def _base_columns(self) -> list[str]:
        return [*_ROW, *_input_columns(self.rows), "output", "models", "outdated"]

    def line(self, number: int, name: str, made: Made) -> dict[str, Any]:
        """The line of the row of this number in the run and this name."""
        row = self.rows.given[name]
        models = []
        for use, model in made.uses.items():
            if use.startswith("reply:"):
                _, role, endpoint = use.split(":", 2)
                models.append({"role": role, "endpoint": endpoint, "model": model})
        return {
            "row": number,
            "id": row.id,
            "file": str(row.path),
            "line": row.line,
            "inputs": row.fields,  # stay as they are, which may be packed, until they are written
            "output": made.outputs[ROWS],
            "models": models,
        }

    def cells(self, line: Line) -> dict[str, Any]:
        """A line as the row of a table: column → cell."""
        return {
            **{name: line[name] for name in _ROW},
            **{f"inputs.{name}": text_of(value) for name, value in line["inputs"].items()},
            "output": text_of(line["output"]),
            "models": text_of(line["models"]),
            "outdated": line.get("outdated", ""),  # of one type in Parquet
        }

    def passed(self) -> Iterable[bool]:
        """Whether each judged draft passed; without drafts of which that is unknown."""
        return ()

    def figures(self) -> Mapping[str, float]:
        """Name → figure over all rows, for the list of runs; read once all rows have ended."""
        return {}

    def result(self, **fields: Any) -> BatchResult:  # noqa: ANN401
        """The batch's result, from the fields of `BatchResult`."""
        return BatchResult(**fields)


def _input_columns(rows: BatchRows | DraftRows) -> list[str]:
    names = dict.fromkeys(name for row in rows.given.values() for name in row.fields)
    return [f"inputs.{name}" for name in names]


@dataclass(kw_only=True, eq=False)
class BatchFiles:
    """Writes outputs and failures as rows end; an observer of the run."""

    path: Path | None
    form: OutputForm
    order: Sequence[str]  # row number in the run → row name
    codes: Mapping[tuple[str, str], str]
    """(node of the batch, row name) → the error's code; it grows as rows fail."""
    nodes: AbstractSet[str]
    """The nodes of the batch. A row has a line once each of them has an output for it."""
    redactor: Redactor
    begun: Callable[[str], None]  # called with the run's id when the run begins

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        ending = None if self.path is None else self.path.suffix.lower()
        self._is_json = ending == ".jsonl"
        self._is_parquet = ending == ".parquet"
        self._reused: Callable[[str, int, str], object]  # set in `begin`
        self._file: RowFile | None = None
        self._failures_file: RowFile | None = None
        # Row number → what was made of a row that still lacks outputs of some nodes.
        self._made_by_row: dict[int, Made] = {}
        self._attempt_by_span: dict[int, tuple[str, int]] = {}  # span id → node and row number
        # Row number → line of a row whose output no longer holds, until the row has a new one.
        self._outdated: dict[int, Line] = {}
        self._has_outdated_lines = False  # beside new lines of the same rows
        self._failed_before: tuple[RowFailure, ...] = ()
        self.error: HarnessError | None = None  # the first error of writing a file
        self.failures_path = self.path and failures_of(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ended = self.form.lines.keys() | {failure.row for failure in self.form.failures}
        remaining = [failure for failure in self._failed_before if failure.row not in ended]
        self.form.failures += remaining
        with self._stack, self._noting_errors():
            if self._has_outdated_lines and self._file is not None:
                self._write_all()
            if self.path is not None and self._is_parquet:
                # A Parquet file cannot grow by a row, so it is written when all rows have ended.
                write_rows(self.path, self._rows_to_write())
            if self.failures_path and (self._failed_before or self._failures_file):
                # Failures of earlier parts, and of rows that keep an output, are out of date.
                rows = [self._cleaned(asdict(failure)) for failure in self.form.failures]
                _write_failures(self.failures_path, rows)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except HarnessError as error:
            self.error = self.error or error
        except Exception as error:  # noqa: BLE001 - else a line would be lost without a message
            failure = HarnessError(f"an output cannot be written: {describe(error)}")
            self.error = self.error or failure

    def begin(
        self,
        before: Iterable[MadeBefore],
        refused: Sequence[RowFailure],
        reused: Callable[[str, int, str], object],
        *,
        is_further: bool,
    ) -> None:
        """Writes the lines and failures of earlier parts of the run, and the `refused` rows.

        `reused` returns the earlier score of a scorer's node for a row's number and the digest of
        its output.
        """
        self._reused = reused
        for row in before:
            if row.valid.outputs:
                self._add_made(row.number, row.valid)
            outputs = row.last.outputs
            is_shown = ROWS in outputs or self.nodes <= outputs.keys()
            if is_shown and row.number not in self.form.lines:
                # An output that no longer holds stays until it is replaced, so that a batch that
                # is interrupted has lost nothing. A scorer that failed, or is new, has no score.
                made = replace(row.last, outputs=dict.fromkeys(self.nodes) | outputs)
                line = self._line(row.number, made)
                line["outdated"] = row.reason or "not all scorers have scored it yet"
                self._outdated[row.number] = line
        if not self._is_parquet:
            self._write_all()
        if self.failures_path is not None:
            if is_further:
                self._failed_before = tuple(self._read_failures(self.failures_path))
            with writing(self.failures_path):
                self.failures_path.unlink(missing_ok=True)
        for failure in refused:
            self.fail(failure)
        for failure in self._failed_before:
            self._write_failure(failure)

    def _read_failures(self, path: Path) -> Iterator[RowFailure]:
        """Saved failures of rows without a line, each once, where the table has the rows now."""
        given, done = self.form.rows.given, self.form.lines
        due = {n for n, name in enumerate(self.order) if name in given and n not in done}
        saved: dict[RowFailure, None] = {}
        for line in rows_saved(path) if path.is_file() else ():
            with suppress(ValidationError):  # people may have changed the line
                saved[_FAILURE.validate_python(line)] = None
        for failure in saved:
            if failure.row in due:
                yield self._failure(failure.row, failure.reason, code=failure.code)

    def _write_all(self) -> None:
        """Replaces the file by one with all lines, one for each row, and opens it for more."""
        if self.path is not None:
            columns = ["id"] if self._is_json else self.form.columns
            file = replace_rows(self.path, self._rows_to_write(), columns=columns)
            self._file = self._stack.enter_context(file)

    def observe(self, record: Record) -> None:
        """Takes one record of the run, from the thread that writes the journal."""
        with self._noting_errors():
            self._take(record)

    def _take(self, record: Record) -> None:
        match record:
            case SpanStarted():
                attempt = events.NodeAttempt.of(record)
                if attempt and attempt.node in self.nodes and attempt.item is not None:
                    self._attempt_by_span[record.id] = attempt.node, attempt.item
            case SpanEnded() if record.id in self._attempt_by_span:
                node, number = self._attempt_by_span.pop(record.id)
                if attempt_status(record) == "failed":
                    self._take_failure(node, number, record)
            case NodeOutput(node=node, item=int(item)) if node in self.nodes:
                # A row's output voids the scores of its earlier output.
                made = self._made_by_row.get(item, Made())
                if node == ROWS:
                    made = Made(digest=record.digest, passed=record.passed)
                    if record.is_cut:  # it may have failed, and this is what it had before
                        failures = self.form.failures
                        self.form.failures = [each for each in failures if each.row != item]
                made.add(node, orjson.loads(orjson.dumps(record.value)), record.uses)
                self._add_made(item, made)
            case Instant():
                # A score is reused in the run if a row was made again and has the same output.
                reuse = events.Reuse.of(record)
                if reuse and reuse.item is not None and reuse.node in self.nodes - {ROWS}:
                    made = self._made_by_row.get(reuse.item, Made())
                    if made.digest:
                        made.add(reuse.node, self._reused(reuse.node, reuse.item, made.digest))
                        self._add_made(reuse.item, made)
            case RunStarted():
                self.begun(record.run_id)

    def _take_failure(self, node: str, number: int, ended: SpanEnded) -> None:
        kind = error_class(ended.error)
        reason = ended.error or ""
        if kind == NodeFailed.__name__:
            reason = reason[len(f"{kind}: ") :]
        code = self.codes.get((node, self.order[number]), NodeFailed.code)
        self.fail_row(number, reason, code=code)
        made = self._made_by_row.get(number, Made())
        if node != ROWS and ROWS in made.outputs:
            # The row has a line, without a score of the scorer that failed.
            made.add(node, None)
            self._add_made(number, made)

    def _add_made(self, number: int, made: Made) -> None:
        """Writes the row's line if all nodes have an output for it; else keeps what was made."""
        self._made_by_row[number] = made
        if not self.nodes <= made.outputs.keys():
            return
        del self._made_by_row[number]
        line = self.form.lines[number] = self._line(number, made)
        self.form.loops_passed[number] = made.passed
        if self._outdated.pop(number, None) is not None:
            self._has_outdated_lines = True
        if self._file is None:
            return
        if self._is_json or self._file.columns == self.form.columns:
            self._file.append(self._row_to_write(line))
        else:  # a scorer gave a score of a new name, and the table has no column for it yet
            self._write_all()

    def _line(self, number: int, made: Made) -> dict[str, Any]:
        outputs = {node: plain_json(value) for node, value in made.outputs.items()}
        return self.form.line(number, self.order[number], replace(made, outputs=outputs))

    def fail_row(self, number: int, reason: str, *, code: str) -> None:
        """Records why a row that was begun has no output."""
        self.fail(self._failure(number, reason, code=code))

    def _failure(self, number: int, reason: str, *, code: str) -> RowFailure:
        name = self.order[number]
        row: Row = self.form.rows.given[name]
        return failure_of(row, reason, code=code, number=number, epoch=epoch_of(name))

    def fail(self, failure: RowFailure) -> None:
        """Records why a row has no output."""
        self.form.failures.append(failure)
        self._write_failure(failure)

    def _write_failure(self, failure: RowFailure) -> None:
        if self.failures_path is not None:
            if self._failures_file is None:
                file = RowFile(self.failures_path, columns=_FAILURE_COLUMNS)
                self._failures_file = self._stack.enter_context(file)
            self._failures_file.append(self._cleaned(asdict(failure)))

    def _rows_to_write(self) -> Iterator[dict[str, Any]]:
        lines = self._outdated | self.form.lines
        return (self._row_to_write(lines[number]) for number in sorted(lines))

    def _row_to_write(self, line: Line) -> dict[str, Any]:
        if self._is_json:
            return self._cleaned(line)
        cells = self.form.cells(line)
        return self._cleaned({name: cells.get(name) for name in self.form.columns})

    def _cleaned(self, row: Line) -> dict[str, Any]:
        """A row as plain JSON values, without secrets."""
        data = orjson.dumps(row, default=lambda v: dict(v) if isinstance(v, Mapping) else str(v))
        values = orjson.loads(data)
        if self.redactor.finds_any(data):
            values = self.redactor.clean_values(values)
        return cast("dict[str, Any]", values)


# --- joined from shards ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """The counts of all shards of a batch together, as the manifest beside the merged output."""

    shards: int
    rows: int
    done: int
    failed: int
    runs: list[str]  # the shards' runs, in the order of the shards
    complete: bool = True


def merge_shards(rows: BatchRows, output: Path) -> MergedBatch:
    """Writes the shards' lines as one output in the order of the table, and all their failures.

    Each line also names its `run`, since `row` is its number in the run of its shard.

    Raises:
        InvalidInput: A shard is missing, incomplete, or of another table; or the output is of a
            batch without shards. Nothing is written then.
    """
    check_output(output, {".csv", ".jsonl", ".parquet"})
    before = manifest_of(output)
    if "shards" not in before and (before or output.exists()):
        raise InvalidInput(
            "it is there, and no merge has made it; give another --output",
            code="batch.output-not-merged",
            path=output,
        )
    order = {row.id: number for number, row in enumerate(rows.given.values())}
    shards = _shards_of(output)
    manifests, problems = list[dict[str, Any]](), list[str]()
    lines, failures = list[dict[str, Any]](), list[dict[str, Any]]()
    for shard in shards:
        path = shard.path(output)
        manifest = manifest_of(path)
        shard_lines = rows_saved(path) if path.exists() else []
        table = rows.identity["table"]
        if problem := _why_not_merged(path, manifest, shard_lines, table=table, ids=order):
            problems.append(f"  --shard {shard}: {problem}")
            continue
        run = {"run": manifest["run"]}
        manifests.append(manifest)
        lines += ({**line, **run} for line in shard_lines)
        failed = rows_saved(failures_of(path)) if manifest["failed"] else []
        failures += ({**line, **run} for line in failed)
    if problems:
        raise InvalidInput(
            f"{len(problems)} of {len(shards)} shards cannot be merged yet; run the same command "
            "again, in place of --merge with:\n" + "\n".join(problems),
            code="batch.shards-incomplete",
            path=output,
        )
    runs = [manifest["run"] for manifest in manifests]
    totals: dict[str, Any] = {
        name: sum(manifest[name] for manifest in manifests) for name in ("rows", "done", "failed")
    }
    merged = MergedBatch(shards=len(shards), runs=runs, **totals)
    names = (name for line in lines for name in line)
    columns = [*dict.fromkeys([*_ROW, *_input_columns(rows), *names])]
    lines.sort(key=lambda line: order[line["id"]])
    with only_writer(output):
        _write_lines(output, lines, columns=columns)
        _write_failures(failures_of(output), failures)
        write_whole(state_of(output), orjson.dumps(asdict(merged)) + b"\n")
    return merged


def _write_lines(output: Path, lines: list[dict[str, Any]], *, columns: Sequence[str]) -> None:
    if output.suffix.lower() == ".parquet":
        write_rows(output, ({name: line.get(name) for name in columns} for line in lines))
        return
    is_csv = output.suffix.lower() == ".csv"
    with replace_rows(output, lines, columns=columns if is_csv else ["id"]):
        pass


def _write_failures(path: Path, failures: list[dict[str, Any]]) -> None:
    """Replaces the file of failures; removes it if there is none."""
    if not failures:
        with writing(path):
            path.unlink(missing_ok=True)
    write_rows(path, failures)


def _shards_of(output: Path) -> list[Shard]:
    """All shards of an output; the names of the files beside it say how many there are."""
    ending = re.escape(output.suffix)
    named = re.compile(rf"{re.escape(output.stem)}\.\d+-of-(\d+){ending}(?:\.batch)?")
    matches = (named.fullmatch(path.name) for path in output.parent.glob("*"))
    counts = sorted({int(match[1]) for match in matches if match})
    if len(counts) != 1:
        raise InvalidInput(
            f"there are shards of {' and '.join(map(str, counts))}; move those away that are out "
            "of date"
            if counts
            else "there is no shard of it; run the same command with --shard 1/5, 2/5 and so on",
            code="batch.shards-unclear",
            path=output,
        )
    (of,) = counts
    return [Shard(number=number, of=of) for number in range(1, of + 1)]


def _why_not_merged(
    path: Path,
    manifest: Mapping[str, Any],
    lines: list[Mapping[str, Any]],
    *,
    table: str | None,
    ids: Mapping[str, int],
) -> str | None:
    """Why the shard in the file `path` cannot be merged; None if it can."""
    if not manifest:
        first = f"; delete {path.name} before, or put the file back" if path.exists() else ""
        return f"{state_of(path).name} is missing{first}"
    if "done" not in manifest:
        return "still going, or ended from outside"
    if not manifest["complete"]:
        return f"incomplete, with {manifest['done']:,} of {manifest['rows']:,} rows"
    if manifest["table"] != table:
        return "its table had other rows, or ids; what is still right is not made again"
    lacks_failures = manifest["failed"] and not failures_of(path).is_file()
    current = [line for line in lines if not line.get("outdated")]
    has_foreign_ids = not ids.keys() >= {line["id"] for line in lines}
    if lacks_failures or has_foreign_ids or len(current) != manifest["done"]:
        changed = failures_of(path) if lacks_failures else path
        return f"{changed.name} was changed since, and is written anew"
    return None
