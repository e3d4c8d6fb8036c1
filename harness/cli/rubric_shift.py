"""`harness rubric shift` and `drift`: how another evaluator, or time, changes scores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from harness.cli.arguments import json_option, share
from harness.cli.consoles import failures_told, json_object, log_to_stderr, results, say, write_json
from harness.cli.process import FAILED
from harness.cli.rubric_batch import (
    LISTED,
    Batch,
    Given,
    as_file_name,
    kept_verdicts,
    not_judged,
    of_drafts,
    score_drafts,
)
from harness.errors import ConfigurationInvalid, HarnessError, InvalidInput
from harness.page import percent
from harness.rubric import Verdict
from harness.rubric.calibration.shift import Shift, shift
from harness.session.roles import EVALUATOR, Roles

_confidence_option = click.option(
    "--confidence", default="90%", show_default=True, callback=share, help=("For the intervals.")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One judging of the drafts."""

    who: str
    verdicts: Mapping[str, Verdict]
    failed: Mapping[str, HarnessError]


@click.command(name="shift", short_help="Show how another evaluator shifts scores.")
@of_drafts
@click.option("--against", required=True, metavar="TAG", help="The other evaluator's endpoint.")
@click.option(
    "--samples",
    type=click.IntRange(1, 100),
    help="Judgings of each draft; by default the rubric's 'repeats'.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the scores in this folder, a file for each evaluator; the same command continues "
    "them.",
)
@_confidence_option
@json_option
def shift_of(
    *,
    read: Callable[[], Given],
    against: str,
    samples: int | None,
    output: Path | None,
    confidence: float,
    as_json: bool,
) -> None:
    """Score DRAFTS by RUBRIC with two evaluators, and show how far their scores differ.

    No labels are needed: it shows what changes when one evaluator takes the place of another, such
    as a model at a smaller quantization. The first is the configured evaluator, or --role
    evaluator=TAG. Exit codes: 0 done, 1 a draft could not be judged, 2 invalid input, 130
    interrupted, 143 terminated.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        given = read()
        own = _evaluator_of(given)
        if against == own:
            raise InvalidInput(
                f"--against names '{own}', the evaluator itself; to see whether its scores change "
                "with time: harness rubric drift",
                code="shift.same-evaluator",
            )
        both = [_with_evaluator(given, tag) for tag in (own, against)]
        sides = []
        for tag, one in zip((own, against), both, strict=True):
            say(f"Judging by {tag}:", err=True)
            kept = output and output / f"{as_file_name(tag)}.jsonl"
            sides.append(_judged(one, samples=samples or given.rubric.repeats, output=kept))
        failed = _tell(sides, given, confidence=confidence, as_json=as_json)
    if failed:
        sys.exit(FAILED)


@click.command(name="drift", short_help="Judge drafts again: do their scores still hold?")
@of_drafts
@click.option(
    "--since",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The earlier scores, from 'harness rubric score --output'.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep the new scores in this .jsonl or .csv file; the same command continues it.",
)
@_confidence_option
@json_option
def drift_of(
    *,
    read: Callable[[], Given],
    since: Path,
    output: Path | None,
    confidence: float,
    as_json: bool,
) -> None:
    """Score DRAFTS by RUBRIC again, and show how far the scores have moved.

    Each draft is judged as often as before. Drafts that changed, or had no scores, are left out.
    Exit codes: as for 'harness rubric shift'.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        given = read()
        _evaluator_of(given)
        before = kept_verdicts(given, since)
        again = {name: draft for name, draft in given.drafts.items() if name in before.verdicts}
        if left := len(given.drafts) - len(again):
            say(f"{left} drafts have changed since, or were not scored then: left out", err=True)
        earlier = _Side(who=f"{before.evaluator}, then", verdicts=before.verdicts, failed={})
        now = _judged(replace(given, drafts=again), samples=before.samples, output=output)
        sides = [earlier, replace(now, who=f"{now.who}, now")]
        failed = _tell(sides, given, confidence=confidence, as_json=as_json)
    if failed:
        sys.exit(FAILED)


def _evaluator_of(given: Given) -> str:
    """The tag of the evaluator.

    Raises:
        InvalidInput: The rubric has nothing to judge.
        ConfigurationInvalid: There is none, or a pool of several.
    """
    if not given.rubric.judged:
        raise InvalidInput(
            f"code scores all of rubric '{given.rubric.id}', so the evaluator makes no difference",
            code="shift.nothing-judged",
        )
    cast = Roles(given.settings.endpoints, given.settings.roles)
    if not cast.evaluators or cast.pool is not None:
        raise ConfigurationInvalid(
            "no single evaluator is configured; name one with --role evaluator=TAG",
            code="config.no-evaluator",
        )
    return ", ".join(cast.evaluators)


