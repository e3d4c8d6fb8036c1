"""An evaluator whose scores are given out by a script, in whatever shape it is asked for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from harness import ChatRequest, ScriptedBackend
from harness.testing import Scores, judgement


def judge(*scores: Scores, reason: str = "Nothing is missing.") -> ScriptedBackend:
    """Gives these scores, one judgement after another, and the last for ever."""
    turns = _turns(scores)
    return ScriptedBackend(lambda request: verdict(request, next(turns), reason=reason))


def judge_by(score: Callable[[str], Scores]) -> ScriptedBackend:
    """Scores by the prompt."""
    return ScriptedBackend(lambda request: verdict(request, score(request.messages[-1].content)))


def verdict(request: ChatRequest, scores: Scores, *, reason: str = "Nothing is missing.") -> str:
    """A reply in the shape that the request asks for."""
    assert request.reply_schema is not None
    return reply_to(request.reply_schema, scores, reason=reason)


def reply_to(schema: Mapping[str, Any], scores: Scores, *, reason: str) -> str:
    """A reply of this JSON Schema: on one dimension, or on several by name."""
    return orjson.dumps(judgement(schema["properties"], scores, reason=reason)).decode()


def _turns(scores: tuple[Scores, ...]) -> Iterator[Scores]:
    yield from scores
    while True:
        yield scores[-1]
