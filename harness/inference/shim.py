"""The inference shim: every model call of a run goes through this one `chat`."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import ConfigurationInvalid, did_you_mean
from harness.inference.backend import Backend
from harness.inference.completion import Completion, Embeddings
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest


class InferenceShim:
    """Sends each request to the backend of the model it names.

    Args:
        backends: By tag, each already wrapped in what a call must pass through; closed by whoever
            opened them.
    """

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = dict(backends)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole.

        Raises:
            ConfigurationInvalid: No endpoint has the request's tag.
            InferenceError: There is no reply.
        """
        return await self._backend(request.model).chat(request)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; raises as `chat` does, and `NotOffered`."""
        return await self._backend(request.model).embed(request)

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; raises as `chat` does, and `NotOffered`."""
        return await self._backend(request.model).count_tokens(request)

    def _backend(self, tag: str) -> Backend:
        backend = self._backends.get(tag)
        if backend is None:
            raise ConfigurationInvalid(
                f"no endpoint is called '{tag}'; " + did_you_mean(tag, self._backends),
                code="endpoint.unknown",
            )
        return backend
