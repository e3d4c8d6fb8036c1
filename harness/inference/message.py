"""Messages: what a conversation is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import InvalidInput

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Raises:
        InvalidInput: The content holds half a surrogate pair, which no wire can carry. Such text
            comes from reading bytes that are not UTF-8.
    """

    role: Role
    """Who says it."""
    content: str
    """What is said."""

    def __post_init__(self) -> None:
        try:
            self.content.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"the {self.role} message is not text: character {error.start} is half a surrogate "
                "pair; was it read from bytes that are not UTF-8?",
                code="request.not-text",
            ) from error


Prompt = str | Sequence[Message]
"""What a model is asked: a text, which becomes one user message, or a conversation."""


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as messages."""
    return (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
