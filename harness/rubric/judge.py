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
from harness.rubric.scoring import Held, Judgement, Opinion, judged_score

Ask = Callable[[ChatRequest], Awaitable[Completion]]
"""How a model is asked."""

_EXCERPT_CHARS = 160
# It is unknown beforehand whether a model thinks aloud first; room that is not used costs nothing.
_ROOM_TOKENS = 1024
# The longest reason and issues that the schema allows, and the JSON around them.
_ROOM_TOKENS_PER_DIMENSION = 512
# A reason, and an issue or two: tried where a context has no room for more.
_LEAST_ROOM_TOKENS_PER_DIMENSION = 256
# A judgement that is repeated greedily would be the same again.
_REPEAT_TEMPERATURE = 0.7
_REPAIR_TEMPERATURE = 0.3
# Against running on: in white space, which a JSON grammar allows without end, or in circles.
_REPAIR_FREQUENCY_PENALTY = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A draft before its judges, and all that each of them is told."""

    rubric: Rubric
    draft: Draft
    shown: ShownDraft
    dimensions: tuple[Dimension, ...]
    held: Mapping[str, tuple[Held, ...]]
    """By dimension, the caps that a check has already found to apply."""

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
    arrived = asyncio.Event()

    async def read(
        dimensions: Sequence[Dimension], *, ahead: bool = False
    ) -> Mapping[str, Judgement]:
        on_text = (lambda _: arrived.set()) if ahead and later else None
        request = judge_request(case, dimensions, model=model, sample=sample, on_text=on_text)
        return await _read(request, case, dimensions, ask=ask)

    try:
        async with asyncio.TaskGroup() as group:
            # 1. One call ahead: once its reply begins, what all calls share is in the prefix cache,
            #    and the others need not each compute it.
            leading = group.create_task(read(first, ahead=True))
            # Where no text is heard, as from a server that does not stream, its end counts.
            leading.add_done_callback(lambda _: arrived.set())
            await arrived.wait()
            # 2. The others together.
            rest = [group.create_task(read(dimensions)) for dimensions in later]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None

    # 3. Their judgements as scores.
    judgements = {
        name: judgement for task in (leading, *rest) for name, judgement in task.result().items()
    }
    return Opinion(
        evaluator=model,
        scores=tuple(
            judged_score(d, judgements[d.name], case.draft, held=case.held.get(d.name, ()))
            for d in case.dimensions
        ),
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
        # The same chance for the same number, where the server can.
        seed=sample + 1,
        reply_schema=reply_schema(case.rubric, dimensions),
        on_text=on_text,
    )


async def _read(
    request: ChatRequest, case: Case, dimensions: Sequence[Dimension], *, ask: Ask
) -> Mapping[str, Judgement]:
    """The judgements that a call brings, after one more call if some are missing."""
    try:
        completion = await _answer(request, dimensions, ask=ask)
    except ReplyEmpty as error:
        raise EvaluatorAbstained(f"'{request.model}' gave no score: {error}") from error
    judgements = _judgements(completion, case, dimensions)
    incomplete = [
        d
        for d in dimensions
        if d.name not in judgements or not rule_keys(d).keys() <= judgements[d.name].rules.keys()
    ]
    if incomplete:
        repair, again = _repair_request(request, completion, case.rubric, incomplete), completion
        try:
            again = await _answer(repair, incomplete, ask=ask)
        except (LimitReached, InferenceError) as error:
            # What lacks decides below: a limit may leave no room for a repair, and a failed call
            # that only a rule needed may have left a score that no cap lowers.
            lacks_a_score = any(d.name not in judgements for d in dimensions)
            if lacks_a_score and not isinstance(error, LimitReached):
                raise
        else:
            for name, mended in _judgements(again, case, incomplete).items():
                # It asks for scores alone: the reasons are those of the first reply.
                first = judgements.get(name, mended)
                judgements[name] = replace(
                    mended,
                    reason=first.reason,
                    issues=first.issues,
                    rules={**first.rules, **mended.rules},
                    repaired=True,
                )
        # Without an answer, whether the cap holds is unknown: a score above it may be too high.
        if rules := [rule for d in dimensions for rule in _open_rules(d, judgements)]:
            raise EvaluatorAbstained(
                f"'{request.model}' did not say true or false to a rule that would lower its "
                f"score: {'; '.join(rules)}. {_excerpt(again)}"
            )
    if missing := [d.name for d in dimensions if d.name not in judgements]:
        raise EvaluatorAbstained(
            f"'{request.model}' gave no score on the scale for {', '.join(missing)}. "
            f"{_excerpt(completion)}"
        )
    return judgements


def _open_rules(dimension: Dimension, judgements: Mapping[str, Judgement]) -> list[str]:
    """The rules without an answer whose cap is below a dimension's score."""
    judgement = judgements.get(dimension.name)
    if judgement is None:
        return []
    lowering = {cap.when for cap in dimension.caps if cap.at_most < judgement.score}
    rules = rule_keys(dimension).items()
    return [rule for key, rule in rules if key not in judgement.rules and rule in lowering]


async def _answer(request: ChatRequest, dimensions: Sequence[Dimension], *, ask: Ask) -> Completion:
    """The reply; where the context has too little room for the longest one, in the room it has."""
    try:
        return await ask(request)
    except ContextOverflow as overflow:
        room = _room_after(overflow, fewest=_LEAST_ROOM_TOKENS_PER_DIMENSION * len(dimensions))
        if not 0 < room < (request.max_output_tokens or math.inf):
            raise
    return await ask(replace(request, max_output_tokens=room))


def _room_after(overflow: ContextOverflow, *, fewest: int) -> int:
    """The tokens that a context has left, or 0 if these are too few to be of use."""
    if not overflow.context_tokens or not overflow.prompt_tokens:
        return fewest
    room = overflow.context_tokens - overflow.prompt_tokens
    return room if room >= fewest else 0


def _repair_request(
    request: ChatRequest, reply: Completion, rubric: Rubric, dimensions: Sequence[Dimension]
) -> ChatRequest:
    ran_on = reply.finish_reason == "length"
    return replace(
        request,
        messages=repair_messages(rubric, dimensions, asked=request.messages, reply=reply.text),
        max_output_tokens=_room_tokens(dimensions),
        temperature=max(_REPAIR_TEMPERATURE, request.temperature),
        frequency_penalty=_REPAIR_FREQUENCY_PENALTY if ran_on else 0.0,
        reply_schema=reply_schema(rubric, dimensions, explained=False),
        asks_again=True,
        on_text=None,
    )


def _room_tokens(dimensions: Sequence[Dimension]) -> int:
    return _ROOM_TOKENS + _ROOM_TOKENS_PER_DIMENSION * len(dimensions)


def _judgements(
    completion: Completion, case: Case, dimensions: Sequence[Dimension]
) -> dict[str, Judgement]:
    cut = completion.finish_reason == "length"
    return read_reply(completion.text, case.rubric, dimensions, draft=case.draft, cut=cut)


def _excerpt(completion: Completion) -> str:
    text = " ".join(completion.text.split())
    if not text:
        return f"It said nothing: {why_no_text(completion)}; give it more room, or less to think of"
    excerpt = f"It said: {text[:_EXCERPT_CHARS]!r}"
    if completion.finish_reason != "length":
        return f"{excerpt}. A larger model, or 'judge: split' in the rubric, may do better"
    if len(text) < len(completion.text) / 2:
        return (
            f"{excerpt}, and then ran on in white space until it was cut off, as a JSON grammar "
            "allows (some servers have a flag that forbids it)"
        )
    return f"{excerpt} and ran on until it was cut off"
