"""`harness rubric tune`: the threshold that labeled drafts allow, and how people agree with it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from harness.cli.arguments import config_option, read_pairs
from harness.cli.consoles import failures_told, json_object, results, write_json
from harness.cli.project_files import refusal_after_asking
from harness.errors import InvalidInput, did_you_mean
from harness.files import shipped_directory
from harness.rubric import RubricFile, load_rubric_file, read_rubric
from harness.rubric.calibration.agreement import Agreement, Estimate, Resamples, pair_agreement
from harness.rubric.calibration.bounds import Aim, Risk, interval
from harness.rubric.calibration.calibration_files import (
    Attempts,
    Calibration,
    prompts_digest,
    write_pass_at,
)
from harness.rubric.calibration.labels import HOLD, Labels, read_labels
from harness.rubric.calibration.tuning import AtThreshold, Tuning, tune
from harness.session.settings import load_settings

_SHOWN_STEPS = 10
_SHOWN_IDS = 5
_EXCERPT_CHARS = 80
_LUCK = 0.5
_LENGTH_BIAS = 0.3
_METHODS = {
    "accepted": "fixed sequence from the strictest threshold on",
    "rejected": "nested exact bounds",
    "all": "nested exact bounds",
}
_RATES = {
    "accepted": "of the accepted are wrong",
    "rejected": "of those that people reject are accepted",
    "all": "of all are accepted and wrong",
}
_WANTED = {
    "accepted": "drafts that score {:g} or more; labels of others add nothing",
    "rejected": "drafts that people reject; labels of others add nothing",
    "all": "drafts of all kinds",
}


def _share(_: click.Context, __: click.Parameter, given: str) -> float:
    """Reads `10%` or 0.1."""
    try:
        share = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise click.BadParameter(f"'{given}' is not a share, such as 10% or 0.1")
    return share


@click.command(short_help="Find the threshold that labeled drafts allow.")
@click.argument("rubric", metavar="RUBRIC")
@click.argument("labels", type=click.Path(path_type=Path))
@click.option("--target", default="10%", show_default=True, callback=_share, help="Error rate.")
@click.option(
    "--of",
    "risk",
    type=click.Choice(["accepted", "rejected", "all"]),
    default="accepted",
    show_default=True,
    help="What it is a share of: accepted drafts, those that people reject, or all.",
)
@click.option("--confidence", default="90%", show_default=True, callback=_share)
@click.option(
    "--columns",
    multiple=True,
    metavar="OURS=THEIRS",
    help="What the file calls a column: accept=is_good. May be repeated.",
)
@click.option("--split", metavar="NAME", help="Use only rows with this in column 'split'.")
@click.option(
    "--accept-at",
    type=float,
    metavar="NUMBER",
    help="Without a column 'accept': the mean of people's scores from which they accept. "
    "[default: the rubric's pass_at]",
)
@click.option("--evaluator", metavar="TAG", help="Who gave the scores, if no column says so.")
@click.option("--write", is_flag=True, help="Set the rubric's pass_at, and keep what it rests on.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune_rubric(
    *,
    rubric: str,
    labels: Path,
    target: float,
    risk: Risk,
    confidence: float,
    columns: tuple[str, ...],
    split: str | None,
    accept_at: float | None,
    evaluator: str | None,
    write: bool,
    config: Path | None,
    as_json: bool,
) -> None:
    """Find the threshold of RUBRIC that keeps an error rate, by the drafts in LABELS.

    LABELS is CSV or JSON Lines. What people think of a draft stands in `accept` (yes or no) or
    `human.DIMENSION`, what the evaluator gave it in `score.DIMENSION`; `group` says which drafts
    belong together. With `prefer`, rows are pairs of drafts. Each look at labels is remembered
    beside the rubric: a claim is harder to make after looks at the same labels by other versions.
    Exit codes: 0 done, whether or not there is such a threshold (--json: "named"), 2 something
    given is not usable.
    """
    with failures_told(as_json=as_json):
        rubrics = load_settings(config, environment=os.environ).rubrics
        file = read_rubric(rubric, directory=rubrics, refuse=refusal_after_asking)
        ours = read_pairs(columns, option="--columns", form="ours=theirs")
        read = read_labels(labels, file.rubric, columns=ours)
        if read.pairs:
            _show_pairs(read, confidence, as_json=as_json)
            return
        aim = Aim(target=target, risk=risk, confidence=confidence)
        look = _look(file, read, aim, split=split, accept_at=accept_at, rubrics=rubrics)
        written = _write(look, evaluator, rubrics=rubrics) if write else None
    if as_json:
        write_json(json_object(_as_json(look, written)))
    else:
        _print(look, written, results())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A look at labels."""

    file: RubricFile
    labels: Labels
    tuning: Tuning
    before: Calibration | None
    """The calibration there is, by whatever labels."""
    directory: Path
    """Where what is known about the rubric is kept."""


