"""`harness batch`: a pipeline over the rows of tables, or over the texts of a folder."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click

from harness.cli.arguments import config_option, read_pairs, role_option
from harness.cli.consoles import (
    LogFormat,
    Shown,
    failures_told,
    json_object,
    log_to_stderr,
    note_end,
    say,
    write_json,
)
from harness.cli.made_again import confirm_again, is_costly, listed_again, made_again_because
from harness.cli.process import FAILED, STOPPED
from harness.cli.progress import Progress
from harness.cli.project_files import load_pipeline, settings_for_calls
from harness.cli.run_command import note_stop, run_options
from harness.cli.run_result import spent_line
from harness.inference import Limits
from harness.memory import Place
from harness.session import run_to_its_end
from harness.session.batch import Batch, BatchRehearsal
from harness.session.batch_files import ROWS, BatchResult, failures_of
from harness.session.batch_merge import merge_shards
from harness.session.batch_rows import BadRows, BatchRows, Shard
from harness.session.resume import Origin

_SHOWN = 5
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


max_failures_option = click.option(
    "--max-failures",
    default="50%",
    show_default=True,
    metavar="N|SHARE",
    callback=lambda _context, _option, text: _most(text),
    help="End when more rows fail for one reason: a number, or a share of the rows that have "
    "ended, 20 failures at least.",
)


def bad_rows_option(default: BadRows | None) -> Callable[[Decorated], Decorated]:
    """What becomes of rows that do not fit."""
    return click.option(
        "--bad-rows",
        type=click.Choice(["stop", "skip"]),
        default=default,
        show_default=True,
        help="Whether rows that do not fit stop the batch before anything runs, or fail alone.",
    )


_ROW_OPTIONS = (
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


def row_options(command: Decorated) -> Decorated:
    """Adds the options of a command that runs rows."""
    for option in reversed(_ROW_OPTIONS):
        command = option(command)
    return command


@click.command(short_help="Run a pipeline over the rows of a table.")
@click.argument("target", metavar="FILE.py|NAME")
@click.argument("inputs", nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="A .jsonl, .csv or .parquet file that gets each row's output. The same command goes on.",
)
@bad_rows_option("stop")
@click.option("--evaluate", hidden=True, expose_value=False, callback=lambda *of: _moved(of[2]))
@click.option(
    "--shard",
    metavar="N/OF",
    callback=lambda _context, _option, text: _shard(text),
    help="Only this part of the rows, such as 2/5; into an output of its own, OUTPUT.2-of-5.",
)
@click.option("--merge", is_flag=True, help="Run nothing: join the outputs of all shards.")
@row_options
@run_options
def batch(
    *,
    target: str,
    inputs: tuple[str, ...],
    output: Path,
    assignments: tuple[str, ...],
    columns: tuple[str, ...],
    bad_rows: BadRows,
    max_failures: float,
    sample: int | None,
    seed: int,
    shard: Shard | None,
    merge: bool,
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
) -> None:
    """Run the pipeline in FILE.py, or by NAME, once for each row of INPUTS.

    INPUTS are CSV, JSON Lines and Parquet files, texts, folders and patterns of them, and - for
    JSON Lines from standard input. Columns are inputs by name; a text has its file as {path}. All
    rows are one run. Limits given here are of this command; those of [limits] are of the whole
    batch.

    The same command goes on after Ctrl-C, a kill, with other rows, models or with a changed
    pipeline: rows whose inputs, code, models and rubrics are the same are kept. Others keep their
    old output, marked as outdated, until they have a new one. Before repeating calls that took many
    tokens or dollars, the command asks. With --shard, OUTPUT is divided; once all shards are
    complete, --merge joins them in the order of the table. Exit codes: 0 every row has an output,
    1 a row failed, 2 invalid input, 3 stopped before all rows had their turn (a limit, an outage,
    too many failures), 130 interrupted, 143 terminated.
    """
    if merge and (shard or dry_run):
        raise click.UsageError("--merge takes all shards and writes them: no --shard, no --dry-run")
    log_to_stderr(log_format)
    with failures_told(as_json=as_json):
        given_roles = read_pairs(roles, option="--role", form="role=tag")
        settings = settings_for_calls(
            config, roles=given_roles, memory=memory and memory.absolute(), engine=engine
        )
        rows = BatchRows(
            load_pipeline(target),
            inputs,
            columns=read_pairs(columns, option="--columns", form="ours=theirs"),
            every=read_pairs(assignments, option="--set", form="name=value"),
            bad_rows=bad_rows,
            sample=sample,
            seed=seed,
            shard=shard,
        )
        if merge:
            _merge(rows, output, as_json=as_json)
            return
        output = output if shard is None else shard.path(output)
        run = Batch(
            rows,
            settings=settings,
            output=output,
            max_failures=max_failures,
            max_parallel=max_parallel,
            origin=Origin(target=target, limits=limits),
        )
        if dry_run:
            tell_foreseen(run, as_json=as_json)
            return
        result = run_batch(run, ROWS, output=output, yes=yes)
    made = f"{len(result.outputs):,} of {result.rows:,} rows have their output in {result.output}"
    end_of_batch(result, made, as_json=as_json, with_traceback=with_traceback)


def end_of_batch(
    result: BatchResult,
    made: str,
    scores: Sequence[str] = (),
    *,
    as_json: bool,
    with_traceback: bool,
) -> None:
    """Tells how a batch ended, and ends the command with its exit code.

    Args:
        result: Of the batch.
        made: What was made, as a sentence without its end.
        scores: Lines about scores.
        as_json: Whether to print JSON instead.
        with_traceback: Whether to show where the first failure comes from.
    """
    if with_traceback:
        for failed in result.run.failures[:1]:
            say("".join(traceback.format_exception(failed.error)), err=True)
    if as_json:
        write_json(json_object(result.to_json()))
    else:
        say("\n".join(_told(result, made, scores)))
    # Its status is that of the rows that failed, if any did.
    if result.run.stopped_by is not None:
        note_stop(result.run, is_wrong=bool(result.failures))
        sys.exit(STOPPED)
    if result.failures:
        # Of a row, each epoch and each scorer may fail.
        rows = len({(failure.file, failure.line) for failure in result.failures})
        note_end(f"{rows} of {result.rows} rows failed", code="batch.rows-failed")
        sys.exit(FAILED)


def tell_foreseen(batch: Batch, *, as_json: bool) -> None:
    """Says what a batch would make."""
    foreseen = run_to_its_end(batch.rehearsal())
    if as_json:
        write_json(json_object(asdict(foreseen)))
    else:
        say("\n".join(_foreseen(foreseen)))


def _moved(rubric: str | None) -> None:
    if rubric is not None:
        raise click.UsageError(
            "a batch scores nothing; write harness evaluate FILE.py --dataset TABLE "
            f"--rubric {rubric} --output FILE"
        )


def run_batch(batch: Batch, node: str, *, output: Path | None, yes: bool) -> BatchResult:
    """Runs a batch, and tells how far it is: by the items of a node.

    Args:
        batch: What to run.
        node: Whose items are told.
        output: Keeps what is done.
        yes: Whether costly calls may be repeated without a question.
    """
    before = batch.spent
    if not yes and before is not None and is_costly(before.tokens, before.cost_usd):
        confirm_again(run_to_its_end(batch.rehearsal()).again)
    progress = Progress(Shown(stderr=True), [node], node=node)
    try:
        with progress:
            return run_to_its_end(batch.run(progress.observe))
    except KeyboardInterrupt:
        if output is not None:
            say(f"What is done is kept; the same command goes on with {output}.", err=True)
        raise


def _most(text: str) -> float:
    """A count of failures, or a share of rows: `20`, `50%`, `0.5`."""
    try:
        count = float(text.removesuffix("%"))
    except ValueError:
        count = -1.0
    is_share = text.endswith("%") or (0 < count < 1)
    share = count / 100 if text.endswith("%") else count
    if count < 0 or (is_share and share > 1) or not (is_share or count.is_integer()):
        raise click.BadParameter(f"'{text}' is neither a number of rows nor a share, such as 50%")
    return share if is_share else int(count)


def _merge(rows: BatchRows, output: Path, *, as_json: bool) -> None:
    merged = merge_shards(rows, output)
    if as_json:
        write_json(json_object(asdict(merged)))
    else:
        failed = f"; {merged.failed:,} failed: {failures_of(output)}" if merged.failed else ""
        say(f"{merged.done:,} of {merged.rows:,} rows have their output in {output}{failed}.")
    if merged.failed:
        note_end(f"{merged.failed} of {merged.rows} rows failed", code="batch.rows-failed")
        sys.exit(FAILED)


def _shard(text: str | None) -> Shard | None:
    """A part of the rows: `2/5`."""
    if text is None:
        return None
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise click.BadParameter(f"'{text}' is no part such as 2/5; parts count from 1")
    return Shard(number=int(number), of=int(of))


def _told(result: BatchResult, made: str, scores: Sequence[str]) -> Iterator[str]:
    failed = len(result.failures)
    reused = f", {result.kept:,} of them from before" if result.kept else ""
    if result.run.had_finished:
        reused = ": nothing was left to do"
    yield f"{made}{reused}."
    yield from made_again_because(result.run.reruns)
    if failed:
        yield f"{failed:,} failed; the same command tries them again. All: {result.failures_file}"
        for row in islice(result.failures, _SHOWN):
            line = "" if row.line is None else f":{row.line}"
            epoch = f", epoch {row.epoch}" if row.epoch > 1 else ""
            yield f"  {row.file}{line}{epoch}: {row.reason}"
        if failed > _SHOWN:
            yield f"  … and {failed - _SHOWN:,} more"
    if result.run.stopped_by is not None:
        yield f"Stopped: {result.run.stopped_by}. The same command goes on from here."
    yield from scores
    yield spent_line(result.run)
    yield from (f"Warning: {text}" for text in result.run.warnings)
    yield f"The run: {result.run.files.journal}"


def _foreseen(plan: BatchRehearsal) -> Iterator[str]:
    scored = f" To be scored: {plan.unscored:,}." if plan.unscored else ""
    yield f"Kept: {plan.kept:,}. To be made: {plan.new:,} new, {plan.rows_again:,} again.{scored}"
    if plan.again:
        yield from listed_again(plan.again)
    for node, calls in plan.nodes.items():
        yield f"  {node}: {calls:,} calls of these rows were made, and would be made again"
    if plan.refused:
        yield f"{plan.refused:,} rows do not fit the pipeline."
