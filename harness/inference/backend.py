"""What every way of reaching a model looks like, wrapped or bare."""

from __future__ import annotations

from typing import Protocol

from harness.inference.completion import Completion, Embeddings
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest


class Backend(Protocol):
    """Answers calls to one model.

    Retry, tracing and leases wrap a backend behind this same protocol.
    """

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole.

        Raises:
            InferenceError: There is none; never a part of one.
        """
        ...

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text.

        Raises:
            NotOffered: The server does not embed.
            InferenceError: There are none.
        """
        ...

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is, by the model's own tokenizer and template.

        Raises:
            NotOffered: The server does not count.
            InferenceError: There is no count.
        """
        ...

    async def aclose(self) -> None:
        """Releases what the backend holds; no call may be under way."""
        ...
