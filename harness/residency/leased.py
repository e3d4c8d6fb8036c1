"""A backend whose calls hold a lease on their model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.inference import Backend, ChatRequest, R, T, Wrapper, most_tokens_of
from harness.residency.budget import KeepAliveBudget


class Leased(Wrapper):
    """Leases the model for the length of each call.

    Args:
        backend: Answers once the model is resident.
        budget: Lends the model.
        model: Its tag.
        context_tokens: Of one call, prompt and reply together; None where nobody knows.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        budget: KeepAliveBudget,
        model: str,
        context_tokens: int | None = None,
    ) -> None:
        super().__init__(backend)
        self._budget = budget
        self._model = model
        self._context_tokens = context_tokens

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks while the lease is held; see `KeepAliveBudget.lease`."""
        async with self._budget.lease(self._model, kv_tokens=self._kv_tokens(request)):
            return await ask(request)

    def _kv_tokens(self, request: object) -> int:
        """What the call may come to hold in the KV cache; an upper bound."""
        if not isinstance(request, ChatRequest):
            return 0
        most = most_tokens_of(request)
        if self._context_tokens is None:
            return most
        return (
            min(most, self._context_tokens) if request.max_output_tokens else self._context_tokens
        )
