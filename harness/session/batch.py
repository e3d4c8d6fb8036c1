"""Many rows as one run: a node over the rows, each item of which calls a pipeline.

Further nodes score what the pipeline gave, one for each scorer; without a pipeline, a rubric scores
drafts.

So one journal holds the batch, models, memory and limits are shared, and the batch is resumed as
any run is. A row is known by what it holds, and keeps its number in the run (`rows[17]`) when the
table changes: new rows get the next numbers, rows that are gone are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import orjson

from harness.errors import InvalidInput, NodeFailed
from harness.files import write_whole
from harness.graph import Graph, Skipped
from harness.graph.graph import returned
from harness.graph.plan import plan_of
from harness.graph.state import CallInputs, StepCall, StepState, Use, digest_of_value
from harness.inference import Backend, Limits, Spent
from harness.rows import check_output
from harness.rubric import ChosenRubric, Scored, at_any_threshold, load_noise
from harness.rubric.evaluator import is_judged_enough
from harness.session.batch_files import (
    ROWS,
    SCORED,
    SCORES,
    USES,
    BatchFiles,
    BatchResult,
    Made,
    MadeBefore,
    OutputForm,
    manifest_of,
    only_writer,
    state_of,
)
from harness.session.batch_rows import (
    BatchRows,
    DraftRows,
    NoCode,
    RowFailure,
    RowsEnded,
    epoch_of,
    failure_of,
    target_of,
)
from harness.session.evaluation import evaluate
from harness.session.pipeline_run import PipelineRun
from harness.session.rehearsal import Remake, rehearse
from harness.session.resume import EarlierRun, Origin, read_earlier_run
from harness.session.roles import EVALUATOR
from harness.session.run import Run
from harness.session.scorers import Scorer
from harness.session.settings import Settings
from harness.session.surroundings import Surroundings
from harness.session.trust import known_secrets
from harness.trace import Sink, events
from harness.trace.journal_reader import JOURNAL_SUFFIX
from harness.trace.records import label_of, node_of_all
from harness.trace.run_trace import is_going
from harness.trace.secrets import Redactor

_NO_NOISE = (None, "")
_DRAWN_ROWS = 200
"""No timeline is drawn of more rows: drawing it would take longer than the last rows."""


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
    """Outputs that would be scored, among them those of rows that would be made."""
    unjudged: int
    """How many of them a model would judge: once or, near the threshold, more often."""
    evaluators: tuple[str, ...]
    """Tags of the models that would judge, or of the pool from which one would be drawn."""
    refused: int


class Batch:
    """Rows, and what is made of each: a pipeline runs over it, a rubric scores it, or both.

    Args:
        rows: The rows of the table, or the drafts.
        settings: See `Pipeline.batch` for this and for all arguments that are not listed here.
        name: The run's name.
        form: The form of the output.
        rubric: Scores the outputs, or the drafts.
        scorers: Functions that also score outputs.
        rescore: Whether to score the outputs that exist, and to make none.
        samples: How often each is judged; with None once, and again only near the threshold.
        checks_only: Whether only the rubric's checks count, and not its judged dimensions.
        pool_seed: Draws the evaluator of a pool if the settings have no seed for it, so that the
            same command continues with the same evaluator.

    Attributes:
        output: The output's file, if there is one.
        node: The node whose items are the rows, or the drafts.
        rescores: Whether no output is made.

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
        form: OutputForm | None = None,
        max_failures: float | None = 0.5,
        rubric: ChosenRubric | None = None,
        scorers: Sequence[Scorer] = (),
        rescore: bool = False,
        samples: int | None = None,
        checks_only: bool = False,
        pool_seed: str | None = None,
        max_parallel: int | None = 16,
        limits: Limits | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
        origin: Origin | None = None,
    ) -> None:
        trace, separation = settings.trace, settings.separation
        if trace.content != "full":
            raise InvalidInput(
                f'a batch goes on from its journal, and content = "{trace.content}" records no '
                'outputs; set content = "full" under [trace]',
                code="batch.no-texts",
            )
        if output is not None:
            check_output(output, {".csv", ".jsonl", ".parquet"})
        self._name = name or f"batch {rows.pipeline.name if rows.pipeline else ''}"
        self.output = output
        self._state = output and state_of(output)
        self._rows = rows
        self._form = form or OutputForm(rows)
        self._ended = RowsEnded(max_failures)
        if rubric is not None:
            # With a fixed number of samples the threshold decides nothing but a panel's votes.
            is_any = samples is not None and settings.evaluation.panel != "majority"
            rubric = replace(rubric, at_any_threshold=is_any)
        self._chosen = rubric
        self._scorers = tuple(scorers)
        self._samples = samples
        self._checks_only = checks_only
        self.rescores = rescore
        self._recorded: _Recorded | None = None
        self._manifest: dict[str, Any] = {}
        self.node = SCORES if rows.pipeline is None else ROWS
        self._earlier: EarlierRun | None = None
        if output is not None and output.parent.is_dir():
            # Locked before the manifest is read: its writer may be about to change it.
            with only_writer(output):
                self._manifest = manifest_of(output)
                self._earlier = self._unfinished(settings.traces)
        before = self._earlier.inputs.get("digests") if self._earlier else None
        recorded = orjson.loads(before.text) if before is not None and before.text else []
        # Row number → row name. Rows keep their numbers, which are parts of the calls' labels.
        self._order: list[str] = list(dict.fromkeys([*recorded, *rows.given]))
        if len(self._order) > _DRAWN_ROWS:
            trace = trace.model_copy(update={"timelines": ()})
        seed = separation.pool_seed or pool_seed
        separation = separation.model_copy(update={"pool_seed": seed or None})
        settings = settings.model_copy(update={"trace": trace, "separation": separation})
        self._settings = settings
        self._backends = backends
        self._prepare()
        if rescore:
            self._recorded = self._recorded_outputs()
            self._prepare()
        refused = events.RefusedRows(node=self.node, total=len(rows.refused))
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
            refused=refused if rows.refused else None,
            batch_state=self._state,
            produces=rows.pipeline is not None and not rescore,
            scored=self._form.passed,
            figures=self._form.figures,
        )

    def _prepare(self) -> None:
        """Makes the graph, its inputs, and the state that a call has to match to be reused."""
        self._graph = self._made_graph(self._chosen)
        self._inputs = self._row_inputs()
        self._states = _states_of(self._graph)

    def _made_graph(self, rubric: ChosenRubric | None) -> Graph:
        # What the nodes hold and close over is what rows depend on: a row of an unfinished batch
        # is made again where it changed, also with a version of harness that changed it.
        graph = Graph(self._name)
        table, ended, recorded = self._rows, self._ended, self._recorded
        samples, checks_only = self._samples, self._checks_only
        judged = [] if rubric is None or checks_only else rubric.rubric.judged

        def is_given(row: str) -> bool:
            return row in table.given

        if isinstance(table, DraftRows):

            async def drafts(run: Run, row: str) -> Scored:
                assert rubric is not None
                with ended.counted(row, SCORES):
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
            with ended.counted(row, ROWS):
                output = (await run.call(pipeline, **table.inputs(row))).result
            # The journal has it so, too; of what it lacks, the row would be made again each time.
            return None if isinstance(output, Skipped) else clean(output)

        async def outputs(run: Run, row: str, recorded_as: str) -> object:  # noqa: ARG001 - its name
            assert recorded is not None
            run._call.use(recorded.uses[row])
            return recorded.values[row]

        async def scores(run: Run, row: str, output: object, reference: str) -> Scored:  # noqa: ARG001
            assert rubric is not None
            with ended.counted(row, SCORES):
                return await evaluate(run._opened, table.draft(row, output), rubric, ask=run._chat)

        if recorded is None:
            result = pipeline.nodes[pipeline.result_node]
            kind: Any = list[returned(result)] if result.is_mapped else returned(result)  # type: ignore[misc]
            rows.__annotations__["return"] = kind if kind is object else Optional[kind]  # noqa: UP045
            declared = [node.policies.models for node in pipeline.nodes.values()]
            roles = None if None in declared else [*dict.fromkeys(chain(*filter(None, declared)))]
            graph.node(name=ROWS, each={"row": "digests"}, when=is_given, models=roles)(rows)
        else:
            each = {"row": "digests", "recorded_as": "recorded"}
            graph.node(name=ROWS, each=each, when=is_given, models=[])(outputs)
        each = {"row": "digests", "output": ROWS, "reference": "references"}
        in_full = each | {"reference": "whole_rows"}
        if rubric is not None:
            judge = ["evaluator"] if any(not dimension.optional for dimension in judged) else None
            graph.node(name=SCORES, each=each, models=judge)(scores)
        for scorer in self._scorers:
            of_row = in_full if "row" in scorer.takes else each
            graph.node(name=scorer.node, each=of_row, models=[])(_scoring(scorer, table, ended))
        return graph

    async def run(self, *observers: Sink) -> BatchResult:
        """Runs the rows that have no output yet; `observers` are added to those of the batch."""
        with only_writer(self.output):
            if self.output is not None and manifest_of(self.output) != self._manifest:
                raise InvalidInput(
                    "another command has written it meanwhile; run this one again",
                    path=self.output,
                    code="row.output-locked",
                )
            return await self._run_alone(observers)

    async def _run_alone(self, observers: Sequence[Sink]) -> BatchResult:
        earlier, inputs, form = self._earlier, self._inputs, self._form
        before: list[MadeBefore] = []
        if earlier is not None:
            now = await Surroundings(self._settings, self._backends).beside(earlier.outputs)
            before = [*self._made_before(earlier, now)]

        def reused(node: str, number: int, output: str) -> object:
            """The score that an earlier part of the run has for the same output."""
            state = self._states[node]
            call = self._call_of(state, number, {"output": output})
            stored = earlier and earlier.outputs.find(call, changes=now.change_since)
            assert isinstance(stored, tuple)
            return orjson.loads(state.step.form.encode(stored[0]))

        with BatchFiles(
            self.output,
            form,
            order=self._order,
            codes=self._ended.codes,
            nodes=self._graph.nodes,
            redactor=self._redactor(),
            begun=self._note,
        ) as files:
            run = replace(self._run, observers=(*self._run.observers, *observers, files.observe))
            is_further = earlier is not None
            files.begin(before, self._rows.refused, reused, is_further=is_further)
            self._ended.note_kept(self._order[number] for number in form.lines)
            kept = len(form.lines)
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
        rows = len(self._rows.given) + len(self._rows.refused)
        # A row for which some scorers failed has a line, and may have several failures.
        without_line = {failure.row for failure in form.failures} - {None, *form.lines}
        failed = len(self._rows.refused) + len(without_line)
        counts = {"rows": rows, "done": len(form.lines), "failed": failed}
        unwritten = files.error
        try:
            # Without counts if the files lack something: a merge must not take them for whole.
            self._note(result.run_id, **({} if unwritten else counts))
        except InvalidInput as error:
            unwritten = unwritten or error
        if unwritten is not None and result.stopped_by is None:
            # The journal has the rows' outputs: the same command, run again, writes the files.
            result = replace(result, status="stopped", stopped_by=str(unwritten), limit="output")
        if self._recorded is not None:  # outputs were only copied, which no one need be told
            reruns = tuple(rerun for rerun in result.reruns if not rerun.node.startswith(ROWS))
            result = replace(result, reruns=reruns)
        return form.result(
            run=result,
            rows=rows,
            outputs={line["id"]: line.get("output", line) for line in form.in_order},
            kept=kept,
            failures=self._as_in_tables(form.failures),
            output=self.output,
            failures_file=files.failures_path if form.failures else None,
        )

    async def rehearsal(self) -> BatchRehearsal:
        """What `run` would make; finding it makes no call."""
        again: tuple[Remake, ...] = ()
        decided: set[str] = set()
        begun: list[str] = []
        counts: Counter[str] = Counter()
        rows = len(self._rows.given)
        earlier = self._earlier
        if earlier is not None:
            foreseen = await rehearse(
                self._graph,
                self._inputs,
                earlier,
                settings=self._settings,
                backends=self._backends,
                through=ROWS if self._rows.pipeline else None,
            )
            again = tuple(remake for remake in foreseen.made_again if self._is_given(remake.node))
            begun = [*(remake.node for remake in again), *foreseen.unfinished]
            if self._recorded is not None:  # outputs are taken as they are
                again = tuple(r for r in again if node_of_all(r.node) != ROWS)
            # Scores for which only the threshold changed are decided anew, without a judge.
            decided = await self._judged_enough(earlier, again={r.node for r in again})
            places = {name: place for place, name in enumerate(self._rows.given)}
            again = tuple(
                sorted(
                    (remake for remake in again if remake.node not in decided),
                    key=lambda remake: places[self._order[_number(remake.node)]],
                )
            )
            counts.update(map(node_of_all, foreseen.kept))
        if self._recorded is not None:
            counts[ROWS] = rows
            begun = []
        rows_again = sum(
            node_of_all(label) == self.node and self._is_given(label) for label in begun
        )
        evaluators = self._evaluators()
        scored = [counts[name] for name in self._graph.nodes if name != ROWS]
        steps = (label.partition("/")[2] for remake in again for label in remake.steps)
        return BatchRehearsal(
            kept=counts[self.node],
            again=again,
            nodes=Counter(map(node_of_all, steps)),
            new=rows - counts[self.node] - rows_again,
            rows_again=rows_again,
            unscored=rows - min(scored) if scored and self.node == ROWS else 0,
            unjudged=rows - counts[SCORES] - len(decided) if evaluators else 0,
            evaluators=evaluators,
            refused=len(self._rows.refused),
        )

    def _as_in_tables(self, failures: Iterable[RowFailure]) -> tuple[RowFailure, ...]:
        """The failures in the order of their rows; those of one row in the order they came."""
        files = {str(row.path): None for row in self._rows.given.values()}
        places = {file: place for place, file in enumerate(files)}
        # A file of which all rows were refused comes last.
        order = sorted(failures, key=lambda f: (places.get(f.file, len(places)), f.line or 0))
        return tuple(order)

    def _evaluators(self) -> tuple[str, ...]:
        """Tags of the models that judge; empty if only checks decide."""
        if self._chosen is None or self._checks_only or not self._chosen.rubric.judged:
            return ()
        is_named = EVALUATOR in {*self._settings.endpoints, *(self._backends or {})}
        tags = self._settings.roles.get(EVALUATOR, EVALUATOR if is_named else ())
        return (tags,) if isinstance(tags, str) else tags

    def _is_given(self, label: str) -> bool:
        """Whether the row of a call is still in the table."""
        return self._order[_number(label)] in self._rows.given

    @property
    def spent(self) -> Spent | None:
        """What earlier parts of the run took; None if there are none."""
        return None if self._earlier is None else self._earlier.spent

    def _redactor(self) -> Redactor:
        endpoints, named = self._settings.endpoints.values(), self._settings.trace.secrets
        return Redactor(known_secrets(endpoints, environment=os.environ, named=named))

    # --- what earlier parts did -------------------------------------------------------------------

    def _note(self, run_id: str, **counts: int) -> None:
        """Writes which run a batch with the same output continues; with `counts` at the run's end.

        The run is complete if each row has an output, or failed, in this part or an earlier one.
        """
        if self._state is not None:
            is_complete = bool(counts) and counts["done"] + counts["failed"] == counts["rows"]
            end = {**counts, "complete": is_complete, **self._form.about}
            traces = str(self._settings.traces.absolute())
            manifest = {"run": run_id, "traces": traces, **self._rows.identity, **end}
            write_whole(self._state, orjson.dumps(manifest) + b"\n")

    def _unfinished(self, traces: Path) -> EarlierRun | None:
        """The run that made the output so far; None if there is none."""
        state, output = self._state, self.output
        if state is None or output is None:
            return None
        if not state.is_file():
            if output.is_file() and output.stat().st_size:
                raise InvalidInput(
                    f"it is there, and {state.name}, which says what made it, is not; give another "
                    "--output, or delete it to make its rows anew",
                    path=output,
                    code="batch.output-foreign",
                )
            return None
        run_id = self._manifest.get("run")
        if shards := self._manifest.get("shards"):
            raise InvalidInput(
                f"it was made by --merge; run its {shards} shards (--shard 1/{shards} and so on) "
                "and merge them again, or give another --output",
                path=output,
                code="batch.state-invalid",
            )
        if run_id is None:
            raise InvalidInput(
                "it does not name a run; delete it with the output to begin again",
                path=state,
                code="batch.state-invalid",
            )
        journal = traces / Path(str(run_id)).with_suffix(JOURNAL_SUFFIX).name
        if not journal.is_file():
            begun_in = Path(str(self._manifest.get("traces", traces.absolute())))
            where = f"its run is not in {traces.absolute()}"
            remedy = f"run this where it was begun, with its runs in {begun_in}"
            if not (begun_in / journal.name).is_file():
                where += ", and seems to be gone"
                remedy += ", or delete both this and the output to begin again"
            raise InvalidInput(f"{where}; {remedy}", path=state, code="batch.run-gone")
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
                f"it has the outputs of '{earlier.journal.started.name}', not of '{self._name}'; "
                "give another --output",
                path=output,
                code="batch.other-pipeline",
            )
        return earlier

    def _made_before(self, earlier: EarlierRun, now: Surroundings) -> Iterator[MadeBefore]:
        """What earlier parts of the run made of each row that has anything."""
        for number, name in enumerate(self._order):
            valid: Made = {}
            last: Made = {}
            reason: str | None = None
            output: dict[str, str] = {}
            for state in self._states.values() if name in self._rows.given else ():
                call = self._call_of(state, number, output)
                reusable = None
                if state.path == self.node or self.node in valid:
                    reusable = earlier.outputs.find(call, changes=now.change_since)
                before = earlier.outputs.last(state.path, number)
                if isinstance(reusable, tuple):
                    value = orjson.loads(state.step.form.encode(reusable[0]))
                    uses = {n: use.digest for n, use in call.uses.items()}
                    for made in (valid, last):
                        made |= {state.path: value, USES: made.get(USES, {}) | uses}
                    output = output or {"output": reusable[1]}
                elif before is not None and before.value is not None:
                    last |= {
                        state.path: before.value,
                        USES: last.get(USES, {}) | (before.uses or {}),
                    }
                    reason = reason or reusable
            if last:
                yield number, valid, last, reason

    async def _judged_enough(self, earlier: EarlierRun, *, again: Set[str]) -> set[str]:
        """Labels of the scores in `again` that still hold, but for the rubric's `pass_at`."""
        chosen = self._chosen
        if chosen is None or load_noise(chosen.rubric, "", directory=chosen.directory) != _NO_NOISE:
            return set()
        surroundings = await Surroundings(self._settings, self._backends).beside(earlier.outputs)
        threshold_by_sha256 = at_any_threshold(chosen.rubric)
        state_by_sha256: dict[str, StepState] = {}
        labels = set()
        for number in range(len(self._order)):
            label = label_of(SCORES, number)
            is_score_alone = label in again and label_of(ROWS, number) not in again
            last = earlier.outputs.last(SCORES, number)
            if not is_score_alone or last is None or last.value is None:
                continue
            verdict = SCORED.validate_python(last.value).verdict
            sha256 = verdict.rubric_sha256
            if sha256 not in threshold_by_sha256 or not is_judged_enough(verdict, chosen.rubric):
                continue
            if sha256 not in state_by_sha256:
                changed = {"pass_at": threshold_by_sha256[sha256], "sha256": sha256}
                rubric = replace(chosen, rubric=chosen.rubric.model_copy(update=changed))
                state_by_sha256[sha256] = _states_of(self._made_graph(rubric))[SCORES]
            output = earlier.outputs.last(ROWS, number)
            call = self._call_of(
                state_by_sha256[sha256], number, {"output": str(output.digest)} if output else {}
            )
            if isinstance(earlier.outputs.find(call, changes=surroundings.change_since), tuple):
                labels.add(label)
        return labels

    def _call_of(self, state: StepState, number: int, output: Mapping[str, str]) -> StepCall:
        """The call for a row, with digests of the arguments that its parameters take."""
        by_input = {name: digest_of_value(of[number]) for name, of in self._inputs.items()}
        sources = {parameter.name: parameter.source for parameter in state.step.node.parameters}
        digests = {n: by_input[source] for n, source in sources.items() if source in by_input}
        if "output" in sources:
            digests |= output
        return StepCall(state, number, CallInputs({}, digests, ()))

    def _row_inputs(self) -> dict[str, list[str]]:
        """The graph's inputs: by name, a value for each row, by which its calls are recognized."""
        table, recorded = self._rows, self._recorded
        inputs = {"digests": self._order}
        take_rows = ["row" in scorer.takes for scorer in self._scorers]
        if isinstance(table, BatchRows):
            names = [name if name in table.given else None for name in self._order]
            if self._chosen or not all(take_rows):
                inputs["references"] = [table.reference(name) if name else "" for name in names]
            if any(take_rows):
                fields = [dict(table.given[name].fields) if name else "" for name in names]
                inputs["whole_rows"] = [*map(digest_of_value, fields)]
        if recorded is not None:
            digests = {name: digest_of_value(of) for name, of in recorded.values.items()}
            inputs["recorded"] = [digests.get(name, "") for name in self._order]
        return inputs

    def _recorded_outputs(self) -> _Recorded:
        """The outputs that the rows have; rows without an output are refused.

        Raises:
            InvalidInput: No row has an output.
        """
        earlier = self._earlier
        recorded = _Recorded()
        table = self._rows
        assert isinstance(table, BatchRows)
        if earlier is not None:
            now = Surroundings(self._settings, self._backends)
            for number, _, made, _ in self._made_before(earlier, now):
                if ROWS in made:
                    name, uses = self._order[number], made.get(USES, {}).items()
                    recorded.values[name] = made[ROWS]
                    recorded.uses[name] = {
                        use: Use(model) for use, model in uses if use.startswith("reply:")
                    }
        problem = "it has no output that could be scored again; run it without --rescore"
        for name in [name for name in table.given if name not in recorded.values]:
            failure = failure_of(
                table.given.pop(name), problem, code="evaluation.no-output", epoch=epoch_of(name)
            )
            table.refused.append(failure)
        if not recorded.values:
            raise InvalidInput(
                "it has no outputs of these rows yet, so there is nothing to score again; run "
                "it without --rescore first",
                path=self.output,
                code="evaluation.no-output",
            )
        return recorded


