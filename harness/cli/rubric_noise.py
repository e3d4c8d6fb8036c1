"""`harness rubric noise`: how far an evaluator's judgements of one draft lie apart."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import Shown, log_to_stderr, results, write_json
from harness.cli.drafts import Given, draft_options, read_given, run_or_exit
from harness.cli.exit_codes import FAILED
from harness.cli.failures import json_object
from harness.errors import (
    ConfigurationInvalid,
    EvaluationFailed,
    HarnessError,
    InferenceError,
    InvalidInput,
)
from harness.rubric import Noise, Rubric, Verdict, measured_noise, write_noise
from harness.session import Session, open_session
from harness.session.evaluation import evaluator_of, repeatability

_SURE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What was found."""

    run_id: str
    journal: Path
    rubric: Rubric
    noise: Noise
    file: Path
    """Where that is kept."""
    verdicts: Mapping[str, tuple[Verdict, ...]]
    """One for each judgement, by the draft's name."""
    failed: Mapping[str, str]
    """Why a draft has none, by its name."""


@click.command(short_help="Measure how far an evaluator's scores scatter.")
@draft_options
@click.option(
    "--repeats",
    type=click.IntRange(min=2, max=100),
    default=5,
    show_default=True,
    help="How often each draft is judged.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def noise(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    task: str,
    sources: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
    repeats: int,
    as_json: bool,
) -> None:
    """Judge the texts in DRAFT files by RUBRIC again and again, and keep how much that scatters.

    What is found is written beside the rubric. From then on, a draft that this evaluator scores so
    near the threshold that chance could decide is judged again, and a loop does not count a gain
    that is within the noise. Exit codes: 0 it was measured, 1 a draft could not be judged, 2
    something given is not usable, 130 interrupted, 143 terminated.
    """
    log_to_stderr()

    async def work() -> _Measured:
        given = read_given(
            rubric=rubric, drafts=drafts, task=task, sources=sources, config=config, roles=roles
        )
        return await _measure(given, repeats)

    measured = run_or_exit(work, as_json=as_json)
    if as_json:
        write_json(json_object(_as_json(measured)))
    else:
        _print(measured, results())
    if measured.failed:
        sys.exit(FAILED)


async def _measure(given: Given, repeats: int) -> _Measured:
    rubric = given.chosen.rubric
    if not rubric.judged:
        raise InvalidInput(
            f"code scores all that rubric '{rubric.id}' asks, the same every time: it has no noise",
            code="noise.nothing-judged",
        )
    async with open_session(
        given.settings, name=f"noise {rubric.id}", task=given.task, environment=os.environ
    ) as session:
        evaluators = session.roles.evaluators
        if not evaluators:
            raise ConfigurationInvalid(
                "no evaluator is configured, so there is nobody whose noise could be measured; "
                "name one under [roles] in harness.toml, or with --role evaluator=TAG",
                code="config.no-evaluator",
            )
        verdicts, failed = await _judge(session, given, repeats)
        _refuse_unasked(rubric, verdicts)
        found = measured_noise(
            ", ".join(evaluators),
            [[one.composite for one in of_draft] for of_draft in verdicts.values()],
        )
    return _Measured(
        run_id=session.trace.run_id,
        journal=session.trace.journal_path,
        rubric=rubric,
        noise=found,
        file=_keep(found, rubric, given.chosen.directory),
        verdicts=verdicts,
        failed=failed,
    )


def _refuse_unasked(rubric: Rubric, verdicts: Mapping[str, tuple[Verdict, ...]]) -> None:
    """Says why there is nothing to measure, where no draft came before the model."""
    every = [one for of_draft in verdicts.values() for one in of_draft]
    if any(one.judges for one in every):
        return
    if gates := sorted({gate for one in every for gate in one.gates}):
        raise InvalidInput(
            f"no draft got past {' and '.join(gates)} of rubric '{rubric.id}', and what a gate "
            "stops is not judged; measure on drafts that get past it",
            code="noise.gate-shut",
        )
    names = ", ".join(dimension.name for dimension in rubric.judged)
    raise InvalidInput(
        f"what the evaluator judges by rubric '{rubric.id}' ({names}) needs sources, and the "
        "drafts have none; give them with --sources",
        code="noise.no-sources",
    )


async def _judge(
    session: Session, given: Given, repeats: int
) -> tuple[dict[str, tuple[Verdict, ...]], dict[str, str]]:
    """The judgements of each draft, and why some have none."""
    evaluator = evaluator_of(session, given.chosen.rubric, ask=session.served.chat, noise=None)
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    failed: dict[str, HarnessError] = {}
    with Shown(stderr=True).status("") as status:
        for number, (name, draft) in enumerate(given.drafts.items(), start=1):
            status.update(Text(f"judging {name} ({number} of {len(given.drafts)})"))
            with session.trace.span(
                "measure noise", draft_sha256=session.trace.content(draft.text)
            ) as span:
                try:
                    verdicts[name] = await evaluator.sampled(draft, times=repeats)
                except (EvaluationFailed, InferenceError) as error:
                    # What the other drafts took is not to be for nothing.
                    failed[name] = error
                else:
                    span.set(composites=[one.composite for one in verdicts[name]])
    session.served.refuse_kin()
    if not verdicts:
        raise next(iter(failed.values()))
    return verdicts, {name: str(error) for name, error in failed.items()}


