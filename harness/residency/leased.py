"""A backend whose calls hold a lease on their model."""

from __future__ import annotations

from harness.inference import Backend, ChatRequest, Completion
from harness.residency.budget import KeepAliveBudget


class Leased:
    """Leases the model for the length of each call.

    Args:
        backend: Answers once the model is resident.
        budget: Lends the model.
        model: Its tag.
    """

    def __init__(self, backend: Backend, *, budget: KeepAliveBudget, model: str) -> None:
        self._backend = backend
        self._budget = budget
        self._model = model

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat` and `KeepAliveBudget.lease`."""
        async with self._budget.lease(self._model):
            return await self._backend.chat(request)

    async def aclose(self) -> None:
        """Closes the backend."""
        await self._backend.aclose()
