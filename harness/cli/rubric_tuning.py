"""`harness rubric tune`: the threshold that labeled drafts allow, and how people agree with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from harness.cli.arguments import config_option, parsed_by, read_pairs, share, together
from harness.cli.consoles import Command, json_object, results, write_json
from harness.cli.rubric_command import own_rubrics, read_named
from harness.cli.tables import listed, percent, table
from harness.cli.tuning_report import write_report
from harness.errors import InvalidInput
from harness.files import shipped_directory
from harness.rubric import Rubric, RubricFile
from harness.rubric.calibration.agreement import Estimate
from harness.rubric.calibration.bounds import AtThreshold, Risk, RiskAim, interval
from harness.rubric.calibration.calibration_files import (
    Attempts,
    Calibration,
    prompts_digest,
    write_pass_at,
)
from harness.rubric.calibration.labels import Labels, OffScale, Unreadable, read_labels
from harness.rubric.calibration.paired import labeled_by
from harness.rubric.calibration.tuning import Tuning
from harness.version import __version__

_SHOWN_STEPS = 10
_EXCERPT_CHARS = 80
# Spearman's rho from which a favor for long or short drafts is mentioned.
_LENGTH_BIAS = 0.3
_SHOWN = ("pearson", "spearman", "kappa", "offset")
_METHODS: dict[Risk, str] = {
    "accepted": "fixed sequence from the strictest threshold on",
    "rejected": "nested exact bounds",
    "all": "nested exact bounds",
}
_RATES: dict[Risk, str] = {
    "accepted": "of the accepted are wrong",
    "rejected": "of those that people reject are accepted",
    "all": "of all are accepted and wrong",
}
_MISSING_DRAFTS: dict[Risk, str] = {
    "accepted": "drafts that score {:g} or more, all good; labels of others add nothing",
    "rejected": "drafts that people reject, all below {:g}; labels of others add nothing",
    "all": "drafts, none of them wrong and accepted at {:g}",
}


of_labels = together(
    click.option(
        "--target", default="10%", show_default=True, callback=parsed_by(share), help="Error rate."
    ),
    click.option("--confidence", default="90%", show_default=True, callback=parsed_by(share)),
    click.option(
        "--columns",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Name of a column in the file, such as accept=is_good. May be repeated.",
    ),
    click.option(
        "--accept-at",
        type=float,
        metavar="NUMBER",
        help="Without a column 'accept': the mean human score from which a draft is accepted. "
        "[default: the rubric's pass_at]",
    ),
    click.option(
        "--unreadable",
        type=click.Choice(["drop", "lowest"]),
        default="drop",
        show_default=True,
        help="What becomes of the evaluator's judgements without a score (null).",
    ),
    click.option(
        "--off-scale",
        type=click.Choice(["refuse", "drop", "clip", "lowest"]),
        default="refuse",
        show_default=True,
        help="What becomes of its scores off the scale.",
    ),
)
"""Adds the options that say how files of labels are read, and which error rate is claimed."""


def about_reading(labels: Labels) -> Iterator[str]:
    """Lines about the evaluator's scores that were missing or off the scale."""
    for what, option, counts in (
        ("Judgements without a score", "--unreadable", labels.unreadable),
        ("Scores off the scale", "--off-scale", labels.off_scale),
    ):
        if counts:
            columns = ", ".join(f"{column} {number}" for column, number in counts.items())
            yield f"{what}: {columns} ({option})"


