"""What every way of reaching a model looks like, and the one that answers from a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from harness.errors import InferenceError, NotOffered
from harness.inference.completion import Completion, Embeddings, Usage
from harness.inference.reply_in_progress import call_phases
from harness.inference.request import ChatRequest, EmbedRequest
from harness.trace import Clock, monotonic


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

    async def aclose(self) -> None:
        """Releases what the backend holds; no call may be under way."""
        ...


Reply = str | InferenceError
"""A text to answer with, or an error to raise."""


class ScriptedBackend:
    """Answers from a list, in order, or from a function of the request.

    Args:
        replies: Given out one per call; a function is asked at every call.
        delay_s: How long each call takes.
        clock: The caller's clock.

    Attributes:
        requests: Every request received, in order.
    """

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[ChatRequest], Reply],
        *,
        delay_s: float = 0.0,
        clock: Clock = monotonic,
    ) -> None:
        self.requests: list[ChatRequest] = []
        self._delay_s = delay_s
        self._clock = clock
        if callable(replies):
            self._next = replies
        else:
            script = iter(replies)
            self._next = lambda _request: next(script)

    async def chat(self, request: ChatRequest) -> Completion:
        """The script's next reply.

        Raises:
            InferenceError: The script holds one.
            LookupError: The script is over.
        """
        self.requests.append(request)
        sent_ns = self._clock()
        # Even without a delay another task may run, as with any real backend.
        await asyncio.sleep(self._delay_s)
        try:
            reply = self._next(request)
        except StopIteration:
            raise LookupError(f"the script has no reply for call {len(self.requests)}") from None
        if isinstance(reply, InferenceError):
            raise reply
        if request.on_piece and reply:
            request.on_piece()
        if request.on_text and reply:
            request.on_text(reply)
        done_ns = self._clock()
        return Completion(
            text=reply,
            reasoning="",
            finish_reason="stop",
            usage=Usage(
                input_tokens=sum(len(m.content.split()) for m in request.messages),
                output_tokens=len(reply.split()),
                cached_tokens=None,
            ),
            sent_ns=sent_ns,
            first_token_ns=done_ns,
            phases=call_phases(sent_ns=sent_ns, first_token_ns=done_ns, done_ns=done_ns),
            model_id=request.model,
        )

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Not offered: a script is of replies."""
        raise NotOffered("a scripted backend does not embed", endpoint=request.model)

    async def aclose(self) -> None:
        """Nothing to release."""
