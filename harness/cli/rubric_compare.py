"""`harness rubric compare`: how two sets of scores differ, and which agrees better with people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Literal

import click
from rich.table import Table

from harness.cli.arguments import config_option, read_pairs
from harness.cli.consoles import Command, json_object, results, write_json
from harness.cli.rubric_command import own_rubrics, read_named
from harness.cli.rubric_tuning import (
    about_reading,
    accepted_from,
    figure,
    of_labels,
    rate,
    records_directory,
)
from harness.cli.tables import listed, percent, table
from harness.errors import InvalidInput
from harness.rows import Row, read_rows
from harness.rubric import Rubric
from harness.rubric.calibration.bounds import RiskAim
from harness.rubric.calibration.calibration_files import Attempts, Calibration
from harness.rubric.calibration.evaluation_rows import evaluation_samples, is_evaluation
from harness.rubric.calibration.labels import Labeled, Labels, OffScale, Unreadable, read_labels
from harness.rubric.calibration.paired import (
    Comparison,
    Difference,
    Preference,
    Rubrics,
    compare,
    compare_evaluations,
    labeled_by,
    paired,
)
from harness.rubric.calibration.score_figures import Reducer
from harness.session.batch_files import manifest_of


@click.command(name="compare", cls=Command)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--labels", type=click.Path(path_type=Path), help="People's labels. [default: A's]")
@click.option("--rubric", metavar="RUBRIC", help="The rubric of the scores. [default: by A and B]")
@click.option("--other-rubric", metavar="RUBRIC", help="The rubric of B, if it is another.")
@click.option(
    "--reduce",
    default="mean",
    show_default=True,
    help="Makes one score of a row's epochs, as of 'harness evaluate'.",
)
@of_labels
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare_scores(
    *,
    first: Path,
    second: Path,
    labels: Path | None,
    rubric: str | None,
    other_rubric: str | None,
    reduce: str,
    target: float,
    confidence: float,
    columns: tuple[str, ...],
    accept_at: float | None,
    unreadable: Unreadable,
    off_scale: OffScale,
    config: Path | None,
    as_json: bool,
) -> None:
    """Compare the scores in A and in B: of two evaluators, two rubrics, two models, or two days.

    Of two evaluations, or results of Inspect AI or promptfoo, the scores that both have are
    compared row by row, with their epochs reduced; with --rubric, as drafts like those below.

    A and B are outputs of 'harness rubric score', or tables with `score.DIMENSION`; drafts are
    matched by id. With labels, as for 'harness rubric tune', also: which agrees better with people,
    and which thresholds keep the target rate of wrong drafts among the accepted; as with 'tune',
    both count as looks at these labels. --columns applies to each file that has the column. "Cannot
    tell" means that the interval of the difference includes 0. Exit codes: 0 done, 2 invalid input.
    """
    ours = read_pairs(columns, option="--columns", form="ours=theirs")
    files = [_read(path, ours) for path in (first, second)]
    others = [file for file in files if not is_evaluation(file.fields)]
    if rubric is None and not others:
        noun, sides, about_scores = "rows", [str(first), str(second)], list[str]()
        comparison = _by_rows(files, reduce, confidence=confidence)
    else:
        if rubric is None and len(others) == 1:
            raise InvalidInput(
                "it has no rows of an evaluation, as the other has; give two evaluations, or whole "
                "results of Inspect AI or promptfoo, or add --rubric NAME",
                code="compare.not-evaluation",
                path=others[0].path,
            )
        directory = own_rubrics(config)
        names = rubric or _rubric_of(files[0]), other_rubric or rubric or _rubric_of(files[1])
        chosen = [read_named(name, directory) for name in names]
        rubrics = chosen[0].rubric, chosen[1].rubric
        need: Literal["either", "scores"] = "scores" if labels else "either"
        read = partial(read_labels, unreadable=unreadable, off_scale=off_scale)
        scored = [
            read(file.path, side_rubric, columns=file.columns, rows=file.rows, need=need)
            for file, side_rubric in zip(files, rubrics, strict=True)
        ]
        people = None
        if labels is not None:
            file = _read(labels, ours)
            people = read_labels(labels, rubrics[0], columns=file.columns, rows=file.rows).drafts
        comparison = _by_drafts(
            scored,
            people,
            rubrics,
            RiskAim(target=target, confidence=confidence),
            records=[records_directory(file, directory) for file in chosen],
            accept_at=accept_at,
        )
        noun, sides = "drafts", [*map(_title, scored, rubrics)]
        about_scores = [
            f"{side.path.name}: {line}" for side in scored for line in about_reading(side)
        ]
    if as_json:
        figures = asdict(comparison)
        if comparison.people is not None:
            del figures["people"]["attempts"]
        write_json(json_object({"sides": sides, **figures}))
        return
    console = results()
    console.print(_shifts(comparison, noun))
    if comparison.people is not None:
        console.print(_agreement(comparison.people))
    summary = f"First: {sides[0]}. Second: {sides[1]}."
    for line in (summary, *_about(comparison, noun), *about_scores):
        console.print(line, soft_wrap=True)


def _by_rows(files: Sequence[_ScoreFile], reduce: str, *, confidence: float) -> Comparison:
    """Compares two evaluations row by row; `reduce` makes one score of a row's epochs."""
    samples = [evaluation_samples(file.rows) for file in files]
    # Each side's successes are those of its own evaluation, whose rubric may be another.
    settings = [manifest_of(file.path).get("evaluation", {}) for file in files]
    sides = [(side, own.get("success", {})) for side, own in zip(samples, settings, strict=True)]
    # The side with fewer epochs has no row that could be reduced by more.
    epochs = min(max(Counter(s.row for s in side).values(), default=1) for side in samples)
    return compare_evaluations(sides, Reducer.named(reduce, epochs=epochs), confidence=confidence)


