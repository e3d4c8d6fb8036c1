"""How a run judges and revises drafts: the rubric, the evaluators and their noise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.errors import Notice, ReplyInvalid
from harness.inference import Meter
from harness.rubric import (
    Ask,
    ChosenRubric,
    Draft,
    Evaluator,
    Noise,
    Refuse,
    Rubric,
    Scored,
    load_noise,
    load_rubric,
    with_prompts,
)
from harness.rubric.calibration.calibration_files import Calibration
from harness.session.open_run import OpenRun
from harness.session.roles import PRODUCER
from harness.session.tenancy import slots_of
from harness.session.trust import refusal_to_run
from harness.trace import events
from harness.wiggum import (
    Candidate,
    LoopPolicy,
    Reviser,
    RevisionMode,
    Round,
    WiggumResult,
    best_of,
    check_sources,
    first_seed,
    reasons_in,
    revise_until_met,
    verdict_attributes,
    write_first_draft,
)
from harness.wiggum.prompts import RevisionPrompts

_refusal = partial(refusal_to_run, environment=os.environ)


def choose_rubric(
    rubric: str | Path | Rubric,
    *,
    rubrics: Path,
    prompts: Mapping[str, str] | None = None,
    refuse: Refuse = _refusal,
) -> ChosenRubric:
    """Loads a rubric by name or path, or takes a `Rubric` as it is.

    `prompts` (name → template) replace the rubric's own. `refuse` decides whether code that the
    rubric names may be run. Raises `RubricInvalid` if there is no such rubric, or it has mistakes.
    """
    directory = rubrics
    if isinstance(rubric, Rubric):
        loaded = rubric
    else:
        loaded = load_rubric(rubric, directory=rubrics, refuse=refuse)
        # The noise and calibration of its judges lie beside the rubric's file.
        if isinstance(rubric, Path) or rubric.endswith((".yaml", ".yml")):
            directory = Path(rubric).parent
    if prompts is not None:
        loaded = with_prompts(loaded, prompts)
    return ChosenRubric(rubric=loaded, directory=directory)


async def evaluate(
    opened: OpenRun,
    draft: Draft,
    chosen: ChosenRubric,
    *,
    ask: Ask,
    samples: int | None = None,
    checks_only: bool = False,
) -> Scored:
    """Evaluates a draft once, and records it as a loop does.

    See `Run.evaluate`, and `Batch` for `checks_only`.
    """
    rubric = chosen.rubric
    can_pass = True
    if checks_only:
        # Checks alone can fail a draft, but cannot pass it as long as a judge's score is lacking.
        can_pass = all(dimension.optional for dimension in rubric.judged)
        rubric = rubric.without_judges()
    if rubric.judged:
        await opened.casting.seat()
    # Noise decides how often to judge, so a fixed number of samples needs none. Noise itself is
    # measured by such samples.
    noise = load_noise_once(opened, chosen) if samples is None else None
    evaluator = evaluator_of(opened, rubric, ask=ask, noise=noise)
    tracer = opened.trace
    with tracer.span(events.Evaluate(draft_sha256=tracer.content(draft.text))) as span:
        verdict = await evaluator.evaluate(draft, samples=samples)
        span.set(**verdict_attributes(verdict), findings=tracer.excerpt(reasons_in(verdict)))
    opened.casting.check_replies()
    return Scored(
        verdict=replace(verdict, rubric_sha256=chosen.rubric.sha256),
        passed=verdict.passed if can_pass or verdict.below_floor else None,
        evaluator=", ".join(opened.casting.roles.calibrated),
        samples=samples,
    )


async def run_loop(
    opened: OpenRun,
    first: Draft,
    *,
    ask: Ask,
    chosen: ChosenRubric,
    drafts: Sequence[str] | None,
    meter: Meter,
    policy: LoopPolicy,
    revise: RevisionMode,
    max_output_tokens: int | None,
    candidates: int,
    finalists: int,
    rounds: Sequence[Round],
    key: str,
) -> WiggumResult:
    """Writes a draft, or chooses one of `drafts`, and revises it; see `Run.wiggum`.

    `first` has the task and the sources, and no text yet. `rounds` are those that an earlier part
    of the run made.
    """
    # 1. Check the arguments before any model is asked.
    rubric = chosen.rubric
    # Without the sources that a check needs no draft could pass, and all rounds would be spent.
    check_sources(rubric, first.sources)
    noise = load_noise_once(opened, chosen)
    evaluator = evaluator_of(opened, rubric, ask=ask, noise=noise)
    producer = opened.casting.roles.model(PRODUCER)
    endpoint = opened.casting.models.endpoints[producer]
    reviser = Reviser(
        ask=ask,
        model=producer,
        max_output_tokens=max_output_tokens,
        mode=revise,
        prompts=RevisionPrompts.of(rubric),
        candidates=candidates,
        finalists=finalists,
        # More candidates at once would only queue, and an earlier one may be good enough.
        at_once=endpoint.max_parallel or slots_of(endpoint),
        first_seed=first_seed(opened.settings.seed),
        check=evaluator.checked,
        tracer=opened.trace,
    )

    # 2. Get the first draft: the single one of `drafts`, that of an earlier part of the run, the
    #    best of several `drafts`, or a new one.
    first = replace(first, told=reviser.prompts.told)
    selection = None
    if drafts is not None and len(drafts) == 1:
        first = replace(first, text=drafts[0])
    elif rounds:
        first = replace(first, text=rounds[0].draft)
    elif drafts is not None:
        numbered = [Candidate(number=n, text=text) for n, text in enumerate(drafts, start=1)]
        selection = best_of(numbered, base=first, check=evaluator.checked, finalists=finalists)
        first = replace(first, text=selection.best.text)
    else:
        selection = await write_first_draft(
            first, reviser, evaluator=evaluator, meter=meter, max_rounds=policy.max_rounds
        )
        first = replace(first, text=selection.best.text, cut=selection.best.cut)
    if drafts is not None and not rounds:
        meter.check_room(evaluator.most_tokens(first), what="the evaluation of the draft")
    if not first.text.strip():
        raise ReplyInvalid("the first draft is empty", endpoint=producer, text=first.text)

    # 3. The loop.
    result = await revise_until_met(
        first,
        evaluator=evaluator,
        reviser=reviser,
        meter=meter,
        policy=replace(
            policy,
            focus_below=rubric.focus_below,
            noise=0.0 if noise is None else noise.repeatability,
        ),
        tracer=opened.trace,
        first_drafts=selection,
        rounds=rounds,
        key=key,
    )
    # Raises again what a call raised, since the loop may have taken that for a failed round.
    opened.casting.check_replies()
    opened.warn_of_no_price(meter)
    return result


def evaluator_of(opened: OpenRun, rubric: Rubric, *, ask: Ask, noise: Noise | None) -> Evaluator:
    """The run's evaluator, or panel; raises `ConfigurationInvalid` if it is needed and missing."""
    pool = opened.casting.pool
    combine = None if pool is None else pool.combine
    return Evaluator(
        rubric,
        ask=ask,
        models=opened.casting.roles.evaluators,
        combine=combine or "mean",
        noise=None if noise is None else noise.deviation,
    )


