"""Many rows as one run: a node over the rows, each item of which calls a pipeline.

A further node scores what the pipeline gave; without a pipeline, it scores drafts.

So one journal holds the batch, models, memory and limits are shared, and the batch is resumed as
any run is. A row is known by what it holds, and keeps its number in the run (`rows[17]`) when the
table changes: new rows get the next numbers, rows that are gone are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import orjson

from harness.errors import InvalidInput, NodeFailed
from harness.files import write_whole
from harness.graph import Graph, Skipped
from harness.graph.graph import returned
from harness.graph.state import StepCall, StepState, Taken, digest_of_value, plan_of
from harness.inference import Backend, Limits
from harness.rows import check_output
from harness.rubric import ChosenRubric, Rubric, Scored
from harness.rubric.calibration.batch_scores import BatchScores, batch_scores
from harness.session.batch_files import ROWS, SCORES, USES, BatchFiles, Made, state_of
from harness.session.batch_rows import BatchRows, DraftRows, RowFailure, RowsEnded
from harness.session.evaluation import choose_rubric, evaluate
from harness.session.pipeline_run import PipelineRun
from harness.session.rehearsal import Remake, rehearse
from harness.session.result import RunResult, RunSpent
from harness.session.resume import EarlierRun, Origin, read_earlier_run
from harness.session.run import Run
from harness.session.settings import Settings
from harness.session.surroundings import Surroundings
from harness.session.trust import known_secrets
from harness.trace import Sink
from harness.trace.journal_reader import JOURNAL_SUFFIX
from harness.trace.records import node_of_all
from harness.trace.run_trace import is_going
from harness.trace.secrets import Redactor

_DRAWN_ROWS = 200
"""Of a larger batch no timeline is drawn at the end: it would take longer than the last rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of a batch."""

    run: RunResult
    """The run that it is; its status is `failed` if a row failed."""
    rows: int
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
    again: tuple[Remake, ...]
    """Calls for rows, and for their scores, whose outputs no longer hold."""
    nodes: Mapping[str, int]
    """Calls of the pipeline's nodes that would be made for these rows, by node."""
    new: int
    """Rows that were never begun."""
    rows_again: int
    """Rows that were begun: they failed, were interrupted, or their output no longer holds."""
    unscored: int
    """Outputs that a rubric would score, those of the rows to be made among them."""
    refused: int


