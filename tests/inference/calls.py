"""What most tests of a backend need: a call to a server that is there, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from loopback import Loopback, Reply
from servers.emulated import Emulated

from harness.errors import InferenceError
from harness.inference import Backend, ChatRequest, Completion, Endpoint, Message
from harness.inference.completion import Phase
from harness.inference.providers.http import Access
from harness.inference.providers.registry import connect
from harness.trace import monotonic

REQUEST = ChatRequest(model="judge", messages=(Message("user", "Grüße, 日本"),))
PATIENCE_S = 120.0
"""For what happens at once or never; importing litellm takes half a minute on a busy machine."""

ErrorT = TypeVar("ErrorT", bound=InferenceError)
streamed_or_whole = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@asynccontextmanager
async def backend_at(
    server: Emulated | str,
    *,
    clock: Callable[[], int] = monotonic,
    api_key: str | None = None,
    **fields: object,
) -> AsyncIterator[Any]:
    """A backend that leads to a server which is running, or to an address."""
    url = server if isinstance(server, str) else server.url
    endpoint = Endpoint.model_validate(
        {"tag": "judge", "url": url, "model_id": "served-name", **fields}
    )
    backend: Backend = connect(endpoint, Access(api_key=api_key, clock=clock))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield backend
    finally:
        await backend.aclose()


def ask(
    *replies: Emulated | Reply, request: ChatRequest = REQUEST, calls: int = 1, **how: Any
) -> tuple[Completion, Any]:
    """The last of some calls one after another, and the server with what it was asked.

    The server is given, or plays these replies.
    """
    server = replies[0] if isinstance(replies[0], Emulated) else Loopback(replies)

    async def main() -> Completion:
        async with server, backend_at(server, **how) as backend:
            for _ in range(calls):
                completion = await backend.chat(request)
            return completion

    return asyncio.run(main()), server


def fail(error: type[ErrorT], *replies: Emulated | Reply, **how: Any) -> ErrorT:
    """The error that a call ends in, after one request unless its server is given."""
    server = replies[0] if isinstance(replies[0], Emulated) else Loopback(replies)
    with pytest.raises(InferenceError) as caught:
        ask(server, **how)
    assert type(caught.value) is error
    assert isinstance(replies[0], Emulated) or len(server.asked) == 1
    return caught.value


def phase(name: str, start_ms: int, end_ms: int, source: str) -> Phase:
    """A phase between two times in milliseconds."""
    return Phase(name=name, start_ns=start_ms * 1_000_000, end_ns=end_ms * 1_000_000, source=source)


def cut_at(stream: bytes, size: int) -> tuple[bytes, ...]:
    """A stream in pieces of so many bytes."""
    return tuple(stream[at : at + size] for at in range(0, len(stream), size))
