"""A pipeline over many rows, as one run: a node over the rows, each item of which calls it.

So one journal holds the batch, models, memory and limits are shared, and the batch is resumed as
any run is. A row is known by what it holds, and keeps its number in the run (`rows[17]`) when the
table changes: new rows get the next numbers, rows that are gone are skipped. The files of outputs
and failures are made of the journal, and mended from it when the batch goes on.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import NormalDist
from typing import Any, Optional, cast

import numpy as np
import orjson

from harness.errors import HarnessError, InvalidInput, NodeFailed, did_you_mean
from harness.files import read_text, write_whole
from harness.graph import Graph, Skipped, bind_inputs, graph_inputs
from harness.graph.graph import returned
from harness.graph.state import (
    NO_DIGEST,
    Call,
    State,
    Taken,
    digest_of_value,
    label_of,
    plan_of,
)
from harness.graph.values import digest
from harness.inference import Backend, Limits
from harness.rows import Row, RowFile, cell_of, read_rows, write_rows
from harness.rubric import Rubric
from harness.rubric.calibration.agreement import Resamples, estimate
from harness.session.evaluation import choose_rubric
from harness.session.pipeline_run import PipelineRun
from harness.session.rehearsal import rehearsed
from harness.session.result import RunResult
from harness.session.resume import EarlierRun, read_earlier_run
from harness.session.run import Run
from harness.session.settings import Settings
from harness.session.trust import known_secrets
from harness.trace import NodeOutput, Record, RunStarted, Sink, SpanEnded, SpanStarted
from harness.trace.journal_reader import JOURNAL_SUFFIX
from harness.trace.node_records import attempt_status
from harness.trace.secrets import Redactor

ROWS = "rows"
"""The node that calls the pipeline."""
_SCORES = "scores"
_CHECKED = 100
"""Rows of which none may be mistaken before anything runs."""
_SHOWN = 10
_DRAWN_ROWS = 200
"""Of a larger batch no timeline is drawn at the end: it would take longer than opening it helps."""
_COLUMN = re.compile(r"\{([^{}\"'\s]+)\}")

Inputs = str | Path | Iterable[str | Path] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """A row that has no output, or none that was scored."""

    id: str
    file: str
    line: int | None
    row: int | None
    """Its number in the run: `rows[17]`. None if it was refused before."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScores:
    """The scores of a batch's outputs by a rubric."""

    rubric: str
    scored: int
    passed: int
    passed_within: tuple[float, float]
    """The share that passes, with 95 % confidence (Wilson 1927)."""
    mean: float
    """Of the composites."""
    mean_within: tuple[float, float]
    """The same of all such rows, with 95 % confidence, by a bootstrap over the rows."""
    quantiles: tuple[float, ...]
    """Of the composites: the lowest, the quartiles, the highest."""
    dimensions: Mapping[str, float]
    """The mean of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of a batch."""

    run: RunResult
    """The run that it is; its status is `failed` if a row failed."""
    rows: int
    """All that were given."""
    outputs: Mapping[str, Any]
    """By the rows' ids, as the journal's JSON has them."""
    kept: int
    """Of the outputs, those of earlier parts."""
    failures: tuple[RowFailure, ...]
    output: Path | None
    failures_file: Path | None
    """None without a failure."""
    scores: BatchScores | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRehearsal:
    """What a batch would make, as far as it can be foreseen without a call."""

    kept: int
    """Rows that have their output."""
    again: Mapping[str, str]
    """Rows that have one that no longer holds, by label, and why."""
    nodes: Mapping[str, int]
    """Calls of the pipeline's nodes that would be made for these rows, by node."""
    new: int
    """Rows without an output."""
    refused: int


class _Table:
    """The rows, by the digests of what they hold; no part of a node's code."""

    def __init__(self) -> None:
        self.rows: dict[str, _Given] = {}

    def code_parts(self) -> tuple[object, ...]:
        """See `fingerprint`: what the rows hold counts as their input."""
        return ()

    def inputs(self, row: str) -> dict[str, object]:
        """What the pipeline takes of a row."""
        return self.rows[row].inputs()