def _with_evaluator(given: Given, tag: str) -> Given:
    """The same drafts, for another evaluator; raises as `Roles` does."""
    roles = {**given.settings.roles, EVALUATOR: tag}
    Roles(given.settings.endpoints, roles)
    return replace(given, settings=given.settings.model_copy(update={"roles": roles}))


def _judged(given: Given, *, samples: int | None, output: Path | None) -> _Side:
    batch: Batch = score_drafts(given, samples=samples, output=output)
    if batch.stopped is not None:
        raise batch.stopped
    return _Side(who=batch.evaluator, verdicts=batch.in_order, failed=batch.failed)


def _tell(sides: list[_Side], given: Given, *, confidence: float, as_json: bool) -> bool:
    """Prints what differs; whether a draft could not be judged."""
    first, second = sides
    failed = {**second.failed, **first.failed}
    if not first.verdicts.keys() & second.verdicts.keys():
        raise next(iter(failed.values()))
    groups = {name: str(said.get("group", "")) for name, said in given.labels.items()}
    found = shift(
        first.verdicts,
        second.verdicts,
        given.rubric,
        groups=groups,
        confidence=confidence,
        generator=np.random.default_rng(0),
    )
    if as_json:
        write_json(json_object(_as_json(found, sides, given, failed)))
        return bool(failed)
    console = results()
    console.print(_moved(found, sides))
    for line in (*_about(found, sides, given, confidence), *not_judged(failed)):
        console.print(line, soft_wrap=True)
    return bool(failed)


def _moved(found: Shift, sides: list[_Side]) -> Table:
    first, second = sides
    drafts = f"{found.drafts} drafts in {found.groups} groups"
    title = f"{drafts}. First: {first.who}; second: {second.who}"
    table = Table(title=title, title_justify="left")
    table.add_column("mean of")
    for column in ("first", "second", "second - first"):
        table.add_column(column, justify="right")
    table.add_column("higher", justify="right")
    table.add_column("deviations", justify="right")
    for name, one in found.moved.items():
        table.add_row(
            name if one.drafts == found.drafts else f"{name} ({one.drafts} drafts)",
            *(f"{mean:.2f}" for mean in one.means),
            f"{one.offset.value:+.2f} ({one.offset.low:+.2f} to {one.offset.high:+.2f})",
            one.offset.higher,
            " → ".join(f"{deviation:.2f}" for deviation in one.deviations),
        )
    return table


def _about(found: Shift, sides: list[_Side], given: Given, confidence: float) -> Iterator[str]:
    first, second = sides
    own, same = given.rubric.pass_at, found.same_rate
    for side, place in ((first, 0), (second, 1)):
        flat = [name for name, one in found.moved.items() if not one.deviations[place]]
        if flat and found.drafts > 1:
            yield (
                f"{side.who} gave all drafts the same in {', '.join(flat)}: that tells none of "
                "them apart."
            )
    yield (
        f"Passed at {own:g}: {found.passed[0]} and {found.passed[1]} of {found.drafts}; "
        f"{len(found.flipped)} decided otherwise."
    )
    for name in found.flipped[:LISTED]:
        before, after = first.verdicts[name], second.verdicts[name]
        now = "passes" if after.passed else "no longer passes"
        yield f"  {name}: {before.composite:g} → {after.composite:g}, {now}"
    if len(found.flipped) > LISTED:
        yield f"  … and {len(found.flipped) - LISTED} more; --json has all."
    at = same.threshold
    if at.low == at.high == own:
        return
    yield (
        f"With pass_at {at.value:g} ({percent(confidence)} interval {at.low:g} to {at.high:g}), "
        f"{same.passed} pass in the second; {same.flipped} are still decided otherwise."
    )
    yield "Which of the two is right, only labels tell: harness rubric tune."


def _as_json(
    found: Shift, sides: list[_Side], given: Given, failed: Mapping[str, HarnessError]
) -> dict[str, object]:
    moved = {name: asdict(one) | {"higher": one.offset.higher} for name, one in found.moved.items()}
    return {
        "rubric": given.rubric.id,
        "rubric_sha256": given.rubric.sha256,
        "pass_at": given.rubric.pass_at,
        "evaluators": [side.who for side in sides],
        **asdict(found),
        "moved": moved,
        "flipped": [
            {
                "id": name,
                "composites": [side.verdicts[name].composite for side in sides],
                "passed": [side.verdicts[name].passed for side in sides],
            }
            for name in found.flipped
        ],
        "failed": [
            {"id": name, "error": str(why), "code": why.code} for name, why in failed.items()
        ],
    }