def _look(
    file: RubricFile,
    read: Labels,
    aim: Aim,
    *,
    split: str | None,
    accept_at: float | None,
    rubrics: Path,
) -> _Look:
    rubric, directory = file.rubric, file.written.path.parent
    if directory == shipped_directory("rubrics"):
        directory = rubrics
    drafts = [one for one in read.drafts if split in (None, one.split)]
    if not drafts:
        near = did_you_mean(str(split), {one.split for one in read.drafts})
        raise InvalidInput(
            f"no row has split '{split}'; {near}", code="labels.no-split", path=read.path
        )
    before = Calibration.read(rubric, directory)
    if accept_at is None:
        known = before.accept_at if before else None
        accept_at = rubric.pass_at if known is None else known
    tuning = tune(
        drafts,
        rubric,
        aim,
        accept_at=accept_at,
        attempts=Attempts.read(rubric, directory) or Attempts(),
        generator=np.random.default_rng(0),
    )
    tuning.attempts.write(rubric, directory)
    return _Look(file=file, labels=read, tuning=tuning, before=before, directory=directory)


def _write(look: _Look, evaluator: str | None, *, rubrics: Path) -> Calibration:
    """Sets the threshold, and keeps what it rests on."""
    tuning, named = look.tuning, look.tuning.named
    who = tuning.evaluators or evaluator
    if named is None:
        raise InvalidInput(
            "no threshold keeps the error rate, so none is written; without --write, it is said "
            "what is missing",
            code="tune.none-named",
            path=look.labels.path,
        )
    if who is None and look.file.rubric.judged:
        raise InvalidInput(
            "a threshold holds for one evaluator, and who gave the scores is unknown; add "
            "--evaluator TAG, or a column 'evaluator'",
            code="tune.no-evaluator",
            path=look.labels.path,
        )
    load = partial(load_rubric_file, directory=rubrics, refuse=refusal_after_asking)
    rubric = write_pass_at(look.file, named.threshold, load=load)
    calibration = Calibration(
        rubric_sha256=rubric.sha256,
        prompt_sha256=prompts_digest(rubric),
        evaluator=who,
        samples=tuning.samples,
        labels_sha256=tuning.labels_sha256,
        drafts=named.drafts,
        rejects=named.rejects,
        accepted=named.accepted,
        wrong=named.wrong,
        pass_at=named.threshold,
        method=_METHODS[tuning.aim.risk],
        accept_at=tuning.accept_at,
        **asdict(tuning.aim),
    )
    calibration.write(rubric, look.directory)
    return calibration


# --- words -----------------------------------------------------------------------------------


def _print(look: _Look, written: Calibration | None, console: Console) -> None:
    tuning = look.tuning
    for line in (*_about_labels(look), "", *_about_own(look), *_about_named(tuning), ""):
        console.print(line, soft_wrap=True)
    console.print(_thresholds(tuning))
    if tuning.agreements:
        console.print(_agreements(tuning))
    for line in _remarks(tuning):
        console.print(line, soft_wrap=True)
    for one in tuning.disagreements:
        people = "people accept" if one.accept else "people reject"
        excerpt = " ".join((one.labeled.draft or "").split())[:_EXCERPT_CHARS]
        console.print(
            f"  {one.labeled.id}: {one.composite:g}, {people}  {excerpt}".rstrip(), soft_wrap=True
        )
    if written is not None:
        place = Calibration.path(look.file.rubric, look.directory)
        console.print(f"pass_at is {written.pass_at:g} now; it rests on {place}", soft_wrap=True)


