"""A backend whose calls leave spans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from harness.inference.backend import Backend
from harness.inference.completion import Completion, Embeddings, Usage
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest
from harness.trace import Instant, Record, Span, SpanRecord, Tracer


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
        with tracer.span(
            "chat",
            # On the model's own track: who looks for where the time went sees at a glance which
            # model was busy, and what it waited for.
            track=f"model {request.model}",
            label=f"chat {request.role}" if request.role else "chat",
            model=request.model,
            role=request.role,
            temperature=request.temperature,
            **request.cutoffs,
            seed=request.seed,
            max_output_tokens=request.max_output_tokens,
            structured=request.reply_schema is not None,
            prompt_sha256=tracer.content(partial(_as_text, request)),
        ) as span:
            tracer.flow("call", source=span.parent, target=span.id)
            completion = await self._backend.chat(request)
            tracer.later(partial(_told, completion, span))
        return completion

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        with self._span("embed", request, texts=len(request.texts)) as span:
            embeddings = await self._backend.embed(request)
            span.set(model_id=embeddings.model_id, input_tokens=embeddings.input_tokens)
        return embeddings

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; see `Backend.count_tokens`."""
        with self._span("count tokens", request) as span:
            count = await self._backend.count_tokens(request)
            span.set(tokens=count)
        return count

    async def aclose(self) -> None:
        """Closes the backend."""
        await self._backend.aclose()

    def _span(self, name: str, request: EmbedRequest | CountRequest, **attributes: object) -> Span:
        return self._tracer.span(
            name,
            track=f"model {request.model}",
            model=request.model,
            role=request.role,
            **attributes,
        )


def _as_text(request: ChatRequest) -> str:
    """The conversation as one text, as the journal keeps it."""
    return "\n\n".join(f"[{m.role}]\n{m.content}" for m in request.messages)


def _told(completion: Completion, span: Span) -> Iterator[Record]:
    """What is known of a call when it is over: where its time went, and what came of it."""
    for phase in completion.phases:
        yield SpanRecord(
            id=span.tracer.new_id(),
            parent=span.id,
            name=phase.name,
            start_ns=phase.start_ns,
            end_ns=phase.end_ns,
            attributes={"source": phase.source},
        )
    if completion.first_token_ns is not None:
        yield Instant(span=span.id, name="first token", time_ns=completion.first_token_ns)
        span.set(ttft_ns=completion.first_token_ns - completion.sent_ns)
    if completion.itl is not None:
        span.set(itl_mean_ns=completion.itl.mean_ns, itl_p95_ns=completion.itl.p95_ns)
    if completion.cost_usd is not None:
        span.set(cost_usd=completion.cost_usd)
    if completion.structured is not None:
        span.set(schema=completion.structured)
    if completion.dropped:
        span.set(dropped=completion.dropped)
    if completion.attempts > 1 and not completion.from_cache:
        span.set(attempts=completion.attempts)
    if completion.from_cache:
        # What it once took was told of the call that took it.
        span.set(from_cache=True)
    elif completion.usage is not None:
        span.set(**token_counts(completion.usage))
    span.set(
        model_id=completion.model_id,
        finish_reason=completion.finish_reason,
        reply_sha256=span.tracer.content(completion.text),
    )


def token_counts(usage: Usage) -> dict[str, int | None]:
    """Usage as the attributes of a span; what is seldom told is left out when it is not."""
    counts = {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
    more = {
        "reasoning_tokens": usage.reasoning_tokens,
        "draft_tokens": usage.draft_tokens,
        "accepted_tokens": usage.accepted_tokens,
    }
    return counts | {name: count for name, count in more.items() if count is not None}
