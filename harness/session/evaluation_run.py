"""`Evaluation`: a pipeline, or a prompt, over a data set, with scores of each output.

It is a batch whose rows are repeated for each epoch and whose outputs are scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from harness.errors import InvalidInput, did_you_mean
from harness.files import read_text
from harness.graph import Graph
from harness.inference import Backend, Limits
from harness.rows import Row
from harness.rubric import ChosenRubric, Rubric
from harness.rubric.calibration.score_figures import Reducer, Sample, ScoreSummary, summaries
from harness.rubric.checks import Match, Target
from harness.session.batch import Batch
from harness.session.batch_files import SCORED, SCORES, BatchResult, Line, Made, OutputForm
from harness.session.batch_rows import BadRows, BatchRows, Inputs, epoch_of, target_of, text_of
from harness.session.evaluation import choose_rubric
from harness.session.own_loop import in_own_loop
from harness.session.pipeline import Pipeline, check_batch
from harness.session.resume import Origin
from harness.session.run import Run
from harness.session.scorers import ScoreFunction, Scorer, refuse_twice, scorers_of
from harness.session.settings import Settings, settings_or_default
from harness.trace import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult(BatchResult):
    """What an evaluation came to. `outputs` are those of each row's last epoch."""

    epochs: int
    reduce: str
    scores: tuple[ScoreSummary, ...]
    """The rubric's: `RUBRIC`, the composite; `RUBRIC.passed`; `RUBRIC.DIMENSION`. Then those of
    functions: `NAME`, or `NAME.PART`. Empty if nothing was scored."""
    samples: Sequence[Mapping[str, Any]] = field(repr=False)
    """What the output has: a line for each row and epoch that has an output."""

    @property
    def scored(self) -> int:
        """How many outputs have a score."""
        return sum(bool(sample["scores"]) for sample in self.samples)

    @property
    def summary(self) -> str:
        """The figures as a table of plain text."""
        head = ("score", "rows", "mean", "stderr", "95 % confidence", "accuracy")
        lines = [head, *(line for score in self.scores for line in _told(score))]
        first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
        return "\n".join(
            "  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip()
            for name, *cells in lines
        )

    def to_json(self) -> dict[str, Any]:
        """The same for programs: figures, failures and files, without the samples."""
        scores = [asdict(score) for score in self.scores]
        own = {"epochs": self.epochs, "reduce": self.reduce, "scores": scores}
        return BatchResult.to_json(self) | own | {"done": self.scored}

    def score(self, name: str) -> ScoreSummary:
        """The figures of one score.

        Raises:
            KeyError: No row has it.
        """
        return {score.name: score for score in self.scores}[name]


class EvaluationOptions(TypedDict, total=False):
    """How an evaluation is run."""

    output: str | Path | None
    """A `.jsonl`, `.csv` or `.parquet` file that gets a line for each row and epoch."""
    rescore: bool
    """Whether the outputs that are there are only scored, even if the pipeline or its model has
    changed; rows without an output fail."""
    sample: int | None
    """As for `Pipeline.batch`, as are the others."""
    seed: int
    max_failures: float | None
    max_parallel: int | None
    limits: Limits | None
    backends: Mapping[str, Backend] | None
    observers: Sequence[Sink]


