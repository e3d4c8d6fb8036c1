"""What every way of reaching a model looks like, wrapped or bare."""

from __future__ import annotations

from typing import Protocol

from harness.inference.completion import Completion
from harness.inference.request import ChatRequest


class Backend(Protocol):
    """Answers chat requests.

    Retry, tracing and leases wrap a backend behind this same protocol.
    """

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole.

        Raises:
            InferenceError: There is none; never a part of one.
        """
        ...

    async def aclose(self) -> None:
        """Releases what the backend holds; no call may be under way."""
        ...
