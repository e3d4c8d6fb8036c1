"""How many tokens a text is at most, by its length: for limits, where no tokenizer is at hand."""

from __future__ import annotations

import math

from harness.inference.request import ChatRequest

_BYTES_PER_TOKEN = 3
"""Low, so that it is an upper bound: in English there are about four, and a letter of Chinese,
which has three bytes, is a token or less."""


_PER_MESSAGE = 8
"""What a chat template puts around a message: five or six."""
_PER_CALL = 64
"""What it puts before the first, a system prompt of its own: 26 in Qwen 2.5, 60 in gpt-oss."""


def most_tokens_in(text: str) -> int:
    """Of a text, in whatever script."""
    return math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN)


def most_prompt_tokens(request: ChatRequest) -> int:
    """Of a call's prompt, with what the model's chat template adds."""
    return most_tokens_of_messages(
        "".join(message.content for message in request.messages), messages=len(request.messages)
    )


def most_tokens_of_messages(text: str, *, messages: int) -> int:
    """Of so many messages, whose contents are this text together."""
    return most_tokens_in(text) + messages * _PER_MESSAGE + _PER_CALL


def most_tokens_of(request: ChatRequest) -> int:
    """Of a call: its prompt, and the room for the reply, where that is stated."""
    return most_prompt_tokens(request) + (request.max_output_tokens or 0)