def _about_labels(look: _Look) -> Iterator[str]:
    tuning, own = look.tuning, look.tuning.own
    held = " that were held back" if tuning.counted[0].labeled.split == HOLD else ""
    yield f"{own.drafts} drafts{held} count, of which people reject {own.rejects}."
    if tuning.accept_at is not None:
        yield f"People accept from a mean of {tuning.accept_at:g} on (--accept-at)."
    if tuning.grouped:
        effect = f"; {tuning.design_effect:.1f} say as much as one" if tuning.design_effect else ""
        yield (
            f"Drafts of a group are alike{effect}: one of each counts, {tuning.grouped} others do "
            "not."
        )
    for reason, ids in tuning.dropped.items():
        yield f"{len(ids)} left out, {reason}: {_listed(ids)}"
    if look.labels.ignored:
        yield f"Columns that mean nothing here: {_listed(look.labels.ignored)}"
    if tuning.aim.versions > 1:
        yield (
            f"{tuning.aim.versions} versions of the scores, looked at on these labels, share what "
            f"may go wrong: each must be {_percent(1 - tuning.aim.error)} sure. New labels are "
            "free of that."
        )


def _about_own(look: _Look) -> Iterator[str]:
    aim, own, before = look.tuning.aim, look.tuning.own, look.before
    yield f"pass_at {own.threshold:g} accepts {own.accepted} of {own.drafts}: {_rate(own, aim)}."
    labels = look.tuning.labels_sha256
    if before and (before.pass_at, before.labels_sha256) == (own.threshold, labels):
        yield "  It was set by these labels: what was claimed then is all that can be."
    else:
        yield (
            f"  At most {_percent(look.tuning.own_bound)} are, {_percent(aim.confidence)} sure, if "
            "it was chosen before these labels were seen."
        )


def _about_named(tuning: Tuning) -> Iterator[str]:
    aim, named = tuning.aim, tuning.named
    claim = f"at most {_percent(aim.target)} {_RATES[aim.risk]}, {_percent(aim.confidence)} sure"
    power = f"  Of label sets like this one, {_percent(tuning.power)} name a threshold"
    if named is not None:
        luck = ": this one is more likely luck" if tuning.power < _LUCK else ""
        yield (
            f"Threshold {named.threshold:g} accepts {named.accepted} of {named.drafts}: "
            f"{_rate(named, aim)}."
        )
        yield f"  Claim: {claim} ({_METHODS[aim.risk]})."
        yield f"{power}{luck}."
        return
    yield f"No threshold allows the claim: {claim}."
    if tuning.needed is None:
        yield f"{power}, and more labels would hardly help: scores separate too little what people"
        yield "  accept from what they reject. Change the rubric or the evaluator."
    else:
        yield f"{power}; of some {tuning.needed} drafts like these, 80%."
    if tuning.missing and tuning.needed:
        more, threshold = tuning.missing
        yield f"  At the least {more} more, all good: {_WANTED[aim.risk].format(threshold)}."


def _rate(at: AtThreshold, aim: Aim) -> str:
    trials = at.trials(aim.risk)
    share = f" ({_percent(at.wrong / trials)})" if trials else ""
    return f"{at.wrong} of {trials}{share} {_RATES[aim.risk]}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _thresholds(tuning: Tuning) -> Table:
    table = Table(title="Thresholds", title_justify="left")
    for name in ("threshold", "accepted", "wrong among them", "rejects accepted", "good lost", ""):
        table.add_column(name, justify="right")
    places = np.linspace(0, len(tuning.steps) - 1, _SHOWN_STEPS).round()
    shown = {tuning.steps[int(place)] for place in places if tuning.steps}
    marks = {tuning.own: "pass_at", tuning.named: "claimed"}
    shown |= {at for at in marks if at}
    for at in sorted(shown, key=lambda one: -one.threshold):
        low, high = interval(at.wrong, at.accepted, confidence=tuning.aim.confidence)
        table.add_row(
            f"{at.threshold:g}",
            f"{at.accepted} of {at.drafts}",
            f"{at.wrong} of {at.accepted} ({low:.0%} to {high:.0%})",
            f"{at.wrong} of {at.rejects}",
            f"{at.good_lost} of {at.drafts - at.rejects}",
            marks.get(at, ""),
        )
    return table