def load_noise_once(opened: OpenRun, chosen: ChosenRubric) -> Noise | None:
    """The measured noise of this run's evaluators under this rubric.

    The first call reads and records it, and warns of noise that cannot be used and of a stale
    calibration. Later calls return the same. Raises `InvalidInput` for a file that cannot be read.
    """
    rubric = chosen.rubric
    evaluator_tags = ", ".join(opened.casting.roles.calibrated)
    key = rubric.sha256, chosen.directory, evaluator_tags
    if key in opened.noises:
        return opened.noises[key]
    _warn_of_stale_calibration(opened, chosen, evaluator_tags)
    noise = None
    if evaluator_tags and rubric.judged:
        noise, why_not = load_noise(rubric, evaluator_tags, directory=chosen.directory)
        if why_not:
            opened.warn(Notice(code="evaluator.noise-unusable", message=why_not))
    if noise is not None:
        opened.trace.instant(
            events.EvaluatorNoise(
                rubric.id, noise.evaluator, noise.deviation, noise.drafts, noise.judgements
            )
        )
    opened.noises[key] = noise
    return noise


def _warn_of_stale_calibration(opened: OpenRun, chosen: ChosenRubric, evaluator_tags: str) -> None:
    rubric = chosen.rubric
    calibration = Calibration.read(rubric, chosen.directory)
    if calibration and (differs := calibration.differences(rubric, evaluator_tags)):
        problem = (
            f"{calibration.path(rubric, chosen.directory)} is of another state: what differs is "
            f"{' and '.join(differs)}. The error rate that was claimed for pass_at "
            f"{calibration.at.threshold:g} does not hold here; tune it again with 'harness rubric "
            "tune'"
        )
        opened.warn(Notice(code="evaluator.calibration-differs", message=problem))
