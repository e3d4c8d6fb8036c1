"""How a session judges and revises drafts: the rubric, the evaluators and their noise."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from harness.errors import (
    LASTING,
    EvaluationFailed,
    HarnessError,
    InferenceError,
    InvalidInput,
    Notice,
    ReplyInvalid,
)
from harness.inference import (
    NOTHING,
    ChatRequest,
    Completion,
    as_messages,
    check_whole,
    most_prompt_tokens,
)
from harness.inference.limits import Room
from harness.rubric import (
    Ask,
    Draft,
    Evaluator,
    Noise,
    Refuse,
    Rubric,
    Scatter,
    Verdict,
    load_noise,
    load_rubric,
    load_rubric_file,
    scatter_of,
    with_prompts,
)
from harness.rubric.calibration.calibration_files import Calibration
from harness.session.casting import warn_of_no_price
from harness.session.roles import PRODUCER
from harness.session.session import Session
from harness.session.tenancy import slots_of
from harness.session.trust import refusal_to_run
from harness.trace import monotonic
from harness.wiggum import (
    Candidate,
    LoopLimits,
    LoopMeter,
    LoopPolicy,
    Place,
    Reviser,
    RevisionMode,
    Round,
    WiggumResult,
    best_of,
    first_seed,
    lengthened,
    reasons_in,
    revise_until_met,
    sample,
    verdict_attributes,
)

_LEAST_DRAFT_TOKENS = 256
"""Some 190 words: no draft is begun with less room, unless less was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRubric:
    """A rubric, and where its calibration and its noise file are looked for."""

    rubric: Rubric
    directory: Path
    """The folder of its file, if it was given by path; else the folder of the user's own rubrics,
    where a rubric that ships can have a noise file too."""


def _refusal(path: Path) -> Notice | None:
    return refusal_to_run(path, environment=os.environ)


def choose_rubric(
    rubric: str | Path | Rubric,
    *,
    rubrics: Path,
    prompts: str | Path | Mapping[str, str] | None = None,
    refuse: Refuse = _refusal,
) -> ChosenRubric:
    """Loads a rubric by name or path, or takes a given one.

    `prompts` are templates that go before the rubric's, by name, or the path of their file.
    `refuse` says whether code that the rubric names may be run.

    Raises:
        RubricInvalid: There is no such rubric, or it has mistakes.
    """
    directory = rubrics
    match rubric:
        case Rubric():
            loaded = rubric
        case Path():
            loaded = load_rubric_file(rubric, directory=rubrics, refuse=refuse)
            directory = rubric.parent
        case str():
            loaded = load_rubric(rubric, directory=rubrics, refuse=refuse)
            path = Path(rubric)
            directory = path.parent if path.suffix in {".yaml", ".yml"} else rubrics
    if prompts is not None:
        loaded = with_prompts(loaded, prompts)
    return ChosenRubric(rubric=loaded, directory=directory)


async def evaluate(session: Session, draft: Draft, chosen: ChosenRubric, *, ask: Ask) -> Verdict:
    """One verdict, recorded like a loop's; see `Run.evaluate`."""
    noise = noise_of(session, chosen)
    return await _recorded(
        session, evaluator_of(session, chosen.rubric, ask=ask, noise=noise), draft
    )


async def _recorded(
    session: Session, evaluator: Evaluator, draft: Draft, *, samples: int | None = None
) -> Verdict:
    tracer = session.trace
    with tracer.span("evaluate", draft_sha256=tracer.content(draft.text)) as span:
        verdict = await evaluator.evaluate(draft, samples=samples)
        span.set(**verdict_attributes(verdict), findings=tracer.excerpt(reasons_in(verdict)))
    session.served.before()
    return verdict


_LEAST_IN_A_ROW = 5
"""So many calls that fail one after another are not for the drafts."""


async def evaluate_all(
    session: Session,
    drafts: Mapping[str, Draft],
    chosen: ChosenRubric,
    *,
    max_parallel: int,
    samples: int | None = None,
    told: Sequence[Callable[[str, Verdict | HarnessError], None]],
) -> HarnessError | None:
    """Verdicts on many drafts; the failure of one does not stop the others.

    `told` hear of each draft as soon as it has a verdict, or cannot have one.

    Returns:
        Why it stopped before the last draft; None if it did not.

    Raises:
        LimitReached: A limit of the run was reached.
    """
    # With a fixed number of samples, noise decides nothing: they may be what it is measured by.
    noise = noise_of(session, chosen) if samples is None else None
    evaluator = evaluator_of(session, chosen.rubric, ask=session.client.chat, noise=noise)
    waiting = iter(drafts.items())
    stopped: HarnessError | None = None
    in_a_row = 0

    async def work() -> None:
        nonlocal stopped, in_a_row
        for name, draft in waiting:
            outcome: Verdict | HarnessError
            try:
                outcome = await _recorded(session, evaluator, draft, samples=samples)
            except (EvaluationFailed, InferenceError) as error:
                outcome = error
            for hear in told:
                hear(name, outcome)
            in_a_row = in_a_row + 1 if isinstance(outcome, InferenceError) else 0
            if isinstance(outcome, LASTING) or (
                isinstance(outcome, InferenceError)
                and in_a_row >= max(_LEAST_IN_A_ROW, max_parallel)
            ):
                stopped = outcome
            if stopped is not None:
                return

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_parallel, len(drafts))):
                group.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return stopped


