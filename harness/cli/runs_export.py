"""`harness runs export`: drafts and their scores as training data."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import get_args

import click

from harness.analysis.training import COLUMNS, LeftOut, TrainingFormat, TrainingRows
from harness.cli.arguments import find_journal, traces_directory, traces_option
from harness.cli.consoles import failures_told, json_object, log_to_stderr, results, say, write_json
from harness.cli.process import FAILED
from harness.errors import InvalidInput, JournalInvalid
from harness.rows import rows_writer
from harness.trace import AUDIT_LOG, Journal
from harness.trace.run_list import begins_a_run, journals_in

_SAID: Mapping[LeftOut, str] = {
    "no-draft": "loops without an evaluated draft",
    "texts-not-recorded": (
        'loops whose texts were not recorded, or by an earlier version; set content = "full" under '
        "[trace], and run again"
    ),
    "secret-left-out": "loops or rows with a text that a secret was left out of",
    "round-unreadable": "loops that another version wrote",
    "not-passed": "loops whose best draft does not meet the rubric",
    "not-comparable": (
        "pairs that were not scored alike: by the same evaluator, in the same dimensions, anew, by "
        "the whole text"
    ),
    "near-tie": "near ties, less than {margin:g} apart; --margin changes that",
    "failed": "pairs whose higher score failed, at a floor say, and whose lower one passed",
    "cut": "pairs whose better draft was cut",
    "candidate-in-part": "candidates for a section; the draft with each was not recorded",
    "candidate-not-evaluated": "candidates that no evaluator scored, only checks",
    "duplicate": "duplicates",
}


@click.command(short_help="Make training data of the drafts and their scores.")
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
    help="The least difference of the scores of a pair, on the rubric's scale.",
)
@traces_option
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
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

    Each is a run's id, a part of it, one of its files, or "latest". Columns are those of the
    trainers of TRL, in the conversational form; further ones say where a row comes from. Exit
    codes: 0 the file is written, 1 there was nothing to write, 2 something given is not usable.
    """
    log_to_stderr()
    made, unreadable = TrainingRows(form, margin=margin), 0
    with failures_told(as_json=as_json, of_journals=True):
        if output.name == AUDIT_LOG or begins_a_run(output):
            raise InvalidInput(
                "a file of a run, which would be lost; give another file to write first, then runs",
                code="export.over-a-run",
                path=output,
            )
        write = rows_writer(output, columns=COLUMNS[form])
        if runs:
            journals = list(dict.fromkeys(find_journal(run, traces) for run in runs))
        else:
            journals = journals_in(traces_directory(traces))
        count = 0

        def rows() -> Iterator[Mapping[str, object]]:
            nonlocal count, unreadable
            for path in journals:
                try:
                    of_run = made.of_run(Journal(path))
                except JournalInvalid as error:
                    if runs:
                        raise
                    say(f"left out: {error}", err=True)
                    unreadable += 1
                    continue
                count += len(of_run)
                yield from of_run

        found = rows()
        first = next(found, None)
        if first is not None:
            write(chain([first], found))
    if as_json:
        said = {
            "output": str(output) if count else None,
            "format": form,
            "margin": margin,
            "rows": count,
            "runs": len(journals),
            "loops": made.loops,
            "left_out": {name: made.left_out[name] for name in get_args(LeftOut)},
            "runs_unreadable": unreadable,
        }
        write_json(json_object(said))
    else:
        console = results()
        wrote = f"Wrote {count:,} rows to {output}" if count else "Nothing to write"
        console.print(f"{wrote}, of {len(journals):,} runs with {made.loops:,} loops.")
        if made.left_out:
            console.print("Left out:")
        for name, number in made.left_out.most_common():
            console.print(f"  {number:>5,}  {_SAID[name].format(margin=margin)}")
        if unreadable:
            console.print(f"  {unreadable:>5,}  runs whose journals are damaged")
    if not count:
        sys.exit(FAILED)
