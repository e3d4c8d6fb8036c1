"""`harness runs export`: drafts and their scores as training data."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import click

from harness.analysis.training import LeftOut, Row, TrainingFormat, TrainingRows
from harness.cli.arguments import find_journal, json_option, traces_directory, traces_option
from harness.cli.consoles import JournalCommand, json_object, results, say, write_json
from harness.cli.process import FAILED
from harness.errors import JournalInvalid
from harness.rows import write_rows
from harness.trace import Journal
from harness.trace.run_list import journals_in

_REASONS: Mapping[LeftOut, str] = {
    "run-unreadable": "runs whose journals are damaged",
    "no-draft": "loops without a round, or of an earlier version",
    "texts-not-recorded": (
        'loops without recorded texts; set content = "full" under [trace], and run again'
    ),
    "draft-redacted": "loops or rows with a text that a secret was left out of",
    "round-unreadable": "loops that another version wrote",
    "not-passed": "loops whose best draft does not meet the rubric",
    "one-draft": "loops with a single evaluated draft",
    "not-comparable": "pairs that were not scored alike, anew and by the whole text",
    "near-tie": "near ties, less than {margin:g} apart; --margin changes that",
    "failed": "pairs whose higher score failed, at a floor say, and whose lower one passed",
    "cut": "pairs whose better draft was cut",
    "duplicate": "duplicates",
}


@click.command(cls=JournalCommand, short_help="Make training data of the drafts and their scores.")
@click.argument("output", metavar="OUT.jsonl|OUT.parquet", type=click.Path(path_type=Path))
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(TrainingFormat)),
    required=True,
    help="sft: drafts that passed. dpo and reward: pairs of a better and a worse draft.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="Least difference between a pair's scores, on the rubric's scale.",
)
@traces_option
@json_option
def export(
    *,
    output: Path,
    runs: tuple[str, ...],
    form: TrainingFormat,
    margin: float,
    traces: Path | None,
    as_json: bool,
) -> None:
    """Make training data of the revise loops of RUNs; of all, when none is named.

    Each is a run's id, a part of it, one of its files, or "latest". Columns are those of TRL's
    trainers, in the conversational form; others say where a row comes from. Exit codes: 0 the file
    is written, 1 there was nothing to write, 2 invalid input.
    """
    training = TrainingRows(form, margin=margin)
    named = dict.fromkeys(find_journal(run, traces) for run in runs)
    journals = [*named] or journals_in(traces_directory(traces))

    def rows() -> Iterator[Row]:
        for path in journals:
            try:
                yield from training.of_run(Journal(path))
            except JournalInvalid as error:
                if runs:
                    raise
                say(f"left out: {error}", err=True)
                training.left_out["run-unreadable"] += 1

    write_rows(output, rows())
    if as_json:
        left_out = {reason: training.left_out[reason] for reason in _REASONS}
        counts = {"rows": training.made, "runs": len(journals), "loops": training.loops}
        write_json(json_object({**counts, "left_out": left_out}))
    else:
        console = results()
        wrote = f"Wrote {training.made:,} rows to {output}" if training.made else "Nothing to write"
        console.print(f"{wrote}; runs: {len(journals):,}, loops: {training.loops:,}.")
        for reason, number in training.left_out.most_common():
            if number:
                console.print(f"Left out {number:,}: {_REASONS[reason].format(margin=margin)}.")
    if not training.made:
        sys.exit(FAILED)