@click.command(name="tune", cls=Command)
@click.argument("rubric", metavar="RUBRIC")
@click.argument("labels", type=click.Path(path_type=Path))
@click.option("--scores", type=click.Path(path_type=Path), help="Scores from harness rubric score.")
@of_labels
@click.option(
    "--of",
    "risk",
    type=click.Choice(["accepted", "rejected", "all"]),
    default="accepted",
    show_default=True,
    help="What the error rate is a share of: accepted drafts, drafts that people reject, or all.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the results to this .html file, with the texts of the worst disagreements.",
)
@click.option(
    "--write", is_flag=True, help="Set the rubric's pass_at, and keep its calibration beside it."
)
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune_rubric(
    *,
    rubric: str,
    labels: Path,
    scores: Path | None,
    target: float,
    risk: Risk,
    confidence: float,
    columns: tuple[str, ...],
    accept_at: float | None,
    unreadable: Unreadable,
    off_scale: OffScale,
    report: Path | None,
    write: bool,
    config: Path | None,
    as_json: bool,
) -> None:
    """Find the threshold of RUBRIC that keeps an error rate, by the drafts in LABELS.

    LABELS is CSV, JSON Lines or Parquet. People's judgements are in `accept` (yes or no) or
    `human.DIMENSION`, the evaluator's scores in `score.DIMENSION`; `group` says which drafts belong
    together. Scores may also stand in a file of their own, --scores, matched by id. Each look at
    labels is recorded beside the rubric: after several looks at the same labels, a claim needs more
    evidence. Exit codes: 0 done, whether or not there is such a threshold (--json: "named"), 2
    invalid input.
    """
    if report is not None and report.suffix.lower() != ".html":
        # Any other name may be that of the rubric or the labels.
        problem = "the report is a page; give a name that ends in .html"
        raise InvalidInput(problem, code="tune.report-not-html", path=report)
    rubrics = own_rubrics(config)
    file = read_named(rubric, rubrics)
    directory = records_directory(file, rubrics)
    ours = read_pairs(columns, option="--columns", form="ours=theirs")
    read = partial(read_labels, rubric=file.rubric, unreadable=unreadable, off_scale=off_scale)
    labeled = read(labels, columns=ours)
    if scores is not None:
        labeled = _with_scores(labeled, read(scores, columns={}, need="scores"))
    before = Calibration.read(file.rubric, directory)
    tuning = Tuning(
        labeled.drafts,
        file.rubric,
        RiskAim(target=target, risk=risk, confidence=confidence),
        accept_at=accepted_from(accept_at, before, file.rubric),
        attempts=Attempts.beside(file.rubric, directory),
    )
    # Each look is recorded: after several at the same labels, a claim needs more evidence.
    tuning.attempts.write(file.rubric, directory)
    if not as_json:
        _print(tuning, labeled)
    origin = _origin(file.rubric, tuning, labeled)
    if report is not None:
        write_report(
            report,
            tuning,
            file.rubric,
            origin=origin,
            claim=(*_about_own(tuning), *_about_claim(tuning)),
            remarks=(*_about_labels(tuning, labeled), *_about_agreement(tuning)),
            tables=(_thresholds(tuning), _agreements(tuning)),
        )
    written = None
    if write:
        written = _calibrated(file, tuning)
        written.write(file.rubric, directory)
    if as_json:
        write_json(json_object(_as_json(file.rubric, tuning, labeled, written, origin=origin)))
        return
    if report is not None:
        results().print(f"The report: {report}", soft_wrap=True)
    if written is not None:
        basis = f"it rests on {Calibration.path(file.rubric, directory)}"
        results().print(f"pass_at is {written.at.threshold:g} now; {basis}", soft_wrap=True)


def _with_scores(labels: Labels, scored: Labels) -> Labels:
    """The labels with the scores of another file, matched by the drafts' ids."""
    by_id = {draft.id: draft for draft in labeled_by(scored.drafts, labels.drafts)}
    return replace(
        labels,
        # A draft without scores stays, so that `tune` reports it.
        drafts=tuple(by_id.get(draft.id, draft) for draft in labels.drafts),
        unreadable=scored.unreadable,
        off_scale=scored.off_scale,
    )


def accepted_from(option: float | None, before: Calibration | None, rubric: Rubric) -> float:
    """The mean of people's scores from which they accept: `--accept-at`, or as before."""
    if option is not None:
        return option
    if before is not None and before.accept_at is not None:
        return before.accept_at
    return rubric.pass_at


def records_directory(file: RubricFile, rubrics: Path) -> Path:
    """The folder of a rubric's records."""
    # Beside the user's own rubrics; the folder of shipped ones is replaced with the program.
    ships = file.written.path.parent == shipped_directory("rubrics")
    return rubrics if ships else file.written.path.parent


def _calibrated(file: RubricFile, tuning: Tuning) -> Calibration:
    at = tuning.named
    if at is None:
        raise InvalidInput(
            "no threshold supports the claim, so none is written", code="tune.none-named"
        )
    if tuning.evaluators is None and tuning.samples:
        raise InvalidInput(
            "a threshold holds for one evaluator, and the scores do not name theirs; add a column "
            "'evaluator'",
            code="tune.no-evaluator",
        )
    # First, since `rubric_sha256` is that of the file with its new threshold.
    rubric = write_pass_at(file, at.threshold)
    return Calibration(
        rubric_sha256=rubric.sha256,
        prompt_sha256=prompts_digest(rubric),
        evaluator=tuning.evaluators,
        samples=tuning.samples,
        labels_sha256=tuning.labels_sha256,
        at=at,
        aim=tuning.aim,
        method=_METHODS[tuning.aim.risk],
        accept_at=tuning.accept_at,
    )


def _print(tuning: Tuning, labels: Labels) -> None:
    console = results()
    above = (*_about_labels(tuning, labels), "", *_about_own(tuning), *_about_claim(tuning), "")
    for line in above:
        console.print(line, soft_wrap=True)
    console.print(_thresholds(tuning))
    if tuning.agreements:
        console.print(_agreements(tuning))
    for line in (*_about_agreement(tuning), *_about_disagreements(tuning)):
        console.print(line, soft_wrap=True)


