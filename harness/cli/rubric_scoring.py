"""`harness rubric score`: drafts of files, folders and tables judged by a rubric, as one batch.

With `--output`, each draft is kept as soon as it is scored, and the same command goes on. Other
commands take drafts and scores from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from harness.cli.arguments import config_option, read_pairs, role_option, together
from harness.cli.batch_command import end_with, max_failures_option, run_batch
from harness.cli.consoles import Command, show
from harness.cli.made_again import made_again_because
from harness.cli.project_files import refusal_after_asking, settings_for_calls
from harness.cli.tables import first_of
from harness.cli.verdicts import (
    decision,
    passes_at,
    print_scores,
    print_summary,
    remarks,
    verdict_as_json,
)
from harness.errors import InferenceError, InvalidInput
from harness.files import read_text
from harness.rows import Row, check_output, read_rows
from harness.rubric import ChosenRubric, Draft, Rubric, Verdict, at_any_threshold
from harness.rubric.calibration.labels import labels_in
from harness.rubric.scoring import samples_of
from harness.session import BatchResult, RowFailure, Settings
from harness.session.batch import Batch
from harness.session.batch_files import SCORED, SCORES, Line, Made, OutputForm
from harness.session.batch_rows import DraftRows, refusal_of
from harness.session.evaluation import choose_rubric
from harness.session.models import known_endpoints
from harness.session.roles import Roles
from harness.session.settings import EvaluationSettings

of_texts = together(
    click.option("--task", default="", help="The drafts' task; @FILE reads it from a file."),
    click.option(
        "--sources",
        multiple=True,
        metavar="FILE",
        help="Texts that the drafts may rely on. May be repeated.",
    ),
    click.option(
        "--columns",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Name of a column in the table, such as draft=answer. May be repeated.",
    ),
)
"""Adds the options that `drafts_in` takes."""

_scoring_options = together(
    click.argument("rubric", metavar="RUBRIC"),
    click.argument("drafts", nargs=-1, required=True, metavar="DRAFTS..."),
    of_texts,
    click.option(
        "--max-parallel",
        type=click.IntRange(min=1),
        default=4,
        show_default=True,
        help="Drafts judged at once.",
    ),
    max_failures_option,
    config_option,
    role_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSource:
    """What the command line says of scoring, with the rubric and the drafts read."""

    settings: Settings
    chosen: ChosenRubric
    rows: DraftRows
    max_parallel: int
    max_failures: float

    @property
    def rubric(self) -> Rubric:
        """The rubric that scores the drafts."""
        return self.chosen.rubric

    @property
    def has_evaluator(self) -> bool:
        """Whether the settings name a model that judges."""
        cast = Roles(known_endpoints(self.settings), self.settings.roles, produces=False)
        return bool(cast.evaluators or cast.pool)


def of_drafts(command: Callable[..., None]) -> Callable[..., None]:
    """Adds RUBRIC, DRAFTS and their options to a command, which gets them as `source`."""

    @wraps(command)
    def with_source(**options: Any) -> None:  # noqa: ANN401 - all of the command's
        roles = read_pairs(options.pop("roles"), option="--role", form="role=tag")
        settings = settings_for_calls(options.pop("config"), roles=roles)
        name, rubrics = options.pop("rubric"), settings.rubrics
        chosen = choose_rubric(name, rubrics=rubrics, refuse=refusal_after_asking)
        texts = {option: options.pop(option) for option in ("task", "sources", "columns")}
        rows = drafts_in(options.pop("drafts"), **texts)
        source = ScoreSource(
            settings=settings,
            chosen=chosen,
            rows=rows,
            max_parallel=options.pop("max_parallel"),
            max_failures=options.pop("max_failures"),
        )
        command(source=source, **options)

    return _scoring_options(with_source)


@click.command(cls=Command)
@of_drafts
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep each draft's scores and labels in this .jsonl or .csv file. The same command goes "
    "on.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 100),
    help="Judge each draft this many times and take the mean; by default only drafts near the "
    "threshold are judged again.",
)
@click.option("--checks-only", is_flag=True, help="Ask no model.")
@click.option("--yes", is_flag=True, help="Do not ask before repeating costly judgements.")
@click.option("--verbose", is_flag=True, help="Show every draft.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(
    *,
    source: ScoreSource,
    output: Path | None,
    samples: int | None,
    checks_only: bool,
    yes: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Score DRAFTS by RUBRIC, a name or a file.

    DRAFTS are texts, folders, patterns such as 'out/*.md', and tables: CSV, JSON Lines, Parquet,
    and - for JSON Lines from standard input. A row has "draft" (the text) or "path" (its file), and
    may have "id", "task" and "sources". Code scores the rubric's checks; a model judges the rest if
    an evaluator is configured.

    With --output it is a batch, as of harness batch: the same command goes on after Ctrl-C, with
    other drafts, another evaluator or a changed rubric, and says what is judged again and why.

    Exit codes: 0 the drafts were scored (whether or not they passed: --json says "passed"), 1 one
    could not be, 2 invalid input, 3 stopped before all had their turn (a limit, an outage, too many
    failures), 130 interrupted, 143 terminated.
    """
    if checks_only:
        source = _without_models(source)
    scored = score_drafts(source, samples=samples, output=output, yes=yes)
    unasked = "--checks-only was given" if checks_only else "no evaluator model is configured"
    printer = partial(_print_scored, unasked=unasked, verbose=verbose)
    show(scored, printer, as_json=as_json, fields=_scores_as_json)
    end_with(scored.result)