@dataclass(frozen=True, slots=True)
class _Given:
    """A row as it was given."""

    row: Row
    more: Mapping[str, object]
    """Inputs that every row has."""
    names: frozenset[str]
    """Of the pipeline's inputs."""

    def inputs(self) -> dict[str, object]:
        """The columns that are inputs, and what is set for all, with the row's columns in it."""
        own = {name: value for name, value in self.row.fields.items() if name in self.names}
        if not own and not any(_COLUMN.search(str(one)) for one in self.more.values()):
            # With defaults for all inputs, every row would be the same.
            raise self.row.refusal(
                f"none of its columns ({', '.join(self.row.fields)}) is an input "
                f"({', '.join(sorted(self.names))}); say --columns INPUT=COLUMN",
                code="batch.no-input",
            )
        return own | {name: self._filled(name, value) for name, value in self.more.items()}

    def _filled(self, name: str, value: object) -> object:
        if not isinstance(value, str):
            return value
        text = _COLUMN.sub(self._cell, value)
        if not text.startswith("@"):
            return text
        path = Path(text[1:]) if text == value else self.row.beside(text[1:])
        return read_text(f"input '{name}'", path)

    def _cell(self, found: re.Match[str]) -> str:
        cell = self.row.fields.get(found[1])
        if cell is None:
            said = f"it has no '{found[1]}', which {found[0]} stands for"
            raise self.row.refusal(said, code="batch.no-column")
        return str(cell)