def _about_labels(tuning: Tuning, labels: Labels) -> Iterator[str]:
    yield f"Drafts that count: {tuning.own.drafts}. People reject {tuning.own.rejects} of them."
    if (votes := tuning.votes).disputed:
        apart = (
            f"People disagree on {votes.disputed} of {votes.several} that several of them decided"
        )
        yield f"{apart} (kappa {figure(votes.kappa)}). Ties count as rejections: {votes.ties}."
    if tuning.accept_at is not None:
        yield f"People accept from a mean of {tuning.accept_at:g} on (--accept-at)."
    if tuning.held_back:
        yield f"They were held back; {tuning.held_back} others do not count."
    if tuning.grouped:
        yield f"Drafts of a group may be alike: one of each counts, {tuning.grouped} others do not."
    for reason, ids in tuning.dropped.items():
        yield f"{len(ids)} left out of thresholds, {reason}: {listed(ids)}"
    if tuning.outdated:
        count = len(tuning.outdated)
        yield f"{count} have scores by another version of the rubric: {listed(tuning.outdated)}"
    if tuning.uneven:
        # Those near the threshold were judged more often, which moves their scores away from it.
        yield f"{len(tuning.uneven)} were scored without --samples: score them again with it."
    if tuning.left_out:
        names = listed(tuning.left_out)
        yield f"No evaluator scored {names}: the threshold holds for runs without one."
    yield from about_reading(labels)
    if labels.ignored:
        yield f"Columns that mean nothing here: {listed(labels.ignored)}"
    if (looks := tuning.aim.looks) > 1:
        sure = percent(1 - tuning.aim.error)
        yield f"{looks} looks at these labels share what may go wrong: each must be {sure} sure."
        if seen := tuning.seen_before:
            names = f": {listed(seen)}" if len(seen) < tuning.own.drafts else ""
            yield f"  Other looks saw {len(seen)} of these {tuning.own.drafts} drafts{names}."


def _about_own(tuning: Tuning) -> Iterator[str]:
    aim, current = tuning.aim, tuning.own
    if aim.risk != "accepted":
        yield f"pass_at {rate(current, replace(aim, risk='accepted'))}."
    yield f"pass_at {rate(current, aim)}."
    yield (
        f"  At most {percent(tuning.own_bound)} are, {percent(aim.confidence)} sure, if it was "
        "chosen before these labels were seen."
    )


def _about_claim(tuning: Tuning) -> Iterator[str]:
    aim, named = tuning.aim, tuning.named
    claim = _claim(aim)
    if named is not None:
        yield f"Threshold {rate(named, aim)}."
        yield f"  Claim: {claim} ({_METHODS[aim.risk]})."
        return
    yield f"No threshold allows the claim: {claim}."
    if tuning.missing is not None:
        count, threshold = tuning.missing
        drafts = _MISSING_DRAFTS[aim.risk].format(threshold)
        yield f"  At the least {count} more are missing: {drafts}."


def _origin(rubric: Rubric, tuning: Tuning, labels: Labels) -> dict[str, str]:
    """Title → text: what the figures come from and how, for an auditor."""
    aim = tuning.aim
    decided = "one decision for each draft, of the majority; ties are rejections"
    if tuning.accept_at is not None:
        decided = f"accepted from a mean score of {tuning.accept_at:g} on"
    counted = f"{tuning.own.drafts} of {len(labels.drafts)} drafts, one of each group"
    judge = (tuning.evaluators or "not named") if tuning.samples else "none: code alone scores"
    return {
        "Date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Version": f"harness {__version__}",
        "Rubric": f"{rubric.id}, SHA-256 {rubric.sha256}",
        "Prompts": f"SHA-256 {prompts_digest(rubric)}",
        "Evaluator": judge,
        "Judgements of a draft": ", ".join(map(str, tuning.samples)) or "0",
        "Labels": f"{labels.path.name}, {counted}; {decided}; SHA-256 {tuning.labels_sha256}",
        "Scores that are none": "; ".join(about_reading(labels))
        or "no score was null or off scale",
        "Claim": f"{_claim(aim)}; {aim.looks} looks at these labels share what may go wrong",
        "Method": f"{_METHODS[aim.risk]}, exact (Clopper and Pearson), each at {aim.error:.4g}; "
        "intervals of agreement by a bootstrap over groups with Student's correction, seed 0",
    }


def _claim(aim: RiskAim) -> str:
    return f"at most {percent(aim.target)} {_RATES[aim.risk]}, {percent(aim.confidence)} sure"


