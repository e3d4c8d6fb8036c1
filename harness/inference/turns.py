"""Conversations in the shape that a model's chat template takes.

Many templates refuse some conversations: they have no system role, want user and assistant to take
turns, or the user to have the last word. No server says so beforehand. A refusal is recognized, and
from then on conversations are folded. How, is decided by the shape of the refused conversation: the
words of a refusal say too little, and "must alternate" may mean a system message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from harness.errors import ServerError
from harness.inference.request import GO_ON, ChatRequest, Message, one_turn

Fold = Literal["extras", "system", "order"]

# llama-server and Ollama answer with 500 where a template raises; None is an error in a stream.
_REFUSALS = {400, 422, 500, None}
_ABOUT_TURNS = re.compile(
    r"\broles?\b|alternat|jinja|chat.?template|consecutive|prefill|(?:last|final|first) message"
    r"|must (?:start|begin|end) with|(?:system|developer) (?:message|prompt|instruction)",
    re.IGNORECASE,
)
_BEGIN = Message("user", "Begin.")


class TurnKnowledge:
    """Which shapes of conversations an endpoint's server refuses."""

    def __init__(self) -> None:
        self._folds: frozenset[Fold] = frozenset()

    def folded(self, request: ChatRequest) -> ChatRequest:
        """The call as its server takes it."""
        for name, fold in _FOLDS.items():
            if name in self._folds:
                request = fold(request)
        return request

    def learn(self, error: ServerError, sent: ChatRequest) -> bool:
        """Whether a call was refused for its turns, and can be sent in another shape."""
        if error.status not in _REFUSALS:
            return False
        message = str(error)
        # Extras are left out first: without them the conversation says the same.
        if any(name in message for turn in sent.messages for name in turn.extra_names):
            self._folds |= {"extras"}
            return True
        if not _ABOUT_TURNS.search(message):
            return False
        further = next((name for name in _TRIED if _FOLDS[name](sent) != sent), None)
        # If the server refuses every shape, something else is wrong.
        self._folds = self._folds & {"extras"} if further is None else self._folds | {further}
        return further is not None


def _without_extras(request: ChatRequest) -> ChatRequest:
    return replace(request, messages=tuple(message.without_extras for message in request.messages))


def _without_system(request: ChatRequest) -> ChatRequest:
    """The call with the system's text put before the first user's."""
    instructions = [message for message in request.messages if message.role == "system"]
    rest = [message for message in request.messages if message.role != "system"]
    if not instructions:
        return request
    joined = Message("user", "\n\n".join(message.content for message in instructions))
    if rest and rest[0].role == "user":
        joined = one_turn(joined, rest.pop(0))
    return replace(request, messages=(joined, *rest))


def _in_order(request: ChatRequest) -> ChatRequest:
    """One turn after another, from a user's to a user's or a tool's."""
    turns: list[Message] = []
    for message in request.messages:
        turn, before = message, turns[-1].role if turns else "system"
        if turn.role == "system" != before:
            turn = replace(turn, role="user")
        # Templates count neither calls nor results as turns.
        is_beside_results = (turn.role, before) == ("user", "tool") and not turn.images
        if turns and (turn.role == before != "tool" or is_beside_results):
            turns[-1] = one_turn(turns[-1], turn)
            continue
        if turn.role == "assistant" and before == "system":
            turns.append(_BEGIN)
        turns.append(turn)
    if turns[-1].role in {"assistant", "system"}:
        turns.append(Message("user", GO_ON if turns[-1].role == "assistant" else _BEGIN.content))
    if (messages := tuple(turns)) == request.messages:
        return request
    return replace(request, messages=messages, goes_on=False)


_FOLDS: Mapping[Fold, Callable[[ChatRequest], ChatRequest]] = {
    "extras": _without_extras,
    "system": _without_system,
    "order": _in_order,
}
# In this order: a template that only wants turns to alternate keeps its system message.
_TRIED: tuple[Fold, ...] = ("order", "system")
