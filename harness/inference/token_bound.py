"""How many tokens a text is at most, by its length: for limits, where no tokenizer is at hand."""

from __future__ import annotations

import math

from harness.inference.request import ChatRequest

_BYTES_PER_TOKEN = 3
"""Low, so that it is an upper bound: in English there are about four, and a letter of Chinese,
which has three bytes, is a token or less."""


def most_tokens_in(text: str) -> int:
    """Of a text, in whatever script."""
    return math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN)


def most_prompt_tokens(request: ChatRequest) -> int:
    """Of a call's prompt."""
    return most_tokens_in("".join(message.content for message in request.messages))


def most_tokens_of(request: ChatRequest) -> int:
    """Of a call: its prompt, and the room for the reply, where that is stated."""
    return most_prompt_tokens(request) + (request.max_output_tokens or 0)
