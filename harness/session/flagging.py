"""A backend that says in the trace when what it is asked looks like an injected instruction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from harness.inference import Backend, ChatRequest, R, T, Wrapper
from harness.memory.guard import injected_instruction
from harness.trace import Instant, Record, Tracer


class Flagging(Wrapper):
    """Leaves an instant in the span of a chat for each message that looks like one.

    It changes and refuses nothing: a prompt may well be about such texts. A system message is the
    caller's own, and not looked at.

    Args:
        backend: Answers the calls.
        tracer: Sees the instants; with the span of the chat around the call.
    """

    def __init__(self, backend: Backend, *, tracer: Tracer) -> None:
        super().__init__(backend)
        self._tracer = tracer

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks, and has the messages looked at when the trace is written: no call waits for it."""
        if isinstance(request, ChatRequest):
            tracer = self._tracer
            tracer.later(partial(_flags, request, tracer, tracer.current_id, tracer.now_ns()))
        return await ask(request)


def _flags(request: ChatRequest, tracer: Tracer, span: int | None, now_ns: int) -> Iterator[Record]:
    for number, message in enumerate(request.messages, start=1):
        if message.role == "system":
            continue
        suspicion = injected_instruction(message.content)
        if suspicion is not None:
            yield Instant(
                span=span,
                name="suspicious message",
                time_ns=now_ns,
                attributes={
                    "message": number,
                    "role": message.role,
                    "reason": suspicion.reason,
                    "excerpt": tracer.excerpt(suspicion.excerpt),
                },
            )
