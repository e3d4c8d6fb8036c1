"""`Evaluation`: a pipeline, or a prompt, over a data set, with scores of each output.

It is a batch whose rows are repeated for each epoch and whose outputs are scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import orjson

from harness.errors import InvalidInput, Notice, did_you_mean
from harness.files import read_text
from harness.graph import Graph
from harness.inference import Backend, Limits
from harness.log import log_warning
from harness.rows import Row
from harness.rubric import ChosenRubric, Rubric, Scored, how_to_make_optional
from harness.rubric.calibration.score_figures import Reducer, Sample, ScoreSummary, summaries
from harness.rubric.checks import Match, Target
from harness.session.batch import Batch
from harness.session.batch_files import SCORED, SCORES, BatchResult, Line, Made, OutputForm
from harness.session.batch_rows import BadRows, BatchRows, Inputs, epoch_of, target_of
from harness.session.evaluation import choose_rubric
from harness.session.own_loop import in_own_loop
from harness.session.pipeline import Pipeline, check_options
from harness.session.resume import Origin
from harness.session.run import Run
from harness.session.scorers import ScoreFunction, Scorer, refuse_twice, scorers_of
from harness.session.settings import Settings, settings_or_default
from harness.text.value_text import text_of
from harness.trace import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult(BatchResult):
    """The result of an evaluation. `outputs` are those of each row's last epoch."""

    epochs: int
    reduce: str
    scores: tuple[ScoreSummary, ...]
    """First the rubric's scores: `RUBRIC` is the composite, then `RUBRIC.passed` and
    `RUBRIC.DIMENSION`. Then the functions' scores: `NAME`, or `NAME.PART`. Empty if nothing was
    scored."""
    samples: Sequence[Mapping[str, Any]] = field(repr=False)
    """The lines of the output: one for each row and epoch that has an output."""

    @property
    def scored(self) -> int:
        """How many outputs have a score."""
        return sum(bool(sample["scores"]) for sample in self.samples)

    @property
    def summary(self) -> str:
        """The figures as a table of plain text."""
        head = ("score", "rows", "mean", "stderr", "95 % confidence", "accuracy")
        rows = [head, *(row for score in self.scores for row in _table_rows(score))]
        name_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(
            "  ".join([name.ljust(name_width), *map(str.rjust, cells, widths)]).rstrip()
            for name, *cells in rows
        )

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values: figures (None for NaN), failures and files; no samples."""
        return BatchResult.to_json(self) | {
            "epochs": self.epochs,
            "reduce": self.reduce,
            "scores": orjson.loads(orjson.dumps(self.scores)),
            "done": self.scored,
        }

    def score(self, name: str) -> ScoreSummary:
        """The figures of the score with this name; raises `KeyError` if no row has it."""
        scores = {score.name: score for score in self.scores}
        if name not in scores:
            raise KeyError(f"no row has a score '{name}'; scores: {', '.join(scores) or 'none'}")
        return scores[name]


class EvaluationOptions(TypedDict, total=False):
    """How an evaluation is run."""

    output: str | Path | None
    """A `.jsonl`, `.csv` or `.parquet` file that gets a line for each row and epoch."""
    rescore: bool
    """Whether the outputs that are there are only scored, even if the pipeline or its model has
    changed; rows without an output fail."""
    sample: int | None
    """See `Pipeline.batch` for this and the others."""
    seed: int
    max_failures: float | None
    max_parallel: int | None
    limits: Limits | None
    backends: Mapping[str, Backend] | None
    observers: Sequence[Sink]


class Evaluation:
    """A pipeline or a prompt, a data set, and what scores the outputs.

    Args:
        pipeline: Runs each row. Or a prompt for the producer, in which `{column}` stands for the
            row's value; `@FILE` is a file with the prompt.
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
        if not isinstance(dataset, str | Path | Mapping):
            dataset = [*dataset]  # each run reads it
        # For `changed`.
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.scorers = scorers_of(
            [scorers] if isinstance(scorers, str) or callable(scorers) else scorers
        )
        if rubric is None and not self.scorers:
            raise InvalidInput(
                "nothing scores the outputs; give a rubric (rubric=, --rubric) or scorers "
                "(scorers=, --score)",
                code="evaluation.nothing-scores",
            )
        if not hasattr(epochs, "__index__") or epochs < 1:
            raise InvalidInput(
                f"epochs={epochs!r} runs no row; give 1 or more", code="evaluation.epochs-invalid"
            )
        self.reducer = Reducer.named(reduce, epochs=epochs)
        every = dict(every or {})
        if isinstance(pipeline, str):
            is_file = pipeline.startswith("@")
            prompt = read_text("prompt", Path(pipeline[1:])) if is_file else pipeline
            # As an input of every row, `@` would name a file, and `@@` is a plain `@`.
            every["prompt"] = f"@{prompt}" if prompt.startswith("@") else prompt
            pipeline = _pipeline_of_prompt(name or "prompt")
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
        """The same evaluation with some arguments of `__init__` changed."""
        return Evaluation(**{**self._arguments, **arguments})

    async def run_async(
        self, *, settings: Settings | None = None, **options: Unpack[EvaluationOptions]
    ) -> EvaluationResult:
        """Runs and scores the rows that are not in the output yet.

        After a kill, the same call continues. It may have other rows, more epochs, or another
        scorer, rubric or judge: outputs and scores that still hold are not made again.

        Args:
            settings: In place of those of the directory and the environment.
            options: See `EvaluationOptions`.

        Raises:
            InvalidInput: A row does not fit, a target is missing or cannot be compared, the output
                is not of this evaluation, or an argument is invalid; nothing was run.
        """
        check_options(**options)
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
        """The evaluation as a batch, whose result is an `EvaluationResult`; see `run_async`."""
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
        columns = {name for row in rows.given.values() for name in row.fields}
        for what, column in (("group", self.group), ("category", self.category)):
            # The default group may be missing.
            if column and column not in columns and (what, column) != ("group", "group"):
                raise InvalidInput(
                    f"{what} '{column}' is no column; {did_you_mean(column, columns)}",
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


def _pipeline_of_prompt(name: str) -> Pipeline[str]:
    """A pipeline whose input `prompt` already contains the row's values."""
    pipeline = Pipeline[str](name)

    @pipeline.node(models=["producer"])
    async def output(run: Run, prompt: str) -> str:
        return await run.chat("producer", prompt)

    return pipeline


def _check_target(
    scorers: Sequence[Scorer], chosen: ChosenRubric | None, row: Row, columns: AbstractSet[str]
) -> None:
    """Raises `InvalidInput` if a scorer or check needs a target, and the row's does not serve."""
    comparisons = [(scorer.name, scorer.function) for scorer in scorers if scorer.needs_target]
    for dimension in chosen.rubric.checked if chosen else ():
        checks = (check for check in dimension.checks if isinstance(check, Target))
        comparisons += [(dimension.name, Match(check.match)) for check in checks]
    target = target_of(row)
    for name, function in comparisons:
        if target is None:
            remedy = "fill it in, or leave out such rows (--bad-rows skip, bad_rows='skip')"
            if "target" not in columns:
                remedy = (
                    "add a column `target`, or name the one that is (--columns target=COLUMN, "
                    "columns={'target': 'COLUMN'})"
                )
            raise row.refusal(
                f"it has no 'target', which '{name}' needs; {remedy}", code="evaluation.no-target"
            )
        if isinstance(function, Match) and (fault := function.fault_of(target)):
            raise row.refusal(
                f"its 'target' is none that '{name}' can compare with: {fault}",
                code="evaluation.target-invalid",
            )


def thresholds_of(rubric: Rubric) -> dict[str, float]:
    """Name of a score by this rubric → the least value that counts as a success."""
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
        self._rubric = chosen.rubric if chosen else None
        self._success = thresholds_of(chosen.rubric) if chosen else {}
        # Dimension that some row has no score in → why.
        self._unjudged: dict[str, str] = {}
        self.about = {"evaluation": {"reduce": evaluation.reduce, "success": self._success}}
        # Scorer → the names of its scores so far, in their order.
        self._parts: dict[str, dict[str, None]] = {s.name: {} for s in evaluation.scorers}

    @property
    def columns(self) -> list[str]:
        """See `OutputForm.columns`. They grow when a scorer returns scores of new names."""
        names = [*self._success]
        for scorer, parts in self._parts.items():
            names += parts or [scorer]
        row, id_, *columns, models, outdated = self._base_columns
        scores = [*(f"scores.{name}" for name in names), "scores", "reasons"]
        return [row, id_, "epoch", *columns, "target", "group", *scores, models, outdated]

    def line(self, number: int, name: str, made: Made) -> dict[str, Any]:
        """See `OutputForm.line`."""
        row = self.rows.given[name]
        head = {"row": number, "id": row.id, "epoch": epoch_of(name)}
        line = super().line(number, name, made)
        models = line.pop("models")
        scores: dict[str, float] = {}
        by_rubric: dict[str, Any] = {}
        if made.outputs.get(SCORES):
            scored = SCORED.validate_python(made.outputs[SCORES])
            has_sources = any(map(str.strip, row.sources))
            self._unjudged |= _why_unjudged(self._rubric, scored, has_sources=has_sources)
            by_rubric = _fields_by_rubric(scored)
            scores |= by_rubric.pop("scores")
        no_score: list[str] = []
        for scorer in self._evaluation.scorers:
            for part, score in (made.outputs[scorer.node] or {}).items():
                if score is None:
                    no_score.append(part)
                    continue
                scores[part] = score
                self._parts[scorer.name][part] = None
        return {
            **head,
            **line,
            "target": target_of(row),
            "group": text_of(row.fields.get(self._evaluation.group, "")),
            "scores": scores,
            **by_rubric,
            **({"no_score": sorted(no_score)} if no_score else {}),
            "models": models,
        }

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
        # A row counts once for all its epochs, of which rescoring may refuse only some.
        places = {(str(row.path), row.line) for row in self.rows.given.values()}
        places |= {(failure.file, failure.line) for failure in self.rows.refused}
        fields["rows"] = len(places)
        for notice in self._notices():
            log_warning(notice.message, code=notice.code)
            run = fields["run"]
            fields["run"] = replace(run, warnings=(*run.warnings, notice))
        return EvaluationResult(
            **fields,
            epochs=self._evaluation.epochs,
            reduce=self._evaluation.reduce,
            scores=self._summaries,
            samples=self.in_order,
        )

    def _notices(self) -> Iterator[Notice]:
        """A warning of the dimensions that no row has a score in."""
        rubric, names = self._rubric, {name for line in self.in_order for name in line["scores"]}
        # Without any score by the rubric, the failures of the rows say why.
        if rubric is None or rubric.id not in names:
            return
        unjudged = [d for d in rubric.dimensions if f"{rubric.id}.{d.name}" not in names]
        if not unjudged:
            return
        whys = (f"{d.name} ({self._unjudged.get(d.name, 'unjudged')})" for d in unjudged)
        message = f"rubric '{rubric.id}' gave no row a score for {', '.join(whys)}"
        if required := [d.name for d in unjudged if d.checks and not d.optional]:
            message += (
                f"; no output passes without {' and '.join(required)}: give the rows what "
                f"is missing, or {how_to_make_optional(rubric, required)}"
            )
        yield Notice(code="evaluation.not-judged", message=message)

    @cached_property
    def _summaries(self) -> tuple[ScoreSummary, ...]:
        """Summaries over all rows; read once all rows have ended."""
        evaluation, category = self._evaluation, self._evaluation.category
        # In the order of the scorers, whichever row has a score first.
        names = [name for parts in self._parts.values() for name in parts]
        # A score of the user's own function is a success from 1 on.
        least_success = self._success | dict.fromkeys(names, 1.0)
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
        return summaries(samples, reducer=evaluation.reducer, success=least_success)


def _why_unjudged(
    rubric: Rubric | None, scored: Scored, *, has_sources: bool
) -> Iterator[tuple[str, str]]:
    """Each dimension without a score, and why it has none."""
    verdict = scored.verdict
    for dimension in rubric.dimensions if rubric else ():
        name = dimension.name
        if name not in verdict.unjudged:
            continue
        why = "there is no evaluator"
        if dimension.checks:
            why = verdict.unjudged_reasons.get(name, "its checks could not judge")
        elif verdict.gates:
            why = f"{' and '.join(verdict.gates)} failed before it"
        elif dimension.needs_sources and not has_sources:
            why = "there are no sources"
        yield name, why


def _fields_by_rubric(scored: Scored) -> dict[str, Any]:
    """What a line has of a rubric's verdict; `scores` maps the score's name to its value."""
    verdict = scored.verdict
    rubric = verdict.rubric
    return {
        "scores": {
            rubric: verdict.composite,
            f"{rubric}.passed": float(verdict.passed),
            **{f"{rubric}.{part}": score for part, score in verdict.vector.items()},
        },
        "rubric": rubric,
        "rubric_sha256": verdict.rubric_sha256,
        "evaluator": scored.evaluator,
        "reasons": {f"{rubric}.{s.name}": s.reason for s in verdict.scores if s.reason},
        "findings": [
            {"score": f"{rubric}.{s.name}", "section": f.section, "message": f.message}
            for s in verdict.scores
            if s.source == "judged"  # the findings of a check are its reason already
            for f in s.own_findings
        ],
    }


def _table_rows(score: ScoreSummary) -> Iterator[tuple[str, ...]]:
    """The cells for `summary`: a row for the score, and one for each category."""
    # An interval that is not known is NaN.
    interval = "-" if math.isnan(score.low) else f"{score.low:.3f} to {score.high:.3f}"
    rows = f"{score.rows} ({score.missing} missing)" if score.missing else str(score.rows)
    groups = "" if score.groups is None else f" ({score.groups} groups)"
    mean, accuracy = f"{score.mean:.4f}", f"{score.accuracy:.4f}"
    yield score.name, rows, mean, _error(score.stderr) + groups, interval, accuracy
    for name, figures in score.categories.items():
        error = _error(figures.stderr)
        yield f"  {name}", str(figures.rows), f"{figures.mean:.4f}", error, "", ""


def _error(stderr: float | None) -> str:
    return "-" if stderr is None else f"{stderr:.4f}"
