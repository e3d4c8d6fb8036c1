"""The first draft of a loop: as long as its limits allow, and the best of several if asked for."""

from __future__ import annotations

from dataclasses import replace

from harness.inference import ChatRequest, Completion, Meter, Spent
from harness.inference.answer import check_whole
from harness.inference.request import most_prompt_tokens
from harness.rubric import Ask, Draft, Evaluator
from harness.trace import Tracer, events
from harness.wiggum.loop import lengthened
from harness.wiggum.ratchet import Candidate, Finalist, Selection, best_of
from harness.wiggum.sampling import SampledPlace, sample

# Some 190 words: no draft is begun with less room, unless less was asked for.
_LEAST_DRAFT_TOKENS = 256


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
) -> tuple[Selection, int]:
    """The drafts of a task that the rubric's checks rank first, and the id of their span."""
    # 1. Find how much it may use: it must leave room for its evaluation and the other rounds.
    prompt_tokens = most_prompt_tokens(request)

    def most_tokens(room: int) -> int:
        evaluation = evaluator.most_tokens(lengthened(empty, tokens=room))
        return candidates * (prompt_tokens + room) + finalists * evaluation

    room, rest, reserve = request.max_output_tokens or 0, meter.left("tokens"), 0
    if not room and rest is not None:
        tokens_left = int(rest.amount)
        # An equal part for each round, half of it for the evaluation, which reads the draft.
        room = max(_LEAST_DRAFT_TOKENS, tokens_left // (2 * max_rounds * candidates))
        while room > _LEAST_DRAFT_TOKENS and most_tokens(room) > tokens_left:
            # Found by halving: no formula gives what an evaluation takes.
            room = max(_LEAST_DRAFT_TOKENS, room // 2)
        reserve = tokens_left - candidates * (prompt_tokens + room)
    meter.check_room(most_tokens(room), what="the first draft and its evaluation")

    # 2. Sample drafts until one has full scores by the checks, which then rank no other higher.
    def read(reply: Completion) -> tuple[str, bool]:
        is_cut = reply.finish_reason == "length"
        if not is_cut:
            check_whole(reply, endpoint=request.model)
        return reply.text.strip(), is_cut

    def is_flawless(candidate: Candidate) -> bool:
        if not candidate.text or candidate.cut or finalists > 1:
            return False
        return not evaluator.checked(replace(empty, text=candidate.text)).short

    # What the evaluation and the other rounds need is held back from these calls.
    with tracer.span(events.Draft()) as span, meter.holding(Spent(input_tokens=reserve)):
        place = SampledPlace(request=request, read=read, base_seed=base_seed, is_enough=is_flawless)
        drafts = await sample([place], times=candidates, at_once=at_once, ask=ask, tracer=tracer)
        # 3. Choose.
        chosen = Selection(finalists=(Finalist(text=drafts[0].text, cut=drafts[0].cut),))
        if candidates > 1:
            chosen = best_of(drafts, base=empty, check=evaluator.checked, finalists=finalists)
    return chosen, span.id