def _without_models(source: ScoreSource) -> ScoreSource:
    if not source.rubric.checked:
        raise InvalidInput(
            "--checks-only leaves nothing to score: a model judges every dimension of rubric "
            f"'{source.rubric.id}'",
            code="evaluation.nothing-to-check",
        )
    # Without endpoints, dimensions that only a model can judge are left out.
    without_models = {"endpoints": {}, "roles": {}, "evaluation": EvaluationSettings()}
    return replace(source, settings=source.settings.model_copy(update=without_models))


# Drafts that are shown one by one; of more, the figures are summed up.
_SHOWN = 5


def _print_scored(scored: ScoredDrafts, console: Console, *, unasked: str, verbose: bool) -> None:
    rubric = scored.source.rubric
    verdicts, result = scored.verdicts, scored.result
    if verbose or len(verdicts) <= _SHOWN:
        for name, verdict in verdicts.items():
            print_scores(name, verdict, rubric, console)
            console.print(f"Composite {verdict.composite}: {_decision(verdict, scored)}.")
            for line in remarks(verdict, rubric, unasked=unasked):
                console.print(line)
            console.print()
    if len(verdicts) > _SHOWN:
        print_summary(verdicts, rubric, console, decided=scored.decided)
        if not verbose:
            console.print("Why each draft scored so: --verbose.")
    for line in not_judged(result.failures):
        console.print(line, style="yellow")
    if result.run.stopped_by is not None:
        stop = f"Stopped at {len(verdicts)} of {result.rows} drafts: {result.run.stopped_by}."
        console.print(stop, style="yellow")
    for line in made_again_because(result.run.reruns):
        console.print(line)
    if result.output is not None:
        console.print(f"Kept in {result.output}; the same command scores only what it lacks.")
    journal = result.run.files.journal
    console.print(f"The run's journal: {journal}", style="dim", soft_wrap=True)


def _decision(verdict: Verdict, scored: ScoredDrafts) -> str:
    if scored.decided or verdict.below_floor:
        return decision(verdict, scored.source.rubric)
    return "of the checks alone; whether it passes is unknown until a model judges the rest"


def _scores_as_json(scored: ScoredDrafts) -> dict[str, object]:
    rubric, result = scored.source.rubric, scored.result
    failures = [
        {"id": name_of(failure), "passed": None, "error": failure.reason, "code": failure.code}
        for failure in result.failures
    ]
    return {
        "run_id": result.run.run_id,
        "journal": str(result.run.files.journal),
        "rubric": rubric.id,
        "rubric_sha256": rubric.sha256,
        "pass_at": rubric.pass_at,
        "stopped": result.run.stopped_by,
        "drafts": [*map(dict, scored.rows.values()), *failures],
    }


