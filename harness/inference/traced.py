"""A backend whose calls leave spans."""

from __future__ import annotations

from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.request import ChatRequest
from harness.trace import Tracer


class Traced:
    """Wraps every call in a `chat` span with its phases inside.

    Args:
        backend: Answers the calls.
        tracer: Its clock must be the backend's, or the phases will not lie inside the span.
    """

    def __init__(self, backend: Backend, *, tracer: Tracer) -> None:
        self._backend = backend
        self._tracer = tracer

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        tracer = self._tracer
        prompt = "\n\n".join(f"[{m.role}]\n{m.content}" for m in request.messages)
        with tracer.span(
            "chat",
            label=f"chat {request.role}" if request.role else "chat",
            model=request.model,
            role=request.role,
            temperature=request.temperature,
            seed=request.seed,
            max_output_tokens=request.max_output_tokens,
            structured=request.reply_schema is not None,
            prompt_sha256=tracer.content(prompt),
        ) as span:
            completion = await self._backend.chat(request)
            for phase in completion.phases:
                tracer.completed_span(
                    phase.name, start_ns=phase.start_ns, end_ns=phase.end_ns, source=phase.source
                )
            if completion.first_token_ns is not None:
                tracer.instant("first token", at_ns=completion.first_token_ns)
                span.set(ttft_ns=completion.first_token_ns - completion.sent_ns)
            span.set(
                model_id=completion.model_id,
                input_tokens=completion.usage.input_tokens,
                cached_tokens=completion.usage.cached_tokens,
                output_tokens=completion.usage.output_tokens,
                finish_reason=completion.finish_reason,
                reply_sha256=tracer.content(completion.text),
            )
        return completion

    async def aclose(self) -> None:
        """Closes the backend."""
        await self._backend.aclose()
