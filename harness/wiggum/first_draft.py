"""The first draft of a loop: as long as its limits allow, and the best of several if asked for."""

from __future__ import annotations

from dataclasses import replace

from harness.inference import ChatRequest, Completion, Meter, Spent, as_messages
from harness.inference.answer import check_whole
from harness.inference.request import most_prompt_tokens
from harness.rubric import Draft, Evaluator
from harness.trace import events
from harness.wiggum.loop import lengthened
from harness.wiggum.ratchet import Candidate, Finalist, Selection, best_of
from harness.wiggum.reply_text import text_in
from harness.wiggum.reviser import Reviser
from harness.wiggum.sampling import SampledPlace

# Some 190 words: no draft is begun with less room, unless less was asked for.
_LEAST_DRAFT_TOKENS = 256


async def write_first_draft(
    empty: Draft, reviser: Reviser, *, evaluator: Evaluator, meter: Meter, max_rounds: int
) -> Selection:
    """The drafts by the reviser's model that the checks rank first.

    Their requests have no limit of their own, unless one is set: the meter cuts them, since what
    their evaluation and the other rounds need is held back while they are written.
    """
    candidates, finalists = reviser.candidates, reviser.finalists
    request = ChatRequest(
        model=reviser.model,
        role="producer",
        messages=as_messages(reviser.prompts.first(empty)),
        max_output_tokens=reviser.max_output_tokens,
    )
    reserve = _held_back(request, empty, reviser, evaluator, meter=meter, max_rounds=max_rounds)

    def read(reply: Completion) -> tuple[str, bool]:
        is_cut = reply.finish_reason == "length"
        if not is_cut:
            check_whole(reply, endpoint=request.model)
        return text_in(reply.text), is_cut

    def is_flawless(candidate: Candidate) -> bool:
        if not candidate.text or candidate.cut or finalists > 1:
            return False
        return not evaluator.checked(replace(empty, text=candidate.text)).short

    with reviser.tracer.span(events.Draft()) as span, meter.holding(Spent(input_tokens=reserve)):
        # The seeds of candidates behind the first, which has none, follow the seed of round 1.
        seed = reviser.first_seed + 1
        # A draft with full scores by the checks ends the sampling: they rank no other higher.
        place = SampledPlace(request=request, read=read, base_seed=seed, is_enough=is_flawless)
        drafts = await reviser.sampled([place])
        if candidates > 1:
            chosen = best_of(drafts, base=empty, check=evaluator.checked, finalists=finalists)
        else:
            chosen = Selection(finalists=(Finalist(text=drafts[0].text, cut=drafts[0].cut),))
    return replace(chosen, written_in=span.id)


def _held_back(
    request: ChatRequest,
    empty: Draft,
    reviser: Reviser,
    evaluator: Evaluator,
    *,
    meter: Meter,
    max_rounds: int,
) -> int:
    """Tokens of a limit that the first drafts must leave to their evaluation and other rounds.

    Raises:
        RunLimitReached: The limit has no room for a draft and its evaluation.
    """
    prompt_tokens = most_prompt_tokens(request)

    def most_tokens(draft_tokens: int) -> int:
        evaluation = evaluator.most_tokens(lengthened(empty, tokens=draft_tokens))
        drafts = reviser.candidates * (prompt_tokens + draft_tokens)
        return drafts + reviser.finalists * evaluation

    draft_tokens = request.max_output_tokens or 0
    reserve = 0
    rest = meter.left("tokens")
    if not draft_tokens and rest is not None:
        tokens_left = int(rest.amount)
        # An equal part for each round, half of it for the evaluation, which reads the draft.
        share = tokens_left // (2 * max_rounds * reviser.candidates)
        draft_tokens = max(_LEAST_DRAFT_TOKENS, share)
        # Halved until it fits, since no formula gives the tokens of an evaluation.
        while draft_tokens > _LEAST_DRAFT_TOKENS and most_tokens(draft_tokens) > tokens_left:
            draft_tokens = max(_LEAST_DRAFT_TOKENS, draft_tokens // 2)
        reserve = tokens_left - reviser.candidates * (prompt_tokens + draft_tokens)
    meter.check_room(most_tokens(draft_tokens), what="the first draft and its evaluation")
    return reserve
