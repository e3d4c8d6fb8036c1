"""The calls that ask for judgements: how much room a reply has, and how much chance.

A judgement has room for the longest reply that its schema allows, and for thinking aloud before it:
whether a model does is not known beforehand. Where a context has less, thinking goes without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.errors import ContextOverflow
from harness.inference import ChatRequest, Completion
from harness.rubric.judging.case import Case
from harness.rubric.judging.prompt import judge_messages, repair_messages
from harness.rubric.judging.reply_schema import reply_schema
from harness.rubric.rubric import Dimension, Rubric

_ROOM_TOKENS = 1024
"""For a model that thinks aloud first. Nobody pays for room that is not used."""
_ROOM_TOKENS_PER_DIMENSION = 512
"""The longest reason and issues that the schema allows, and the JSON around them."""
_LEAST_ROOM_TOKENS_PER_DIMENSION = 256
"""A reason, and an issue or two: what is tried where a context has no room for more."""
_REPEAT_TEMPERATURE = 0.7
"""Repeated greedily, a judgement would only be the same again."""
_REPAIR_TEMPERATURE = 0.3
_REPAIR_FREQUENCY_PENALTY = 0.3
"""Against running on: in white space, which a JSON grammar allows without end, or in circles."""
_TOP_LOGPROBS = 20


def judge_request(
    case: Case,
    dimensions: Sequence[Dimension],
    *,
    model: str,
    sample: int = 0,
    on_text: Callable[[str], None] | None = None,
) -> ChatRequest:
    """The call that asks for a judgement on some dimensions of a case."""
    messages = judge_messages(
        case.rubric,
        dimensions,
        case.draft,
        shown=case.shown.text,
        shortened=case.shown.shortened,
    )
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


def repair_request(
    asked: ChatRequest, reply: Completion, rubric: Rubric, dimensions: Sequence[Dimension]
) -> ChatRequest:
    """The call that asks again for the judgements that a reply does not have."""
    ran_on = reply.finish_reason == "length"
    return replace(
        asked,
        messages=repair_messages(rubric, dimensions, asked=asked.messages, reply=reply.text),
        max_output_tokens=_room_tokens(dimensions),
        temperature=max(_REPAIR_TEMPERATURE, asked.temperature),
        frequency_penalty=_REPAIR_FREQUENCY_PENALTY if ran_on else 0.0,
        reply_schema=reply_schema(rubric, dimensions),
        on_text=None,
    )


def in_less_room(
    request: ChatRequest, overflow: ContextOverflow, *, judgements: int
) -> ChatRequest | None:
    """The call that a context had not enough room for, with the room that it has.

    None where that is too little. A server that does not say how much there is is asked for the
    least that is of use.
    """
    room = _LEAST_ROOM_TOKENS_PER_DIMENSION * judgements
    if overflow.context_tokens and overflow.prompt_tokens:
        left = overflow.context_tokens - overflow.prompt_tokens
        room = left if left >= room else 0
    if not 0 < room < (request.max_output_tokens or math.inf):
        return None
    return replace(request, max_output_tokens=room)


def _room_tokens(dimensions: Sequence[Dimension]) -> int:
    return _ROOM_TOKENS + _ROOM_TOKENS_PER_DIMENSION * len(dimensions)
