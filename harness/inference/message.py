"""Messages: what a conversation is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    """Who says it."""
    content: str
    """What is said."""


Prompt = str | Sequence[Message]
"""What a model is asked: a text, which becomes one user message, or a conversation."""


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as messages."""
    return (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
