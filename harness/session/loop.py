"""A revise loop in a session: the first draft, the meter that all its calls pass, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from harness.errors import ReplyInvalid
from harness.inference import ChatRequest, as_messages, check_whole, most_prompt_tokens
from harness.rubric import Ask, Draft, Rubric
from harness.session.evaluation import (
    ChosenRubric,
    evaluator_of,
    noise_of,
    repeatability,
)
from harness.session.roles import PRODUCER
from harness.session.session import Session
from harness.session.spending import token_prices, warn_of_no_price
from harness.trace import monotonic
from harness.wiggum import (
    NOTHING,
    LoopLimits,
    LoopPolicy,
    Meter,
    Reviser,
    RevisionMode,
    Round,
    WiggumResult,
    lengthened,
    revise_until_met,
)

_LEAST_DRAFT_TOKENS = 256
"""Some 190 words: for less no draft is begun, unless less was asked for."""


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
    rounds: Sequence[Round],
    key: str,
) -> WiggumResult:
    """Writes a draft, if none is given, and revises it; see `Run.wiggum`."""
    # 1. Everything that can be wrong with what was asked, before a model is.
    rubric = chosen.rubric
    noise = noise_of(session, chosen)
    before = sum((one.spent for one in rounds), NOTHING)
    meter = Meter(
        ask,
        limits=session.spending.tightened(limits, before=before),
        clock=monotonic,
        prices=token_prices(session.casting.models.endpoints),
    )
    evaluator = evaluator_of(session, rubric, ask=meter.ask, noise=noise)
    producer = session.roles.model(PRODUCER)

    # 2. Something to begin with.
    empty = Draft(text="", task=task, sources=tuple(sources))
    draft_span = None
    if draft is None and rounds:
        draft = rounds[0].draft
    elif draft is None:
        request = ChatRequest(
            model=producer,
            role=PRODUCER,
            messages=as_messages(_prompt(task, sources, rubric)),
            max_output_tokens=max_output_tokens,
        )

        # As for a revision: none is begun that could not be evaluated.
        def most_tokens(room: int) -> int:
            judged = evaluator.most_tokens(lengthened(empty, tokens=room))
            return most_prompt_tokens(request) + room + judged

        room, left, kept = max_output_tokens or 0, meter.limits.max_tokens, 0
        if not room and left is not None:
            # A part for each round, of which the evaluation, that reads it, takes one half.
            room = max(_LEAST_DRAFT_TOKENS, left // (2 * limits.max_rounds))
            while room > _LEAST_DRAFT_TOKENS and most_tokens(room) > left:
                room = max(_LEAST_DRAFT_TOKENS, room // 2)
            kept = left - most_prompt_tokens(request) - room
        meter.check_room(most_tokens(room), what="the first draft and its evaluation")
        with session.trace.span("draft") as span, meter.holding(tokens=kept):
            draft_span = span.id
            reply = await meter.ask(request)
            if reply.finish_reason != "length":
                check_whole(reply, endpoint=producer)
            draft, empty = reply.text.strip(), replace(empty, cut=reply.finish_reason == "length")
    elif not rounds:
        # Nor is an evaluation that would have to be broken off.
        to_judge = evaluator.most_tokens(replace(empty, text=draft))
        meter.check_room(to_judge, what="the evaluation of the draft")
    if not draft.strip():
        raise ReplyInvalid("the first draft is empty", endpoint=producer, text=draft)

    # 3. The loop.
    result = await revise_until_met(
        replace(empty, text=draft),
        evaluator=evaluator,
        reviser=Reviser(
            ask=meter.ask,
            model=producer,
            requirements=rubric.requirements,
            max_output_tokens=max_output_tokens,
            mode=revise,
            shorten_over=rubric.shorten.revise_over,
        ),
        meter=meter,
        policy=LoopPolicy(
            focus_below=rubric.focus_below,
            noise=0.0 if noise is None else repeatability(noise),
            revise_from=revise_from,
            rescore=rescore,
        ),
        tracer=session.trace,
        draft_span=draft_span,
        rounds=rounds,
        key=key,
    )
    session.served.refuse_kin()
    warn_of_no_price(limits, result.spent, casting=session.casting, tracer=session.trace)
    session.loops.append(result)
    return result


def _prompt(task: str, sources: Sequence[str], rubric: Rubric) -> str:
    """What the producer is asked for: it is told what its draft will be measured by."""
    requirements = "\n".join(f"- {requirement}" for requirement in rubric.requirements)
    return "\n\n".join([*sources, task, f"What the text must be like:\n{requirements}"])
