"""`harness batch` and `harness evaluate`: a pipeline over the rows of tables, or texts of a folder.

Both run a `Batch`, as do the commands that score drafts.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from harness.cli.arguments import config_option, once, parsed_by, read_pairs, role_option, together
from harness.cli.consoles import (
    Command,
    Shown,
    error_fields,
    json_object,
    note_end,
    say,
    write_json,
)
from harness.cli.made_again import confirm_again, is_costly, listed_again, made_again_because
from harness.cli.process import FAILED, STOPPED
from harness.cli.progress import Progress
from harness.cli.project_files import load_evaluated, load_pipeline, settings_for_calls
from harness.cli.run_command import RunOptions, left_as_error, note_stop, run_options
from harness.cli.run_result import spent_line
from harness.errors import InvalidInput
from harness.session import Evaluation, EvaluationResult, Settings, run_to_its_end
from harness.session.batch import Batch, BatchRehearsal
from harness.session.batch_files import BatchResult, failures_of, merge_shards
from harness.session.batch_rows import BadRows, BatchRows, Shard
from harness.session.demand import check_roles
from harness.session.resume import Origin

_FAILURES_SHOWN = 5
# Scored outputs are written here if the command line names no file.
_EVALUATIONS = Path("evaluations")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _failure_limit(text: str) -> float:
    """An int if the limit is a number of failures, such as `20`; a share for `50%` and `0.5`."""
    with suppress(ValueError):
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        is_share = text.endswith("%") or 0 < number < 1
        if 0 <= number <= 1 if is_share else number >= 0 and number.is_integer():
            return number if is_share else int(number)
    raise ValueError(f"'{text}' is neither a number of rows nor a share, such as 50%")


def _shard(text: str) -> Shard:
    """A part of the rows, such as `2/5`."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"'{text}' is no part such as 2/5; parts count from 1")
    return Shard(number=int(number), of=int(of))


max_failures_option = click.option(
    "--max-failures",
    default="50%",
    show_default=True,
    metavar="N|SHARE",
    callback=parsed_by(_failure_limit),
    help="End when more rows fail for one reason: a number, or a share of the rows that have "
    "ended, 20 failures at least.",
)


def _bad_rows_option(default: BadRows | None) -> Callable[[Decorated], Decorated]:
    """The option that says what becomes of rows that do not fit."""
    return click.option(
        "--bad-rows",
        type=click.Choice(["stop", "skip"]),
        default=default,
        show_default=True,
        help="Whether rows that do not fit stop the batch before anything runs, or fail alone.",
    )


_row_options = together(
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="NAME=VALUE",
        help="An input of every row. {COLUMN} stands for what the row has, and @ reads a file: "
        "document=@{path}. May be repeated.",
    ),
    click.option(
        "--columns",
        multiple=True,
        metavar="OURS=THEIRS",
        help="What a column is called there, by the input's name. May be repeated.",
    ),
    max_failures_option,
    click.option(
        "--sample", type=click.IntRange(min=1), help="Only so many rows, drawn by chance."
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Draws the sample; more holds less."
    ),
    click.option(
        "--max-parallel",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="How many calls of nodes run at once, over all rows.",
    ),
    click.option("--dry-run", is_flag=True, help="Say what would be made, and do nothing."),
    click.option("--yes", is_flag=True, help="Do not ask before repeating costly calls."),
    config_option,
    role_option,
)


@dataclass(frozen=True, kw_only=True)
class RowOptions(RunOptions):
    """The options that commands over rows share."""

    target: str
    assignments: tuple[str, ...]
    columns: tuple[str, ...]
    max_failures: float
    sample: int | None
    seed: int
    max_parallel: int
    dry_run: bool
    yes: bool
    config: Path | None
    roles: tuple[str, ...]

    @property
    def tag_by_role(self) -> dict[str, str]:
        """Role → the endpoint's tag."""
        return read_pairs(self.roles, option="--role", form="role=tag")

    @property
    def of_rows(self) -> dict[str, Any]:
        """Our name → the column's in the table, and name → value of what every row has."""
        columns = read_pairs(self.columns, option="--columns", form="ours=theirs")
        every = read_pairs(self.assignments, option="--set", form="name=value")
        return {"columns": columns, "every": every}

    def load_settings(self) -> Settings:
        """See `settings_for_calls`."""
        return settings_for_calls(
            self.config, roles=self.tag_by_role, memory=self.memory, engine=self.engine
        )