def _by_drafts(
    scored: Sequence[Labels],
    people: Sequence[Labeled] | None,
    rubrics: Rubrics,
    aim: RiskAim,
    *,
    records: Sequence[Path],
    accept_at: float | None,
) -> Comparison:
    """Compares the drafts of two files, and records in both rubrics' folders that labels were seen.

    Labels are those of `people`, or without any those in the first file.
    """
    first, second = (side.drafts for side in scored)
    # Before the labels are joined: a draft without a label has its partner all the same.
    first_ids, second_ids = {draft.id for draft in first}, {draft.id for draft in second}
    if people is not None:
        first = tuple(labeled_by(first, people))
    # The two rubrics may have their records in two folders.
    both = list(zip(rubrics, records, strict=True))
    looks = Attempts.beside(*both[0]).joined(Attempts.beside(*both[1]).attempts)
    people_from = accepted_from(accept_at, Calibration.read(*both[0]), rubrics[0])
    comparison = compare(
        paired(first, second, rubrics, accept_at=people_from),
        rubrics,
        aim,
        attempts=looks if any(draft.people or draft.accept for draft in first) else None,
    )
    if comparison.people is not None:
        for rubric, folder in both:
            comparison.people.attempts.write(rubric, folder)
    return replace(
        comparison,
        without_partner=(len(first_ids - second_ids), len(second_ids - first_ids)),
        unlabeled=len(first_ids) - len(first),
    )


def _title(side: Labels, rubric: Rubric) -> str:
    """The rubric and the evaluators of a side; without evaluators, its file."""
    tags = sorted({draft.evaluator for draft in side.drafts} - {""})
    return f"{rubric.id}, {', '.join(tags) or side.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoreFile:
    """A file with scores or labels, read once."""

    path: Path
    rows: Sequence[Row | InvalidInput]
    columns: Mapping[str, str]
    """The pairs of `--columns` whose column the file has: our name → its name."""
    fields: Mapping[str, object]
    """Column, by the file's own name → its first value."""


