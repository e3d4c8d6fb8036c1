"""Messages: what a conversation is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from harness.errors import InvalidInput

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Raises:
        InvalidInput: There is no such role; or the content is no text, or holds half a surrogate
            pair, which no wire can carry. Such text comes from reading bytes that are not UTF-8.
    """

    role: Role
    """Who says it."""
    content: str
    """What is said."""

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InvalidInput(
                f"a message's role is {self.role!r}; it is one of {', '.join(get_args(Role))}",
                code="request.role-unknown",
            )
        if not isinstance(self.content, str):
            raise InvalidInput(
                f"the content of the {self.role} message is a {type(self.content).__name__}; "
                "give a text",
                code="request.content-not-text",
            )
        try:
            self.content.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"the {self.role} message is not text: character {error.start} is half a surrogate "
                "pair; was it read from bytes that are not UTF-8?",
                code="request.not-text",
            ) from error


Prompt = str | Message | Mapping[str, object] | Sequence[Message | Mapping[str, object]]
"""What a model is asked: a text, which becomes one user message, or a conversation.

A message may be a dictionary, `{"role": "user", "content": "…"}`, whose content is a text or a list
of parts such as `{"type": "text", "text": "…"}`.
"""


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as messages.

    Raises:
        InvalidInput: It is none, or has a message that is none or holds more than text.
    """
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    if isinstance(prompt, Message | Mapping):
        prompt = (prompt,)
    if not isinstance(prompt, Sequence):
        raise _no_message(prompt)
    return tuple(map(_message, prompt))


def as_texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    """The texts; a lone one is one, and not its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _message(given: object) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping) or set(given) != {"role", "content"}:
        raise _no_message(given)
    content = given["content"]
    if isinstance(content, list | tuple):
        content = "".join(map(_text_of, content))
    return Message(given["role"], content)


def _text_of(part: object) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(text)}:
            return text
    kind = part.get("type") if isinstance(part, Mapping) else None
    raise InvalidInput(
        f"a part of a message is {kind or type(part).__name__!r}; only text is sent: "
        '{"type": "text", "text": "…"}',
        code="request.part-not-text",
    )


def _no_message(given: object) -> InvalidInput:
    keys = f" with the keys {list(given)}" if isinstance(given, Mapping) else ""
    return InvalidInput(
        f"not a message: {type(given).__name__}{keys}; give a text, a Message, or "
        '{"role": "user", "content": "…"}, or a list of messages',
        code="request.not-a-message",
    )
