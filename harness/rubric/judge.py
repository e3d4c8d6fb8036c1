"""One evaluator model's calls on one draft, and the scores read from its replies.

A call has room for the longest reply that its schema allows, and for thinking before it, since it
is unknown beforehand whether a model thinks. If a context is too small, thinking gets less room.
"""

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
from harness.rubric.prompt import Shown, judge_messages, repair_messages, reply_schema, rule_keys
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.scoring import Held, Judgement, Opinion, expected_score, judged_score

Ask = Callable[[ChatRequest], Awaitable[Completion]]
"""How a model is asked."""

_SAID_CHARS = 160
"""How much of a reply is quoted."""
_ROOM_TOKENS = 1024
"""For a model that thinks aloud first. Room that is not used costs nothing."""
_ROOM_TOKENS_PER_DIMENSION = 512
"""The longest reason and issues that the schema allows, and the JSON around them."""
_LEAST_ROOM_TOKENS_PER_DIMENSION = 256
"""A reason, and an issue or two: tried where a context has no room for more."""
_REPEAT_TEMPERATURE = 0.7
"""A judgement that is repeated greedily would be the same again."""
_REPAIR_TEMPERATURE = 0.3
_REPAIR_FREQUENCY_PENALTY = 0.3
"""Against running on: in white space, which a JSON grammar allows without end, or in circles."""
_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A draft before its judges, and all that each of them is told."""

    rubric: Rubric
    draft: Draft
    shown: Shown
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
    has a part in it: the same for the same number, where the server can.

    Raises:
        EvaluatorAbstained: A dimension has no score that could be read, even after a repair.
        InferenceError: It could not be asked. Where its context has no room for the longest reply,
            it is asked again for one that fits, unless that would be too short.
        LimitReached: A limit leaves no room for a call that is no repair.
    """
    first, *others = case.calls
    arrived = asyncio.Event()

    async def read(dimensions: Sequence[Dimension], *, ahead: bool = False) -> Mapping[str, _Read]:
        on_text = (lambda _: arrived.set()) if ahead and others else None
        request = judge_request(case, dimensions, model=model, sample=sample, on_text=on_text)
        return await _read(request, case, dimensions, ask=ask)

    try:
        async with asyncio.TaskGroup() as group:
            # 1. One call ahead: once its reply begins, what all calls share is in the prefix cache,
            #    and the others need not each compute it.
            leading = group.create_task(read(first, ahead=True))
            leading.add_done_callback(lambda _: arrived.set())
            await arrived.wait()
            # 2. The others together.
            rest = [group.create_task(read(one)) for one in others]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None

    # 3. Their judgements as scores.
    found = {name: one for task in (leading, *rest) for name, one in task.result().items()}
    return Opinion(
        evaluator=model,
        scores=tuple(
            judged_score(
                dimension,
                found[dimension.name].judgement,
                case.draft,
                held=case.held.get(dimension.name, ()),
                expected=found[dimension.name].expected,
            )
            for dimension in case.dimensions
        ),
        repaired=tuple(name for name, one in found.items() if one.repaired),
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
        seed=sample + 1,
        reply_schema=reply_schema(case.rubric, dimensions),
        top_logprobs=_TOP_LOGPROBS if case.rubric.judge == "logprob" else None,
        on_text=on_text,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A judgement, and the score by the probabilities of all that it could have given."""

    judgement: Judgement
    expected: float | None
    repaired: bool = False
    """Whether it took a second call."""


async def _read(
    request: ChatRequest, case: Case, dimensions: Sequence[Dimension], *, ask: Ask
) -> Mapping[str, _Read]:
    """The judgements that a call brings, after one more call if some are missing."""
    try:
        completion = await _answer(request, dimensions, ask=ask)
    except ReplyEmpty as error:
        raise EvaluatorAbstained(f"'{request.model}' gave no score: {error}") from error
    read = _judgements(completion, case, dimensions)
    incomplete = [d for d in dimensions if d.name not in read or _left_open(d, read[d.name])]
    if incomplete:
        repair = _repair_request(request, completion, case.rubric, incomplete)
        try:
            again = await _answer(repair, incomplete, ask=ask)
        except (LimitReached, InferenceError) as error:
            # What was read stays, though a rule was left open.
            lacks_a_score = any(d.name not in read for d in dimensions)
            if lacks_a_score and not isinstance(error, LimitReached):
                raise
        else:
            for name, mended in _judgements(again, case, incomplete).items():
                read[name] = _repaired(mended, read.get(name))
    if missing := [d.name for d in dimensions if d.name not in read]:
        raise EvaluatorAbstained(
            f"'{request.model}' gave no score on the scale for {', '.join(missing)}. "
            f"{_said(completion)}"
        )
    return read


async def _answer(request: ChatRequest, dimensions: Sequence[Dimension], *, ask: Ask) -> Completion:
    """The reply; where the context has too little room for the longest one, in the room it has."""
    try:
        return await ask(request)
    except ContextOverflow as overflow:
        room = _room_after(overflow, least=_LEAST_ROOM_TOKENS_PER_DIMENSION * len(dimensions))
        if not 0 < room < (request.max_output_tokens or math.inf):
            raise
    return await ask(replace(request, max_output_tokens=room))


def _room_after(overflow: ContextOverflow, *, least: int) -> int:
    """The tokens that a context has left; the least of use if the server does not say.

    0 if there are fewer.
    """
    if not overflow.context_tokens or not overflow.prompt_tokens:
        return least
    left = overflow.context_tokens - overflow.prompt_tokens
    return left if left >= least else 0


def _repair_request(
    asked: ChatRequest, reply: Completion, rubric: Rubric, dimensions: Sequence[Dimension]
) -> ChatRequest:
    ran_on = reply.finish_reason == "length"
    return replace(
        asked,
        messages=repair_messages(rubric, dimensions, asked=asked.messages, reply=reply.text),
        max_output_tokens=_room_tokens(dimensions),
        temperature=max(_REPAIR_TEMPERATURE, asked.temperature),
        frequency_penalty=_REPAIR_FREQUENCY_PENALTY if ran_on else 0.0,
        reply_schema=reply_schema(rubric, dimensions, explained=False),
        asks_again=True,
        on_text=None,
    )


def _room_tokens(dimensions: Sequence[Dimension]) -> int:
    return _ROOM_TOKENS + _ROOM_TOKENS_PER_DIMENSION * len(dimensions)


def _judgements(
    completion: Completion, case: Case, dimensions: Sequence[Dimension]
) -> dict[str, _Read]:
    cut = completion.finish_reason == "length"
    found = read_reply(completion.text, case.rubric, dimensions, draft=case.draft, cut=cut)
    by_logprobs = case.rubric.judge == "logprob"
    return {
        name: _Read(
            judgement,
            expected_score(completion, judgement, case.rubric.scale_of(name))
            if by_logprobs
            else None,
        )
        for name, judgement in found.items()
    }


def _repaired(mended: _Read, first: _Read | None) -> _Read:
    """What a repair brought, with the reasons of the first reply: it asks for scores alone."""
    judgement = mended.judgement
    if first is not None:
        explained = first.judgement
        judgement = replace(judgement, reason=explained.reason, issues=explained.issues)
    return replace(mended, judgement=judgement, repaired=True)


def _left_open(dimension: Dimension, read: _Read) -> bool:
    """Whether a rule has no answer. The score stands even so, if a repair does not bring one."""
    return not rule_keys(dimension).keys() <= read.judgement.rules.keys()


def _said(completion: Completion) -> str:
    said = " ".join(completion.text.split())
    if not said:
        return f"It said nothing: {why_no_text(completion)}; give it more room, or less to think of"
    shown = f"It said: {said[:_SAID_CHARS]!r}"
    if completion.finish_reason != "length":
        return f"{shown}. A larger model, or 'judge: split' in the rubric, may do better"
    if len(said) < len(completion.text) / 2:
        return (
            f"{shown}, and then ran on in white space until it was cut off, as a JSON grammar "
            "allows (some servers have a flag that forbids it)"
        )
    return f"{shown} and ran on until it was cut off"
