"""`Batch`: many rows as one run, in which each item of the node `rows` calls a pipeline.

Further nodes score the pipeline's outputs: `scores` by a rubric, and one for each function. Without
a pipeline, the batch has only the node `scores`, and its items are drafts.

So one journal holds the batch, models, memory and limits are shared, and the batch is resumed as
any run is. A row is recognized by its content and keeps its number in the run (`rows[17]`) when the
table changes: new rows get the next numbers, rows that are gone are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import orjson

from harness.errors import InvalidInput, NodeFailed, Notice
from harness.files import write_whole
from harness.graph import Graph, NodeSkip, Skipped, graph_inputs
from harness.graph.graph import returned
from harness.graph.plan import plan_of
from harness.graph.reuse import CallOutcome
from harness.graph.state import CallInputs, StepCall, StepState, Use, digest_of_value
from harness.graph.values import plain_json
from harness.inference import Backend, Limits, Spent
from harness.log import log_warning
from harness.rows import check_output, rows_saved
from harness.rubric import ChosenRubric, Scored, at_any_threshold, load_noise
from harness.rubric.noise import is_judged_enough
from harness.session.batch_files import (
    ROWS,
    SCORED,
    SCORES,
    BatchFiles,
    BatchResult,
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
    id_of,
    target_of,
)
from harness.session.evaluation import evaluate
from harness.session.models import with_backends
from harness.session.pipeline_run import PipelineRun
from harness.session.rehearsal import Remake, rehearse
from harness.session.result import RunResult
from harness.session.resume import EarlierRun, Origin, read_earlier_run
from harness.session.roles import EVALUATOR, Roles
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

# With more rows no timeline is drawn: drawing it would take longer than the last rows.
_DRAWN_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRehearsal:
    """What a batch would make, as far as it can be foreseen without a call."""

    kept: int  # rows whose outputs would be reused
    again: tuple[Remake, ...]  # calls for rows, and for their scores, whose outputs no longer hold
    nodes: Mapping[str, int]
    """Calls of the pipeline's nodes that would be made for these rows, by node."""
    new: int  # rows that were never begun
    rows_again: int
    """Rows that were begun: they failed, were interrupted, or their output no longer holds."""
    unscored: int  # outputs that would be scored, among them those of rows that would be made
    unjudged: int  # outputs that a model would judge: once or, near the threshold, more often
    evaluators: tuple[str, ...]
    """Tags of the models that would judge, or of the pool from which one would be drawn."""
    is_panel: bool  # whether all of them would judge each output
    refused: int