def drafts_in(
    names: Sequence[str], *, task: str, sources: Sequence[str], columns: Sequence[str]
) -> DraftRows:
    """Reads the drafts of texts, folders and tables; `task` and `sources` are for rows without.

    Raises:
        InvalidInput: There is no draft, or no such file.
    """
    common_task = task_in(task)
    common_sources = tuple(read_text("source", Path(name)) for name in sources)
    drafts: dict[str, Draft] = {}
    rows: dict[str, Row] = {}
    labels: dict[str, dict[str, object]] = {}
    refused: list[RowFailure] = []
    first_mistake: InvalidInput | None = None
    renamed = read_pairs(columns, option="--columns", form="ours=theirs")
    # An empty draft is a draft, and is scored.
    for row in read_rows(names, columns=renamed, empty={"draft"}):
        try:
            if isinstance(row, InvalidInput):
                raise row
            if row.id not in drafts:
                drafts[row.id] = _draft_of(row, task=common_task, sources=common_sources)
                rows[row.id] = row
            elif not _has_further_labels(row, drafts[row.id]):
                raise row.refusal(f"the id '{row.id}' occurs twice", code="row.id-twice")
            labels.setdefault(row.id, {}).update(labels_in(row))
        except InvalidInput as mistake:
            first_mistake = first_mistake or mistake
            refused.append(refusal_of(row, mistake))
    if not drafts:
        # The first mistake says more than that there is no draft.
        raise first_mistake or InvalidInput("there is no draft", code="row.no-rows")
    return DraftRows(drafts=drafts, rows=rows, labels=labels, refused=refused)


def task_in(task: str) -> str:
    """The text of `--task`, which `@FILE` reads from a file."""
    return read_text("task", Path(task[1:])) if task.startswith("@") else task


def _has_further_labels(row: Row, draft: Draft) -> bool:
    """Whether a row with the draft's id has another rater's labels, and is no other draft."""
    # In a file of labels, only the first row of a draft has its text.
    return "rater" in row.fields and row.draft in {None, "", draft.text}


def _draft_of(row: Row, *, task: str, sources: Sequence[str]) -> Draft:
    text = row.draft
    if text is None:
        columns = ", ".join(name for name, value in row.fields.items() if value is not None)
        raise row.refusal(
            "it needs either 'draft', a text, or 'path', a file; it has "
            f"{columns or 'no value at all'}. If a column has "
            "another name, say --columns draft=NAME",
            code="row.no-draft",
        )
    return Draft(
        text=text,
        task=str(row.fields.get("task", task)),
        sources=row.sources if "sources" in row.fields else tuple(sources),
    )


@dataclass(frozen=True, kw_only=True)
class ScoredDrafts:
    """The drafts of a command and their scores."""

    source: ScoreSource
    result: BatchResult
    rows: Mapping[str, Mapping[str, Any]]
    """Draft's id → its row in the output, for drafts with a verdict, in the drafts' order."""
    verdicts: Mapping[str, Verdict]
    """Draft's id → its verdict."""
    decided: bool
    """Whether passing is known: no dimension still needs an evaluator."""

    @property
    def evaluator(self) -> str:
        """The tags of the judging endpoints, for people; empty if only code scores."""
        return next((str(row["evaluator"]) for row in self.rows.values()), "")


