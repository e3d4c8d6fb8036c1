"""Drafts to be measured by a rubric, as they are given on the command line."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.arguments import read_pairs, read_text
from harness.cli.consoles import (
    Shown,
    failures_told,
    json_object,
    log_to_stderr,
    results,
    write_json,
)
from harness.cli.process import FAILED
from harness.cli.project_files import refusal_after_asking, settings_for_calls
from harness.cli.verdicts import (
    decision,
    passes_at,
    print_comparison,
    print_scores,
    remarks,
    verdict_as_json,
)
from harness.errors import (
    ConfigurationInvalid,
    EvaluationFailed,
    HarnessError,
    InferenceError,
    InvalidInput,
)
from harness.rubric import Draft, Noise, Rubric, Verdict, measured_noise, write_noise
from harness.session import Session, Settings, open_session
from harness.session.evaluation import (
    ChosenRubric,
    choose_rubric,
    evaluate,
    evaluator_of,
    repeatability,
)
from harness.session.settings import EvaluationSettings

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line gave, read."""

    settings: Settings
    """Say who judges."""
    chosen: ChosenRubric
    """What is measured by."""
    task: str
    """What was asked for; empty when that was not said."""
    drafts: Mapping[str, Draft]
    """By the names of their files."""


def draft_options(command: Command) -> Command:
    """The arguments and options that say what is measured, by what, and by whom."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_given(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    task: str,
    sources: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
) -> Given:
    """Reads the files.

    Raises:
        InvalidInput: One is missing, empty or not text; or the rubric or the settings have a
            mistake.
    """
    settings = settings_for_calls(config, roles=read_pairs(roles, option="--role", form="role=tag"))
    asked = read_text("task", Path(task[1:])) if task.startswith("@") else task
    evidence = tuple(read_text("source", Path(name)) for name in sources)
    return Given(
        settings=settings,
        chosen=choose_rubric(rubric, rubrics=settings.rubrics, refuse=refusal_after_asking),
        task=asked,
        drafts={
            name: Draft(text=read_text("draft", Path(name)), task=asked, sources=evidence)
            for name in drafts
        },
    )


def run_or_exit(work: Callable[[], Coroutine[None, None, T]], *, as_json: bool) -> T:
    """What the work comes to; if it fails, the process says why, and ends with its exit code."""
    with failures_told(as_json=as_json):
        return asyncio.run(work())


_OPTIONS = (
    click.argument("rubric", metavar="RUBRIC"),
    click.argument("drafts", nargs=-1, required=True, metavar="DRAFT..."),
    click.option("--task", default="", help="What was asked for; @FILE reads it from a file."),
    click.option(
        "--sources",
        multiple=True,
        metavar="FILE",
        help="What the drafts may rest on. May be repeated.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Settings; harness.toml in this directory when left out.",
    ),
    click.option(
        "--role",
        "roles",
        multiple=True,
        metavar="ROLE=TAG",
        help="Which endpoint's model plays a role, such as evaluator=llama. May be repeated.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """What was found."""

    run_id: str
    journal: Path
    rubric: Rubric
    decided: bool
    """Whether all was scored that decides on passing: nothing that needs an evaluator was left."""
    verdicts: Mapping[str, Verdict]
    failed: Mapping[str, str]
    """Why a draft has no verdict, by its name."""


def _number(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """As `float`, and refused in the words that a rubric's numbers are."""
    try:
        return None if given is None else float(given)
    except ValueError:
        raise click.BadParameter(f"'{given}' is not a number, such as 8 or 7.5") from None


@click.command(short_help="Score drafts by a rubric.")
@draft_options
@click.option(
    "--pass-at",
    metavar="NUMBER",
    callback=_number,
    help="Another threshold: say what it would change, without asking a model again.",
)
@click.option("--checks-only", is_flag=True, help="Ask no model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    task: str,
    sources: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
    pass_at: float | None,
    checks_only: bool,
    as_json: bool,
) -> None:
    """Score the texts in DRAFT files by RUBRIC, a name or a file.

    What code checks is always scored; what a model must judge is if an evaluator is configured.
    Exit codes: 0 the drafts were scored (whether or not they passed: --json says "passed"), 1 one
    could not be, 2 something given is not usable, 130 interrupted, 143 terminated.
    """
    log_to_stderr()

    async def work() -> _Scored:
        given = read_given(
            rubric=rubric, drafts=drafts, task=task, sources=sources, config=config, roles=roles
        )
        _check_threshold(pass_at, given.chosen.rubric)
        return await _score(_without_models(given) if checks_only else given)

    scored = run_or_exit(work, as_json=as_json)
    if as_json:
        write_json(json_object(_as_json(scored, pass_at)))
    else:
        _print(scored, pass_at, results(), checks_only=checks_only)
    if scored.failed:
        sys.exit(FAILED)


def _without_models(given: Given) -> Given:
    rubric = given.chosen.rubric
    if not rubric.checked:
        raise InvalidInput(
            f"--checks-only leaves nothing to score: a model judges all that rubric '{rubric.id}' "
            "asks",
            code="evaluation.nothing-to-check",
        )
    nobody = {"endpoints": {}, "roles": {}, "evaluation": EvaluationSettings()}
    return replace(given, settings=given.settings.model_copy(update=nobody))


def _check_threshold(pass_at: float | None, rubric: Rubric) -> None:
    scale = rubric.scale
    if pass_at is not None and not scale.min <= pass_at <= scale.max:
        raise InvalidInput(
            f"--pass-at is {pass_at:g}, outside the rubric's scale {scale.min:g} to {scale.max:g}",
            code="option.outside-scale",
        )


