"""`harness rubric score`: drafts of files, folders and tables judged by a rubric.

With `--output`, each draft is kept as soon as it is scored, and the same command goes on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from harness.cli.batch_command import end_with
from harness.cli.consoles import Command, show
from harness.cli.made_again import made_again_because
from harness.cli.rubric_batch import (
    ScoredDrafts,
    ScoreSource,
    name_of,
    not_judged,
    of_drafts,
    score_drafts,
)
from harness.cli.verdicts import decision, print_scores, print_summary, remarks
from harness.errors import InvalidInput
from harness.rubric import Verdict
from harness.session.settings import EvaluationSettings


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
