"""One evaluator model at work: its calls on one draft, and what was read from the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import ContextOverflow, EvaluatorAbstained, InferenceError, LimitReached
from harness.inference import ChatRequest, Completion
from harness.rubric.judging.case import Case
from harness.rubric.judging.combine import Opinion
from harness.rubric.judging.judgement import Judgement
from harness.rubric.judging.logprob import expected_score
from harness.rubric.judging.reply import read_reply
from harness.rubric.judging.reply_schema import rule_keys
from harness.rubric.judging.request import in_less_room, judge_request, repair_request
from harness.rubric.judging.scoring import judged_score
from harness.rubric.rubric import Dimension, Rubric

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