def _over_rows(make: Callable[..., Batch | None]) -> Callable[..., None]:
    """A command that runs the batch that `make` makes of `RowOptions` and its own arguments.

    `make` returns None if it has done everything itself.
    """

    @wraps(make)
    def command(**arguments: Any) -> None:  # noqa: ANN401 - by click, as the options say
        options = RowOptions.taken_from(arguments)
        batch = make(options, **arguments)
        if batch is None:
            return
        if options.dry_run:
            plan = run_to_its_end(batch.rehearsal())
            _print(asdict(plan), _foreseen(plan), as_json=options.as_json)
            return
        result = run_batch(batch, yes=options.yes)
        if options.with_traceback and result.run.failures:
            error = result.run.failures[0].error
            say("".join(traceback.format_exception(error)), err=True)
        _print(result.to_json(), _summary(result), as_json=options.as_json)
        end_with(result)

    return _row_options(run_options(command))


@click.command(cls=Command, short_help="Run a pipeline over the rows of a table.")
@click.argument("target", metavar="FILE.py|NAME")
@click.argument("inputs", nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="A .jsonl, .csv or .parquet file that gets each row's output. The same command goes on.",
)
@_bad_rows_option("stop")
@click.option(
    "--shard",
    metavar="N/OF",
    callback=parsed_by(_shard),
    help="Only this part of the rows, such as 2/5; into an output of its own, OUTPUT.2-of-5.",
)
@click.option("--merge", is_flag=True, help="Run nothing: join the outputs of all shards.")
@_over_rows
def batch(
    options: RowOptions,
    *,
    inputs: tuple[str, ...],
    output: Path,
    bad_rows: BadRows,
    shard: Shard | None,
    merge: bool,
) -> Batch | None:
    """Run the pipeline in FILE.py, or by NAME, once for each row of INPUTS.

    INPUTS are CSV, JSON Lines, JSON and Parquet files, texts, folders and patterns of them, and -
    for JSON Lines from standard input. Columns are inputs by name; a text has its file as {path}.
    All rows are one run. Limits given here are of this command; those of [limits] are of the whole
    batch.

    The same command goes on after Ctrl-C, a kill, with other rows, models or with a changed
    pipeline: rows whose inputs, code, models and rubrics are the same are kept. Others keep their
    old output, marked as outdated, until they have a new one. Before repeating calls that took many
    tokens or dollars, the command asks. With --shard, OUTPUT is divided; once all shards are
    complete, --merge joins them in the order of the table. Exit codes: 0 every row has an output,
    1 a row failed, 2 invalid input, 3 stopped before all rows had their turn (a limit, an outage,
    too many failures), 130 interrupted, 143 terminated.
    """
    if merge and (shard or options.dry_run):
        raise click.UsageError("--merge takes all shards and writes them: no --shard, no --dry-run")
    settings = options.load_settings()
    pipeline = load_pipeline(options.target)
    check_roles(options.tag_by_role, pipeline)
    rows = BatchRows(
        pipeline,
        inputs,
        **options.of_rows,
        bad_rows=bad_rows,
        sample=options.sample,
        seed=options.seed,
        shard=shard,
    )
    if merge:
        _merge(rows, output, as_json=options.as_json)
        return None
    return Batch(
        rows,
        settings=settings,
        output=output if shard is None else shard.path(output),
        max_failures=options.max_failures,
        max_parallel=options.max_parallel,
        origin=Origin(target=options.target, limits=options.limits),
    )


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
@_bad_rows_option(None)
@_over_rows
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
    arguments |= options.of_rows
    # An option that is not given leaves the argument of the file's Evaluation.
    replaced = {name: value for name, value in arguments.items() if value}
    evaluation = _evaluation(options.target, prompt, replaced)
    check_roles(options.tag_by_role, evaluation.pipeline)
    return evaluation.batch(
        settings,
        output=output or _EVALUATIONS / f"{evaluation.name}.jsonl",
        rescore=rescore,
        max_failures=options.max_failures,
        sample=options.sample,
        seed=options.seed,
        max_parallel=options.max_parallel,
        origin=Origin(target=options.target, limits=options.limits),
    )


def _evaluation(target: str, prompt: str | None, arguments: dict[str, Any]) -> Evaluation:
    """The evaluation of a file, with some arguments replaced; or one of a pipeline or prompt.

    Raises:
        InvalidInput: The command line has neither a file nor a prompt, both, or no data set.
    """
    if bool(target) == (prompt is not None):
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


def end_with(result: BatchResult) -> None:
    """Ends the command with the exit code of a batch, unless that is 0."""
    # Not by the status of the run, which is "failed" also after a stop if rows failed.
    if result.run.stopped_by is not None:
        note_stop(result.run, is_wrong=bool(result.failures))
        sys.exit(STOPPED)
    if result.failures:
        # A row counts once, though each of its epochs and scorers may fail.
        failed = len({(failure.file, failure.line) for failure in result.failures})
        _end_failed(failed, result.rows)


