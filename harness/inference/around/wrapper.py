"""What all wrappers of a backend share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from harness.inference.backend import Backend
from harness.inference.completion import Completion, Embeddings
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest

R = TypeVar("R", ChatRequest, EmbedRequest, CountRequest)
T = TypeVar("T")


class Wrapper(ABC):
    """A backend around a backend: whatever is asked goes through `around`.

    Args:
        backend: Answers.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @abstractmethod
    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """One call.

        Args:
            request: What is asked.
            ask: Asks it of the backend; more than once, or something like it, if need be.
        """

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        return await self.around(request, self._backend.chat)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        return await self.around(request, self._backend.embed)

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; see `Backend.count_tokens`."""
        return await self.around(request, self._backend.count_tokens)

    async def aclose(self) -> None:
        """Closes the backend."""
        await self._backend.aclose()