class Batch:
    """A pipeline and the rows that it is to run over; reads and checks them.

    Args:
        pipeline: What each row runs.
        inputs: See `Pipeline.batch`, as are all others.

    Raises:
        InvalidInput: See `Pipeline.batch`.
    """

    def __init__(
        self,
        pipeline: Graph,
        inputs: Inputs,
        *,
        settings: Settings,
        output: Path | None = None,
        columns: Mapping[str, str] | None = None,
        every: Mapping[str, object] | None = None,
        evaluate: str | Path | Rubric | None = None,
        sample: int | None = None,
        seed: int = 0,
        max_parallel: int | None = 16,
        limits: Limits | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
    ) -> None:
        pipeline.check()
        self.pipeline = pipeline
        self.output = output
        self._columns: dict[str, None] = {}
        self._table = _Table()
        self.refused: list[RowFailure] = []
        self.total = self._read(inputs, columns or {}, every or {}, sample, seed)
        self._rubric = None
        if evaluate is not None:
            self._rubric = choose_rubric(evaluate, rubrics=settings.rubrics).rubric
        if settings.trace.content != "full":
            raise InvalidInput(
                f'a batch goes on from its journal, and content = "{settings.trace.content}" '
                'records no outputs; set content = "full" under [trace]',
                code="batch.no-texts",
            )
        self._earlier = self._unfinished(settings)
        # Rows keep their numbers, which are parts of the names of all calls.
        before = self._earlier.inputs.get("digests") if self._earlier else None
        known = orjson.loads(before.text) if before is not None and before.text else []
        self._order: list[str] = list(dict.fromkeys([*known, *self._table.rows]))
        if len(self._order) > _DRAWN_ROWS:
            trace = settings.trace.model_copy(update={"timelines": ()})
            settings = settings.model_copy(update={"trace": trace})
        self._settings = settings
        self.graph = self._graph()
        self._how: dict[str, Any] = {
            "limits": limits,
            "backends": backends,
            "max_parallel": max_parallel,
        }
        self._observers = observers

    # --- the rows ---------------------------------------------------------------------------------

    def _read(
        self,
        inputs: Inputs,
        columns: Mapping[str, str],
        every: Mapping[str, object],
        sample: int | None,
        seed: int,
    ) -> int:
        names = frozenset(graph_inputs(self.pipeline))
        if unknown := sorted(every.keys() - names):
            raise InvalidInput(
                f"'{unknown[0]}' is not an input of pipeline '{self.pipeline.name}'; "
                f"{did_you_mean(unknown[0], names)}",
                code="pipeline.unknown-input",
            )
        found = list(_rows_of(inputs, columns, names))
        if not found:
            raise InvalidInput("there is no row", code="row.no-rows")
        total = len(found)
        if sample is not None:
            # A larger sample by the same seed holds the smaller one.
            order = random.Random(seed).sample(range(total), total)[:sample]  # noqa: S311
            found = [found[n] for n in sorted(order)]
        seen: Counter[str] = Counter()
        ids: set[str] = set()
        for number, row in enumerate(found, start=1):
            try:
                if isinstance(row, InvalidInput):
                    raise row
                if row.id in ids:
                    raise row.refusal(f"the id '{row.id}' stands twice", code="row.id-twice")
                ids.add(row.id)
                given = _Given(row, every, names)
                values = given.inputs()
                bind_inputs(self.pipeline, values)
            except InvalidInput as error:
                self.refused.append(_refused(row, error))
            else:
                self._columns |= dict.fromkeys(row.fields)
                own = [row.fields.get("id"), _digest_of(row, values)]
                name = digest(orjson.dumps(own, default=str))
                seen[name] += 1
                self._table.rows[name if seen[name] == 1 else f"{name}#{seen[name]}"] = given
            if number == min(_CHECKED, len(found)):
                self._check_beginning(number)
        return len(found)

    def _check_beginning(self, read: int) -> None:
        if self.refused:
            told = [f"  {_place(one)}: {one.reason}" for one in self.refused[:_SHOWN]]
            if len(self.refused) > _SHOWN:
                told.append(f"  … and {len(self.refused) - _SHOWN} more")
            raise InvalidInput(
                f"{len(self.refused)} of the first {read} rows do not fit pipeline "
                f"'{self.pipeline.name}', so nothing was run:\n" + "\n".join(told),
                code="batch.rows-mistaken",
            )

    # --- the run ----------------------------------------------------------------------------------

    def _graph(self) -> Graph:
        graph, table, pipeline, rubric = (
            Graph(f"batch {self.pipeline.name}"),
            self._table,
            self.pipeline,
            self._rubric,
        )

        async def rows(run: Run, row: str) -> Any:  # noqa: ANN401 - as the pipeline says, see below
            given = (await run.call(pipeline, **table.inputs(row))).result
            return None if isinstance(given, Skipped) else given

        def is_given(row: str) -> bool:
            return row in table.rows

        rows.__annotations__["return"] = _result_type(pipeline)
        declared = [node.policies.models for node in pipeline.nodes.values()]
        roles = None if None in declared else [*dict.fromkeys(chain(*filter(None, declared)))]
        graph.node(name=ROWS, each={"row": "digests"}, when=is_given, models=roles)(rows)
        if rubric is not None:

            async def scores(run: Run, row: str, output: object) -> dict[str, object]:
                asked = table.rows[row].row
                verdict = await run.evaluate(
                    output
                    if isinstance(output, str)
                    else orjson.dumps(output, default=str).decode(),
                    rubric=rubric,
                    task=str(table.inputs(row).get("task", "")),
                    sources=asked.sources,
                )
                return {
                    "composite": verdict.composite,
                    "passed": verdict.passed,
                    "scores": dict(verdict.vector),
                }

            graph.node(name=_SCORES, each={"row": "digests", "output": ROWS})(scores)
        return graph

    async def run(self) -> BatchResult:
        """Runs the rows that have no output yet."""
        with ExitStack() as stack:
            files = stack.enter_context(_Files(self))
            earlier = self._earlier
            kept = dict(self._kept()) if earlier is not None else {}
            files.begin(kept)
            run = PipelineRun(
                graph=self.graph,
                settings=self._settings,
                own_limits=None,
                observers=(*self._observers, files.observe),
                asker=None,
                origin=None,
                **self._how,
            )
            inputs = {"digests": self._order}
            try:
                result = await (
                    run.begin(inputs)
                    if earlier is None
                    else run.resume(earlier, inputs, answers={})
                )
            except NodeFailed as error:
                if error.result is None:
                    raise
                result = error.result
            for one in result.questions:
                files.fail_row(one.node, f"it asks '{one.text}', and a batch asks nobody")
        if files.error is not None:
            raise files.error
        return BatchResult(
            run=result,
            rows=self.total,
            outputs={self.given(n).id: line["output"] for n, line in files.lines.items()},
            kept=len(kept),
            failures=tuple(files.failures),
            output=self.output,
            failures_file=files.failures_path if files.failures else None,
            scores=self._scores(files.lines.values()),
        )

    async def rehearsal(self) -> BatchRehearsal:
        """What `run` would make, found without a call."""
        kept, again, earlier = 0, {}, self._earlier
        nodes: Counter[str] = Counter()
        if earlier is not None:
            inputs = {"digests": self._order}
            ended = await rehearsed(self.graph, inputs, earlier, through=ROWS)
            reused, own = set(ended.reused), f"{ROWS}["
            kept = sum(one.startswith(own) and "/" not in one for one in reused)
            again = {
                one.node: one.reason
                for one in ended.reruns
                if one.node.startswith(own) and "/" not in one.node
            }
            labels = {
                label_of(one.node, one.item)
                for one in earlier.journal.items(NodeOutput)
                if isinstance(one, NodeOutput)
            }
            nodes.update(
                re.sub(r"\[\d+\]", "", label.partition("/")[2])
                for label in labels - reused
                if "/" in label and label.partition("/")[0] in again
            )
        return BatchRehearsal(
            kept=kept,
            again=again,
            nodes=nodes,
            new=len(self._table.rows) - kept - len(again),
            refused=len(self.refused),
        )

    def given(self, number: int) -> Row:
        """The row of a number in the run."""
        return self._table.rows[self._order[number]].row

    # --- what earlier parts did -------------------------------------------------------------------

    @property
    def _state(self) -> Path | None:
        """Names the run that an output is of."""
        return self.output and self.output.with_suffix(".batch")

    def note(self, run_id: str) -> None:
        """Notes the run that goes on when the same output is asked for again."""
        if self._state is not None:
            write_whole(self._state, orjson.dumps({"run": run_id}) + b"\n")

    def _unfinished(self, settings: Settings) -> EarlierRun | None:
        """The run that made the output so far; None if there is none."""
        state, output = self._state, self.output
        if state is None or output is None:
            return None
        if not state.is_file():
            if output.is_file() and output.stat().st_size:
                raise InvalidInput(
                    f"it is there, and {state.name}, which says what made it, is not; give another "
                    "--output",
                    path=output,
                    code="batch.output-foreign",
                )
            return None
        try:
            run_id = str(orjson.loads(state.read_bytes())["run"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                "it does not name a run; delete it with the output to begin again",
                path=state,
                code="batch.state-invalid",
            ) from error
        journal = settings.traces / Path(run_id).with_suffix(JOURNAL_SUFFIX).name
        if not journal.is_file():
            raise InvalidInput(
                f"the run that made it is gone ({journal}); delete both this and the output to "
                "begin again",
                path=state,
                code="batch.run-gone",
            )
        try:
            earlier = read_earlier_run(journal)
        except InvalidInput as error:
            if error.code != "resume.never-began":
                raise
            return None
        if earlier.journal.started.name != f"batch {self.pipeline.name}":
            raise InvalidInput(
                f"it has the outputs of a {earlier.journal.started.name}; give another --output",
                path=output,
                code="batch.other-pipeline",
            )
        return earlier

    def _kept(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The outputs and scores of earlier parts that still hold, by row."""
        assert self._earlier is not None
        steps = {step.node.name: step for step in plan_of(self.graph)}
        states = {name: State(step, name) for name, step in steps.items()}
        for number, name in enumerate(self._order):
            if name not in self._table.rows:
                continue
            made: dict[str, Any] = {}
            taken = {"row": digest_of_value(name)}
            for node, state in states.items():
                found = self._earlier.outputs.find(Call(state, number, Taken({}, taken, ())))
                if not isinstance(found, tuple):
                    break
                made[node] = orjson.loads(steps[node].form.encode(found[0]))
                taken = taken | {"output": found[1]}
            if made:
                yield number, made

    def _scores(self, lines: Iterable[Mapping[str, Any]]) -> BatchScores | None:
        found = [line["score"] for line in lines if "score" in line]
        if self._rubric is None or not found:
            return None
        composites = np.array([one["composite"] for one in found], dtype=float)
        passed = sum(one["passed"] for one in found)
        names = dict.fromkeys(chain.from_iterable(one["scores"] for one in found))
        resamples = Resamples([str(n) for n in range(len(found))], np.random.default_rng(0))
        mean = estimate(resamples.sums(composites[:, None])[:, 0] / len(found), confidence=0.95)
        return BatchScores(
            rubric=self._rubric.id,
            scored=len(found),
            passed=passed,
            passed_within=_wilson(passed, len(found)),
            mean=mean.value,
            mean_within=(mean.low, mean.high),
            quantiles=tuple(map(float, np.quantile(composites, [0, 0.25, 0.5, 0.75, 1]))),
            dimensions={
                name: float(np.mean([o["scores"][name] for o in found if name in o["scores"]]))
                for name in names
            },
        )

    @cached_property
    def names(self) -> list[str]:
        """The columns of an output that is a table."""
        more = ["passed", "composite"] if self._rubric else []
        more += [f"score.{one.name}" for one in self._rubric.dimensions] if self._rubric else []
        return [
            "row",
            "id",
            "file",
            "line",
            *(f"inputs.{n}" for n in self._columns),
            "output",
            *more,
        ]

    @property
    def goes_on(self) -> bool:
        """Whether an earlier part made the output."""
        return self._earlier is not None

    @property
    def is_scored(self) -> bool:
        """Whether a rubric scores the outputs."""
        return self._rubric is not None

    def cleaned(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What may be written of a row: without secrets."""
        data = orjson.dumps(row, default=str)
        read = orjson.loads(data)
        if self._redactor.finds_any(data):
            read = self._redactor.clean_values(read)
        return cast("dict[str, Any]", read)

    @cached_property
    def _redactor(self) -> Redactor:
        named = [name for name in self._settings.trace.secrets if name in os.environ]
        endpoints = self._settings.endpoints.values()
        return Redactor(known_secrets(endpoints, environment=os.environ, named=named))


class _Files:
    """Writes outputs and failures as rows end; an observer of the run.

    Attributes:
        lines: What was written of each row, by its number.
        failures: Of this part, and rows that were refused.
        error: Why a file could not be written.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._path = batch.output
        self._file: RowFile | None = None
        self._failed: RowFile | None = None
        self._made: dict[int, dict[str, Any]] = {}
        self._open: dict[int, int] = {}
        self.lines: dict[int, dict[str, Any]] = {}
        self.failures: list[RowFailure] = []
        self.error: HarnessError | None = None
        self.failures_path = self._path and self._path.with_suffix(".failures.jsonl")
        self._is_table = self._path is not None and self._path.suffix.lower() != ".jsonl"

    def __enter__(self) -> _Files:
        if self._path is not None and self._path.suffix.lower() != ".parquet":
            needed = self._batch.names if self._is_table else ["row", "id", "output"]
            if self._is_table and self._batch.goes_on:
                _drop_other_table(self._path, needed)
            self._file = RowFile(self._path, columns=needed)
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._failed):
            if file is not None:
                file.__exit__()
        if self._path is not None and self._file is None and self.lines:
            # Parquet cannot grow by a row.
            flat = (
                {n: self._flat(line).get(n) for n in self._batch.names}
                for line in self.lines.values()
            )
            write_rows(self._path, flat)

    def begin(self, kept: Mapping[int, dict[str, Any]]) -> None:
        """Makes the files what the journal says; `kept` is what earlier parts made, by row."""
        if self.failures_path is not None:
            self.failures_path.unlink(missing_ok=True)
        before = {} if self._file is None else {int(row["row"]): row for row in self._file.rows}
        due = {n: self._line(n, made) for n, made in kept.items() if self._is_whole(made)}
        if self._file is not None and any(
            n not in due or not _is_alike(row, self._written(due[n])) for n, row in before.items()
        ):
            self._file.clear()
            before = {}
        for number, made in kept.items():
            self._made[number] = made
            if number in due:
                self.lines[number] = due[number]
                if number not in before:
                    self._append(due[number])
        for failure in self._batch.refused:
            self._fail(failure)

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
                    row, reason = self._batch.given(number), record.error or ""
                    self._fail(_failure(row, reason.removeprefix("NodeFailed: "), number))
            case NodeOutput(node="rows" | "scores" as node, item=int(item)):
                made = self._made.setdefault(item, {})
                made[node] = orjson.loads(orjson.dumps(record.value))
                if node == ROWS:
                    made.pop(_SCORES, None)
                if self._is_whole(made):
                    self.lines[item] = line = self._line(item, made)
                    self._append(line)
            case RunStarted():
                self._batch.note(record.run_id)

    def fail_row(self, label: str, reason: str) -> None:
        """Notes why a row has no output; `label` is that of a call in it."""
        number = int(label.partition("[")[2].partition("]")[0])
        self._fail(_failure(self._batch.given(number), reason, number))

    def _is_whole(self, made: Mapping[str, Any]) -> bool:
        return ROWS in made and (_SCORES in made or not self._batch.is_scored)

    def _line(self, number: int, made: Mapping[str, Any]) -> dict[str, Any]:
        row = self._batch.given(number)
        line = {
            "row": number,
            "id": row.id,
            "file": str(row.path),
            "line": row.line,
            "inputs": dict(row.fields),
            "output": made[ROWS],
        }
        if self._batch.is_scored:
            line["score"] = made[_SCORES]
        return line

    def _flat(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """The same with columns alone."""
        score = line.get("score", {})
        cells = {
            **{n: line[n] for n in ("row", "id", "file", "line")},
            **{f"inputs.{n}": _as_text(one) for n, one in line["inputs"].items()},
            "output": _as_text(line["output"]),
        }
        if score:
            cells |= {"passed": score["passed"], "composite": score["composite"]}
            cells |= {f"score.{n}": one for n, one in score["scores"].items()}
        return cells

    def _written(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._batch.cleaned(self._flat(line) if self._is_table else line)

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.append(self._written(line))

    def _fail(self, failure: RowFailure) -> None:
        self.failures.append(failure)
        if self.failures_path is not None:
            if self._failed is None:
                self._failed = RowFile(self.failures_path, columns=["id", "reason"])
            self._failed.append(self._batch.cleaned(asdict(failure)))


def _drop_other_table(path: Path, columns: Sequence[str]) -> None:
    """Removes a table of this batch with other columns: it is written again from the journal."""
    with suppress(OSError):
        with path.open("rb") as file:
            header = file.readline()
        if header.rstrip().split(b",") != [name.encode() for name in columns]:
            path.unlink()


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


def _digest_of(row: Row, values: Mapping[str, object]) -> str:
    """What tells a row from others; where it stands, if that is not comparable."""
    found = {name: digest_of_value(value) for name, value in values.items()}
    return row.place if NO_DIGEST in found.values() else digest(orjson.dumps(sorted(found.items())))


def _failure(row: Row, reason: str, number: int | None) -> RowFailure:
    return RowFailure(id=row.id, file=str(row.path), line=row.line, row=number, reason=reason)


def _refused(row: Row | InvalidInput, error: InvalidInput) -> RowFailure:
    if not isinstance(row, Row):
        row = Row(fields={}, path=error.path or Path(), line=error.line)
    return _failure(row, str(error).removeprefix(f"{row.place}: "), None)


def _place(one: RowFailure) -> str:
    return one.file if one.line is None else f"{one.file}:{one.line}"


def _result_type(pipeline: Graph) -> Any:  # noqa: ANN401 - an annotation
    node = pipeline.nodes[pipeline.result_node]
    kind: Any = returned(node)
    if node.is_mapped:
        kind = list[kind]
    return kind if kind is object else Optional[kind]  # noqa: UP045 - of a value


def _is_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = (
        {name: said for name, value in cells.items() if (said := cell_of(value))}
        for cells in (one, other)
    )
    return first == second


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _wilson(count: int, of: int) -> tuple[float, float]:
    """The interval of a share with 95 % confidence."""
    z = NormalDist().inv_cdf(0.975)
    share, weight = count / of, z * z / of
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * (share * (1 - share) / of + weight / of / 4) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)
