"""`harness runs`: the audit log as a table, two runs side by side, and old runs removed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import orjson
from click.core import ParameterSource
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.arguments import (
    find_journal,
    json_option,
    parsed_by,
    traces_directory,
    traces_option,
)
from harness.cli.consoles import Group, JournalCommand, results, say, show, write_json
from harness.cli.tables import UNKNOWN, first_of, known
from harness.errors import InvalidInput
from harness.hardware.footprint import format_bytes, parse_bytes
from harness.trace import AUDIT_LOG, AuditLine, Journal, list_runs, pruning
from harness.trace.pruning import Keep, StoredRun

_EXPORT = "harness.cli.runs_export:export", "Make training data of the scored drafts."
_SHOWN = 20
_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGE = re.compile(rf"(\d+)([{''.join(_UNITS_S)}])", re.ASCII)


@click.group(cls=Group, lazy={"export": _EXPORT}, invoke_without_command=True)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Show this many of the latest runs; 0 for all.",
)
@traces_option
@click.option("--json", "as_json", is_flag=True, help="Print each as a line of JSON.")
@click.pass_context
def runs(context: click.Context, limit: int, traces: Path | None, *, as_json: bool) -> None:
    """List the runs, the latest last; compare two, make training data, or remove old ones.

    "Files gone" is said of runs that the audit log has, and whose journal is no longer there.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    directory = traces_directory(traces)
    lines = list_runs(directory, latest=limit or None)
    if as_json:
        write_json(*(orjson.dumps(line.model_dump()) + b"\n" for line in lines))
    elif not lines:
        say(f"there is no run yet, by {directory / AUDIT_LOG}", err=True)
    else:
        results().print(_table(lines))


def _refuse_options(context: click.Context) -> None:
    # Options that stand before a subcommand are those of the list: it would ignore them.
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"options go after '{context.invoked_subcommand}', not before")


