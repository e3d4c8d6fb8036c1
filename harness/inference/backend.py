"""`Backend`, the protocol of all ways to reach a model, and the scripted backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from harness.errors import InferenceError, NotOffered
from harness.inference.completion import Completion, Embeddings, FinishReason, Usage
from harness.inference.reply_in_progress import call_phases
from harness.inference.request import ChatRequest, EmbedRequest, ToolCall
from harness.trace import Clock, monotonic


class Backend(Protocol):
    """Answers calls to one model; `Client.call` adds limits, retry, places and the record.

    One whose server can rank texts also has `rerank(request: RerankRequest) -> Ranking`.
    """

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; raises `InferenceError` if there is none, or only a part of one."""
        ...

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; raises `InferenceError`, and `NotOffered` of a server without."""
        ...

    async def aclose(self) -> None:
        """Releases the backend's resources; no call may be under way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """A scripted reply with more than a text."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason | None = None
    """By default `tool_calls` if there are any, else `stop`."""
    reasoning: str = ""
    usage: Usage | None = None
    """By default the number of words, in and out."""


Reply = str | ScriptedReply | Completion | InferenceError
"""A text or more to answer with, the completion of another call, or an error to raise."""


class ScriptedBackend:
    """Answers from a list, in order, or from a function of the request.

    Args:
        replies: One for each call, a text for a single one; or a function of the request.
        delay_s: Seconds that each call takes.
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
            script = iter([replies] if isinstance(replies, str) else replies)  # not its letters
            self._next = lambda _request: next(script)

    async def chat(self, request: ChatRequest) -> Completion:
        """The script's next reply, or its error; raises LookupError if it has no more."""
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
        if isinstance(reply, str):
            reply = ScriptedReply(text=reply)
        if request.on_piece and reply.text:
            request.on_piece()
        if request.on_text and reply.text:
            request.on_text(reply.text)
        done_ns = self._clock()
        phases = call_phases(sent_ns=sent_ns, first_token_ns=done_ns, done_ns=done_ns)
        if isinstance(reply, Completion):
            return replace(reply, sent_ns=sent_ns, first_token_ns=done_ns, phases=phases)
        counted = Usage(
            input_tokens=sum(len(m.content.split()) for m in request.messages),
            output_tokens=len(reply.text.split()),
            cached_tokens=None,
        )
        return Completion(
            text=reply.text,
            reasoning=reply.reasoning,
            finish_reason=reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop"),
            tool_calls=reply.tool_calls,
            tools="native" if request.tools else None,
            usage=reply.usage or counted,
            sent_ns=sent_ns,
            first_token_ns=done_ns,
            phases=phases,
            model_id=request.model,
        )

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Not offered: a script has only replies."""
        raise NotOffered("a scripted backend does not embed", endpoint=request.model)

    async def aclose(self) -> None:
        """Nothing to release."""