async def _score(given: Given) -> _Scored:
    rubric = given.chosen.rubric
    verdicts: dict[str, Verdict] = {}
    failed: dict[str, HarnessError] = {}
    async with open_session(
        given.settings, name=f"score {rubric.id}", task=given.task, environment=os.environ
    ) as session:
        decided = bool(session.roles.evaluators) or all(d.optional for d in rubric.judged)
        chosen = given.chosen if decided else _checks_alone(given.chosen)
        with Shown(stderr=True).status("") as status:
            for number, (name, draft) in enumerate(given.drafts.items(), start=1):
                status.update(Text(f"scoring {name} ({number} of {len(given.drafts)})"))
                try:
                    verdicts[name] = await evaluate(
                        session, draft, chosen, ask=session.spending.chat
                    )
                except (EvaluationFailed, InferenceError) as error:
                    # What the other drafts took is not to be for nothing.
                    failed[name] = error
        unanswered = [error for error in failed.values() if isinstance(error, InferenceError)]
        if unanswered and not verdicts:
            raise unanswered[0]
    return _Scored(
        run_id=session.trace.run_id,
        journal=session.trace.journal_path,
        rubric=rubric,
        decided=decided,
        verdicts=verdicts,
        failed={name: str(error) for name, error in failed.items()},
    )


def _checks_alone(chosen: ChosenRubric) -> ChosenRubric:
    """The rubric, so that what a model must judge may be left out, where there is any other."""
    rubric = chosen.rubric
    if not rubric.checked:
        return chosen  # whose evaluator says what is missing
    dimensions = tuple(
        dimension.model_copy(update={"optional": dimension.judge is not None})
        for dimension in rubric.dimensions
    )
    return replace(chosen, rubric=rubric.model_copy(update={"dimensions": dimensions}))


def _print(scored: _Scored, pass_at: float | None, console: Console, *, checks_only: bool) -> None:
    nobody = "--checks-only was given" if checks_only else "no evaluator model is configured"
    for name, verdict in scored.verdicts.items():
        print_scores(name, verdict, scored.rubric, console)
        lines = [
            f"Composite {verdict.composite:.1f}: {_decision(verdict, scored)}.",
            *remarks(verdict, scored.rubric, nobody=nobody),
        ]
        for line in lines:
            console.print(line, markup=False, highlight=False)
        console.print()
    if len(scored.verdicts) > 1:
        print_comparison(scored.verdicts, console)
    for name, why in scored.failed.items():
        said = f"{name} could not be scored: {why}"
        console.print(said, style="yellow", markup=False, highlight=False)
    if pass_at is not None:
        for line in _another_threshold(scored, pass_at):
            console.print(line, markup=False, highlight=False)
    console.print(f"The run's journal: {scored.journal}", style="dim", markup=False, soft_wrap=True)


def _decision(verdict: Verdict, scored: _Scored) -> str:
    if scored.decided or verdict.below_floor:
        return decision(verdict, scored.rubric)
    return "of the checks alone; whether it passes is not known before a model has judged the rest"


def _another_threshold(scored: _Scored, pass_at: float) -> Iterator[str]:
    """What another threshold would change, draft by draft."""
    if not scored.decided:
        yield "What another threshold would change is not known before a model has judged the rest."
        return
    verdicts, own = scored.verdicts, scored.rubric.pass_at
    now = [name for name, verdict in verdicts.items() if verdict.passed]
    then = [name for name, verdict in verdicts.items() if passes_at(verdict, pass_at)]
    yield (
        f"Pass at {own:g}, as the rubric has it: {len(now)} of {len(verdicts)}; "
        f"at {pass_at:g}: {len(then)} of {len(verdicts)}."
    )
    for name, verdict in verdicts.items():
        if (name in now) != (name in then):
            change = "would pass" if name in then else "would not pass any more"
            yield f"  {name} ({verdict.composite:.1f}) {change}."
        elif name not in then and verdict.composite >= pass_at:
            why = ", ".join(verdict.below_floor)
            yield f"  {name} ({verdict.composite:.1f}) still would not: {why} is below its floor."
    if any(v.judges is not None and v.judges.combine == "majority" for v in verdicts.values()):
        yield "  The panel voted by the rubric's own threshold; at the other, its medians decide."


def _as_json(scored: _Scored, pass_at: float | None) -> dict[str, object]:
    drafts: list[dict[str, object]] = []
    for name, verdict in scored.verdicts.items():
        known = scored.decided or bool(verdict.below_floor)
        one = {"draft": name, **verdict_as_json(verdict), "error": None}
        one["passed"] = verdict.passed if known else None
        if pass_at is not None:
            one["passes_at"] = passes_at(verdict, pass_at) if known else None
        drafts.append(one)
    drafts += [{"draft": name, "error": why} for name, why in scored.failed.items()]
    return {
        "run_id": scored.run_id,
        "journal": str(scored.journal),
        "rubric": scored.rubric.id,
        "rubric_sha256": scored.rubric.sha256,
        "pass_at": scored.rubric.pass_at,
        "other_pass_at": pass_at,
        "drafts": drafts,
    }


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
        write_json(json_object(_noise_as_json(measured)))
    else:
        _print_noise(measured, results())
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


def _print_noise(measured: _Measured, console: Console) -> None:
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


def _noise_as_json(measured: _Measured) -> dict[str, object]:
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