@dataclass(frozen=True, kw_only=True)
class _Recorded(NoCode):
    """The outputs that rows have, and the models that answered; both by the rows' names."""

    values: dict[str, Any] = field(default_factory=dict)
    uses: dict[str, dict[str, Use]] = field(default_factory=dict)


def _states_of(graph: Graph) -> dict[str, StepState]:
    """By node, the state that a call has to match to be reused."""
    return {step.node.name: StepState(step, step.node.name) for step in plan_of(graph)}


def _scoring(scorer: Scorer, table: BatchRows, ended: RowsEnded) -> Callable[..., Any]:
    """The node's function of a scorer."""

    # As it is: its code is what scores of earlier versions rest on.
    async def scores(run: Run, row: str, output: object, reference: str) -> dict[str, float | None]:  # noqa: ARG001
        with ended.counted(row, scorer.node):
            return await scorer.scores(output, target_of(table.given[row]))

    async def by_row(run: Run, row: str, output: object, reference: str) -> dict[str, float | None]:  # noqa: ARG001
        with ended.counted(row, scorer.node):
            whole = table.given[row]
            return await scorer.scores(output, target_of(whole), whole.fields)

    return by_row if "row" in scorer.takes else scores


def _number(label: str) -> int:
    """The number of a call's row: 17 for `rows[17]`."""
    return int(label.partition("[")[2].partition("]")[0])
