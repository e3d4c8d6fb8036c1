"""Scoring many drafts: read from tables, judged in parallel, saved row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import TypeAdapter, ValidationError

from harness.cli.arguments import config_option, read_pairs, role_option, together
from harness.cli.batch_command import bad_rows_option, max_failures_option, run_batch
from harness.cli.project_files import refusal_after_asking, settings_for_calls
from harness.cli.verdicts import passes_at, verdict_as_json
from harness.errors import InferenceError, InvalidInput
from harness.files import read_text
from harness.rows import Row, check_output, read_rows
from harness.rubric import ChosenRubric, Draft, Rubric, Verdict, at_any_threshold
from harness.rubric.calibration.labels import is_label, labels_in
from harness.rubric.scoring import samples_of
from harness.session import BatchResult, RowFailure, Settings
from harness.session.batch import Batch
from harness.session.batch_files import SCORED, SCORES, Line, Made, OutputForm
from harness.session.batch_rows import BadRows, DraftRows, mistakes_in, refusal_of
from harness.session.evaluation import choose_rubric
from harness.session.models import known_endpoints
from harness.session.roles import Roles

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
_of_rows = together(
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
    bad_rows_option("skip"),
    config_option,
    role_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSource:
    """The files and settings that the command line names."""

    settings: Settings
    chosen: ChosenRubric
    rows: DraftRows
    max_parallel: int
    max_failures: float
    task: str

    @property
    def rubric(self) -> Rubric:
        """What the drafts are judged by."""
        return self.chosen.rubric


def of_drafts(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the arguments that say what is judged; the command gets `read`, which reads them."""

    @wraps(command)
    def called(
        *,
        rubric: str,
        drafts: tuple[str, ...],
        task: str,
        sources: tuple[str, ...],
        columns: tuple[str, ...],
        max_parallel: int,
        max_failures: float,
        bad_rows: BadRows,
        config: Path | None,
        roles: tuple[str, ...],
        **options: Any,  # noqa: ANN401 - the command's other options
    ) -> None:
        # Called by the command, which tells its errors as JSON if that is asked for.
        def read() -> ScoreSource:
            assigned = read_pairs(roles, option="--role", form="role=tag")
            settings = settings_for_calls(config, roles=assigned)
            chosen = choose_rubric(rubric, rubrics=settings.rubrics, refuse=refusal_after_asking)
            rows = drafts_in(drafts, task=task, sources=sources, columns=columns)
            if rows.refused and bad_rows == "stop":
                of = len(rows.rows) + len(rows.refused)
                raise mistakes_in(rows.refused, of=of, what="are no drafts")
            return ScoreSource(
                settings=settings,
                chosen=chosen,
                rows=rows,
                max_parallel=max_parallel,
                max_failures=max_failures,
                task=task_in(task),
            )

        command(read=read, **options)

    return _of_rows(called)


def drafts_in(
    names: Sequence[str], *, task: str, sources: Sequence[str], columns: Sequence[str]
) -> DraftRows:
    """The drafts of files.

    Raises:
        InvalidInput: There is no draft, or no such file.
    """
    task = task_in(task)
    evidence = tuple(read_text("source", Path(name)) for name in sources)
    drafts: dict[str, Draft] = {}
    rows: dict[str, Row] = {}
    labels: dict[str, dict[str, object]] = {}
    refused: list[RowFailure] = []
    error: InvalidInput | None = None
    renamed = read_pairs(columns, option="--columns", form="ours=theirs")
    # An empty draft is a draft, and is scored.
    for row in read_rows(names, columns=renamed, empty={"draft"}):
        try:
            if isinstance(row, InvalidInput):
                raise row
            if row.id not in drafts:
                drafts[row.id] = _draft_of(row, task=task, sources=evidence)
                rows[row.id] = row
            elif not _is_of(drafts[row.id], row):
                raise row.refusal(f"the id '{row.id}' occurs twice", code="row.id-twice")
            labels.setdefault(row.id, {}).update(labels_in(row))
        except InvalidInput as wrong:
            error = error or wrong
            refused.append(refusal_of(row, wrong))
    if not drafts:
        # The first mistake says more than that there is none.
        raise error or InvalidInput("there is no draft", code="row.no-rows")
    return DraftRows(drafts=drafts, rows=rows, labels=labels, refused=refused)


def task_in(task: str) -> str:
    """What `--task` says, or the file that it names."""
    return read_text("task", Path(task[1:])) if task.startswith("@") else task


def _is_of(draft: Draft, row: Row) -> bool:
    """Whether the row has labels of a draft by another rater, and not another draft of its id."""
    # A file of labels has the text in the draft's first row alone.
    return "rater" in row.fields and row.draft in {None, "", draft.text}


def _draft_of(row: Row, *, task: str, sources: Sequence[str]) -> Draft:
    text = row.draft
    if text is None:
        has = ", ".join(name for name, value in row.fields.items() if value is not None)
        raise row.refusal(
            "it needs either 'draft', a text, or 'path', a file; it has "
            f"{has or 'no value at all'}. If a column has "
            "another name, say --columns draft=NAME",
            code="row.no-draft",
        )
    evidence = row.sources if "sources" in row.fields else tuple(sources)
    return Draft(text=text, task=str(row.fields.get("task", task)), sources=evidence)