def _keep(found: Noise, rubric: Rubric, directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return write_noise(found, rubric, directory=directory)
    except OSError as error:
        raise InvalidInput(
            f"the noise file cannot be written ({error.strerror})",
            code="file.unwritable",
            path=directory,
        ) from error


def _print(measured: _Measured, console: Console) -> None:
    table = Table(title="Composites of each judgement", title_justify="left")
    table.add_column("draft", overflow="fold")
    table.add_column("composites")
    for column in ("mean", "deviation", "would pass"):
        table.add_column(column, justify="right")
    for name, verdicts in measured.verdicts.items():
        composites = [one.composite for one in verdicts]
        table.add_row(
            Text(name),
            "  ".join(f"{composite:.1f}" for composite in composites),
            f"{statistics.fmean(composites):.2f}",
            f"{statistics.stdev(composites):.2f}" if len(composites) > 1 else "-",
            f"{sum(one.passed for one in verdicts)} of {len(verdicts)}",
        )
    console.print(table)
    for name, why in measured.failed.items():
        said = f"{name} could not be judged: {why}"
        console.print(said, style="yellow", markup=False, highlight=False)
    for line in meaning(measured.noise, measured.rubric):
        console.print(line, markup=False, highlight=False)
    console.print(
        f"Kept in {measured.file}, for runs with this rubric and evaluator.", markup=False
    )
    console.print(
        f"The run's journal: {measured.journal}", style="dim", markup=False, soft_wrap=True
    )


def meaning(found: Noise, rubric: Rubric) -> Iterator[str]:
    """What the measured noise means for whoever reads scores, in sentences."""
    deviation, pass_at = found.deviation, rubric.pass_at
    yield (
        f"One judgement by {found.evaluator} has a standard deviation of {deviation:.2f} points "
        f"({found.judgements} judgements, {found.drafts} draft{'' if found.drafts == 1 else 's'})."
    )
    if found.is_frozen:
        yield (
            "Every draft got the same composite every time, good or bad: that is no judgement. "
            "Look at the reasons that it gives, add anchors, or take another model."
        )
        return
    if found.between is not None and found.between <= deviation:
        yield (
            f"The drafts' own means differ by no more than that ({found.between:.2f}): by this "
            "rubric, the evaluator does not tell these drafts apart. Sharpen the anchors, ask with "
            "'judge: split', or take another model."
        )
    if deviation == 0:
        yield "No judgement differed from another of the same draft: one is enough."
        return
    yield (
        f"Two composites of one draft lie up to {repeatability(found):.1f} apart in 95 of 100 "
        "cases: a smaller difference between drafts, or between rounds, tells nothing."
    )
    chance = statistics.NormalDist(sigma=deviation)
    above, margin = rubric.scale.step, chance.inv_cdf(_SURE)
    if pass_at + margin > rubric.scale.max:
        safe = f"the scale ends at {rubric.scale.max:g}, which is too low for that"
    else:
        safe = f"it must be at {pass_at + margin:.1f}"
    yield (
        f"A draft whose true composite is {pass_at:g}, which passes, is failed by every second "
        f"judgement, and one at {pass_at + above:g} by {chance.cdf(-above):.0%} of them. To be "
        f"failed less than once in 20 times, {safe}."
    )
    repeated = pass_at + margin / rubric.repeats**0.5
    if rubric.repeats > 1 and repeated <= rubric.scale.max:
        yield (
            f"Near the threshold a draft is judged up to {rubric.repeats} times (repeats): then "
            f"{repeated:.1f} is enough for that."
        )


def _as_json(measured: _Measured) -> dict[str, object]:
    found = measured.noise
    drafts: list[dict[str, object]] = [
        {"draft": name, "composites": [one.composite for one in verdicts], "error": None}
        for name, verdicts in measured.verdicts.items()
    ]
    drafts += [
        {"draft": name, "composites": [], "error": why} for name, why in measured.failed.items()
    ]
    return {
        "run_id": measured.run_id,
        "journal": str(measured.journal),
        "rubric": measured.rubric.id,
        "rubric_sha256": measured.rubric.sha256,
        **found.model_dump(),
        "repeatability": repeatability(found),
        "is_frozen": found.is_frozen,
        "drafts": drafts,
        "file": str(measured.file),
    }
