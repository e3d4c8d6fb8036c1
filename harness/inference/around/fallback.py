"""Asking another model when the one that was meant cannot answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from harness.errors import (
    CallTimeout,
    EndpointUnreachable,
    HarnessError,
    InferenceError,
    LimitReached,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.reply_in_progress import Listener
from harness.inference.request import ChatRequest
from harness.inference.time_limits import Deadline
from harness.trace import Tracer


def another_may_answer(error: InferenceError) -> bool:
    """Whether the endpoint was unable to answer, rather than asked or set up wrongly.

    What a person has to mend must be seen, not papered over.
    """
    match error:
        case EndpointUnreachable() | Overloaded() | StreamCut() | CallTimeout():
            return True
        case ServerError():
            return error.status is None or error.status >= 500
        case _:
            return False


class FallingBack(Wrapper):
    """A backend with others to chat in its place.

    A call's own `timeout_s` is for all of them together; their endpoints' are each its own.

    Args:
        backend: Asked first.
        others: By tag, in the order in which they are asked; not closed by this one.
        tracer: Sees who is asked instead of whom, and why.
    """

    def __init__(self, backend: Backend, *, others: Mapping[str, Backend], tracer: Tracer) -> None:
        super().__init__(backend)
        self._others = dict(others)
        self._tracer = tracer

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`. Whoever has heard a part of one hears no other.

        When nobody answers, the first one's error is raised, with the others' as its notes.
        """
        if request.timeout_s is not None:
            deadline = Deadline(request.timeout_s, clock=self._tracer.now_ns)
            request = replace(request, deadline=deadline)
        listener = Listener(request)
        try:
            return await self._backend.chat(listener.request)
        except InferenceError as error:
            if listener.told or not another_may_answer(error):
                raise
            completion = await self._ask_others(listener, error)
            if completion is None:
                raise
            return completion

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks the first alone: another model's vectors and token counts are of no use."""
        return await ask(request)

    async def _ask_others(self, listener: Listener, first: InferenceError) -> Completion | None:
        """Whatever is wrong with one of them, the next is asked."""
        failed: HarnessError = first
        model = listener.request.model
        for tag, backend in self._others.items():
            self._tracer.instant(
                "fallback",
                model=model,
                to=tag,
                reason=type(failed).__name__,
                detail=self._tracer.excerpt(str(failed)),
            )
            try:
                completion = await backend.chat(replace(listener.request, model=tag))
            except LimitReached:
                raise
            except HarnessError as error:
                if listener.told:
                    raise
                first.add_note(f"'{tag}', asked instead: {type(error).__name__}: {error}")
                model, failed = tag, error
            else:
                return replace(completion, endpoint=tag)
        return None
