"""`harness evaluate`: outputs of a pipeline or a prompt on a data set, with their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli.arguments import once
from harness.cli.batch_command import RowOptions, bad_rows_option, over_rows
from harness.cli.consoles import Command
from harness.cli.project_files import load_evaluated
from harness.errors import InvalidInput
from harness.session import Evaluation
from harness.session.batch import Batch
from harness.session.demand import check_roles

# Outputs are written here if the command line names no file.
_FOLDER = Path("evaluations")


@click.command(cls=Command, short_help="Score outputs on a data set.")
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
    multiple=True,
    callback=once("prompt"),
    help="What the producer is told, in place of a pipeline. {COLUMN} stands for what the row has; "
    "@FILE reads it from a file.",
)
@click.option(
    "--rubric",
    multiple=True,
    callback=once("rubric"),
    metavar="RUBRIC",
    help="Scores the outputs; its judge sees the target.",
)
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
@over_rows
def evaluate(
    options: RowOptions,
    *,
    prompt: str | None,
    output: Path | None,
    rescore: bool,
    **arguments: Any,  # noqa: ANN401 - of the Evaluation, by name
) -> Batch:
    """Run the evaluation in FILE.py, or a pipeline or prompt on a data set, and score each output.

    FILE.py has an Evaluation, and options replace its arguments; or it has a pipeline, to which
    --dataset and --rubric or --score are given. Columns are inputs by name; "target" is what a
    right answer says, "sources" are for the judge.

    It is a batch, as of harness batch: the same command goes on after Ctrl-C, with other rows, more
    epochs, another model, rubric or judge, and makes and judges only what no longer holds. Exit
    codes: 0 every output was scored, 1 a row failed, 2 invalid input, 3 stopped before all rows had
    their turn (a limit, an outage, too many failures), 130 interrupted, 143 terminated.
    """
    settings = options.load_settings()
    arguments |= {"columns": options.column_by_input, "every": options.common_inputs}
    # An option that is not given leaves the argument of the file's Evaluation.
    replaced = {name: value for name, value in arguments.items() if value}
    evaluation = _evaluation(options.target, prompt, replaced)
    check_roles(options.tag_by_role, evaluation.pipeline)
    return evaluation.batch(
        settings,
        output=output or _FOLDER / f"{evaluation.name}.jsonl",
        rescore=rescore,
        max_failures=options.max_failures,
        sample=options.sample,
        seed=options.seed,
        max_parallel=options.max_parallel,
        origin=options.origin,
    )


def _evaluation(target: str, prompt: str | None, arguments: dict[str, Any]) -> Evaluation:
    """The evaluation of a file, with some arguments replaced; or one of a pipeline or prompt.

    Raises:
        InvalidInput: The command line has neither a file nor a prompt, both, or no data set.
    """
    names_file, has_prompt = bool(target), prompt is not None
    if names_file == has_prompt:
        raise InvalidInput(
            "name either a file with an Evaluation or a pipeline, or a --prompt",
            code="evaluation.nothing-to-run",
        )
    loaded = load_evaluated(target) if prompt is None else prompt
    if isinstance(loaded, Evaluation):
        return loaded.changed(**arguments)
    if "dataset" not in arguments:
        raise InvalidInput(
            "there are no rows; give --dataset FILE, or a file with an Evaluation",
            code="evaluation.no-dataset",
        )
    return Evaluation(loaded, **arguments)