class Evaluation:
    """A pipeline or a prompt, a data set, and what scores the outputs.

    Args:
        pipeline: Runs each row; or a prompt for the producer, where `{column}` stands for what the
            row has, and `@FILE` for a file with the prompt.
        dataset: CSV, JSON Lines or Parquet files, texts, folders of them; or mappings. Columns are
            inputs by name. `target` is what a right answer says: a text, a number, or a list of
            these; `sources` are texts for the judge; `id` names a row; all others are kept.
        rubric: Scores the outputs; its judge is told the target.
        scorers: Functions of `output`, or also of `target` and `row`, that return a number, whether
            it is right, None for no score, or several of these by name; and `equal`, `includes`,
            `number`, `number:TOLERANCE`, which compare with the target.
        epochs: How often each row is run.
        reduce: Makes one score of a row's epochs: `mean`, `median`, `mode`, `max`, `at_least_K`,
            `pass_at_K`; `at_least_2:0.5` if a success is not the scorer's.
        name: Of the evaluation and its runs; the pipeline's by default.
        group: The column that names what rows share, by which standard errors are clustered.
        category: A column whose values have figures of their own; empty for none.
        columns: What a column is called in the data set, by its name here.
        every: Inputs of every row, as for `Pipeline.batch`.
        bad_rows: Whether rows that do not fit stop it before anything runs, or fail alone.

    Raises:
        InvalidInput: Nothing scores, or an argument is invalid.
    """

    def __init__(
        self,
        pipeline: Graph[Any] | str,
        dataset: Inputs,
        *,
        rubric: str | Path | Rubric | None = None,
        scorers: Sequence[str | ScoreFunction] = (),
        epochs: int = 1,
        reduce: str = "mean",
        name: str = "",
        group: str = "group",
        category: str = "",
        columns: Mapping[str, str] | None = None,
        every: Mapping[str, object] | None = None,
        bad_rows: BadRows = "stop",
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.scorers = scorers_of([scorers] if isinstance(scorers, str) else scorers)
        if rubric is None and not self.scorers:
            raise InvalidInput(
                "nothing scores the outputs; give a rubric (rubric=, --rubric) or scorers "
                "(scorers=, --score)",
                code="evaluation.nothing-scores",
            )
        if epochs < 1:
            raise InvalidInput(
                f"epochs={epochs} runs no row; give 1 or more", code="evaluation.epochs-invalid"
            )
        self.reducer = Reducer.named(reduce, epochs=epochs)
        every = dict(every or {})
        if isinstance(pipeline, str):
            prompt = read_text("prompt", Path(pipeline[1:])) if pipeline[:1] == "@" else pipeline
            # A prompt that begins so is none: two signs stand for one.
            every["prompt"] = f"@{prompt}" if prompt[:1] == "@" else prompt
            pipeline = _of_prompt(name or "prompt")
        cached = [node.name for node in pipeline.nodes.values() if node.policies.cache is not None]
        if epochs > 1 and cached:
            raise InvalidInput(
                f"node '{cached[0]}' of '{pipeline.name}' has a cache, so {epochs} epochs would "
                "have one output; remove the cache, or give epochs=1",
                code="evaluation.node-cached",
            )
        self.pipeline = pipeline
        self.dataset = dataset
        self.rubric = rubric
        self.epochs = epochs
        self.reduce = reduce
        self.name = name or pipeline.name
        self.group = group
        self.category = category
        self.columns = columns
        self.every = every
        self.bad_rows: BadRows = bad_rows

    def changed(self, **arguments: Any) -> Evaluation:  # noqa: ANN401 - as of `__init__`
        """The same with other arguments."""
        return Evaluation(**{**self._arguments, **arguments})

    async def run_async(
        self, *, settings: Settings | None = None, **options: Unpack[EvaluationOptions]
    ) -> EvaluationResult:
        """Runs and scores the rows that are not in the output yet.

        The same call goes on after a kill, with other rows, more epochs, another scorer, rubric or
        judge: outputs that still hold are not made again, and scores that still hold are not
        judged again.

        Args:
            settings: In place of those of the directory and the environment.
            options: See `EvaluationOptions`.

        Raises:
            InvalidInput: A row does not fit, a target is missing or cannot be compared, the output
                is not of this evaluation, or an argument is invalid; nothing was run.
        """
        check_batch(**options)
        batch = self.batch(settings_or_default(settings), **options)
        return cast("EvaluationResult", await batch.run())

    run = in_own_loop(run_async, instead="await evaluation.run_async(…)")

    def batch(
        self,
        settings: Settings,
        *,
        origin: Origin | None = None,
        output: str | Path | None = None,
        sample: int | None = None,
        seed: int = 0,
        **options: Any,  # noqa: ANN401 - the other `EvaluationOptions`
    ) -> Batch:
        """The batch that it is, with an `EvaluationResult`; see `run_async`."""
        chosen = None
        if self.rubric is not None:
            chosen = choose_rubric(self.rubric, rubrics=settings.rubrics)
            refuse_twice([chosen.rubric.id, *(scorer.name for scorer in self.scorers)])
            if "passed" in {dimension.name for dimension in chosen.rubric.dimensions}:
                raise InvalidInput(
                    f"dimension 'passed' of rubric '{chosen.rubric.id}' has the name of the score "
                    "that says whether an output passes; rename it",
                    code="evaluation.dimension-passed",
                )
        rows = BatchRows(
            self.pipeline,
            self.dataset,
            columns=self.columns,
            every=self.every,
            bad_rows=self.bad_rows,
            sample=sample,
            seed=seed,
            epochs=self.epochs,
            check=partial(_check_target, self.scorers, chosen),
        )
        known = {name for row in rows.given.values() for name in row.fields}
        for what in ("group", "category"):
            column = getattr(self, what)
            if column and column not in known and (what, column) != ("group", "group"):
                raise InvalidInput(
                    f"{what} '{column}' is no column; {did_you_mean(column, known)}",
                    code="evaluation.no-column",
                )
        return Batch(
            rows,
            name=f"evaluate {self.name}",
            settings=settings,
            output=None if output is None else Path(output),
            form=EvaluationForm(self, rows, chosen),
            rubric=chosen,
            scorers=self.scorers,
            pool_seed=f"{self.name} {output}",
            origin=origin,
            **options,
        )


def _of_prompt(name: str) -> Pipeline[str]:
    """The pipeline of a prompt, which has the row's values in it already."""
    pipeline = Pipeline[str](name)

    @pipeline.node(models=["producer"])
    async def output(run: Run, prompt: str) -> str:
        return await run.chat("producer", prompt)

    return pipeline


def _check_target(
    scorers: Sequence[Scorer], chosen: ChosenRubric | None, row: Row, columns: AbstractSet[str]
) -> None:
    """Refuses a row whose target is missing, or is none that a scorer can compare with."""
    compare = [(scorer.name, scorer.function) for scorer in scorers if scorer.needs_target]
    for dimension in chosen.rubric.checked if chosen else ():
        checks = (check for check in dimension.checks if isinstance(check, Target))
        compare += [(dimension.name, Match(check.match)) for check in checks]
    target = target_of(row)
    for name, function in compare:
        if target is None:
            remedy = "fill it in, or leave out such rows (--bad-rows skip, bad_rows='skip')"
            if "target" not in columns:
                remedy = (
                    "add a column `target`, or name the one that is (--columns target=COLUMN, "
                    "columns={'target': 'COLUMN'})"
                )
            raise row.refusal(
                f"it has no 'target', which '{name}' needs; {remedy}",
                code="evaluation.no-target",
            )
        if isinstance(function, Match) and (fault := function.fault_of(target)):
            raise row.refusal(
                f"its 'target' is none that '{name}' can compare with: {fault}",
                code="evaluation.target-invalid",
            )


def thresholds_of(rubric: Rubric) -> dict[str, float]:
    """By score that a rubric gives, what counts as a success."""
    share = rubric.scale.share(rubric.pass_at)
    names = [dimension.name for dimension in rubric.dimensions]
    return {
        rubric.id: rubric.pass_at,
        f"{rubric.id}.passed": 1.0,
        **{f"{rubric.id}.{name}": rubric.scale_of(name).at(share) for name in names},
    }


class EvaluationForm(OutputForm):
    """A line for each row and epoch: output, target, scores, reasons, models; figures of all."""

    def __init__(
        self, evaluation: Evaluation, rows: BatchRows, chosen: ChosenRubric | None
    ) -> None:
        super().__init__(rows)
        self._evaluation = evaluation
        self._success = thresholds_of(chosen.rubric) if chosen else {}
        self.about = {"evaluation": {"reduce": evaluation.reduce, "success": self._success}}
        self._parts: dict[str, dict[str, None]] = {s.name: {} for s in evaluation.scorers}

    @cached_property
    def columns(self) -> list[str]:
        """See `OutputForm.columns`; a scorer that returns several has more once it has run."""
        names = [*self._success]
        for scorer, parts in self._parts.items():
            names += parts or [scorer]
        row, id_, *columns, models, outdated = super().columns
        scores = [*(f"scores.{name}" for name in names), "scores", "reasons"]
        return [row, id_, "epoch", *columns, "target", "group", *scores, models, outdated]

    def line(self, number: int, name: str, made: Made) -> dict[str, Any]:
        """See `OutputForm.line`."""
        line = super().line(number, name, made)
        row = self.rows.given[name]
        scores: dict[str, float] = {}
        judged: dict[str, Any] = {}
        if made.get(SCORES):
            scored = SCORED.validate_python(made[SCORES])
            verdict = scored.verdict
            rubric = verdict.rubric
            scores = {rubric: verdict.composite, f"{rubric}.passed": float(verdict.passed)}
            scores |= {f"{rubric}.{part}": score for part, score in verdict.vector.items()}
            judged = {
                "rubric": rubric,
                "rubric_sha256": verdict.rubric_sha256,
                "evaluator": scored.evaluator,
                "reasons": {f"{rubric}.{s.name}": s.reason for s in verdict.scores if s.reason},
                "findings": [
                    {"score": f"{rubric}.{s.name}", "section": f.section, "message": f.message}
                    for s in verdict.scores
                    if s.source == "judged"  # of a check, they are its reason
                    for f in s.own_findings
                ],
            }
        without: list[str] = []
        for scorer in self._evaluation.scorers:
            every = made[scorer.node] or {}
            parts = {name: score for name, score in every.items() if score is not None}
            without += every.keys() - parts.keys()
            scores |= parts
            if parts.keys() - self._parts[scorer.name]:
                self._parts[scorer.name].update(dict.fromkeys(parts))
                vars(self).pop("columns", None)
        group = text_of(row.fields.get(self._evaluation.group, ""))
        own = {"target": target_of(row), "group": group, "scores": scores, **judged}
        if without:
            own["no_score"] = sorted(without)
        head = {"row": number, "id": row.id, "epoch": epoch_of(name)}
        models = line.pop("models")
        return {**head, **line, **own, "models": models}

    def cells(self, line: Line) -> dict[str, Any]:
        """See `OutputForm.cells`."""
        scores, target = line["scores"], line["target"]
        return super().cells(line) | {
            "epoch": line["epoch"],
            "group": line["group"],
            "target": "" if target is None else text_of(target),
            "reasons": text_of(line.get("reasons", {})),
            "scores": text_of(scores),
            **{f"scores.{name}": score for name, score in scores.items()},
        }

    def figures(self) -> dict[str, float]:
        """The mean of each score."""
        return {score.name: score.mean for score in self._summaries}

    def result(self, **fields: Any) -> EvaluationResult:  # noqa: ANN401
        """See `OutputForm.result`."""
        # With rescore=, epochs of a row may be refused beside others.
        given = {(str(row.path), row.line) for row in self.rows.given.values()}
        fields["rows"] = len(given | {(row.file, row.line) for row in self.rows.refused})
        return EvaluationResult(
            **fields,
            epochs=self._evaluation.epochs,
            reduce=self._evaluation.reduce,
            scores=self._summaries,
            samples=self.in_order,
        )

    @cached_property
    def _summaries(self) -> tuple[ScoreSummary, ...]:
        """Summaries over all rows; read once all rows have ended."""
        evaluation, category = self._evaluation, self._evaluation.category
        # In the order of the scorers, whichever row has a score first.
        own = {name: 1.0 for names in self._parts.values() for name in names}
        own |= {name: 1.0 for line in self.in_order for name in line["scores"]}
        samples = [
            Sample(
                row=line["id"],
                scores=line["scores"],
                group=line["group"],
                category=text_of(line["inputs"].get(category, "")) if category else "",
                no_score=line.get("no_score", ()),
            )
            for line in self.in_order
        ]
        success = self._success | {n: at for n, at in own.items() if n not in self._success}
        return summaries(samples, reducer=evaluation.reducer, success=success)


def _told(score: ScoreSummary) -> Iterator[tuple[str, ...]]:
    within = f"{score.low:.3f} to {score.high:.3f}" if score.low == score.low else "-"
    rows = f"{score.rows} ({score.missing} missing)" if score.missing else str(score.rows)
    by = "" if score.groups is None else f" ({score.groups} groups)"
    mean, accuracy = f"{score.mean:.4f}", f"{score.accuracy:.4f}"
    yield score.name, rows, mean, _error(score.stderr) + by, within, accuracy
    for name, of in score.categories.items():
        yield f"  {name}", str(of.rows), f"{of.mean:.4f}", _error(of.stderr), "", ""


def _error(stderr: float | None) -> str:
    return "-" if stderr is None else f"{stderr:.4f}"