async def run_loop(
    session: Session,
    task: str,
    *,
    ask: Ask,
    chosen: ChosenRubric,
    sources: Sequence[str],
    draft: str | None,
    limits: LoopLimits,
    revise: RevisionMode,
    revise_from: Literal["best", "last"],
    rescore: Literal["all", "changed"],
    max_output_tokens: int | None,
    candidates: int | None,
    finalists: int | None,
    rounds: Sequence[Round],
    key: str,
) -> WiggumResult:
    """Writes a draft, if none is given, and revises it; see `Run.wiggum`."""
    # 1. Whatever can be wrong with the arguments, before any model is asked.
    _check_choice("revise", revise, RevisionMode)
    _check_choice("revise_from", revise_from, Literal["best", "last"])
    _check_choice("rescore", rescore, Literal["all", "changed"])
    rubric, said = chosen.rubric, session.evaluation
    several = _checked_number("candidates", candidates, said.candidates or rubric.candidates)
    offered = _checked_number("finalists", finalists, said.finalists or rubric.finalists)
    seed = first_seed(session.seed)
    _check_sources(rubric, sources)
    noise = noise_of(session, chosen)
    before = sum((one.spent for one in rounds), NOTHING)
    meter = LoopMeter(
        ask,
        limits=limits.within(session.meter.left_beside(before)),
        clock=monotonic,
        charges=session.meter.charges,
    )
    evaluator = evaluator_of(session, rubric, ask=meter.ask, noise=noise)
    producer = session.roles.model(PRODUCER)
    endpoint = session.casting.models.endpoints[producer]
    at_once = endpoint.max_parallel or slots_of(endpoint)
    reviser = Reviser(
        ask=meter.ask,
        model=producer,
        requirements=rubric.requirements,
        max_output_tokens=max_output_tokens,
        mode=revise,
        shorten_over=rubric.shorten.revise_over,
        prompts=rubric.prompts,
        candidates=several,
        finalists=offered,
        at_once=at_once,
        first_seed=seed,
        check=evaluator.checked,
        tracer=session.trace,
    )

    # 2. The first draft: of an earlier part of the run, given, or written now.
    first = Draft(text=draft or "", task=task, sources=tuple(sources))
    draft_span, selection = None, None
    if rounds:
        first = replace(first, text=rounds[0].draft if draft is None else draft)
    elif draft is not None:
        meter.check_room(evaluator.most_tokens(first), what="the evaluation of the draft")
    else:
        request = ChatRequest(
            model=producer,
            role=PRODUCER,
            messages=as_messages(reviser.prompts.first(first)),
            max_output_tokens=max_output_tokens,
        )
        kept = _tokens_to_keep(
            request,
            first,
            meter=meter,
            evaluator=evaluator,
            max_rounds=limits.max_rounds,
            candidates=several,
            finalists=offered,
        )
        with session.trace.span("draft") as span, meter.holding(Room(tokens=kept)):
            draft_span = span.id
            place = Place(
                request=request,
                read=partial(_read_draft, producer=producer),
                base_seed=seed + 1,
                is_enough=partial(_is_flawless, first, evaluator=evaluator, finalists=offered),
            )
            drafts = await sample(
                [place], times=several, at_once=at_once, ask=meter.ask, tracer=session.trace
            )
            if several > 1:
                selection = best_of(drafts, base=first, check=evaluator.checked, finalists=offered)
                drafts = selection.finalists[0].taken if selection.finalists else drafts
            first = replace(first, text=drafts[0].text, cut=drafts[0].cut)
    if not first.text.strip():
        raise ReplyInvalid("the first draft is empty", endpoint=producer, text=first.text)

    # 3. The loop.
    result = await revise_until_met(
        first,
        evaluator=evaluator,
        reviser=reviser,
        meter=meter,
        policy=LoopPolicy(
            focus_below=rubric.focus_below,
            noise=0.0 if noise is None else scatter(session, noise, rubric).repeatability(),
            revise_from=revise_from,
            rescore=rescore,
        ),
        tracer=session.trace,
        draft_span=draft_span,
        first_drafts=selection,
        finalists=offered,
        rounds=rounds,
        key=key,
    )
    session.served.before()
    warn_of_no_price(limits, result.spent, casting=session.casting, tracer=session.trace)
    session.loops.append(result)
    return result


def _check_sources(rubric: Rubric, sources: Sequence[str]) -> None:
    by_sources = [
        dimension.name
        for dimension in rubric.checked
        if not dimension.optional and all(check.by_sources for check in dimension.checks)
    ]
    if by_sources and not any(source.strip() for source in sources):
        raise InvalidInput(
            f"rubric '{rubric.id}' checks {' and '.join(by_sources)} by sources, and the loop has "
            "none, so no draft could pass; give it sources, or make that optional in the rubric",
            code="loop.no-sources",
        )