def rate(step: AtThreshold, aim: RiskAim) -> str:
    """What a threshold does: how many drafts it accepts, and the error rate."""
    trials = step.trials(aim.risk)
    share = f" ({percent(step.wrong / trials)})" if trials else ""
    accepts = f"{step.threshold:g} accepts {step.accepted} of {step.drafts}"
    return f"{accepts}: {step.wrong} of {trials}{share} {_RATES[aim.risk]}"


def _thresholds(tuning: Tuning) -> Table:
    columns = ["accepted", "wrong among them", "rejects accepted", "good lost"]
    rows = table("Thresholds", "threshold", *columns, "")
    # Some of many steps, evenly spread, and always the two with a mark.
    steps: set[AtThreshold] = set()
    if tuning.steps:
        indexes = np.linspace(0, len(tuning.steps) - 1, _SHOWN_STEPS).round()
        steps = {tuning.steps[int(index)] for index in indexes}
    marks = {tuning.own: "pass_at"}
    if tuning.named is not None:
        marks[tuning.named] = "claim"
    for step in sorted(steps | marks.keys(), key=lambda step: -step.threshold):
        low, high = interval(step.wrong, step.accepted, confidence=tuning.aim.confidence)
        rows.add_row(
            f"{step.threshold:g}",
            f"{step.accepted} of {step.drafts}",
            f"{step.wrong} of {step.accepted} ({low:.0%} to {high:.0%})",
            f"{step.wrong} of {step.rejects}",
            f"{step.good_lost} of {step.drafts - step.rejects}",
            marks.get(step, ""),
        )
    return rows


def _agreements(tuning: Tuning) -> Table:
    rows = table("Evaluator and people", "dimension", "drafts", *_SHOWN, "one person")
    for agreement in tuning.agreements:
        cells = (_estimate(agreement.estimates[name]) for name in _SHOWN)
        rows.add_row(agreement.name, str(agreement.drafts), *cells, figure(agreement.ceiling))
    return rows


def _estimate(estimate: Estimate) -> str:
    # Few drafts have no interval, or not even a value.
    if math.isnan(estimate.low):
        return figure(estimate.value)
    return f"{figure(estimate.value)} ({estimate.low:.2f} to {estimate.high:.2f})"


def figure(value: float) -> str:
    """A figure in a table; a dash where it is undefined."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def _about_agreement(tuning: Tuning) -> Iterator[str]:
    if 0 < tuning.own.rejects < tuning.own.drafts:
        auc = _estimate(tuning.discrimination)
        yield f"A draft that people accept outscores one that they reject in {auc} of pairs (AUC)."
    for agreement in tuning.agreements:
        if agreement.is_frozen:
            yield f"{agreement.name} is frozen: every draft got the same score."
        if abs(agreement.length_bias) >= _LENGTH_BIAS:
            length = "long" if agreement.length_bias > 0 else "short"
            rho = f"(rho {agreement.length_bias:.2f})"
            yield f"{agreement.name} favors {length} drafts more than people do {rho}."


def _about_disagreements(tuning: Tuning) -> Iterator[str]:
    if tuning.disagreements:
        others = ", of those that were not held back" if tuning.held_back else ""
        yield f"Decided otherwise than by people, at pass_at{others}:"
    for draft in tuning.disagreements:
        people = "people accept" if draft.accept else "people reject"
        excerpt = " ".join((draft.labeled.draft or "").split())[:_EXCERPT_CHARS]
        yield f"  {draft.labeled.id}: {draft.composite:g}, {people}  {excerpt}".rstrip()


# Of `Tuning`. Drafts have texts, which may be long: the JSON counts or names them.
_FIELDS = (
    *("aim", "own", "own_bound", "named", "missing", "left_out", "steps", "held_back", "grouped"),
    *("seen_before", "votes"),
    *("dropped", "agreements", "discrimination", "accept_at", "outdated", "uneven", "samples"),
)


def _as_json(
    rubric: Rubric,
    tuning: Tuning,
    labels: Labels,
    written: Calibration | None,
    *,
    origin: dict[str, str],
) -> dict[str, object]:
    return {
        "rubric": rubric.id,
        "rubric_sha256": rubric.sha256,
        "drafts": len(tuning.counted),
        "origin": origin,
        **{name: getattr(tuning, name) for name in _FIELDS},
        "ignored_columns": labels.ignored,
        "unreadable": labels.unreadable,
        "off_scale": labels.off_scale,
        "disagreements": [
            {"id": draft.labeled.id, "composite": draft.composite, "accept": draft.accept}
            for draft in tuning.disagreements
        ],
        "written": written.model_dump() if written else None,
    }
