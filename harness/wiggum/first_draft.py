"""The first draft of a loop: as long as its limits allow, and the best of several if asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from harness.inference import ChatRequest, Completion, Meter, Spent, check_whole, most_prompt_tokens
from harness.rubric import Ask, Draft, Evaluator
from harness.trace import Tracer, events
from harness.wiggum.loop import lengthened
from harness.wiggum.ratchet import Candidate, Selection, best_of
from harness.wiggum.sampling import Place, sample

_LEAST_DRAFT_TOKENS = 256
"""Some 190 words: no draft is begun with less room, unless less was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDraft:
    """A first draft, as the producer wrote it."""

    draft: Draft
    span: int
    selection: Selection | None
    """How it was chosen; None if only one was written."""


async def write_first_draft(
    empty: Draft,
    request: ChatRequest,
    *,
    ask: Ask,
    evaluator: Evaluator,
    meter: Meter,
    tracer: Tracer,
    max_rounds: int,
    candidates: int,
    finalists: int,
    at_once: int | None,
    base_seed: int,
) -> FirstDraft:
    """Asks for drafts of a task, and takes the one that the rubric's checks rank first.

    Raises:
        LimitReached: There is no room for a draft and its evaluation.
        InferenceError: There was none.
    """
    kept = _tokens_to_keep(
        request,
        empty,
        meter=meter,
        evaluator=evaluator,
        max_rounds=max_rounds,
        candidates=candidates,
        finalists=finalists,
    )
    with tracer.span(events.Draft()) as span, meter.holding(Spent(input_tokens=kept)):
        place = Place(
            request=request,
            read=partial(_read_draft, producer=request.model),
            base_seed=base_seed,
            is_enough=partial(_is_flawless, empty, evaluator=evaluator, finalists=finalists),
        )
        drafts = await sample([place], times=candidates, at_once=at_once, ask=ask, tracer=tracer)
        selection = None
        if candidates > 1:
            selection = best_of(drafts, base=empty, check=evaluator.checked, finalists=finalists)
        first = selection.finalists[0] if selection and selection.finalists else drafts[0]
    draft = replace(empty, text=first.text, cut=first.cut)
    return FirstDraft(draft=draft, span=span.id, selection=selection)


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
    meter: Meter,
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

    room, rest, kept = request.max_output_tokens or 0, meter.left("tokens"), 0
    if not room and rest is not None:
        left = int(rest.amount)
        # An equal part for each round, half of it for the evaluation, which reads the draft.
        room = max(_LEAST_DRAFT_TOKENS, left // (2 * max_rounds * candidates))
        while room > _LEAST_DRAFT_TOKENS and most_tokens(room) > left:
            room = max(_LEAST_DRAFT_TOKENS, room // 2)
        kept = left - candidates * (prompt_tokens + room)
    meter.check_room(most_tokens(room), what="the first draft and its evaluation")
    return kept