def _end_failed(failed: int, rows: int) -> NoReturn:
    note_end(f"{failed} of {rows} rows failed", code="batch.rows-failed")
    sys.exit(FAILED)


def _print(fields: Mapping[str, object], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        write_json(json_object(fields))
    else:
        say("\n".join(lines))


def run_batch(batch: Batch, *, yes: bool) -> BatchResult:
    """Runs a batch and shows its progress; without `yes`, asks before repeating costly calls.

    Before outputs are scored again, says how many a model judges.
    """
    before = batch.spent
    asks = not yes and before is not None and is_costly(before.tokens, before.cost_usd)
    if asks or batch.rescores:
        plan = run_to_its_end(batch.rehearsal())
        if batch.rescores and plan.unjudged:
            say(_to_judge(plan), err=True)
        if asks:
            confirm_again(plan.again)
    progress = Progress(Shown(stderr=True), [batch.node])
    try:
        # A node's task that begins another one can break off the event loop by `sys.exit`.
        with progress, left_as_error():
            return run_to_its_end(batch.run(progress.observe))
    except KeyboardInterrupt:
        error_fields().update(batch.so_far())
        if batch.output is not None:
            say(f"What is done is kept; the same command goes on with {batch.output}.", err=True)
        raise


def _merge(rows: BatchRows, output: Path, *, as_json: bool) -> None:
    merged = merge_shards(rows, output)
    failed = f"; {merged.failed:,} failed: {failures_of(output)}" if merged.failed else ""
    line = f"{merged.done:,} of {merged.rows:,} rows have their output in {output}{failed}."
    _print(asdict(merged), [line], as_json=as_json)
    if merged.failed:
        _end_failed(merged.failed, merged.rows)


def _summary(result: BatchResult) -> Iterator[str]:
    if isinstance(result, EvaluationResult):
        counts = f"{result.scored:,} of {result.rows * result.epochs:,} outputs have a score"
    else:
        counts = f"{len(result.outputs):,} of {result.rows:,} rows have their output"
    reused = f", {result.kept:,} of them from before" if result.kept else ""
    if result.run.had_finished:
        reused = ": nothing was left to do"
    where = "the run's journal" if result.run.limit == "output" else result.output
    if (unmet := result.not_passed) and not isinstance(result, EvaluationResult):
        reused += f"; {unmet:,} of {result.rows:,} rows did not pass their rubric"
    yield f"{counts} in {where}{reused}."
    yield from made_again_because(result.run.reruns)
    if failed := len(result.failures):
        yield f"{failed:,} failed; the same command tries them again. All: {result.failures_file}"
        for failure in islice(result.failures, _FAILURES_SHOWN):
            epoch = f", epoch {failure.epoch}" if failure.epoch > 1 else ""
            yield f"  {failure.place}{epoch}: {failure.reason}"
        if failed > _FAILURES_SHOWN:
            yield f"  … and {failed - _FAILURES_SHOWN:,} more"
    if result.run.stopped_by is not None:
        # The message of a limit says itself what goes on: nothing does if it is too low.
        is_clear = result.run.limit in {"tokens", "cost", "calls"}
        stop = f"Stopped: {result.run.stopped_by}."
        yield stop if is_clear else f"{stop} The same command goes on from here."
    if isinstance(result, EvaluationResult) and result.scores:
        yield result.summary
        yield f"To read it: harness view {result.output}"
    yield spent_line(result.run)
    yield from (f"Warning: {text}" for text in result.run.warnings)
    yield f"The run: {result.run.files.journal}"


def _to_judge(plan: BatchRehearsal) -> str:
    evaluators = (" and " if plan.is_panel else " or ").join(plan.evaluators)
    return f"To be judged by {evaluators}: {plan.unjudged:,}."


def _foreseen(plan: BatchRehearsal) -> Iterator[str]:
    scored = f" To be scored: {plan.unscored:,}." if plan.unscored else ""
    yield f"Kept: {plan.kept:,}. To be made: {plan.new:,} new, {plan.rows_again:,} again.{scored}"
    if plan.unjudged:
        yield _to_judge(plan)
    if plan.again:
        yield from listed_again(plan.again)
    for node, calls in plan.nodes.items():
        yield f"  {node}: {calls:,} calls of these rows were made, and would be made again"
    if plan.refused:
        yield f"{plan.refused:,} rows do not fit the pipeline."
