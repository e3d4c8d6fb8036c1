"""`harness rubric noise`: measures how far an evaluator's scores scatter."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from harness.cli.consoles import Command, json_object, results, write_json
from harness.cli.process import FAILED
from harness.cli.rubric_scoring import (
    ScoredDrafts,
    ScoreSource,
    name_of,
    not_judged,
    of_drafts,
    score_drafts,
)
from harness.cli.tables import print_line
from harness.errors import ConfigurationInvalid, HarnessError, InvalidInput, RunLimitReached
from harness.rubric import Noise, Rubric, measured_noise, write_noise


@click.command(cls=Command)
@of_drafts
@click.option(
    "--repeats",
    type=click.IntRange(min=2, max=100),
    default=5,
    show_default=True,
    help="Judgings of each draft.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def noise(*, source: ScoreSource, repeats: int, as_json: bool) -> None:
    """Judge DRAFTS by RUBRIC several times, and keep how far the scores scatter.

    The result is written beside the rubric. From then on, a draft with a score so near the
    threshold that chance could decide is judged again, and a loop ignores gains within the noise.
    Exit codes: 0 it was measured, 1 a draft could not be judged, 2 invalid input, 130 interrupted,
    143 terminated.
    """
    scored, composites = _judge(source, repeats)
    measured = measured_noise(scored.evaluator, [*composites.values()])
    file = write_noise(measured, source.rubric, directory=source.chosen.directory)
    if as_json:
        fields = {**_as_json(scored, composites, measured), "file": str(file)}
        write_json(json_object(fields))
    else:
        _print(scored, composites, measured, file)
    if scored.result.failures:
        sys.exit(FAILED)


def _judge(source: ScoreSource, repeats: int) -> tuple[ScoredDrafts, Mapping[str, Sequence[float]]]:
    """Has each draft judged `repeats` times; raises if not all could be.

    Also returns draft's id → the composite of each judgement, for drafts that were judged.
    """
    rubric = source.rubric
    # Before any draft is scored, so that no call is wasted.
    if not rubric.judged or not source.has_evaluator:
        raise ConfigurationInvalid(
            "there is no evaluator whose noise could be measured: the rubric must have a judged "
            "dimension, and one be named under [roles] in harness.toml, or with --role "
            "evaluator=TAG",
            code="config.no-evaluator",
        )
    scored = score_drafts(source, samples=repeats, output=None, verb="noise")
    # The noise of some of the drafts would be another measurement.
    if (reason := scored.result.run.stopped_by) is not None:
        raise HarnessError(reason, code=RunLimitReached.code)
    if not scored.verdicts:
        first = scored.result.failures[0]
        raise HarnessError(first.reason, code=first.code)
    # A draft that a gate stopped has no judges.
    judges = {name: verdict.judges for name, verdict in scored.verdicts.items()}
    composites = {name: panel.composites for name, panel in judges.items() if panel}
    if not composites:
        raise InvalidInput(
            f"no model judged these drafts by rubric '{rubric.id}': a gate stopped each, or "
            "its judged dimensions need sources, given with --sources",
            code="noise.nothing-judged",
        )
    return scored, composites


def _as_json(
    scored: ScoredDrafts, composites: Mapping[str, Sequence[float]], measured: Noise
) -> dict[str, object]:
    result, rubric = scored.result, scored.source.rubric
    drafts: list[dict[str, object]] = [
        {"draft": name, "composites": composites.get(name, []), "error": None}
        for name in scored.verdicts
    ]
    drafts += [
        {"draft": name_of(failure), "composites": [], "error": failure.reason}
        for failure in result.failures
    ]
    return {
        **measured.model_dump(),
        "run_id": result.run.run_id,
        "journal": str(result.run.files.journal),
        "rubric": rubric.id,
        "rubric_sha256": rubric.sha256,
        "repeatability": measured.repeatability,
        "is_frozen": measured.is_frozen,
        "drafts": drafts,
    }


def _print(
    scored: ScoredDrafts, composites: Mapping[str, Sequence[float]], measured: Noise, file: Path
) -> None:
    result, rubric, console = scored.result, scored.source.rubric, results()
    for name, values in composites.items():
        composites_shown = "  ".join(map(str, values))
        spread = f", deviation {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        mean = f"mean {statistics.fmean(values):.2f}"
        print_line(f"{name}: {composites_shown} ({mean}{spread})", console)
    for line in not_judged(result.failures):
        console.print(line, style="yellow")
    for line in meaning(measured, rubric):
        console.print(line)
    console.print(f"Kept in {file}, for runs with this rubric and evaluator.")
    console.print(f"The run's journal: {result.run.files.journal}", style="dim", soft_wrap=True)


def meaning(noise: Noise, rubric: Rubric) -> Iterator[str]:
    """Sentences about what the measured noise means for a reader of scores."""
    deviation = noise.deviation
    yield (
        f"One judgement by {noise.evaluator} has a standard deviation of {deviation:.2f} points "
        f"({noise.judgements} judgements, {noise.drafts} draft{'' if noise.drafts == 1 else 's'})."
    )
    if noise.is_frozen:
        yield (
            "Every draft got the same composite every time, good or bad: that is no judgement. "
            "Look at its reasons, add anchors, or choose another model."
        )
        return
    if noise.between is not None and noise.between <= deviation:
        yield (
            f"The drafts' own means differ by no more than that ({noise.between:.2f}): by this "
            "rubric, the evaluator does not tell these drafts apart. Sharpen the anchors, or "
            "choose another model."
        )
    if deviation == 0:
        yield "All judgements of a draft were equal: one is enough."
        return
    yield (
        f"Two composites of one draft lie up to {noise.repeatability:.2g} apart in 95 of 100 "
        "cases: a smaller difference between drafts, or between rounds, means nothing."
    )
    if rubric.repeats > 1:
        yield f"Near the threshold, a draft is judged up to {rubric.repeats} times (repeats)."
