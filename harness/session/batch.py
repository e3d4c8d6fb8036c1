"""A pipeline over many rows, as one run: a node over the rows, each item of which calls it.

So one journal holds the batch, models, memory and limits are shared, and the batch is resumed as
any run is. A row is known by what it holds, and keeps its number in the run (`rows[17]`) when the
table changes: new rows get the next numbers, rows that are gone are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import NormalDist
from typing import Any, Optional

import numpy as np
import orjson

from harness.errors import InvalidInput, NodeFailed
from harness.files import write_whole
from harness.graph import Graph, Skipped
from harness.graph.graph import returned
from harness.graph.state import Call, State, Taken, digest_of_value, label_of, plan_of
from harness.inference import Backend, Limits
from harness.rows import Row, check_output
from harness.rubric import Rubric
from harness.rubric.calibration.agreement import Resamples, estimate
from harness.session.batch_files import ROWS, SCORES, BatchFiles, Made
from harness.session.batch_rows import BatchRows, Inputs, RowFailure, failure_of
from harness.session.evaluation import choose_rubric
from harness.session.pipeline_run import PipelineRun
from harness.session.rehearsal import rehearsed
from harness.session.result import RunResult
from harness.session.resume import EarlierRun, read_earlier_run
from harness.session.run import Run
from harness.session.settings import Settings
from harness.session.trust import known_secrets
from harness.trace import NodeOutput, Record, Sink
from harness.trace.journal_reader import JOURNAL_SUFFIX
from harness.trace.records import node_of_all
from harness.trace.run_trace import is_going
from harness.trace.secrets import Redactor

_DRAWN_ROWS = 200
"""Of a larger batch no timeline is drawn at the end: it would take longer than the last rows."""


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
        if settings.trace.content != "full":
            raise InvalidInput(
                f'a batch goes on from its journal, and content = "{settings.trace.content}" '
                'records no outputs; set content = "full" under [trace]',
                code="batch.no-texts",
            )
        if output is not None:
            check_output(output, {".csv", ".jsonl", ".parquet"})
        self._pipeline = pipeline
        self._output = output
        self._rows = BatchRows(
            pipeline, inputs, columns=columns or {}, every=every or {}, sample=sample, seed=seed
        )
        self._rubric = None
        if evaluate is not None:
            self._rubric = choose_rubric(evaluate, rubrics=settings.rubrics).rubric
        self._earlier = self._unfinished(settings.traces)
        before = self._earlier.inputs.get("digests") if self._earlier else None
        known = orjson.loads(before.text) if before is not None and before.text else []
        # Rows keep their numbers, which are parts of the names of all calls.
        self._order: list[str] = list(dict.fromkeys([*known, *self._rows.given]))
        if len(self._order) > _DRAWN_ROWS:
            trace = settings.trace.model_copy(update={"timelines": ()})
            settings = settings.model_copy(update={"trace": trace})
        self._settings = settings
        self._graph = self._made_graph()
        self._run = PipelineRun(
            graph=self._graph,
            settings=settings,
            limits=limits,
            own_limits=None,
            max_parallel=max_parallel,
            backends=backends,
            observers=(*observers, self._observe),
            asker=None,
            origin=None,
        )

    def _made_graph(self) -> Graph:
        graph = Graph(f"batch {self._pipeline.name}")
        pipeline, table, rubric = self._pipeline, self._rows, self._rubric

        async def rows(run: Run, row: str) -> object:
            given = (await run.call(pipeline, **table.inputs(row))).result
            return None if isinstance(given, Skipped) else given

        async def scores(run: Run, row: str, output: object) -> dict[str, object]:
            assert rubric is not None
            is_text = isinstance(output, str)
            verdict = await run.evaluate(
                str(output) if is_text else orjson.dumps(output, default=str).decode(),
                rubric=rubric,
                task=str(table.inputs(row).get("task", "")),
                sources=table.given[row].sources,
            )
            said = {"composite": verdict.composite, "passed": verdict.passed}
            return said | {"scores": dict(verdict.vector)}

        result = pipeline.nodes[pipeline.result_node]
        kind: Any = list[returned(result)] if result.is_mapped else returned(result)  # type: ignore[misc]
        rows.__annotations__["return"] = kind if kind is object else Optional[kind]  # noqa: UP045
        declared = [node.policies.models for node in pipeline.nodes.values()]
        roles = None if None in declared else [*dict.fromkeys(chain(*filter(None, declared)))]
        graph.node(
            name=ROWS, each={"row": "digests"}, when=lambda row: row in table.given, models=roles
        )(rows)
        if rubric is not None:
            is_judged = any(not one.optional for one in rubric.judged)
            graph.node(
                name=SCORES,
                each={"row": "digests", "output": ROWS},
                models=["evaluator"] if is_judged else None,
            )(scores)
        return graph

    async def run(self) -> BatchResult:
        """Runs the rows that have no output yet."""
        earlier, rubric, inputs = self._earlier, self._rubric, {"digests": self._order}
        kept = dict(self._kept(earlier)) if earlier is not None else {}
        columns = dict.fromkeys(chain.from_iterable(r.fields for r in self._rows.given.values()))
        with BatchFiles(
            self._output,
            row_of=self._row_of,
            dimensions=None if rubric is None else [one.name for one in rubric.dimensions],
            inputs=[*columns],
            redactor=self._redactor(),
            begun=self._note,
        ) as files:
            self._files = files
            files.begin(kept, self._rows.refused)
            try:
                result = await (
                    self._run.begin(inputs)
                    if earlier is None
                    else self._run.resume(earlier, inputs, answers={})
                )
            except NodeFailed as error:
                if error.result is None:
                    raise
                result = error.result
            for one in result.questions:
                number = int(one.node.partition("[")[2].partition("]")[0])
                reason = f"it asks '{one.text}', and a batch asks nobody"
                files.fail(failure_of(self._row_of(number), reason, number))
        if files.error is not None:
            raise files.error
        return BatchResult(
            run=result,
            rows=self._rows.total,
            outputs={line["id"]: line["output"] for line in files.lines.values()},
            kept=len(kept),
            failures=tuple(files.failures),
            output=self._output,
            failures_file=files.failures_path if files.failures else None,
            scores=self._scores([one["score"] for one in files.lines.values() if "score" in one]),
        )

    async def rehearsal(self) -> BatchRehearsal:
        """What `run` would make, found without a call."""
        kept, again, earlier = 0, {}, self._earlier
        nodes: Counter[str] = Counter()
        if earlier is not None:
            inputs = {"digests": self._order}
            ended = await rehearsed(self._graph, inputs, earlier, through=ROWS)
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
                node_of_all(label.partition("/")[2])
                for label in labels - reused
                if "/" in label and label.partition("/")[0] in again
            )
        return BatchRehearsal(
            kept=kept,
            again=again,
            nodes=nodes,
            new=len(self._rows.given) - kept - len(again),
            refused=len(self._rows.refused),
        )

    def _observe(self, record: Record) -> None:
        self._files.observe(record)

    def _row_of(self, number: int) -> Row:
        return self._rows.given[self._order[number]]

    def _redactor(self) -> Redactor:
        named = [name for name in self._settings.trace.secrets if name in os.environ]
        endpoints = self._settings.endpoints.values()
        return Redactor(known_secrets(endpoints, environment=os.environ, named=named))

    # --- what earlier parts did -------------------------------------------------------------------

    @property
    def _state(self) -> Path | None:
        """Names the run that an output is of."""
        return self._output and self._output.with_name(f"{self._output.name}.batch")

    def _note(self, run_id: str) -> None:
        """Notes the run to go on with when the same output is asked for again."""
        if self._state is not None:
            write_whole(self._state, orjson.dumps({"run": run_id}) + b"\n")

    def _unfinished(self, traces: Path) -> EarlierRun | None:
        """The run that made the output so far; None if there is none."""
        state, output = self._state, self._output
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
        journal = traces / Path(run_id).with_suffix(JOURNAL_SUFFIX).name
        if not journal.is_file():
            raise InvalidInput(
                f"the run that made it is gone ({journal}); delete both this and the output to "
                "begin again",
                path=state,
                code="batch.run-gone",
            )
        if is_going(journal):
            raise InvalidInput(
                "another command is writing it", path=output, code="row.output-locked"
            )
        try:
            earlier = read_earlier_run(journal)
        except InvalidInput as error:
            if error.code != "resume.never-began":
                raise
            return None
        if earlier.journal.started.name != f"batch {self._pipeline.name}":
            raise InvalidInput(
                f"it has the outputs of a {earlier.journal.started.name}; give another --output",
                path=output,
                code="batch.other-pipeline",
            )
        return earlier

    def _kept(self, earlier: EarlierRun) -> Iterator[tuple[int, Made]]:
        """The outputs and scores of earlier parts that still hold, by row."""
        states = [State(step, step.node.name) for step in plan_of(self._graph)]
        for number, name in enumerate(self._order):
            made: Made = {}
            taken = {"row": digest_of_value(name)}
            for state in states if name in self._rows.given else ():
                found = earlier.outputs.find(Call(state, number, Taken({}, taken, ())))
                if not isinstance(found, tuple):
                    break
                made[state.path] = orjson.loads(state.step.form.encode(found[0]))
                taken = taken | {"output": found[1]}
            if made:
                yield number, made

    def _scores(self, found: Sequence[Mapping[str, Any]]) -> BatchScores | None:
        if self._rubric is None or not found:
            return None
        composites = np.array([one["composite"] for one in found], dtype=float)
        passed = sum(one["passed"] for one in found)
        resamples = Resamples([str(n) for n in range(len(found))], np.random.default_rng(0))
        mean = estimate(resamples.sums(composites[:, None])[:, 0] / len(found), confidence=0.95)
        by_name = {
            dimension.name: [o["scores"][n] for o in found if (n := dimension.name) in o["scores"]]
            for dimension in self._rubric.dimensions
        }
        return BatchScores(
            rubric=self._rubric.id,
            scored=len(found),
            passed=passed,
            passed_within=_wilson(passed, len(found)),
            mean=mean.value,
            mean_within=(mean.low, mean.high),
            quantiles=tuple(map(float, np.quantile(composites, [0, 0.25, 0.5, 0.75, 1]))),
            dimensions={name: float(np.mean(scores)) for name, scores in by_name.items() if scores},
        )


def _wilson(count: int, of: int) -> tuple[float, float]:
    """The interval of a share with 95 % confidence."""
    z = NormalDist().inv_cdf(0.975)
    share, weight = count / of, z * z / of
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * (share * (1 - share) / of + weight / of / 4) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)
