"""One evaluator model's calls on one draft, and the scores read from its replies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import (
    ContextOverflow,
    EvaluatorAbstained,
    InferenceError,
    LimitReached,
    ReplyEmpty,
)
from harness.inference import ChatRequest, Completion
from harness.inference.completion import why_no_text
from harness.rubric.draft import Draft
from harness.rubric.prompt import (
    ShownDraft,
    judge_messages,
    repair_messages,
    reply_schema,
    rule_keys,
)
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.scoring import AppliedCap, Judgement, Opinion, judged_score

Ask = Callable[[ChatRequest], Awaitable[Completion]]
"""Sends a request to a model."""

_EXCERPT_CHARS = 160
# It is unknown beforehand whether a model thinks aloud first; room that is not used costs nothing.
_THINKING_TOKENS = 1024
# The longest reason and issues that the schema allows, and the JSON around them.
_TOKENS_PER_DIMENSION = 512
# A reason, and an issue or two: tried where a context has no room for more.
_LEAST_TOKENS_PER_DIMENSION = 256
# Judgements that are repeated greedily would all be the same.
_REPEAT_TEMPERATURE = 0.7
_REPAIR_TEMPERATURE = 0.3
# Against running on: in white space, which a JSON grammar allows without end, or in circles.
_REPAIR_FREQUENCY_PENALTY = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A draft before its judges, and what each of them needs."""

    rubric: Rubric
    draft: Draft
    shown: ShownDraft
    dimensions: tuple[Dimension, ...]
    applied_caps: Mapping[str, tuple[AppliedCap, ...]]
    """Dimension → the caps that apply to it by a check, whatever the judges say."""

    @property
    def calls(self) -> tuple[tuple[Dimension, ...], ...]:
        """The dimensions that each call asks for."""
        if self.rubric.judge == "joint":
            return (self.dimensions,)
        return tuple((dimension,) for dimension in self.dimensions)


async def judge(case: Case, *, ask: Ask, model: str, sample: int) -> Opinion:
    """A model's opinion, on every dimension of the case or none.

    `sample` is 0 for its likeliest opinion, which is not averaged with others. From 1 on, chance
    has a part in it.

    Raises:
        EvaluatorAbstained: A dimension has no score that could be read, or a rule that would lower
            it no answer, even after a repair.
        InferenceError: It could not be asked.
        LimitReached: A limit leaves no room for a call that is no repair.
    """
    first, *later = case.calls
    reply_began = asyncio.Event()

    async def judgements_on(
        dimensions: Sequence[Dimension], *, on_text: Callable[[str], None] | None = None
    ) -> Mapping[str, Judgement]:
        request = judge_request(case, dimensions, model=model, sample=sample, on_text=on_text)
        return await _read(request, case, dimensions, ask=ask)

    try:
        async with asyncio.TaskGroup() as group:
            # 1. One call ahead: once its reply begins, what all calls share is in the prefix cache,
            #    and the others need not each compute it.
            on_text = (lambda _: reply_began.set()) if later else None
            leading = group.create_task(judgements_on(first, on_text=on_text))
            # Where no text is heard, as from a server that does not stream, its end counts.
            leading.add_done_callback(lambda _: reply_began.set())
            await reply_began.wait()
            # 2. The others together.
            others = [group.create_task(judgements_on(dimensions)) for dimensions in later]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None

    # 3. Their judgements as scores.
    judgements: dict[str, Judgement] = {}
    for task in (leading, *others):
        judgements |= task.result()
    scores = []
    for dimension in case.dimensions:
        caps = case.applied_caps.get(dimension.name, ())
        judgement = judgements[dimension.name]
        scores.append(judged_score(dimension, judgement, case.draft, applied_caps=caps))
    return Opinion(
        evaluator=model,
        scores=tuple(scores),
        repaired=tuple(name for name, judgement in judgements.items() if judgement.repaired),
    )


def judge_request(
    case: Case,
    dimensions: Sequence[Dimension],
    *,
    model: str,
    sample: int = 0,
    on_text: Callable[[str], None] | None = None,
) -> ChatRequest:
    """The call that asks for a judgement on some dimensions of a case."""
    messages = judge_messages(case.rubric, dimensions, case.draft, shown=case.shown)
    return ChatRequest(
        model=model,
        role="evaluator",
        messages=messages,
        max_output_tokens=_room_tokens(dimensions),
        temperature=_REPEAT_TEMPERATURE if sample else 0.0,
        # The same sample gets the same judgement again, if the server supports seeds.
        seed=sample + 1,
        reply_schema=reply_schema(case.rubric, dimensions),
        on_text=on_text,
    )