def _agreements(tuning: Tuning) -> Table:
    table = Table(title="Evaluator and people", title_justify="left")
    shown = ("pearson", "spearman", "kappa", "offset", "slope")
    table.add_column("dimension")
    for name in ("drafts", *shown, "one person"):
        table.add_column(name, justify="right")
    for one in tuning.agreements:
        found = [_estimate(one.estimates[name]) for name in shown]
        table.add_row(one.name, str(one.drafts), *found, _number(one.ceiling[0]))
    return table


def _estimate(one: Estimate) -> str:
    between = f" ({one.low:.2f} to {one.high:.2f})"
    return _number(one.value) + between * (not math.isnan(one.value))


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _remarks(tuning: Tuning) -> Iterator[str]:
    auc = _estimate(tuning.discrimination)
    yield f"An accepted draft scores higher than a rejected one in {auc} of pairs (AUC)."
    for one in tuning.agreements:
        yield from _about_dimension(one)
    for name, by_samples in tuning.reliability.items():
        said = ", ".join(f"{samples}: {icc:.2f}" for samples, icc in by_samples.items())
        yield f"{name or 'composite'}: reliability of the mean of so many samples (ICC): {said}"
    if tuning.disagreements:
        yield "At pass_at, decided otherwise than by people:"


def _about_dimension(one: Agreement) -> Iterator[str]:
    if one.is_frozen:
        yield f"{one.name}: frozen; every draft got the same score, which is no judgement."
    if one.is_saturated:
        evaluator, people = one.top
        yield f"{one.name}: saturated; {evaluator:.0%} got the top score, people give {people:.0%}."
    if abs(one.length_bias) >= _LENGTH_BIAS:
        way = "long" if one.length_bias > 0 else "short"
        yield f"{one.name}: {way} drafts score higher than by people (rho {one.length_bias:.2f})."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_IDS} more" if len(names) > _SHOWN_IDS else ""
    return ", ".join(names[:_SHOWN_IDS]) + more


def _as_json(look: _Look, written: Calibration | None) -> dict[str, object]:
    tuning, apart = look.tuning, {"counted", "attempts", "disagreements"}
    said = {one.name: getattr(tuning, one.name) for one in fields(tuning)}
    return {
        "rubric": look.file.rubric.id,
        "rubric_sha256": look.file.rubric.sha256,
        **{name: value for name, value in said.items() if name not in apart},
        "drafts": len(tuning.counted),
        "ignored_columns": look.labels.ignored,
        "disagreements": [
            {"id": one.labeled.id, "composite": one.composite, "accept": one.accept}
            for one in tuning.disagreements
        ],
        "written": written.model_dump() if written else None,
    }


# --- pairs -----------------------------------------------------------------------------------


def _show_pairs(read: Labels, confidence: float, *, as_json: bool) -> None:
    pairs = [pair for pair in read.pairs if pair.prefer]
    if not pairs:
        raise InvalidInput("no row has 'prefer'", code="labels.no-labels", path=read.path)
    both = any(pair.judged_swapped is not None for pair in pairs)
    found = pair_agreement(
        [pair.prefer for pair in pairs],
        [pair.judged for pair in pairs],
        [pair.judged_swapped or "" for pair in pairs] if both else None,
        resamples=Resamples([pair.group or pair.id for pair in pairs], np.random.default_rng(0)),
        confidence=confidence,
    )
    if as_json:
        write_json(json_object(asdict(found)))
        return
    console = results()
    console.print(
        f"{found.pairs} pairs. The evaluator prefers what people prefer in "
        f"{_estimate(found.accuracy)} of its judgements; kappa {found.kappa:.3f}.",
        soft_wrap=True,
    )
    if both:
        console.print(
            f"With the drafts in the other order it says the same of {found.consistent:.1%}; it "
            f"prefers the draft shown first in {found.first_share:.1%} of cases."
        )
    if found.unreadable:
        console.print(f"{found.unreadable} judgements without a preference count as wrong.")
