"""Conversations in the shape that a model's chat template takes.

Many templates refuse some conversations: they have no system role, want user and assistant to take
turns, or the user to have the last word. No server says so beforehand. A refusal is recognized, and
from then on conversations are folded. The shape of the refused conversation decides how, since the
words of a refusal say too little: "must alternate" may mean a system message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from harness.errors import ServerError
from harness.inference.request import GO_ON, ChatRequest, Message, one_turn

# llama-server and Ollama answer with 500 where a template raises; None is an error in a stream.
_REFUSALS = {400, 422, 500, None}
_ABOUT_TURNS = re.compile(
    r"(?i)\broles?\b|alternat|jinja|chat.?template|consecutive|prefill|(?:last|final|first) message"
    r"|must (?:start|begin|end) with|(?:system|developer) (?:message|prompt|instruction)",
)
_BEGIN = Message("user", "Begin.")


class TurnKnowledge:
    """The folds that an endpoint's server needs, as far as its refusals have shown."""

    def __init__(self) -> None:
        # Each returns the call in a shape that more templates take, or the same call.
        self._folds: frozenset[Callable[[ChatRequest], ChatRequest]] = frozenset()

    def folded(self, request: ChatRequest) -> ChatRequest:
        """The call with all folds that its server needs."""
        for fold in (_without_extras, _without_system, _in_order):
            if fold in self._folds:
                request = fold(request)
        return request

    def learn(self, error: ServerError, sent: ChatRequest) -> bool:
        """Adds a fold that a refused call needs. True if the call should be sent again."""
        if error.status not in _REFUSALS:
            return False
        message = str(error)
        # Extras are left out first: without them the conversation says the same.
        # As words: an error about a hostname refuses no `name`. Letters of other scripts may touch.
        names = {name for turn in sent.messages for name in turn.extra_names}
        if any(
            re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", message)
            for name in names
        ):
            self._folds |= {_without_extras}
            return True
        if not _ABOUT_TURNS.search(message):
            return False
        # The order first, so that a template that only wants alternation keeps its system message.
        for fold in (_in_order, _without_system):
            if fold(sent) != sent:
                self._folds |= {fold}
                return True
        # The server refuses every shape, so something else is wrong: the folds have not helped.
        self._folds &= {_without_extras}
        return False


def _without_extras(request: ChatRequest) -> ChatRequest:
    return replace(request, messages=tuple(turn.without_extras for turn in request.messages))


def _without_system(request: ChatRequest) -> ChatRequest:
    """The call with the system's text put before the first user's."""
    instructions = [message for message in request.messages if message.role == "system"]
    turns = [message for message in request.messages if message.role != "system"]
    if not instructions:
        return request
    first = Message("user", "\n\n".join(message.content for message in instructions))
    if turns and turns[0].role == "user":
        first = one_turn(first, turns.pop(0))
    return replace(request, messages=(first, *turns))


def _in_order(request: ChatRequest) -> ChatRequest:
    """The call with turns in alternation, from a user's first to a user's or a tool's last one."""
    turns: list[Message] = []
    for message in request.messages:
        turn, before = message, turns[-1].role if turns else "system"
        if turn.role == "system" and before != "system":
            turn = replace(turn, role="user")
        # Several results in a row stay apart. As templates count no results as turns, a user's
        # text behind them would follow the user's last turn: it joins the last result.
        continues = turn.role == before and before != "tool"
        follows_results = turn.role == "user" and before == "tool" and not turn.images
        if turns and (continues or follows_results):
            turns[-1] = one_turn(turns[-1], turn)
            continue
        if turn.role == "assistant" and before == "system":
            turns.append(_BEGIN)
        turns.append(turn)
    if turns[-1].role == "assistant":
        turns.append(Message("user", GO_ON))
    elif turns[-1].role == "system":
        turns.append(_BEGIN)
    messages = tuple(turns)
    if messages == request.messages:
        return request
    return replace(request, messages=messages, goes_on=False)