@dataclass(frozen=True, kw_only=True)
class ScoredDrafts:
    """What became of drafts that were scored."""

    given: ScoreSource
    result: BatchResult
    decided: bool
    """Whether passing is known: no dimension still needs an evaluator."""

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """What is kept of each draft that has a verdict, in the order of the drafts."""
        outputs = self.result.outputs
        return {name: outputs[name] for name in self.given.rows.drafts if name in outputs}

    @cached_property
    def verdicts(self) -> Mapping[str, Verdict]:
        """The rows read as verdicts."""
        return {name: verdict_in(row, Path()) for name, row in self.rows.items()}

    @property
    def evaluator(self) -> str:
        """Tags of its endpoints, for people; empty if code alone scores."""
        return next((str(row["evaluator"]) for row in self.rows.values()), "")


def score_drafts(
    given: ScoreSource,
    *,
    samples: int | None,
    output: Path | None,
    verb: str = "score",
    yes: bool = True,
) -> ScoredDrafts:
    """Has drafts scored, as one batch that goes on from its output; `verb` names its run.

    Raises:
        InvalidInput: The output has something else.
        InferenceError: No draft could be scored.
    """
    rubric, settings = given.rubric, given.settings
    if output is not None:
        check_output(output, {".csv", ".jsonl"})
    cast = Roles(known_endpoints(settings), settings.roles, produces=False)
    has_judges = bool(cast.evaluators or cast.pool)
    scores = Batch(
        given.rows,
        name=f"{verb} {rubric.id}",
        settings=settings,
        output=output,
        form=_ScoreForm(rubric, given.rows),
        max_failures=given.max_failures,
        rubric=given.chosen,
        samples=samples,
        checks_only=bool(rubric.checked) and not has_judges,
        # The same command goes on with the same judge of a pool.
        pool_seed=given.task or (f"{rubric.id} {output}" if output else None),
        max_parallel=given.max_parallel,
    )
    result = run_batch(scores, yes=yes)
    for failed in result.run.failures[:1]:
        # If no draft could be scored, the server is to blame, and not the drafts.
        if not result.outputs and isinstance(failed.error, InferenceError):
            raise failed.error
    decided = has_judges or all(dimension.optional for dimension in rubric.judged)
    return ScoredDrafts(given=given, result=result, decided=decided)


class _ScoreForm(OutputForm):
    """The scores of each draft that has a verdict, and its labels."""

    def __init__(self, rubric: Rubric, rows: DraftRows) -> None:
        super().__init__(rows)
        labels = dict.fromkeys(name for columns in rows.labels.values() for name in columns)
        scores = [f"score.{dimension.name}" for dimension in rubric.dimensions]
        why = ["below_floor", "gates", "missing", "unjudged", "unjudged_reasons"]
        by = ["rubric", "rubric_sha256", "evaluator", "samples", "sha256"]
        own = ["id", "passed", "composite", *scores, *why, *by, "scores", "judges"]
        self._own, self.columns = own, [*own, *labels, "outdated"]
        self._drafts, self._rubric = rows, rubric
        # Scores do not depend on the threshold.
        self._versions = at_any_threshold(rubric)

    def line(self, number: int, name: str, made: Made) -> dict[str, Any]:  # noqa: ARG002
        draft = self._drafts.given[name].id
        scored = SCORED.validate_python(made[SCORES])
        verdict, passed, judges = scored.verdict, scored.passed, scored.verdict.judges
        is_vote = judges is not None and judges.combine == "majority"
        if scored.samples and not is_vote and verdict.rubric_sha256 in self._versions:
            # Its threshold may be another now.
            decided = passes_at(verdict, self._rubric.pass_at)
            verdict = replace(verdict, rubric_sha256=self._rubric.sha256)
            passed = None if passed is None else decided
        scores: dict[str, object] = dict(verdict.vector)
        # Labels have each sample in a cell, of which `tune` takes the mean.
        if judges is not None and judges.each and scored.samples:
            scores |= samples_of(judges)
        return {
            **dict.fromkeys(self._own),
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
        """See `OutputForm.passed`; a draft without a verdict did not."""
        yield from (line["passed"] for line in self.in_order if line["passed"] is not None)
        yield from (False for _ in self.failures)


_TEXTS = {"id", "sha256", "rubric", "rubric_sha256", "evaluator", "outdated"}
_VERDICT = TypeAdapter(Verdict)


def verdict_in(row: Mapping[str, Any], path: Path) -> Verdict:
    """The verdict that a row was written of."""
    try:
        # In a CSV file, the cells are texts: JSON, but for names and what people wrote.
        if isinstance(row["composite"], str):
            plain = {name for name in row if name in _TEXTS or is_label(name)}
            row = {n: orjson.loads(c) if c and n not in plain else c for n, c in row.items()}
        return _VERDICT.validate_python(
            {**row, "passed": bool(row.get("passed")), "judges": row.get("judges") or None}
        )
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise InvalidInput(
            f"the row of '{row['id']}' has been changed; delete it to score the draft again",
            code="row.output-changed",
            path=path,
        ) from error


LISTED = 10
"""How many of a kind are named."""


def not_judged(failures: Sequence[RowFailure]) -> Iterator[str]:
    """Which drafts, or rows, have no verdict, and why."""
    for failure in failures[:LISTED]:
        yield f"Not judged: {name_of(failure)}: {failure.reason}"
    if len(failures) > LISTED:
        yield f"… and {len(failures) - LISTED} more; --json has all."


def name_of(failure: RowFailure) -> str:
    """The draft's id; of a row that is no draft, its place."""
    return failure.place if failure.row is None else failure.id