class Batch:
    """Rows, and what is made of each: a pipeline runs over it, a rubric scores it, or both.

    Args:
        settings: See `Pipeline.batch` for this and for all that is not listed here, also errors.
        rubric: Scores the outputs, or the drafts.
        scorers: Functions that also score outputs.
        rescore: Whether to score the outputs that exist, and to make none.
        samples: How often each is judged; with None once, and again only near the threshold.
        checks_only: Whether only the rubric's checks count, and not its judged dimensions.
        pool_seed: Draws the evaluator of a pool if the settings have no seed for it, so that the
            same command continues with the same evaluator.

    Attributes:
        node: The node whose items are the rows, or the drafts.
        rescores: Whether no output is made.
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

        # 1. What is made of the rows.
        self._name = name or f"batch {rows.pipeline.name if rows.pipeline else ''}"
        self.output = output
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

        # 2. The run that made the output so far. Rows keep their numbers in it, which are parts of
        #    the calls' labels.
        self._earlier: EarlierRun | None = None
        if output is not None and output.parent.is_dir():
            # Locked before the manifest is read: its writer may be about to change it.
            with only_writer(output):
                self._manifest = manifest_of(output)
                self._earlier = self._unfinished(output, settings.traces)
        before = self._earlier.inputs.get("digests") if self._earlier else None
        names_before = orjson.loads(before.text) if before is not None and before.text else []
        # Row number → row name.
        self._order: list[str] = list(dict.fromkeys([*names_before, *rows.given]))

        # 3. The graph, and this part of the run.
        if len(self._order) > _DRAWN_ROWS:
            trace = trace.model_copy(update={"timelines": ()})
        seed = separation.pool_seed or pool_seed
        separation = separation.model_copy(update={"pool_seed": seed or None})
        settings = settings.model_copy(update={"trace": trace, "separation": separation})
        self._settings = with_backends(settings, backends)
        self._graph: Graph
        self._inputs: dict[str, list[str]]
        self._states: dict[str, StepState]  # what a call has to match to be reused
        self._prepare()
        if rescore:
            # First the graph that makes outputs, by which those of earlier parts are recognized;
            # then the graph that only copies them.
            self._recorded = self._take_recorded_outputs()
            self._prepare()
        refused = events.RefusedRows(node=self.node, total=len(rows.refused))
        self._run = PipelineRun(
            graph=self._graph,
            settings=self._settings,
            limits=limits,
            max_parallel=max_parallel,
            backends=backends,
            observers=observers,
            origin=origin,
            is_batch=True,
            refused=refused if rows.refused else None,
            row_ids=[id_of(name, rows.given.get(name)) for name in self._order],
            batch_state=output and state_of(output),
            produces=rows.pipeline is not None and not rescore,
            # Else the epochs of a row would have one output.
            caches=rows.epochs == 1,
            scored=self._form.passed,
            figures=self._form.figures,
        )
        self._warn_of_dropped_outputs()

    async def run(self, *observers: Sink) -> BatchResult:
        """Runs the rows that have no output yet; `observers` are added to those of the batch."""
        with only_writer(self.output):
            if self.output is not None and manifest_of(self.output) != self._manifest:
                raise InvalidInput(
                    "another command has written it meanwhile; run this one again",
                    path=self.output,
                    code="row.output-locked",
                )
            return await self._run_locked(observers)

    async def rehearsal(self) -> BatchRehearsal:
        """What `run` would make; finding it makes no call."""
        again: list[Remake] = []
        decided: set[str] = set()
        begun: set[str] = set()  # labels of calls, also of rows that the table no longer has
        kept_by_node: Counter[str] = Counter()
        rows = len(self._rows.given)
        if self._earlier is not None:
            foreseen = await rehearse(
                self._graph,
                self._inputs,
                self._earlier,
                settings=self._settings,
                through=ROWS if self._rows.pipeline else None,
            )
            kept_by_node.update(map(node_of_all, foreseen.kept))
            again = [remake for remake in foreseen.made_again if self._is_given(remake.node)]
            if self._recorded is None:
                begun = {*(remake.node for remake in again), *foreseen.unfinished}
            else:  # all outputs are taken as they are, and only scores are made again
                kept_by_node[ROWS] = rows
                again = [remake for remake in again if node_of_all(remake.node) != ROWS]
            # Scores for which only the threshold changed are decided anew, without a judge.
            decided = await self._judged_enough(self._earlier, {remake.node for remake in again})
            position_by_name = {name: n for n, name in enumerate(self._rows.given)}
            again = [remake for remake in again if remake.node not in decided]
            again.sort(key=lambda remake: position_by_name[self._order[_row_number(remake.node)]])
        rows_again = sum(
            node_of_all(label) == self.node and self._is_given(label) for label in begun
        )
        evaluators = self._evaluators()
        scored = [kept_by_node[name] for name in self._graph.nodes if name != ROWS]
        steps = (label.partition("/")[2] for remake in again for label in remake.steps)
        return BatchRehearsal(
            kept=kept_by_node[self.node],
            again=tuple(again),
            nodes=Counter(map(node_of_all, steps)),
            new=rows - kept_by_node[self.node] - rows_again,
            rows_again=rows_again,
            unscored=rows - min(scored) if scored and self.node == ROWS else 0,
            unjudged=rows - kept_by_node[SCORES] - len(decided) if evaluators else 0,
            evaluators=evaluators,
            is_panel=self._settings.evaluation.panel is not None,
            refused=len(self._rows.refused),
        )

    @property
    def spent(self) -> Spent | None:
        """What earlier parts of the run spent; None if there are none."""
        return None if self._earlier is None else self._earlier.spent

    def so_far(self) -> dict[str, object]:
        """The fields of `BatchResult.to_json` that are known if `run` was interrupted."""
        if self.output is None:
            return {}
        # Before `run` has read what earlier parts made, nothing is known.
        done = len(self._form.lines) or (0 if self._earlier is None else None)
        run_id = manifest_of(self.output).get("run")
        return {"run_id": run_id, "done": done, "output": str(self.output)}

    async def _run_locked(self, observers: Sequence[Sink]) -> BatchResult:
        """Runs the batch, whose output no other process writes meanwhile."""
        # 1. What earlier parts of the run made.
        earlier = self._earlier
        now = Surroundings(self._settings)
        before: list[MadeBefore] = []
        if earlier is not None:
            now = await now.beside(earlier.outputs)
            before = [*self._made_before(earlier, now)]

        def reused(node: str, number: int, output: str) -> object:
            """The score that an earlier part of the run has for the same output."""
            state = self._states[node]
            call = self._call_of(state, number, {"output": output})
            stored = earlier and earlier.outputs.find(call, changes=now.change_since)
            assert isinstance(stored, CallOutcome)  # the run has just reused it
            return orjson.loads(state.step.form.encode(stored.value))

        # 2. The run. Its rows are in the files as soon as they are made.
        with BatchFiles(
            path=self.output,
            form=self._form,
            order=self._order,
            codes=self._ended.codes,
            nodes=self._graph.nodes.keys(),
            redactor=self._redactor(),
            begun=self._write_manifest,
        ) as files:
            is_further = earlier is not None
            files.begin(before, self._rows.refused, reused, is_further=is_further)
            self._ended.note_kept(self._order[number] for number in self._form.lines)
            kept = len(self._form.lines)
            result = await self._result_of_run(*observers, files.observe)
            for question in result.questions:
                reason = f"it asks '{question.text}', and a batch asks nobody"
                files.fail_row(_row_number(question.node), reason, code="batch.asks-nobody")

        # 3. What it came to.
        unwritten = files.error
        try:
            # Without counts if the files lack something: a merge must not take them for whole.
            self._write_manifest(result.run_id, **({} if unwritten else self._counts()))
        except InvalidInput as error:
            unwritten = unwritten or error
        if unwritten is not None and result.stopped_by is None:
            # The journal has the rows' outputs: the same command, run again, writes the files.
            result = replace(result, status="stopped", stopped_by=str(unwritten), limit="output")
        return self._result(result, kept=kept, failures_file=files.failures_path)

    def _result(self, result: RunResult, *, kept: int, failures_file: Path | None) -> BatchResult:
        """The result of the batch, from that of its run; `kept` rows are of earlier parts."""
        form = self._form
        reruns = result.reruns
        if self._recorded is not None:  # outputs were only copied, which no one need be told
            reruns = tuple(rerun for rerun in reruns if not rerun.node.startswith(ROWS))
        warnings = (*result.warnings, *self._notice_of_skips(result.skips))
        return form.result(
            run=replace(result, reruns=reruns, warnings=warnings),
            rows=self._counts()["rows"],
            outputs={line["id"]: line.get("output", line) for line in form.in_order},
            kept=kept,
            not_passed=None if self.rescores else [*form.loops_passed.values()].count(False),
            failures=self._in_order_of_rows(form.failures),
            output=self.output,
            failures_file=failures_file if form.failures else None,
        )

    async def _result_of_run(self, *observers: Sink) -> RunResult:
        """Begins or resumes the run; its result also if it failed."""
        run = replace(self._run, observers=(*self._run.observers, *observers))
        try:
            if self._earlier is None:
                return await run.begin(self._inputs)
            return await run.resume(self._earlier, self._inputs, answers={})
        except NodeFailed as error:
            result: RunResult | None = error.result
            if result is None:
                raise
            return result

    def _notice_of_skips(self, skips: Iterable[NodeSkip]) -> Iterator[Notice]:
        """A warning if the node of the result was skipped for rows that are done."""
        pipeline = self._rows.pipeline
        path = pipeline and f"{pipeline.name}/{pipeline.result_node}"
        rows = [_row_number(skip.node) for skip in skips if skip.node.partition("/")[2] == path]
        if done := [row for row in rows if row in self._form.lines]:
            message = (
                f"{len(done):,} rows have no result, and count as done: '{path}' was skipped, as "
                f'in rows[{done[0]}]; where that was a failure, on_error="fail" lets the row fail'
            )
            yield Notice(code="batch.results-skipped", message=message)

    def _counts(self) -> dict[str, int]:
        """The rows of the table, those with an output, and those that failed, once all ended."""
        form, refused = self._form, len(self._rows.refused)
        # A row for which some scorers failed has a line, and may have several failures.
        without_line = {failure.row for failure in form.failures} - {None, *form.lines}
        return {
            "rows": len(self._rows.given) + refused,
            "done": len(form.lines),
            "failed": refused + len(without_line),
        }

    def _in_order_of_rows(self, failures: Iterable[RowFailure]) -> tuple[RowFailure, ...]:
        """The failures by file and line; those of one row stay in the order in which they came."""
        files = dict.fromkeys(str(row.path) for row in self._rows.given.values())
        position = {file: number for number, file in enumerate(files)}
        # A file of which all rows were refused comes last.
        last = len(files)
        return tuple(sorted(failures, key=lambda f: (position.get(f.file, last), f.line or 0)))

    def _write_manifest(self, run_id: str, **counts: int) -> None:
        """Writes which run a batch with the same output continues; with `_counts` at its end."""
        if self.output is None:
            return
        manifest = {
            "run": run_id,
            "traces": str(self._settings.traces.absolute()),
            **self._rows.identity,
            **counts,
            # Each row has an output or failed, in this part of the run or an earlier one.
            "complete": bool(counts) and counts["done"] + counts["failed"] == counts["rows"],
            **self._form.about,
        }
        write_whole(state_of(self.output), orjson.dumps(manifest) + b"\n")

    def _redactor(self) -> Redactor:
        endpoints, named = self._settings.endpoints.values(), self._settings.trace.secrets
        return Redactor(known_secrets(endpoints, environment=os.environ, named=named))

    def _prepare(self) -> None:
        """Makes graph, inputs and states. Reads `_recorded`; call again after it changes."""
        self._graph = self._made_graph(self._chosen)
        self._inputs = self._row_inputs()
        self._states = _states_of(self._graph)

    def _made_graph(self, rubric: ChosenRubric | None) -> Graph:
        # Outputs depend on the statements of the nodes' functions, and on what these close over: if
        # a version of harness changes them, unfinished batches make all their rows again.
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
            # The journal, which has no secrets and no `Skipped`, must give the same output again;
            # else the row would be made again each time.
            return None if isinstance(output, Skipped) else clean(output)

        async def outputs(run: Run, row: str, recorded_as: str) -> object:  # noqa: ARG001 - its name
            assert recorded is not None
            run._call.use(recorded.uses[row])
            return recorded.values[row]

        async def scores(run: Run, row: str, output: object, reference: str) -> Scored:  # noqa: ARG001
            assert rubric is not None
            with ended.counted(row, SCORES):
                return await evaluate(run._opened, table.draft(row, output), rubric, ask=run._chat)

        # The type by which the journal's outputs are read, and which scorers get.
        rows.__annotations__["return"] = kind = _kind_of_outputs(pipeline)
        if recorded is None:
            declared = [node.policies.models for node in pipeline.nodes.values()]
            # A node that declares no models may call any.
            roles = None if None in declared else [*dict.fromkeys(chain(*filter(None, declared)))]
            graph.node(name=ROWS, each={"row": "digests"}, when=is_given, models=roles)(rows)
        else:
            each = {"row": "digests", "recorded_as": "recorded"}
            outputs.__annotations__["return"] = kind if recorded.are_restored else object
            graph.node(name=ROWS, each=each, when=is_given, models=[])(outputs)
        each = {"row": "digests", "output": ROWS, "reference": "references"}
        # A scorer that takes the row scores again when any column changed, not only the target.
        with_row = each | {"reference": "whole_rows"}
        if rubric is not None:
            judge = ["evaluator"] if any(not dimension.optional for dimension in judged) else None
            graph.node(name=SCORES, each=each, models=judge)(scores)
        for scorer in self._scorers:
            arguments = with_row if "row" in scorer.takes else each
            graph.node(name=scorer.node, each=arguments, models=[])(_scoring(scorer, table, ended))
        return graph

    def _row_inputs(self) -> dict[str, list[str]]:
        """The graph's inputs: name → a value for each row, by which its calls are recognized."""
        table, recorded = self._rows, self._recorded
        inputs = {"digests": self._order}
        needed = graph_inputs(self._graph)
        if isinstance(table, BatchRows):
            names = [name if name in table.given else None for name in self._order]
            if "references" in needed:
                inputs["references"] = [table.reference(name) if name else "" for name in names]
            if "whole_rows" in needed:
                fields = [dict(table.given[name].fields) if name else "" for name in names]
                inputs["whole_rows"] = [*map(digest_of_value, fields)]
        if recorded is not None:
            inputs["recorded"] = [recorded.digests.get(name, "") for name in self._order]
        return inputs

    def _evaluators(self) -> tuple[str, ...]:
        """Tags of the models that judge; empty if only checks decide."""
        if self._chosen is None or self._checks_only or not self._chosen.rubric.judged:
            return ()
        return Roles(self._settings.endpoints, self._settings.roles).tags(EVALUATOR)

    def _is_given(self, label: str) -> bool:
        """Whether the row of a call is still in the table."""
        return self._order[_row_number(label)] in self._rows.given

    async def _judged_enough(self, earlier: EarlierRun, again: Set[str]) -> set[str]:
        """Labels of the scores in `again` whose judgements hold: only `pass_at` has changed.

        For this, each score is looked up again under the threshold that it was made with.
        """
        chosen = self._chosen
        if chosen is None:
            return set()
        noise, why_not = load_noise(chosen.rubric, "", directory=chosen.directory)
        # `is_judged_enough` does not know the noise, which also decides how often to judge.
        if noise is not None or why_not:
            return set()
        surroundings = await Surroundings(self._settings).beside(earlier.outputs)
        threshold_by_sha256 = at_any_threshold(chosen.rubric)

        @cache
        def scores_state(sha256: str) -> StepState:
            """The node `scores` as it was under the rubric with this digest."""
            changed = {"pass_at": threshold_by_sha256[sha256]}
            rubric = replace(chosen, rubric=chosen.rubric.model_copy(update=changed))
            return _states_of(self._made_graph(rubric))[SCORES]

        labels = set()
        for number in range(len(self._order)):
            label = label_of(SCORES, number)
            is_score_alone = label in again and label_of(ROWS, number) not in again
            last = earlier.outputs.last(SCORES, number)
            if not is_score_alone or last is None or last.value is None:
                continue
            verdict = SCORED.validate_python(plain_json(last.value)).verdict
            sha256 = verdict.rubric_sha256
            if sha256 not in threshold_by_sha256 or not is_judged_enough(verdict, chosen.rubric):
                continue
            output = earlier.outputs.last(ROWS, number)
            digests = {"output": str(output.digest)} if output else {}
            call = self._call_of(scores_state(sha256), number, digests)
            stored = earlier.outputs.find(call, changes=surroundings.change_since)
            if isinstance(stored, CallOutcome):
                labels.add(label)
        return labels

    # --- what earlier parts did -------------------------------------------------------------------

    def _unfinished(self, output: Path, traces: Path) -> EarlierRun | None:
        """The run that made the output so far; None if there is none."""
        state = state_of(output)
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
            earlier.outputs.continues = "limit", "failure"  # limits of a command are of it alone
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

    def _warn_of_dropped_outputs(self) -> None:
        """Warns if the file has outputs of rows that are not given now, which it loses."""
        given, path = self._rows.given, self.output
        gone = {str(number) for number, name in enumerate(self._order) if name not in given}
        if not gone or path is None or not path.is_file():
            return
        # Counted in the file: the run also has rows of earlier commands, which the file has lost.
        if outputs := sum(str(line.get("row")) in gone for line in rows_saved(path)):
            log_warning(
                f"{path} has outputs of rows, epochs or prompts that are not given now, which "
                f"leave it: {outputs:,}; to keep them there, give another --output (output=)",
                code="batch.outputs-leave",
            )

    def _made_before(self, earlier: EarlierRun, now: Surroundings) -> Iterator[MadeBefore]:
        """What earlier parts of the run made of each row of the table that has anything."""
        for number, name in enumerate(self._order):
            if name in self._rows.given:
                row = self._row_made_before(number, earlier, now)
                if row.last.outputs:
                    yield row

    def _row_made_before(self, number: int, earlier: EarlierRun, now: Surroundings) -> MadeBefore:
        row = MadeBefore(number=number)
        output: dict[str, str] = {}  # the argument `output` of the scorers, as a digest
        for node, state in self._states.items():
            call = self._call_of(state, number, output)
            stored = None  # a CallOutcome, or why it no longer holds, or None
            # A score holds only as long as the output that it is of.
            if node == self.node or self.node in row.valid.outputs:
                stored = earlier.outputs.find(call, changes=now.change_since)
            if isinstance(stored, CallOutcome):
                value = orjson.loads(state.step.form.encode(stored.value))
                uses = {name: use.digest for name, use in call.uses.items()}
                row.valid.add(node, value, uses)
                row.last.add(node, value, uses)
                if node == self.node:
                    row.valid.passed = call.passed
                    output = {"output": stored.digest}
                continue
            before = earlier.outputs.last(node, number)
            if before is not None and before.value is not None:
                row.last.add(node, before.value, before.uses)
                row.reason = row.reason or stored
        return row

    def _call_of(self, state: StepState, number: int, output: Mapping[str, str]) -> StepCall:
        """A node's call for a row, with a digest of each argument; `output` is that of a scorer."""
        digests: dict[str, str] = {}
        for parameter in state.step.node.parameters:
            if parameter.source in self._inputs:
                value = self._inputs[parameter.source][number]
                digests[parameter.name] = digest_of_value(value)
            elif parameter.name == "output":
                digests |= output
        return StepCall(state, number, CallInputs({}, digests, ()))

    def _take_recorded_outputs(self) -> _Recorded:
        """The outputs that the rows have; moves rows without an output to `refused`."""
        recorded = _Recorded()
        table = self._rows
        assert isinstance(table, BatchRows)
        if self._earlier is not None:
            now = Surroundings(self._settings)
            for row in self._made_before(self._earlier, now):
                if ROWS in row.last.outputs:
                    name, output = self._order[row.number], row.last.outputs[ROWS]
                    recorded.values[name] = output
                    recorded.digests[name] = digest_of_value(output)
                    recorded.uses[name] = {
                        use: Use(model)
                        for use, model in row.last.uses.items()
                        if use.startswith("reply:")
                    }
        form = self._states[ROWS].step.form
        with suppress(TypeError):  # the node's type has changed: scorers get the JSON values
            recorded.values = {name: form.restore(value) for name, value in recorded.values.items()}
            recorded.are_restored = True
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