def score_drafts(
    source: ScoreSource,
    *,
    samples: int | None,
    output: Path | None,
    verb: str = "score",
    yes: bool = True,
) -> ScoredDrafts:
    """Scores drafts as one batch, which continues from its output; `verb` begins the run's name.

    Raises:
        InvalidInput: The output has something else.
        InferenceError: No draft could be scored.
    """
    rubric, has_evaluator = source.rubric, source.has_evaluator
    if output is not None:
        check_output(output, {".csv", ".jsonl"})
    form = _ScoreForm(rubric, source.rows)
    batch = Batch(
        source.rows,
        name=f"{verb} {rubric.id}",
        settings=source.settings,
        output=output,
        form=form,
        max_failures=source.max_failures,
        rubric=source.chosen,
        samples=samples,
        checks_only=bool(rubric.checked) and not has_evaluator,
        # The same command continues with the same judge of a pool.
        pool_seed=f"{rubric.id} {output}" if output else None,
        max_parallel=source.max_parallel,
    )
    result = run_batch(batch, yes=yes)
    if result.run.failures and not result.outputs:
        error = result.run.failures[0].error
        # If no draft could be scored, the server is to blame, and not the drafts.
        if isinstance(error, InferenceError):
            raise error
    outputs = result.outputs
    rows = {id_: outputs[id_] for id_ in source.rows.drafts if id_ in outputs}
    return ScoredDrafts(
        source=source,
        result=result,
        rows=rows,
        verdicts={id_: form.verdicts[id_] for id_ in rows},
        decided=has_evaluator or all(dimension.optional for dimension in rubric.judged),
    )


class _ScoreForm(OutputForm):
    """The scores of each draft that has a verdict, and its labels."""

    def __init__(self, rubric: Rubric, rows: DraftRows) -> None:
        super().__init__(rows)
        self.verdicts: dict[str, Verdict] = {}  # draft's id → the verdict of its last line
        self._drafts = rows
        self._rubric = rubric
        # Scores do not depend on the threshold.
        self._versions = at_any_threshold(rubric)
        self._own_columns = [
            *("id", "passed", "composite"),
            *(f"score.{dimension.name}" for dimension in rubric.dimensions),
            *("below_floor", "gates", "missing", "unjudged", "unjudged_reasons"),
            *("rubric", "rubric_sha256", "evaluator", "samples", "sha256", "scores", "judges"),
        ]
        labels = dict.fromkeys(name for columns in rows.labels.values() for name in columns)
        self._base_columns = [*self._own_columns, *labels, "outdated"]

    def line(self, number: int, name: str, made: Made) -> dict[str, Any]:  # noqa: ARG002
        draft = self._drafts.given[name].id
        scored = SCORED.validate_python(made.outputs[SCORES])
        verdict = scored.verdict
        judges = verdict.judges
        passed = scored.passed
        is_vote = judges is not None and judges.combine == "majority"
        if scored.samples and not is_vote and verdict.rubric_sha256 in self._versions:
            # The scores hold, but the rubric's threshold may be another now.
            if passed is not None:
                passed = passes_at(verdict, self._rubric.pass_at)
            verdict = replace(verdict, rubric_sha256=self._rubric.sha256)
        self.verdicts[draft] = replace(verdict, passed=bool(passed))
        scores: dict[str, object] = dict(verdict.vector)
        # Labels have each sample in a cell, of which `tune` takes the mean.
        if judges is not None and judges.each and scored.samples:
            scores |= samples_of(judges)
        return {
            **dict.fromkeys(self._own_columns),
            "id": draft,
            **self._drafts.labels.get(draft, {}),
            **verdict_as_json(verdict),
            "passed": passed,
            **{f"score.{name}": score for name, score in scores.items()},
            "rubric": verdict.rubric,
            "rubric_sha256": verdict.rubric_sha256,
            "evaluator": scored.evaluator,
            "samples": scored.samples,
            "sha256": self._drafts.drafts[draft].sha256,
            "error": None,
        }

    def cells(self, line: Line) -> dict[str, Any]:
        return dict(line)

    def passed(self) -> Iterator[bool]:
        """See `OutputForm.passed`; a draft without a verdict has not passed."""
        yield from (line["passed"] for line in self.in_order if line["passed"] is not None)
        yield from (False for _ in self.failures)


_LISTED = 10  # drafts without a verdict that are named


def not_judged(failures: Sequence[RowFailure]) -> Iterator[str]:
    """Lines that name the drafts, or rows, without a verdict, each with the reason."""
    lines = [f"Not judged: {name_of(failure)}: {failure.reason}" for failure in failures]
    return first_of(lines, _LISTED, more="… and {} more; --json has all.")


def name_of(failure: RowFailure) -> str:
    """The draft's id; for a row that is no draft, its place in the table."""
    return failure.place if failure.row is None else failure.id
