"""Asking another model when the one that was meant cannot answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from harness.errors import (
    CallTimeout,
    EndpointUnreachable,
    InferenceError,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference.around.listener import Listener
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.request import ChatRequest
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

    Each has its own time limit, so a call may take as long as all of them together.

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

        When nobody answers, the last one's error is raised, with those before it as its notes.
        """
        listener = Listener(request)
        request = listener.request
        backend, waiting = self._backend, list(self._others.items())
        failures: list[str] = []
        while True:
            try:
                return await backend.chat(request)
            except InferenceError as error:
                if not waiting or listener.told or not another_may_answer(error):
                    for failure in failures:
                        error.add_note(f"before that, {failure}")
                    raise
                tag, backend = waiting.pop(0)
                self._tracer.instant(
                    "fallback",
                    model=request.model,
                    to=tag,
                    reason=type(error).__name__,
                    detail=self._tracer.excerpt(str(error)),
                )
                failures.append(f"{type(error).__name__}: {error}")
                request = replace(request, model=tag)

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks the first alone: another model's vectors and token counts are of no use."""
        return await ask(request)
