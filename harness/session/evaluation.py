"""How a session judges drafts: by whom, by what, and how far it can be trusted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.compress import Summarise
from harness.errors import Notice
from harness.inference import ChatRequest, Message
from harness.rubric import (
    Ask,
    Draft,
    Evaluator,
    Noise,
    Refuse,
    Rubric,
    Verdict,
    load_noise,
    load_rubric,
    load_rubric_file,
)
from harness.session.session import Session
from harness.session.trust import refusal_to_run
from harness.wiggum import reasons_in, verdict_attributes

SUMMARISER = "summariser"
"""The role that a summariser's calls bear."""

_CHARS_PER_TOKEN = 2
"""Low, so that a summary of the length asked for is not cut off: in English there are about 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRubric:
    """A rubric, and where its noise file is looked for."""

    rubric: Rubric
    """What it says."""
    directory: Path
    """That of its file, if it was given by its path; else that of the user's own rubrics, where a
    rubric that ships can have a noise file too."""


def _refusal(path: Path) -> Notice | None:
    return refusal_to_run(path, environment=os.environ)


def choose_rubric(
    rubric: str | Path | Rubric, *, rubrics: Path, refuse: Refuse = _refusal
) -> ChosenRubric:
    """A rubric by its name, by its path, or as it is.

    Args:
        rubric: Which.
        rubrics: The directory of the user's own.
        refuse: Says of code that it names whether it may be run: where the user allows it, when
            left out.

    Raises:
        RubricInvalid: There is none, or it has mistakes.
    """
    match rubric:
        case Rubric():
            return ChosenRubric(rubric=rubric, directory=rubrics)
        case Path():
            loaded = load_rubric_file(rubric, directory=rubrics, refuse=refuse)
            return ChosenRubric(rubric=loaded, directory=rubric.parent)
        case str():
            path = Path(rubric)
            given_by_path = path.suffix in {".yaml", ".yml"}
            return ChosenRubric(
                rubric=load_rubric(rubric, directory=rubrics, refuse=refuse),
                directory=path.parent if given_by_path else rubrics,
            )


async def evaluate(session: Session, draft: Draft, chosen: ChosenRubric, *, ask: Ask) -> Verdict:
    """One verdict, recorded as those of a loop are; see `Run.evaluate`."""
    noise = noise_of(session, chosen)
    evaluator = evaluator_of(session, chosen.rubric, ask=ask, noise=noise)
    tracer = session.trace
    with tracer.span("evaluate", draft_sha256=tracer.content(draft.text)) as span:
        verdict = await evaluator.evaluate(draft)
        span.set(**verdict_attributes(verdict), findings=tracer.excerpt(reasons_in(verdict)))
    session.served.refuse_kin()
    return verdict


def evaluator_of(session: Session, rubric: Rubric, *, ask: Ask, noise: Noise | None) -> Evaluator:
    """Whoever judges in this run, by this rubric.

    Args:
        session: Knows them.
        rubric: What they judge by.
        ask: Reaches them.
        noise: What was measured of them.

    Raises:
        ConfigurationInvalid: The rubric needs a judge, and there is none.
    """
    panel = session.casting.panel
    return Evaluator(
        rubric,
        ask=ask,
        models=session.roles.evaluators,
        combine="mean" if panel is None else panel.combine,
        noise=None if noise is None else noise.deviation,
        summarise=_summarise(session, rubric, ask),
    )


def noise_of(session: Session, chosen: ChosenRubric) -> Noise | None:
    """What was measured of this run's evaluators by this rubric, and the record says so.

    Where there is something that cannot be used, the run has a warning.

    Raises:
        InvalidInput: The noise file is none.
    """
    evaluators = session.roles.evaluators
    if not evaluators or not chosen.rubric.judged:
        return None
    noise, why_not = load_noise(chosen.rubric, ", ".join(evaluators), directory=chosen.directory)
    if why_not:
        notice = Notice(code="evaluator.noise-unusable", message=why_not)
        if notice not in session.casting.warnings:
            session.casting.warn(notice, session.trace)
    if noise is not None:
        session.trace.instant(
            "evaluator noise",
            rubric=chosen.rubric.id,
            evaluator=noise.evaluator,
            deviation=noise.deviation,
            drafts=noise.drafts,
            judgements=noise.judgements,
        )
    return noise


def repeatability(noise: Noise) -> float:
    """How far two composites of one draft lie apart at most, in 95 of 100 cases.

    The repeatability limit of ISO 5725-6: 2.8 (1.96 times the square root of 2) standard
    deviations of one.
    """
    return 2.8 * noise.deviation


def _summarise(session: Session, rubric: Rubric, ask: Ask) -> Summarise | None:
    model = session.casting.summariser
    if model is None:
        return None

    async def summarise(prompt: str) -> str:
        completion = await ask(
            ChatRequest(
                model=model,
                role=SUMMARISER,
                messages=(Message("user", prompt),),
                # One that is cut there is kept as it is: it only has to be shorter.
                max_output_tokens=rubric.shorten.evaluate_over // _CHARS_PER_TOKEN,
            )
        )
        return completion.text

    return summarise
