"""The inference shim: every model call of a run goes through this one `chat`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from harness.errors import ConfigurationInvalid, did_you_mean
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.request import ChatRequest


class InferenceShim:
    """Sends each request to the backend of the model it names.

    Args:
        backends: By tag, each already wrapped in what a call must pass through.
    """

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = dict(backends)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole.

        Raises:
            ConfigurationInvalid: No endpoint has the request's tag.
            InferenceError: There is no reply.
        """
        backend = self._backends.get(request.model)
        if backend is None:
            raise ConfigurationInvalid(
                f"no endpoint is called '{request.model}'; "
                + did_you_mean(request.model, self._backends)
            )
        return await backend.chat(request)

    async def aclose(self) -> None:
        """Closes every backend, even when one of them fails to."""
        async with AsyncExitStack() as stack:
            for backend in self._backends.values():
                stack.push_async_callback(backend.aclose)