async def _read(
    request: ChatRequest, case: Case, dimensions: Sequence[Dimension], *, ask: Ask
) -> dict[str, Judgement]:
    """The judgements that a call brings, after one more call if some are missing or incomplete."""
    try:
        completion = await _answer(request, dimensions, ask=ask)
    except ReplyEmpty as error:
        raise EvaluatorAbstained(f"'{request.model}' gave no score: {error}") from error
    judgements = _judgements(completion, case, dimensions)
    last = completion
    if incomplete := [d for d in dimensions if not _is_complete(judgements.get(d.name), d)]:
        repair = _repair_request(request, completion, case.rubric, incomplete)
        try:
            last = await _answer(repair, incomplete, ask=ask)
        except (LimitReached, InferenceError) as error:
            # A limit may leave no room for a repair: then the judge abstains below. If only the
            # answer to a rule is missing, the score may be so low that the rule's cap does nothing.
            lacks_a_score = any(d.name not in judgements for d in dimensions)
            if lacks_a_score and not isinstance(error, LimitReached):
                raise
        else:
            for name, repaired in _judgements(last, case, incomplete).items():
                # A repair asks for scores alone: the reasons are those of the first reply.
                first = judgements.get(name, repaired)
                judgements[name] = replace(
                    repaired,
                    reason=first.reason,
                    issues=first.issues,
                    rules={**first.rules, **repaired.rules},
                    repaired=True,
                )
    # Without an answer, whether the cap holds is unknown: a score above it may be too high.
    if rules := [r for d in dimensions for r in _open_rules(d, judgements.get(d.name))]:
        raise EvaluatorAbstained(
            f"'{request.model}' did not say true or false to a rule that would lower its "
            f"score: {'; '.join(rules)}. {_excerpt(last, dimensions)}"
        )
    if missing := [d.name for d in dimensions if d.name not in judgements]:
        raise EvaluatorAbstained(
            f"'{request.model}' gave no score on the scale for {', '.join(missing)}. "
            f"{_excerpt(completion, dimensions)}"
        )
    return judgements


def _is_complete(judgement: Judgement | None, dimension: Dimension) -> bool:
    """Whether there is a judgement, and it answers all rules of the dimension."""
    return judgement is not None and rule_keys(dimension).keys() <= judgement.rules.keys()


def _open_rules(dimension: Dimension, judgement: Judgement | None) -> list[str]:
    """The rules without an answer whose cap is below a dimension's score."""
    if judgement is None:
        return []
    lowering = {cap.when for cap in dimension.caps if cap.at_most < judgement.score}
    rules = rule_keys(dimension).items()
    return [rule for key, rule in rules if key not in judgement.rules and rule in lowering]


async def _answer(request: ChatRequest, dimensions: Sequence[Dimension], *, ask: Ask) -> Completion:
    """The reply to a request; a shorter one if the context has no room for the longest."""
    try:
        return await ask(request)
    except ContextOverflow as overflow:
        least = _LEAST_TOKENS_PER_DIMENSION * len(dimensions)
        room = least
        if overflow.context_tokens and overflow.prompt_tokens:
            room = overflow.context_tokens - overflow.prompt_tokens
        if not least <= room < (request.max_output_tokens or math.inf):
            raise
    return await ask(replace(request, max_output_tokens=room))


def _repair_request(
    request: ChatRequest, reply: Completion, rubric: Rubric, dimensions: Sequence[Dimension]
) -> ChatRequest:
    """The request that asks once more, for the scores and rules of these dimensions alone."""
    ran_on = reply.finish_reason == "length"
    return replace(
        request,
        messages=repair_messages(rubric, dimensions, asked=request.messages, reply=reply.text),
        max_output_tokens=_room_tokens(dimensions),
        temperature=max(_REPAIR_TEMPERATURE, request.temperature),
        frequency_penalty=_REPAIR_FREQUENCY_PENALTY if ran_on else 0.0,
        # The reasons are taken from the first reply.
        reply_schema=reply_schema(rubric, dimensions, explained=False),
        asks_again=True,
        on_text=None,  # it waits for the first reply, which has come
    )


def _room_tokens(dimensions: Sequence[Dimension]) -> int:
    return _THINKING_TOKENS + _TOKENS_PER_DIMENSION * len(dimensions)


def _judgements(
    completion: Completion, case: Case, dimensions: Sequence[Dimension]
) -> dict[str, Judgement]:
    cut = completion.finish_reason == "length"
    return read_reply(completion.text, case.rubric, dimensions, draft=case.draft, cut=cut)


def _excerpt(completion: Completion, dimensions: Sequence[Dimension]) -> str:
    """The beginning of a reply without scores, with what may help."""
    text = " ".join(completion.text.split())
    if not text:
        return f"It said nothing: {why_no_text(completion)}; give it more room, or less to think of"
    excerpt = f"It said: {text[:_EXCERPT_CHARS]!r}"
    if completion.finish_reason != "length":
        # A call for one dimension is split already.
        split = ", or 'judge: split' in the rubric," if len(dimensions) > 1 else ""
        return f"{excerpt}. A larger model{split} may do better"
    if len(text) < len(completion.text) / 2:
        return (
            f"{excerpt}, and then ran on in white space until it was cut off, as a JSON grammar "
            "allows (some servers have a flag that forbids it)"
        )
    return f"{excerpt} and ran on until it was cut off"
