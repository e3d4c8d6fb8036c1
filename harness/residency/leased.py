"""A backend whose calls hold a lease on their model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.inference import Backend, R, T, Wrapper
from harness.residency.budget import KeepAliveBudget


class Leased(Wrapper):
    """Leases the model for the length of each call.

    Args:
        backend: Answers once the model is resident.
        budget: Lends the model.
        model: Its tag.
    """

    def __init__(self, backend: Backend, *, budget: KeepAliveBudget, model: str) -> None:
        super().__init__(backend)
        self._budget = budget
        self._model = model

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks while the lease is held; see `KeepAliveBudget.lease`."""
        async with self._budget.lease(self._model):
            return await ask(request)
