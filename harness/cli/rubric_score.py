"""`harness rubric score`: drafts measured by a rubric, and what another threshold would change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from harness.cli.consoles import Shown, log_to_stderr, results, write_json
from harness.cli.drafts import Given, draft_options, read_given, run_or_exit
from harness.cli.exit_codes import FAILED
from harness.cli.failures import json_object
from harness.cli.verdicts import (
    decision,
    passes_at,
    print_comparison,
    print_scores,
    remarks,
    verdict_as_json,
)
from harness.errors import EvaluationFailed, HarnessError, InferenceError, InvalidInput
from harness.rubric import Rubric, Verdict
from harness.session import open_session
from harness.session.evaluation import ChosenRubric, evaluate
from harness.session.settings import EvaluationSettings


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