@dataclass(kw_only=True)
class _Recorded(NoCode):
    """The outputs that rows have, and the models that answered."""

    values: dict[str, Any] = field(default_factory=dict)  # row name → output
    digests: dict[str, str] = field(default_factory=dict)  # row name → digest of its JSON
    are_restored: bool = False  # whether they are of the pipeline's type, and not JSON values
    uses: dict[str, dict[str, Use]] = field(default_factory=dict)
    """Row name → the use's name, such as `reply:producer:qwen` → the model."""


def _states_of(graph: Graph) -> dict[str, StepState]:
    """Node → the state that a call of it has to match to be reused."""
    return {step.node.name: StepState(step, step.node.name) for step in plan_of(graph)}


def _kind_of_outputs(pipeline: Graph) -> Any:  # noqa: ANN401 - an annotation
    result = pipeline.nodes[pipeline.result_node]
    kind: Any = list[returned(result)] if result.is_mapped else returned(result)  # type: ignore[misc]
    # None is a result that was skipped.
    return kind if kind is object else Optional[kind]  # noqa: UP045


def _scoring(scorer: Scorer, table: BatchRows, ended: RowsEnded) -> Callable[..., Any]:
    """The function of a scorer's node."""

    # Two functions, since scores of earlier versions are reused only while the first is the same.
    async def scores(run: Run, row: str, output: object, reference: str) -> dict[str, float | None]:  # noqa: ARG001
        with ended.counted(row, scorer.node):
            return await scorer.scores(output, target_of(table.given[row]))

    async def by_row(run: Run, row: str, output: object, reference: str) -> dict[str, float | None]:  # noqa: ARG001
        with ended.counted(row, scorer.node):
            whole = table.given[row]
            return await scorer.scores(output, target_of(whole), whole.fields)

    return by_row if "row" in scorer.takes else scores


def _row_number(label: str) -> int:
    """The number of a call's row: 17 for `rows[17]`."""
    return int(label.partition("[")[2].partition("]")[0])