def _check_choice(name: str, value: str, choices: Any) -> None:  # noqa: ANN401 - a Literal
    if value not in get_args(choices):
        raise InvalidInput(
            f"{name} is {value!r:.80}; it can be {' or '.join(get_args(choices))}",
            code="loop.choice-unknown",
        )


def _checked_number(name: str, value: int | None, otherwise: int) -> int:
    if value is None:
        return otherwise
    if type(value) is not int or value < 1:  # True is an int too
        raise InvalidInput(
            f"{name} is {value!r:.80}; give a whole number, 1 or more",
            code="loop.number-not-positive",
        )
    return value


def _read_draft(reply: Completion, *, producer: str) -> tuple[str, bool]:
    """A first draft, and whether it was cut."""
    is_cut = reply.finish_reason == "length"
    if not is_cut:
        check_whole(reply, endpoint=producer)
    return reply.text.strip(), is_cut


def _is_flawless(asked: Draft, one: Candidate, *, evaluator: Evaluator, finalists: int) -> bool:
    """Whether a first draft has full scores by the checks, so that they rank no other higher."""
    if not one.text or one.cut or finalists > 1:
        return False
    return not evaluator.checked(replace(asked, text=one.text)).short


def _tokens_to_keep(
    request: ChatRequest,
    empty: Draft,
    *,
    meter: LoopMeter,
    evaluator: Evaluator,
    max_rounds: int,
    candidates: int,
    finalists: int,
) -> int:
    """Tokens that the first drafts must leave for their evaluation and the other rounds.

    Raises:
        LimitReached: There is no room for a draft and its evaluation.
    """
    prompt_tokens = most_prompt_tokens(request)

    def most_tokens(room: int) -> int:
        evaluation = evaluator.most_tokens(lengthened(empty, tokens=room))
        return candidates * (prompt_tokens + room) + finalists * evaluation

    room, left, kept = request.max_output_tokens or 0, meter.limits.max_tokens, 0
    if not room and left is not None:
        # An equal part for each round, half of it for the evaluation, which reads the draft.
        room = max(_LEAST_DRAFT_TOKENS, left // (2 * max_rounds * candidates))
        while room > _LEAST_DRAFT_TOKENS and most_tokens(room) > left:
            room = max(_LEAST_DRAFT_TOKENS, room // 2)
        kept = left - candidates * (prompt_tokens + room)
    meter.check_room(most_tokens(room), what="the first draft and its evaluation")
    return kept


def evaluator_of(session: Session, rubric: Rubric, *, ask: Ask, noise: Noise | None) -> Evaluator:
    """The evaluator, or the panel, of this run.

    Raises:
        ConfigurationInvalid: The rubric needs a judge, and there is no evaluator.
    """
    panel = session.casting.panel
    return Evaluator(
        rubric,
        ask=ask,
        models=session.roles.evaluators,
        combine="mean" if panel is None else panel.combine,
        noise=None if noise is None else noise.deviation,
    )


def noise_of(session: Session, chosen: ChosenRubric) -> Noise | None:
    """The measured noise of this run's evaluators by this rubric; it is recorded.

    It comes from the calibration of the rubric's threshold, or from a measurement. Noise that does
    not fit adds a warning to the run.

    Raises:
        InvalidInput: A file cannot be read.
    """
    rubric, evaluator = chosen.rubric, ", ".join(session.roles.evaluators)
    noise, why_not = None, ""
    calibration = Calibration.read(rubric, chosen.directory)
    differs = calibration.differences(rubric, evaluator) if calibration else ()
    if calibration and differs:
        said = (
            f"{calibration.path(rubric, chosen.directory)} is of another state: what differs is "
            f"{' and '.join(differs)}. The error rate that was claimed for pass_at "
            f"{calibration.at.threshold:g} does not hold here; tune it again with 'harness rubric "
            "tune'"
        )
        _warn_once(session, Notice(code="evaluator.calibration-differs", message=said))
    elif calibration:
        noise = calibration.noise
    if noise is None and evaluator and rubric.judged:
        noise, why_not = load_noise(rubric, evaluator, directory=chosen.directory)
    if why_not:
        _warn_once(session, Notice(code="evaluator.noise-unusable", message=why_not))
    if noise is not None:
        session.trace.instant(
            "evaluator noise",
            rubric=rubric.id,
            evaluator=noise.evaluator,
            deviation=noise.deviation,
            drafts=noise.drafts,
            judgements=noise.judgements,
        )
    return noise


def _warn_once(session: Session, notice: Notice) -> None:
    if notice not in session.casting.warnings:
        session.casting.warn(notice, session.trace)


def scatter(session: Session, noise: Noise, rubric: Rubric) -> Scatter:
    """The noise of this run's evaluators, applied to their composites."""
    panel = session.casting.panel
    return scatter_of(
        noise,
        rubric,
        judges=len(session.roles.evaluators),
        combine="mean" if panel is None else panel.combine,
    )