def _table(lines: list[AuditLine]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("run", "end"):
        table.add_column(column, no_wrap=True)
    for column in ("seconds", "in", "out"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("pipeline", "scores"):
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(
            line.run_id or UNKNOWN,
            Text(line.final or UNKNOWN, style=_STYLES.get(line.final, "yellow")),
            known(line.run_duration_s, "{:.1f}".format),
            known(line.input_tokens, "{:,}".format),
            known(line.output_tokens, "{:,}".format),
            line.pipeline or UNKNOWN,
            " ".join(_scores(line)),
            style="dim" if line.is_gone else None,
        )
    return table


def _scores(line: AuditLine) -> Iterator[str]:
    for name, mean in line.evaluation.items():
        yield f"{name} {mean:.3g}"
    for score in line.wiggum_scores:
        yield str(round(score, 3))
    if line.stop_reason:
        yield line.stop_reason
    if len(line.loops) > 1:  # such as one for each row of a batch
        yield f"(last of {len(line.loops):,} loops)"
    if line.is_gone:
        yield "(files gone)"


_STYLES = {None: "", "PASS": "green", "ERROR": "red", "KILLED": "red", "WAITING": "cyan"}


@runs.command(cls=JournalCommand)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@traces_option
@json_option
def diff(a: str, b: str, traces: Path | None, *, as_json: bool) -> None:
    """Show what differs between the runs A and B of a pipeline, and why.

    Each is a run's id, a part of it, one of its files, or "latest". Exit codes: 0 compared, whether
    or not they differ, 2 invalid input.
    """
    # Not at the top: the list of runs needs neither.
    from harness.analysis.comparison import compare  # noqa: PLC0415
    from harness.cli.runs_diff import print_comparison  # noqa: PLC0415

    comparison = compare(Journal(find_journal(a, traces)), Journal(find_journal(b, traces)))
    show(comparison, print_comparison, as_json=as_json)


def _age_s(text: str) -> int:
    if (match := _AGE.fullmatch(text)) is None:
        raise ValueError(f"'{text}' is not an age, such as 90m, 12h, 30d or 8w")
    return int(match[1]) * _UNITS_S[match[2]]


def _size_bytes(text: str) -> int:
    if text.strip().isdecimal():
        raise ValueError(f"'{text}' would be bytes; give a unit, such as {text}GB")
    return parse_bytes(text)


@runs.command(short_help="Remove old runs, and pack what stays.")
@click.option(
    "--older",
    "older_s",
    metavar="AGE",
    callback=parsed_by(_age_s),
    help="Remove runs that changed longer ago than this: 90m, 12h, 30d, 8w.",
)
@click.option(
    "--size",
    "size_bytes",
    metavar="SIZE",
    callback=parsed_by(_size_bytes),
    help="Then remove the oldest until the rest is no larger: 500MB, 5GB, 2GiB.",
)
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice([*pruning.ENDS]),
    help="Keep runs that ended so: failed (FAIL, ERROR, KILLED), unfinished (STOPPED, WAITING, "
    "INTERRUPTED, KILLED). May be repeated.",
)
@click.option("--compress", is_flag=True, help="Pack the journals of runs that ended and stay.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@traces_option
@json_option
def prune(
    *,
    older_s: int | None,
    size_bytes: int | None,
    keep: tuple[Keep, ...],
    compress: bool,
    dry_run: bool,
    traces: Path | None,
    as_json: bool,
) -> None:
    """Remove old runs with all of their files, and pack the journals of runs that stay.

    A run stays while it is going, and while a batch goes on from it: as long as OUTPUT.batch,
    beside the batch's output, names it. Runs whose files are gone leave the list of `harness runs`;
    the audit log keeps what it says of them. After Ctrl-C or a kill each run is whole or gone. Exit
    codes: 0 done, 2 invalid input, 130 interrupted, 143 terminated.
    """
    directory = traces_directory(traces)
    # The folder of the settings need not exist: the first run makes it.
    if traces is not None and not traces.is_dir():
        raise InvalidInput("there is no such folder", path=traces, code="run.no-folder")
    listed = list_runs(directory)
    runs = [*pruning.stored_runs(directory, listed, keep=keep)]
    chosen, kept = pruning.runs_to_remove(
        runs, older_s=older_s, size_bytes=size_bytes, now_s=time.time()
    )
    removed = chosen if dry_run else _remove(chosen, listed, directory)
    removed_ids = {run.run_id for run in removed}
    remaining = [run for run in runs if run.run_id not in removed_ids]
    pruned = _Pruned(
        dry_run=dry_run,
        removed=removed,
        gone=[line.run_id for line in listed if line.is_gone],
        packed=_pack(remaining, dry_run=dry_run) if compress else {},
        kept=kept,
        remaining=remaining,
    )
    show(pruned, _print, as_json=as_json, fields=_Pruned.to_json)
    if as_json:
        return
    if busy := len(chosen) - len(removed):
        say(f"{busy:,} more went on or ended meanwhile, or cannot be locked.", err=True)
    if size_bytes is not None and pruned.remaining_bytes > size_bytes:
        say(f"More than --size {format_bytes(size_bytes)}: what remains is kept.", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pruned:
    """What `prune` did; in a dry run, what it would do."""

    dry_run: bool
    removed: Sequence[StoredRun]
    gone: Sequence[str | None]  # ids of runs without files, which leave the list
    packed: Mapping[str, int | None]  # run's id → its bytes now; None in a dry run
    kept: Sequence[StoredRun]  # runs that are old enough to go, or too much, and stay
    remaining: Sequence[StoredRun]  # all that were not removed, with their sizes before packing

    @property
    def remaining_bytes(self) -> int:
        return sum(self.packed.get(run.run_id) or run.size_bytes for run in self.remaining)

    def to_json(self) -> dict[str, object]:
        return {
            "dry_run": self.dry_run,
            "removed": [{"run_id": run.run_id, "bytes": run.size_bytes} for run in self.removed],
            "gone": self.gone,
            "packed": [{"run_id": run_id, "bytes": size} for run_id, size in self.packed.items()],
            "kept": [
                {"run_id": run.run_id, "reason": run.kept, "batch": run.batch_state}
                for run in self.kept
            ],
            "remaining_bytes": self.remaining_bytes,
        }


def _print(pruned: _Pruned, _: Console) -> None:
    would = "would be " if pruned.dry_run else ""
    count = len(pruned.removed)
    removed_bytes = sum(run.size_bytes for run in pruned.removed)
    say(
        f"{count:,} of {count + len(pruned.remaining):,} runs {would}removed "
        f"({format_bytes(removed_bytes)}); {format_bytes(pruned.remaining_bytes)} remain."
    )
    if pruned.dry_run:
        _say_first([f"{run.run_id} {run.final or ''}" for run in pruned.removed])
    if pruned.packed:
        say(f"The journals of {len(pruned.packed):,} runs {would}packed.")
    if pruned.gone:
        say(f"{len(pruned.gone):,} {would}dropped from the list, since their files are gone.")
    _say_first(
        [f"kept {run.run_id}: {run.kept} {run.batch_state or ''}".rstrip() for run in pruned.kept]
    )
    if any(run.batch_state for run in pruned.kept):
        say("A batch needs its run until the file named there is deleted.")


def _remove(
    runs: Iterable[StoredRun], listed: Iterable[AuditLine], directory: Path
) -> list[StoredRun]:
    """Removes runs, and takes all whose files are gone off the list. Returns the removed ones."""
    try:
        return [run for run in runs if pruning.remove_run(run)]
    # Also after Ctrl-C: the list must not name runs that were removed before it.
    finally:
        here = {path.stem for path in directory.glob("*.jsonl")}
        pruning.note_pruned(
            directory, (line for line in listed if line.run_id and line.run_id not in here)
        )


def _pack(runs: Iterable[StoredRun], *, dry_run: bool) -> dict[str, int | None]:
    """Packs runs. Returns run id → the run's bytes then; None in a dry run, which packs nothing."""
    packed: dict[str, int | None] = {}
    for run in runs:
        if pruning.can_pack(run):
            size_bytes = None if dry_run else pruning.pack_run(run)
            # A run that goes on meanwhile is not packed.
            if dry_run or size_bytes is not None:
                packed[run.run_id] = size_bytes
    return packed


def _say_first(lines: Sequence[str]) -> None:
    """Prints the first lines, and how many more there are."""
    for line in first_of(lines, _SHOWN, more="… and {} more; --json has all"):
        say(f"  {line}")
