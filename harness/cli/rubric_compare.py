"""`harness rubric compare`: which of two sets of scores agrees better with people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from harness.cli.arguments import config_option, read_pairs, share
from harness.cli.consoles import failures_told, json_object, results, write_json
from harness.cli.project_files import refusal_after_asking
from harness.cli.rubric_tuning import records_directory
from harness.page import percent
from harness.rows import Row, read_rows
from harness.rubric import read_rubric
from harness.rubric.calibration.bounds import Aim, AtThreshold
from harness.rubric.calibration.calibration_files import Attempt, Attempts, Calibration
from harness.rubric.calibration.labels import Labels, read_labels
from harness.rubric.calibration.paired import Comparison, compare, paired
from harness.session.settings import load_settings

_FEW = 10
"""Groups of drafts; intervals by resampling fewer are too narrow."""


@click.command(name="compare", short_help="Compare two evaluators, or two rubrics.")
@click.argument("rubric", metavar="RUBRIC")
@click.argument("labels", type=click.Path(path_type=Path))
@click.argument("scores", type=click.Path(path_type=Path))
@click.option("--other-rubric", metavar="RUBRIC", help="The rubric of SCORES, if it is another.")
@click.option("--target", default="10%", show_default=True, callback=share, help="Error rate.")
@click.option("--confidence", default="90%", show_default=True, callback=share)
@click.option(
    "--columns",
    multiple=True,
    metavar="OURS=THEIRS",
    help="As for 'tune'; applied to SCORES where it has the column.",
)
@click.option("--accept-at", type=float, metavar="NUMBER", help="As for 'tune'.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare_scores(
    *,
    rubric: str,
    labels: Path,
    scores: Path,
    other_rubric: str | None,
    target: float,
    confidence: float,
    columns: tuple[str, ...],
    accept_at: float | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Compare how well the scores in LABELS and in SCORES agree with people.

    LABELS is a file for 'harness rubric tune': drafts with people's labels, and scores by RUBRIC.
    SCORES has other scores of the same drafts, matched by id: by another evaluator, or another
    version of the rubric. It is such a file too, or an output of 'harness rubric score'. --columns
    applies to each file that has the column. "Cannot tell" means that the interval of the
    difference includes 0. Thresholds keep the target rate of wrong drafts among the accepted. As
    with 'tune', both count as looks at these labels. Exit codes: 0 done, 2 invalid input.
    """
    with failures_told(as_json=as_json):
        own = load_settings(config, environment=os.environ).rubrics
        one, other = (
            read_rubric(name, directory=own, refuse=refusal_after_asking)
            for name in (rubric, other_rubric or rubric)
        )
        rubrics = one.rubric, other.rubric
        ours = read_pairs(columns, option="--columns", form="ours=theirs")
        first = read_labels(labels, rubrics[0], columns=ours)
        rows = (row for row in read_rows([str(scores)]) if isinstance(row, Row))
        has = {name for row in rows for name in row.fields}
        of_scores = {mine: theirs for mine, theirs in ours.items() if theirs in has}
        second = read_labels(scores, rubrics[1], columns=of_scores, least="scores")
        records = [(file.rubric, records_directory(file, own)) for file in (one, other)]
        kept = Calibration.read(*records[0])
        at = [accept_at, kept.accept_at if kept else None, rubrics[0].pass_at]
        accepts = next(one for one in at if one is not None)
        pairs = paired(first.drafts, second.drafts, rubrics, accept_at=accepts)
        looks: list[Attempt] = []
        for record in records:
            known = Attempts.read(*record) or Attempts()
            looks += [look for look in known.attempts if look not in looks]
        found = compare(
            pairs,
            rubrics,
            Aim(target=target, confidence=confidence),
            attempts=Attempts(attempts=tuple(looks)),
            generator=np.random.default_rng(0),
        )
        for record in records:
            found.attempts.write(*record)
    who = [f"{by.id}, {_who(read)}" for by, read in zip(rubrics, (first, second), strict=True)]
    if as_json:
        figures = {name: value for name, value in asdict(found).items() if name != "attempts"}
        write_json(json_object({"sides": who, **figures}))
        return
    console = results()
    console.print(_agreement(found))
    for line in (f"First: {who[0]}. Second: {who[1]}.", *_about(found)):
        console.print(line, soft_wrap=True)


def _who(read: Labels) -> str:
    return ", ".join(sorted({one.evaluator for one in read.drafts} - {""})) or str(read.path)


def _agreement(found: Comparison) -> Table:
    title = f"Agreement with people, of {found.drafts} drafts in {found.groups} groups"
    table = Table(title=title, title_justify="left")
    for name in ("dimension", "", "first", "second", "second - first", "higher"):
        table.add_column(name, justify="right")
    for name, by in found.agreement.items():
        for kind, one in by.items():
            apart = one.difference
            interval = f"{apart.value:+.2f} ({apart.low:+.2f} to {apart.high:+.2f})"
            means = f"{one.first:.2f}", f"{one.second:.2f}"
            table.add_row(name, kind, *means, interval, apart.higher)
    return table


def _about(found: Comparison) -> Iterator[str]:
    aim = found.aim
    wrong = f"{percent(aim.target)} of the accepted are wrong, {percent(aim.confidence)} sure"
    yield f"Thresholds at which at most {wrong}, of both at once:"
    for side, own, named in zip(("first", "second"), found.own, found.named, strict=True):
        yield f"  {side}: {_rate(named) if named else 'none'}; its pass_at {_rate(own)}"
    if found.groups < _FEW:
        yield f"Few as they are, {found.groups} groups of drafts show next to nothing."


def _rate(at: AtThreshold) -> str:
    accepts = f"{at.threshold:g} accepts {at.accepted} of {at.drafts}"
    return f"{accepts}, {at.wrong} of them wrong"
