"""`harness evaluate`: outputs of a pipeline or a prompt on a data set, with their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from harness.cli.arguments import read_pairs
from harness.cli.batch_command import (
    bad_rows_option,
    end_of_batch,
    row_options,
    run_batch,
    tell_foreseen,
)
from harness.cli.consoles import LogFormat, failures_told, log_to_stderr
from harness.cli.project_files import load_evaluated, settings_for_calls
from harness.cli.run_command import run_options
from harness.errors import InvalidInput
from harness.inference import Limits
from harness.memory import Place
from harness.session import Evaluation, EvaluationResult
from harness.session.batch_files import ROWS
from harness.session.resume import Origin

_FOLDER = Path("evaluations")
"""Where outputs are if no other file is named."""


@click.command(short_help="Score outputs on a data set.")
@click.argument("target", metavar="[FILE.py|NAME]", default="")
@click.option(
    "--dataset",
    multiple=True,
    metavar="FILE",
    help="Table, text or folder with the rows; - for JSON Lines from standard input. May be "
    "repeated.",
)
@click.option(
    "--prompt",
    help="What the producer is told, in place of a pipeline. {COLUMN} stands for what the row has; "
    "@FILE reads it from a file.",
)
@click.option("--rubric", metavar="RUBRIC", help="Scores the outputs; its judge sees the target.")
@click.option(
    "--score",
    "scorers",
    multiple=True,
    metavar="NAME",
    help="Compares with the target: equal, includes, number, number:TOLERANCE. May be repeated.",
)
@click.option(
    "--epochs", type=click.IntRange(min=1), help="How often each row is run. [default: 1]"
)
@click.option(
    "--reduce",
    metavar="REDUCER",
    help="Makes one score of a row's epochs: mean, median, mode, max, at_least_K, pass_at_K. "
    "[default: mean]",
)
@click.option(
    "--group", metavar="COLUMN", help="What rows share; clusters the errors. [default: group]"
)
@click.option("--category", metavar="COLUMN", help="Figures for each value of this column, too.")
@click.option("--rescore", is_flag=True, help="Score the outputs that are there, and make none.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .jsonl, .csv or .parquet file that gets a line for each row and epoch. The same "
    "command goes on. [default: evaluations/NAME.jsonl]",
)
@bad_rows_option(None)
@row_options
@run_options
def evaluate(
    *,
    target: str,
    prompt: str | None,
    output: Path | None,
    rescore: bool,
    assignments: tuple[str, ...],
    columns: tuple[str, ...],
    max_failures: float,
    sample: int | None,
    seed: int,
    max_parallel: int,
    dry_run: bool,
    yes: bool,
    config: Path | None,
    roles: tuple[str, ...],
    memory: Place | None,
    engine: str | None,
    limits: Limits,
    log_format: LogFormat,
    with_traceback: bool,
    as_json: bool,
    **arguments: Any,  # noqa: ANN401 - of the Evaluation, by name
) -> None:
    """Run the evaluation in FILE.py, or a pipeline or prompt on a data set, and score each output.

    FILE.py has an Evaluation, and options replace its arguments; or it has a pipeline, to which
    --dataset and --rubric or --score are given. Columns are inputs by name; "target" is what a
    right answer says, "sources" are for the judge.

    It is a batch, as of harness batch: the same command goes on after Ctrl-C, with other rows, more
    epochs, another model, rubric or judge, and makes and judges only what no longer holds. Exit
    codes: 0 every output was scored, 1 a row failed, 2 invalid input, 3 stopped before all rows had
    their turn (a limit, an outage, too many failures), 130 interrupted, 143 terminated.
    """
    log_to_stderr(log_format)
    with failures_told(as_json=as_json):
        assigned = read_pairs(roles, option="--role", form="role=tag")
        settings = settings_for_calls(
            config, roles=assigned, memory=memory and memory.absolute(), engine=engine
        )
        arguments["columns"] = read_pairs(columns, option="--columns", form="ours=theirs")
        arguments["every"] = read_pairs(assignments, option="--set", form="name=value")
        evaluation = _evaluation(target, prompt, {n: v for n, v in arguments.items() if v})
        path = output or _FOLDER / f"{evaluation.name}.jsonl"
        batch = evaluation.batch(
            settings,
            output=path,
            rescore=rescore,
            max_failures=max_failures,
            sample=sample,
            seed=seed,
            max_parallel=max_parallel,
            origin=Origin(target=target, limits=limits),
        )
        if dry_run:
            tell_foreseen(batch, as_json=as_json)
            return
        result = cast("EvaluationResult", run_batch(batch, ROWS, output=path, yes=yes))
    due = result.rows * result.epochs
    made = f"{result.scored:,} of {due:,} outputs have a score in {path}"
    lines = [result.summary, f"To read it: harness view {path}"] if result.scores else []
    end_of_batch(result, made, lines, as_json=as_json, with_traceback=with_traceback)


def _evaluation(target: str, prompt: str | None, options: dict[str, Any]) -> Evaluation:
    """What the command line names.

    Raises:
        InvalidInput: It names neither a file nor a prompt, both, or no data set.
    """
    if bool(target) == (prompt is not None):
        raise InvalidInput(
            "name either a file with an Evaluation or a pipeline, or a --prompt",
            code="evaluation.nothing-to-run",
        )
    loaded = load_evaluated(target) if prompt is None else prompt
    if isinstance(loaded, Evaluation):
        return loaded.changed(**options)
    if "dataset" not in options:
        raise InvalidInput(
            "there are no rows; give --dataset FILE, or a file with an Evaluation",
            code="evaluation.no-dataset",
        )
    return Evaluation(loaded, **options)