class Batch:
    """Rows, and what is made of each: a pipeline runs over it, a rubric scores it, or both.

    Args:
        rows: What there is to do.
        settings: See `Pipeline.batch`, as are all others that are not here.
        name: The run's.
        evaluate: The rubric.
        samples: How often each is judged; None for again only near the threshold.
        checks_only: Whether the rubric's checks count alone, without its judged dimensions.
        files: Writes what was made of the rows.

    Raises:
        InvalidInput: See `Pipeline.batch`.
    """

    def __init__(
        self,
        rows: BatchRows | DraftRows,
        *,
        settings: Settings,
        name: str = "",
        output: Path | None = None,
        files: Callable[..., BatchFiles] = BatchFiles,
        max_failures: float | None = 0.5,
        evaluate: str | Path | Rubric | ChosenRubric | None = None,
        samples: int | None = None,
        checks_only: bool = False,
        max_parallel: int | None = 16,
        limits: Limits | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
        origin: Origin | None = None,
    ) -> None:
        if settings.trace.content != "full":
            raise InvalidInput(
                f'a batch goes on from its journal, and content = "{settings.trace.content}" '
                'records no outputs; set content = "full" under [trace]',
                code="batch.no-texts",
            )
        if output is not None:
            check_output(output, {".csv", ".jsonl", ".parquet"})
        self._name = name or f"batch {rows.pipeline.name if rows.pipeline else ''}"
        self._output, self._state = output, output and state_of(output)
        self._rows = rows
        self._ended = RowsEnded(max_failures)
        self._chosen = None
        if evaluate is not None:
            chosen = choose_rubric(evaluate, rubrics=settings.rubrics)
            # With a fixed number of samples, the threshold has no part in scores, only in votes.
            is_any = samples is not None and settings.evaluation.panel != "majority"
            self._chosen = replace(chosen, at_any_threshold=is_any)
        self._samples = samples
        self._checks_only = checks_only
        self._files_of = files
        self._first = SCORES if rows.pipeline is None else ROWS
        self._earlier = self._unfinished(settings.traces)
        before = self._earlier.inputs.get("digests") if self._earlier else None
        recorded = orjson.loads(before.text) if before is not None and before.text else []
        # Rows keep their numbers, which are parts of the names of all calls.
        self._order: list[str] = list(dict.fromkeys([*recorded, *self._rows.given]))
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
            observers=observers,
            asker=None,
            origin=origin,
            is_batch=True,
            batch_state=self._state,
            produces=rows.pipeline is not None,
            scored=self._outcomes,
        )
        self._backends = backends

    def _made_graph(self) -> Graph:
        """The nodes; what they close over is what rows depend on, and is named where it changed."""
        graph = Graph(self._name)
        table, rubric, ended = self._rows, self._chosen, self._ended
        samples, checks_only = self._samples, self._checks_only
        judged = [] if rubric is None or checks_only else rubric.rubric.judged

        def is_given(row: str) -> bool:
            return row in table.given

        if isinstance(table, DraftRows):

            async def drafts(run: Run, row: str) -> Scored:
                assert rubric is not None
                with ended.counted(row):
                    return await evaluate(
                        run._opened,
                        table.draft(row),
                        rubric,
                        ask=run._chat,
                        samples=samples,
                        checks_only=checks_only,
                    )

            judge = ["evaluator"] if judged else None
            graph.node(name=SCORES, each={"row": "digests"}, when=is_given, models=judge)(drafts)
            return graph
        pipeline, clean = table.pipeline, self._redactor().clean_values

        async def rows(run: Run, row: str) -> object:
            with ended.counted(row):
                output = (await run.call(pipeline, **table.inputs(row))).result
            # The journal has it so, too; of what it lacks, the row would be made again each time.
            return None if isinstance(output, Skipped) else clean(output)

        async def scores(run: Run, row: str, output: object) -> dict[str, object]:
            assert rubric is not None
            with ended.counted(row):
                draft = table.draft(row, output)
                verdict = (await evaluate(run._opened, draft, rubric, ask=run._chat)).verdict
            fields = {"composite": verdict.composite, "passed": verdict.passed}
            return fields | {"scores": dict(verdict.vector)}

        result = pipeline.nodes[pipeline.result_node]
        kind: Any = list[returned(result)] if result.is_mapped else returned(result)  # type: ignore[misc]
        rows.__annotations__["return"] = kind if kind is object else Optional[kind]  # noqa: UP045
        declared = [node.policies.models for node in pipeline.nodes.values()]
        roles = None if None in declared else [*dict.fromkeys(chain(*filter(None, declared)))]
        graph.node(name=ROWS, each={"row": "digests"}, when=is_given, models=roles)(rows)
        if rubric is not None:
            judge = ["evaluator"] if any(not dimension.optional for dimension in judged) else None
            graph.node(name=SCORES, each={"row": "digests", "output": ROWS}, models=judge)(scores)
        return graph

    async def run(self, *observers: Sink) -> BatchResult:
        """Runs the rows that have no output yet; more observers hear of it."""
        earlier, inputs = self._earlier, {"digests": self._order}
        before: list[tuple[int, Made, str | None]] = []
        if earlier is not None:
            surroundings = Surroundings(self._settings, self._backends)
            before = [*self._made_before(earlier, await surroundings.beside(earlier.outputs))]
        chosen = self._chosen
        with self._files_of(
            self._output,
            rows=self._rows,
            order=self._order,
            codes=self._ended.codes,
            rubric=None if chosen is None else chosen.rubric,
            redactor=self._redactor(),
            begun=self._note,
        ) as files:
            self._files = files
            run = replace(self._run, observers=(*self._run.observers, *observers, files.observe))
            files.begin(before, self._rows.refused)
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
            for question in result.questions:
                reason = f"it asks '{question.text}', and a batch asks nobody"
                files.fail_row(_number(question.node), reason, code="batch.asks-nobody")
        if files.error is not None:
            raise files.error
        rows, failed = len(self._rows.given) + len(self._rows.refused), len(files.failures)
        self._note(result.run_id, rows=rows, done=len(files.lines), failed=failed)
        lines = [line for _, line in sorted(files.lines.items())]
        scores = [line["score"] for line in lines if "score" in line]
        return BatchResult(
            run=result,
            rows=rows,
            outputs={line["id"]: line.get("output", line) for line in lines},
            kept=sum(reason is None for *_, reason in before),
            failures=tuple(files.failures),
            output=self._output,
            failures_file=files.failures_path if files.failures else None,
            scores=batch_scores(chosen.rubric, scores) if chosen else None,
        )

    async def rehearsal(self) -> BatchRehearsal:
        """What `run` would make, found without a call."""
        foreseen = None
        if self._earlier is not None:
            foreseen = await rehearse(
                self._graph,
                {"digests": self._order},
                self._earlier,
                settings=self._settings,
                backends=self._backends,
                through=ROWS if self._rows.pipeline else None,
            )
        again = tuple(
            remake
            for remake in (foreseen.made_again if foreseen else ())
            if self._order[_number(remake.node)] in self._rows.given
        )
        counts = Counter(node_of_all(label) for label in (foreseen.kept if foreseen else ()))
        begun = [*(remake.node for remake in again), *(foreseen.unfinished if foreseen else ())]
        rows_again = sum(
            node_of_all(label) == self._first and self._order[_number(label)] in self._rows.given
            for label in begun
        )
        rows = len(self._rows.given)
        return BatchRehearsal(
            kept=counts[self._first],
            again=again,
            nodes=Counter(
                node_of_all(label.partition("/")[2]) for remake in again for label in remake.steps
            ),
            new=rows - counts[self._first] - rows_again,
            rows_again=rows_again,
            unscored=rows - counts[SCORES] if self._chosen and self._first == ROWS else 0,
            refused=len(self._rows.refused),
        )

    @property
    def spent(self) -> RunSpent | None:
        """What earlier parts took; None if there are none."""
        return None if self._earlier is None else self._earlier.spent

    def _outcomes(self) -> Iterator[bool]:
        """Whether each draft passed, as far as that is known; one without a verdict did not."""
        if self._first == SCORES:
            verdicts = (line["passed"] for line in self._files.lines.values())
            yield from (passed for passed in verdicts if passed is not None)
            yield from (False for _ in self._files.failures)

    def _redactor(self) -> Redactor:
        endpoints, named = self._settings.endpoints.values(), self._settings.trace.secrets
        return Redactor(known_secrets(endpoints, environment=os.environ, named=named))

    # --- what earlier parts did -------------------------------------------------------------------

    def _note(self, run_id: str, **counts: int) -> None:
        """Notes the run to go on with when the same output is asked for again; at its end, counts.

        It is complete if each row has an output, or failed.
        """
        if self._state is not None:
            is_complete = bool(counts) and counts["done"] + counts["failed"] == counts["rows"]
            manifest = {"run": run_id, **self._rows.identity, **counts, "complete": is_complete}
            write_whole(self._state, orjson.dumps(manifest) + b"\n")

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
        if earlier.journal.started.name != self._name:
            raise InvalidInput(
                f"it has the outputs of a {earlier.journal.started.name}; give another --output",
                path=output,
                code="batch.other-pipeline",
            )
        return earlier

    def _made_before(
        self, earlier: EarlierRun, surroundings: Surroundings
    ) -> Iterator[tuple[int, Made, str | None]]:
        """What earlier parts made of each row; with a reason if the last of it no longer holds."""
        states = [StepState(step, step.node.name) for step in plan_of(self._graph)]
        for number, name in enumerate(self._order):
            row_state: Made = {}
            inputs = {"row": digest_of_value(name)}
            for state in states if name in self._rows.given else ():
                call = StepCall(state, number, Taken({}, inputs, ()))
                reusable = earlier.outputs.find(call, changes=surroundings.change_since)
                last = earlier.outputs.last(state.path, number)
                if isinstance(reusable, str) and last is not None and last.value is not None:
                    before = earlier.outputs.last(SCORES, number)
                    scores = {} if before is None else {SCORES: before.value}
                    old = row_state | {state.path: last.value} | scores | {USES: last.uses or {}}
                    yield number, old, reusable
                if not isinstance(reusable, tuple):
                    break
                row_state[state.path] = orjson.loads(state.step.form.encode(reusable[0]))
                row_state[USES] = row_state.get(USES, {}) | {
                    n: use.digest for n, use in call.uses.items()
                }
                inputs = inputs | {"output": reusable[1]}
            if row_state:
                yield number, row_state, None


def _number(label: str) -> int:
    """The row of a call: `rows[17]`."""
    return int(label.partition("[")[2].partition("]")[0])