def _read(path: Path, ours: Mapping[str, str]) -> _ScoreFile:
    # All rows at once, as the file may be a pipe.
    entries = list(read_rows([str(path)], empty={"score"}))
    rows = [entry for entry in entries if isinstance(entry, Row)]
    if not rows:
        empty = InvalidInput("it has no rows", code="compare.no-scores", path=path)
        raise next((entry for entry in entries if isinstance(entry, InvalidInput)), empty)
    fields = {name: row.fields[name] for row in reversed(rows) for name in row.fields}
    columns = {mine: theirs for mine, theirs in ours.items() if theirs in fields}
    if columns:
        # Again: under other names, other empty cells count.
        entries = list(read_rows([str(path)], columns=columns, empty={"score"}))
    return _ScoreFile(path=path, rows=entries, columns=columns, fields=fields)


def _rubric_of(file: _ScoreFile) -> str:
    name = file.fields.get("rubric")
    if name is None:
        columns = {column.partition(".")[0] for column in file.fields}
        is_of_batch = columns >= {"row", "output"} and not columns & {"score", "scores"}
        raise InvalidInput(
            "it is an output of 'harness batch', which has no scores; score the same rows with "
            "'harness evaluate', or drafts with 'harness rubric score'"
            if is_of_batch
            else "it does not say by which rubric it was scored; add --rubric NAME",
            code="compare.no-rubric",
            path=file.path,
        )
    # Rows have only the name of a rubric, also if the command line had its path.
    beside = file.path.parent / f"{name}.yaml"
    return str(beside if beside.is_file() else name)


def _shifts(comparison: Comparison, noun: str) -> Table:
    title = f"Scores of {comparison.drafts} {noun} in {comparison.groups} groups"
    rows = table(title, "dimension", noun, *_SIDES, "correlation")
    for name, shift in comparison.shifts.items():
        rows.add_row(name, str(shift.drafts), *_sides(shift.mean), figure(shift.pearson.value))
    return rows


def _agreement(preference: Preference) -> Table:
    rows = table("Agreement with people", "dimension", "", *_SIDES)
    for dimension, difference_by_statistic in preference.agreement.items():
        for statistic, difference in difference_by_statistic.items():
            rows.add_row(dimension, statistic, *_sides(difference))
    return rows


_SIDES = ("first", "second", "second - first", "higher")


def _sides(compared: Difference) -> tuple[str, ...]:
    """The cells of the columns `_SIDES`."""
    estimate = compared.difference
    interval = "-" if isnan(estimate.low) else f"{estimate.low:+.2f} to {estimate.high:+.2f}"
    difference = "-" if isnan(estimate.value) else f"{estimate.value:+.2f} ({interval})"
    return figure(compared.first), figure(compared.second), difference, estimate.higher


def _about(comparison: Comparison, noun: str) -> Iterator[str]:
    if comparison.both_pass is not None:
        yield f"Drafts that pass by both: {comparison.both_pass}."
    for side, names in (("first", comparison.only_first), ("second", comparison.only_second)):
        if names:
            yield f"By the {side} alone: {len(names)}: {listed(names)}"
    for side, partner, count in zip("AB", "BA", comparison.without_partner, strict=True):
        if count:
            yield f"Without a partner in {partner}, {noun} of {side}: {count}."
    if comparison.unlabeled:
        yield f"Without a label, and left out, drafts of A: {comparison.unlabeled}."
    if (people := comparison.people) is not None:
        aim = people.aim
        wrong = f"{percent(aim.target)} of the accepted are wrong, {percent(aim.confidence)} sure"
        yield f"Thresholds at which at most {wrong}, of both at once:"
        for side, current, named in zip(_SIDES[:2], people.own, people.named, strict=True):
            yield f"  {side}: pass_at {rate(current, aim)}"
            yield f"  {side}: {f'threshold {rate(named, aim)}' if named else 'no threshold'}"
