"""One evaluator model at work: its calls on one draft, and what was read from the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import EvaluatorAbstained, LimitReached
from harness.inference import ChatRequest, Completion, Message
from harness.rubric.draft import Draft
from harness.rubric.judging.combine import Opinion
from harness.rubric.judging.judgement import Judgement
from harness.rubric.judging.logprob import expected_score
from harness.rubric.judging.prompt import judge_messages, repair_messages
from harness.rubric.judging.reply import read_reply
from harness.rubric.judging.reply_schema import reply_schema, rule_keys
from harness.rubric.judging.scoring import Held, judged_score
from harness.rubric.judging.shown import Shown
from harness.rubric.rubric import Dimension, Rubric

Ask = Callable[[ChatRequest], Awaitable[Completion]]
"""How a model is asked; the session's shim."""

_ROOM_TOKENS = 1024
"""For a model that thinks aloud first."""
_ROOM_TOKENS_PER_DIMENSION = 512
"""The longest reason and issues that the schema allows, and the JSON around them."""
_REPEAT_TEMPERATURE = 0.7
"""Repeated greedily, a judgement would only be the same again."""
_REPAIR_TEMPERATURE = 0.3
_TOP_LOGPROBS = 20


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
            InferenceError: It could not be asked.
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
        completion = await self._ask(request)
        read = _judgements(completion, case.rubric, dimensions)
        incomplete = [d for d in dimensions if d.name not in read or _left_open(d, read[d.name])]
        if incomplete:
            repair = _repair_request(case, incomplete, request, completion, sample=sample)
            try:
                again = await self._ask(repair)
            except LimitReached:
                pass  # a repair may be missed: what was read stays
            else:
                read |= _judgements(again, case.rubric, incomplete)
        if missing := [d.name for d in dimensions if d.name not in read]:
            raise EvaluatorAbstained(
                f"'{self.model}' gave no score on the scale for {', '.join(missing)}. It said: "
                f"{completion.text[:160]!r}. A larger model, or 'judge: split' in the rubric, may "
                "do better"
            )
        return read


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
    temperature = _REPEAT_TEMPERATURE if sample else 0.0
    return _request(
        case.rubric,
        dimensions,
        messages,
        model,
        temperature=temperature,
        seed=sample + 1,
        on_text=on_text,
    )


def _repair_request(
    case: Case,
    dimensions: Sequence[Dimension],
    asked: ChatRequest,
    reply: Completion,
    *,
    sample: int,
) -> ChatRequest:
    messages = repair_messages(case.rubric, dimensions, asked=asked.messages, reply=reply.text)
    temperature = max(_REPAIR_TEMPERATURE, asked.temperature)
    return _request(
        case.rubric, dimensions, messages, asked.model, temperature=temperature, seed=sample + 1
    )


def _request(
    rubric: Rubric,
    dimensions: Sequence[Dimension],
    messages: tuple[Message, ...],
    model: str,
    *,
    temperature: float,
    seed: int,
    on_text: Callable[[str], None] | None = None,
) -> ChatRequest:
    return ChatRequest(
        model=model,
        role="evaluator",
        messages=messages,
        max_output_tokens=_ROOM_TOKENS + _ROOM_TOKENS_PER_DIMENSION * len(dimensions),
        temperature=temperature,
        seed=seed,
        reply_schema=reply_schema(rubric, dimensions),
        top_logprobs=_TOP_LOGPROBS if rubric.judge == "logprob" else None,
        on_text=on_text,
    )


def _judgements(
    completion: Completion, rubric: Rubric, dimensions: Sequence[Dimension]
) -> dict[str, _Read]:
    cut = completion.finish_reason == "length"
    found = read_reply(completion.text, rubric, dimensions, cut=cut)
    return {name: _Read(judgement, completion) for name, judgement in found.items()}


def _left_open(dimension: Dimension, read: _Read) -> bool:
    """Whether a rule has no answer. The score stands even so, if a repair does not bring one."""
    return not rule_keys(dimension).keys() <= read.judgement.rules.keys()


def _expected(read: _Read, rubric: Rubric) -> float | None:
    if rubric.judge != "logprob":
        return None
    return expected_score(read.completion, read.judgement, rubric.scale)
