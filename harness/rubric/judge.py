"""One evaluator model at work: its calls on one draft, and what was read from the replies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import ContextOverflow, EvaluatorAbstained, InferenceError, LimitReached
from harness.inference import ChatRequest, Completion
from harness.rubric.draft import Draft
from harness.rubric.prompt import Shown, judge_messages, repair_messages, reply_schema, rule_keys
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.scoring import Held, Judgement, Opinion, expected_score, judged_score

Ask = Callable[[ChatRequest], Awaitable[Completion]]
"""How a model is asked; the session's shim."""

_SAID_CHARS = 160
"""How much of a reply is quoted."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A judgement, and the reply that it stands in."""

    judgement: Judgement
    completion: Completion


class Judge:
    """An evaluator model.

    Args:
        ask: Reaches it.
        model: Tag of its endpoint.
    """

    def __init__(self, *, ask: Ask, model: str) -> None:
        self.model = model
        self._ask = ask

    async def judge(self, case: Case, *, sample: int) -> Opinion:
        """Its opinion, on every dimension of the case or none.

        Args:
            case: What to judge.
            sample: 0 for its likeliest opinion; from 1 on for one that chance has a part in, the
                same for the same number where the server can.

        Raises:
            EvaluatorAbstained: A dimension has no score that could be read, even after a repair.
            InferenceError: It could not be asked. Where its context has no room for the longest
                reply, it is asked again for one that fits, unless that would be too short.
            LimitReached: A limit leaves no room for a call that is no repair.
        """
        first, *others = case.calls
        arrived = asyncio.Event()

        def on_text(_: str) -> None:
            arrived.set()

        try:
            async with asyncio.TaskGroup() as group:
                # 1. One call ahead: once it is answered, what all calls share is in the prefix
                #    cache, and the others need not each compute it.
                ahead = group.create_task(
                    self._read(case, first, sample, on_text=on_text if others else None)
                )
                ahead.add_done_callback(lambda _: arrived.set())
                await arrived.wait()
                # 2. The others together.
                rest = [group.create_task(self._read(case, one, sample)) for one in others]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

        # 3. Their judgements as scores.
        read = {name: one for task in (ahead, *rest) for name, one in task.result().items()}
        return Opinion(
            evaluator=self.model,
            scores=tuple(
                judged_score(
                    dimension,
                    read[dimension.name].judgement,
                    case.draft,
                    held=case.held.get(dimension.name, ()),
                    expected=_expected(read[dimension.name], case.rubric),
                )
                for dimension in case.dimensions
            ),
        )

    async def _read(
        self,
        case: Case,
        dimensions: Sequence[Dimension],
        sample: int,
        *,
        on_text: Callable[[str], None] | None = None,
    ) -> Mapping[str, _Read]:
        """The judgements that one call brings, and where some are missing one more."""
        request = judge_request(case, dimensions, model=self.model, sample=sample, on_text=on_text)
        completion = await self._answer(request, dimensions)
        read = _judgements(completion, case, dimensions)
        incomplete = [d for d in dimensions if d.name not in read or _left_open(d, read[d.name])]
        if incomplete:
            repair = repair_request(request, completion, case.rubric, incomplete)
            try:
                again = await self._answer(repair, incomplete)
            except (LimitReached, InferenceError) as error:
                # A repair may be missed: what was read stays, though a rule was left open.
                lacks_a_score = any(d.name not in read for d in dimensions)
                if lacks_a_score and not isinstance(error, LimitReached):
                    raise
            else:
                read |= _judgements(again, case, incomplete)
        if missing := [d.name for d in dimensions if d.name not in read]:
            raise EvaluatorAbstained(
                f"'{self.model}' gave no score on the scale for {', '.join(missing)}. "
                f"{_said(completion)}. A larger model, or 'judge: split' in the rubric, may do "
                "better"
            )
        return read

    async def _answer(self, request: ChatRequest, dimensions: Sequence[Dimension]) -> Completion:
        """The reply, in less room where the context has not as much as was asked for."""
        try:
            return await self._ask(request)
        except ContextOverflow as overflow:
            smaller = in_less_room(request, overflow, judgements=len(dimensions))
            if smaller is None:
                raise
        return await self._ask(smaller)


def _judgements(
    completion: Completion, case: Case, dimensions: Sequence[Dimension]
) -> dict[str, _Read]:
    cut = completion.finish_reason == "length"
    found = read_reply(completion.text, case.rubric, dimensions, draft=case.draft, cut=cut)
    return {name: _Read(judgement, completion) for name, judgement in found.items()}


def _said(completion: Completion) -> str:
    """What a reply that could not be read was, and what became of it."""
    said = " ".join(completion.text.split())
    shown = f"It said: {said[:_SAID_CHARS]!r}"
    if completion.finish_reason != "length":
        return shown
    if len(said) < len(completion.text) / 2:
        return (
            f"{shown}, and then ran on in white space until it was cut off, as a JSON grammar "
            "allows (vLLM forbids it when started with --structured-outputs-config "
            "'{\"disable_any_whitespace\": true}')"
        )
    return f"{shown} and ran on until it was cut off"


def _left_open(dimension: Dimension, read: _Read) -> bool:
    """Whether a rule has no answer. The score stands even so, if a repair does not bring one."""
    return not rule_keys(dimension).keys() <= read.judgement.rules.keys()


def _expected(read: _Read, rubric: Rubric) -> float | None:
    if rubric.judge != "logprob":
        return None
    return expected_score(read.completion, read.judgement, rubric.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A draft before its judges."""

    rubric: Rubric
    """What it is judged by."""
    draft: Draft
    """What is judged."""
    shown: Shown
    """What is shown of it."""
    dimensions: tuple[Dimension, ...]
    """What it is judged on; at least one."""
    held: Mapping[str, tuple[Held, ...]]
    """By dimension, the caps that a check has already found to apply."""

    @property
    def calls(self) -> tuple[tuple[Dimension, ...], ...]:
        """The dimensions that each call asks for."""
        if self.rubric.judge == "joint":
            return (self.dimensions,)
        return tuple((dimension,) for dimension in self.dimensions)


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
