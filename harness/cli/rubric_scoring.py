"""`harness rubric score` and `harness rubric noise`: drafts judged by a rubric, once or often."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.arguments import config_option, read_pairs, read_text
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
from harness.rubric import Draft, Noise, Rubric, Scatter, Verdict, measured_noise, write_noise
from harness.session import Session, Settings, open_session
from harness.session.evaluation import (
    ChosenRubric,
    choose_rubric,
    evaluate,
    evaluator_of,
    scatter,
)
from harness.session.settings import EvaluationSettings

T = TypeVar("T")

_UNSURE = 0.05

_OPTIONS = (
    click.argument("rubric", metavar="RUBRIC"),
    click.argument("drafts", nargs=-1, required=True, metavar="DRAFT..."),
    click.option("--task", default="", help="What was asked for; @FILE reads it from a file."),
    click.option(
        "--sources",
        multiple=True,
        metavar="FILE",
        help="Texts that the drafts may rely on. May be repeated.",
    ),
    config_option,
    click.option(
        "--role",
        "roles",
        multiple=True,
        metavar="ROLE=TAG",
        help="Which endpoint's model plays a role, such as evaluator=llama. May be repeated.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The files and settings that the command line names."""

    settings: Settings
    chosen: ChosenRubric
    task: str
    drafts: Mapping[str, Draft]
    """By the names of their files."""

    @property
    def rubric(self) -> Rubric:
        return self.chosen.rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A run that judged drafts."""

    run_id: str
    journal: Path
    rubric: Rubric
    failed: Mapping[str, str]
    """Why a draft has no verdict, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored(_Judged):
    verdicts: Mapping[str, Verdict]
    decided: bool
    """Whether passing is known: no dimension still needs an evaluator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured(_Judged):
    verdicts: Mapping[str, tuple[Verdict, ...]]
    noise: Noise
    scatter: Scatter
    file: Path
    """Where the noise is kept."""


def _of_drafts(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the arguments that say what is judged; the command gets `read`, which reads them."""

    @wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 - by click, as the options say
        asked = {name: given.pop(name) for name in signature(_read).parameters}
        command(read=partial(_read, **asked), **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def _read(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    task: str,
    sources: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
) -> _Given:
    settings = settings_for_calls(config, roles=read_pairs(roles, option="--role", form="role=tag"))
    asked = read_text("task", Path(task[1:])) if task.startswith("@") else task
    evidence = tuple(read_text("source", Path(name)) for name in sources)
    return _Given(
        settings=settings,
        chosen=choose_rubric(rubric, rubrics=settings.rubrics, refuse=refusal_after_asking),
        task=asked,
        drafts={
            name: Draft(text=read_text("draft", Path(name)), task=asked, sources=evidence)
            for name in drafts
        },
    )


async def _each(
    given: _Given, doing: str, judge: Callable[[Draft], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, HarnessError]]:
    """Judges the drafts one after another; the failure of one does not stop the others."""
    judged: dict[str, T] = {}
    failed: dict[str, HarnessError] = {}
    with Shown(stderr=True).status("") as status:
        for number, (name, draft) in enumerate(given.drafts.items(), start=1):
            status.update(Text(f"{doing} {name} ({number} of {len(given.drafts)})"))
            try:
                judged[name] = await judge(draft)
            except (EvaluationFailed, InferenceError) as error:
                failed[name] = error
    return judged, failed


def _texts(failed: Mapping[str, HarnessError]) -> dict[str, str]:
    return {name: str(error) for name, error in failed.items()}


# --- score -----------------------------------------------------------------------------------


def _number(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """As `float`, refused in the same words as a rubric's numbers."""
    try:
        return None if given is None else float(given)
    except ValueError:
        raise click.BadParameter(f"'{given}' is not a number, such as 8 or 7.5") from None


@click.command(short_help="Score drafts by a rubric.")
@_of_drafts
@click.option(
    "--pass-at",
    metavar="NUMBER",
    callback=_number,
    help="Another threshold: say what it would change, without asking a model again.",
)
@click.option("--checks-only", is_flag=True, help="Ask no model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(
    *, read: Callable[[], _Given], pass_at: float | None, checks_only: bool, as_json: bool
) -> None:
    """Score the texts in DRAFT files by RUBRIC, a name or a file.

    Code scores the rubric's checks; a model judges the rest if an evaluator is configured. Exit
    codes: 0 the drafts were scored (whether or not they passed: --json says "passed"), 1 one
    could not be, 2 something given is not usable, 130 interrupted, 143 terminated.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        given = read()
        _check_threshold(pass_at, given.rubric)
        scored = asyncio.run(_score(_without_models(given) if checks_only else given))
    if as_json:
        write_json(json_object(_scores_as_json(scored, pass_at)))
    else:
        _print_scored(scored, pass_at, results(), checks_only=checks_only)
    if scored.failed:
        sys.exit(FAILED)


def _without_models(given: _Given) -> _Given:
    if not given.rubric.checked:
        raise InvalidInput(
            "--checks-only leaves nothing to score: a model judges every dimension of rubric "
            f"'{given.rubric.id}'",
            code="evaluation.nothing-to-check",
        )
    none = {"endpoints": {}, "roles": {}, "evaluation": EvaluationSettings()}
    return replace(given, settings=given.settings.model_copy(update=none))


def _check_threshold(pass_at: float | None, rubric: Rubric) -> None:
    scale = rubric.scale
    if pass_at is not None and not scale.min <= pass_at <= scale.max:
        raise InvalidInput(
            f"--pass-at is {pass_at:g}, outside the rubric's scale {scale.min:g} to {scale.max:g}",
            code="option.outside-scale",
        )


async def _score(given: _Given) -> _Scored:
    rubric = given.rubric
    async with open_session(
        given.settings, name=f"score {rubric.id}", task=given.task, environment=os.environ
    ) as session:
        decided = bool(session.roles.evaluators) or all(d.optional for d in rubric.judged)
        chosen = given.chosen if decided else _checks_alone(given.chosen)
        verdicts, failed = await _each(
            given,
            "scoring",
            lambda draft: evaluate(session, draft, chosen, ask=session.client.chat),
        )
        known = [verdict.passed for verdict in verdicts.values()] if decided else []
        session.scored.extend([*known, *(False for _ in failed)])
        unanswered = [error for error in failed.values() if isinstance(error, InferenceError)]
        if unanswered and not verdicts:
            raise unanswered[0]
    return _Scored(
        run_id=session.trace.run_id,
        journal=session.trace.journal_path,
        rubric=rubric,
        decided=decided,
        verdicts=verdicts,
        failed=_texts(failed),
    )


def _checks_alone(chosen: ChosenRubric) -> ChosenRubric:
    """The rubric with its judged dimensions optional, unless it has no others."""
    rubric = chosen.rubric
    if not rubric.checked:
        return chosen  # its evaluator will say what is missing
    dimensions = tuple(
        dimension.model_copy(update={"optional": dimension.optional or dimension.judge is not None})
        for dimension in rubric.dimensions
    )
    return replace(chosen, rubric=rubric.model_copy(update={"dimensions": dimensions}))


def _print_scored(
    scored: _Scored, pass_at: float | None, console: Console, *, checks_only: bool
) -> None:
    unasked = "--checks-only was given" if checks_only else "no evaluator model is configured"
    for name, verdict in scored.verdicts.items():
        print_scores(name, verdict, scored.rubric, console)
        console.print(f"Composite {verdict.composite}: {_decision(verdict, scored)}.")
        for line in remarks(verdict, scored.rubric, unasked=unasked):
            console.print(line)
        console.print()
    if len(scored.verdicts) > 1:
        print_comparison(scored.verdicts, console)
    for name, why in scored.failed.items():
        console.print(f"{name} could not be scored: {why}", style="yellow")
    if pass_at is not None:
        for line in _another_threshold(scored, pass_at):
            console.print(line)
    console.print(f"The run's journal: {scored.journal}", style="dim", soft_wrap=True)


def _decision(verdict: Verdict, scored: _Scored) -> str:
    if scored.decided or verdict.below_floor:
        return decision(verdict, scored.rubric)
    return "of the checks alone; whether it passes is unknown until a model judges the rest"


def _another_threshold(scored: _Scored, pass_at: float) -> Iterator[str]:
    """What another threshold would change, draft by draft."""
    if not scored.decided:
        yield "What another threshold would change is unknown until a model judges the rest."
        return
    verdicts, own = scored.verdicts, scored.rubric.pass_at
    now = [name for name, verdict in verdicts.items() if verdict.passed]
    then = [name for name, verdict in verdicts.items() if passes_at(verdict, pass_at)]
    yield (
        f"Pass at {own:g}, as in the rubric: {len(now)} of {len(verdicts)}; "
        f"at {pass_at:g}: {len(then)} of {len(verdicts)}."
    )
    for name, verdict in verdicts.items():
        if (name in now) != (name in then):
            change = "would pass" if name in then else "would no longer pass"
            yield f"  {name} ({verdict.composite}) {change}."
        elif name not in then and verdict.composite >= pass_at:
            floors = [f"{one} is below its floor" for one in verdict.below_floor]
            why = ", ".join([*floors, *(f"{one} is not scored" for one in verdict.missing)])
            yield f"  {name} ({verdict.composite}) still would not: {why}."
    if any(v.judges is not None and v.judges.combine == "majority" for v in verdicts.values()):
        yield "  The panel voted by the rubric's own threshold; at the other, its medians decide."


def _scores_as_json(scored: _Scored, pass_at: float | None) -> dict[str, object]:
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


# --- noise -----------------------------------------------------------------------------------


@click.command(short_help="Measure how far an evaluator's scores scatter.")
@_of_drafts
@click.option(
    "--repeats",
    type=click.IntRange(min=2, max=100),
    default=5,
    show_default=True,
    help="How often each draft is judged.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def noise(*, read: Callable[[], _Given], repeats: int, as_json: bool) -> None:
    """Judge the texts in DRAFT files by RUBRIC several times, and keep how far scores scatter.

    The result is written beside the rubric. From then on, a draft that this evaluator scores so
    near the threshold that chance could decide is judged again, and a loop does not count a gain
    that is within the noise. Exit codes: 0 it was measured, 1 a draft could not be judged, 2
    something given is not usable, 130 interrupted, 143 terminated.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        measured = asyncio.run(_measure(read(), repeats))
    if as_json:
        write_json(json_object(_noise_as_json(measured)))
    else:
        _print_measured(measured, results())
    if measured.failed:
        sys.exit(FAILED)


async def _measure(given: _Given, repeats: int) -> _Measured:
    rubric = given.rubric
    if not rubric.judged:
        raise InvalidInput(
            f"code scores every dimension of rubric '{rubric.id}', so its scores have no noise",
            code="noise.nothing-judged",
        )
    async with open_session(
        given.settings, name=f"noise {rubric.id}", task=given.task, environment=os.environ
    ) as session:
        evaluators = session.roles.evaluators
        if not evaluators:
            raise ConfigurationInvalid(
                "no evaluator is configured whose noise could be measured; name one under [roles] "
                "in harness.toml, or with --role evaluator=TAG",
                code="config.no-evaluator",
            )
        verdicts, failed = await _sample(session, given, repeats)
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
        scatter=scatter(session, found, rubric),
        file=_keep(found, rubric, given.chosen.directory),
        verdicts=verdicts,
        failed=_texts(failed),
    )


async def _sample(
    session: Session, given: _Given, repeats: int
) -> tuple[dict[str, tuple[Verdict, ...]], dict[str, HarnessError]]:
    evaluator = evaluator_of(session, given.rubric, ask=session.client.chat, noise=None)

    async def sampled(draft: Draft) -> tuple[Verdict, ...]:
        content = session.trace.content(draft.text)
        with session.trace.span("measure noise", draft_sha256=content) as span:
            verdicts = await evaluator.sampled(draft, times=repeats)
            span.set(composites=[one.composite for one in verdicts])
        return verdicts

    verdicts, failed = await _each(given, "judging", sampled)
    session.served.before()
    if not verdicts:
        raise next(iter(failed.values()))
    return verdicts, failed


def _refuse_unasked(rubric: Rubric, verdicts: Mapping[str, tuple[Verdict, ...]]) -> None:
    """Raises if the model was not asked about any draft."""
    every = [one for of_draft in verdicts.values() for one in of_draft]
    if any(one.judges for one in every):
        return
    if gates := sorted({gate for one in every for gate in one.gates}):
        raise InvalidInput(
            f"no draft passed the gate {' and '.join(gates)} of rubric '{rubric.id}', so no model "
            "judged them; measure with drafts that pass it",
            code="noise.gate-shut",
        )
    names = ", ".join(dimension.name for dimension in rubric.judged)
    raise InvalidInput(
        f"the judged dimensions of rubric '{rubric.id}' ({names}) need sources; give them with "
        "--sources",
        code="noise.no-sources",
    )


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


def _print_measured(measured: _Measured, console: Console) -> None:
    table = Table(title="Composites of each judgement", title_justify="left")
    table.add_column("draft", overflow="fold")
    table.add_column("composites")
    for column in ("mean", "deviation", "would pass"):
        table.add_column(column, justify="right")
    for name, verdicts in measured.verdicts.items():
        composites = [one.composite for one in verdicts]
        table.add_row(
            Text(name),
            "  ".join(str(composite) for composite in composites),
            f"{statistics.fmean(composites):.2f}",
            f"{statistics.stdev(composites):.2f}" if len(composites) > 1 else "-",
            f"{sum(one.passed for one in verdicts)} of {len(verdicts)}",
        )
    console.print(table)
    for name, why in measured.failed.items():
        console.print(f"{name} could not be judged: {why}", style="yellow")
    for line in meaning(measured.noise, measured.scatter, measured.rubric):
        console.print(line)
    console.print(f"Kept in {measured.file}, for runs with this rubric and evaluator.")
    console.print(f"The run's journal: {measured.journal}", style="dim", soft_wrap=True)


def meaning(found: Noise, scatter: Scatter, rubric: Rubric) -> Iterator[str]:
    """What the measured noise means for a reader of scores, in sentences."""
    deviation, pass_at, repeats = found.deviation, rubric.pass_at, rubric.repeats
    yield (
        f"One judgement by {found.evaluator} has a standard deviation of {deviation:.2f} points "
        f"({found.judgements} judgements, {found.drafts} draft{'' if found.drafts == 1 else 's'})."
    )
    if found.is_frozen:
        yield (
            "Every draft got the same composite every time, good or bad: that is no judgement. "
            "Look at its reasons, add anchors, or choose another model."
        )
        return
    if found.between is not None and found.between <= deviation:
        yield (
            f"The drafts' own means differ by no more than that ({found.between:.2f}): by this "
            "rubric, the evaluator does not tell these drafts apart. Sharpen the anchors, ask with "
            "'judge: split', or choose another model."
        )
    if deviation == 0:
        yield "All judgements of a draft were equal: one is enough."
        return
    apart = scatter.repeatability()
    yield (
        f"Two composites of one draft lie up to {apart:.3g} apart in "
        f"{100 * scatter.share_within(apart):.0f} of 100 cases: a smaller difference between "
        "drafts, or between rounds, means nothing."
    )
    above, safe = pass_at + rubric.scale.step, scatter.safe_above(pass_at, share=_UNSURE)
    at_threshold, a_step_above = (
        f"{scatter.share_below(pass_at, mean=mean):.0%}" for mean in (pass_at, above)
    )
    needed = f"it must be at {max(safe, pass_at):.3g}"
    if safe > rubric.scale.max:
        needed = f"the scale ends at {rubric.scale.max:g}, which is too low for that"
    yield (
        f"A draft whose composites have the mean {pass_at:g}, which passes, is failed by "
        f"{at_threshold} of the judgements, and one at {above:g} by {a_step_above}. To be failed "
        f"less than once in 20 times, {needed}."
    )
    repeated = scatter.of_mean(repeats).safe_above(pass_at, share=_UNSURE)
    if repeats > 1 and repeated <= rubric.scale.max:
        yield (
            f"Near the threshold a draft is judged up to {repeats} times (repeats): then "
            f"{max(repeated, pass_at):.3g} is enough for that."
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
        "repeatability": measured.scatter.repeatability(),
        "is_frozen": found.is_frozen,
        "drafts": drafts,
        "file": str(measured.file),
    }
