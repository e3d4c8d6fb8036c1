"""A model call in the trace: its span, its phases and its outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial

from harness.inference.completion import Completion, Embeddings, Ranking, Usage
from harness.inference.request import (
    SAMPLING,
    ChatRequest,
    Message,
    Request,
    RerankRequest,
    most_tokens_of_messages,
)
from harness.trace import UNRELIABLE, Instant, Interval, Record, Span, SpanRecord, Tracer, events

_SETTINGS = (*SAMPLING, "reasoning_effort", "seed")


def call_span(request: Request, tracer: Tracer) -> Span:
    """The span of one attempt, on the model's own track."""
    # The track shows at a glance when the model was busy, and what it waited for.
    model, role, track = request.model, request.role, f"model {request.model}"
    if not isinstance(request, ChatRequest):
        kind = events.Rerank if isinstance(request, RerankRequest) else events.Embed
        return tracer.span(kind(track=track, model=model, role=role, texts=len(request.texts)))
    chat = events.Chat(
        track=track,
        model=model,
        role=role,
        label=" · ".join(filter(None, (tracer.current_node, request.role))) or "chat",
        temperature=request.temperature,
        **{name: getattr(request, name) for name in _SETTINGS},
        max_output_tokens=request.max_output_tokens,
        extra_body=dict(request.extra_body or {}) or None,
        structured=request.reply_schema is not None,
        asks_again=request.asks_again,
        tools_offered=len(request.tools) or None,
        prompt_chars=sum(len(message.content) for message in request.messages),
        prompt_sha256=tracer.content(partial(conversation_text, request.messages)),
    )
    return tracer.span(chat)


def with_trace_listeners(request: ChatRequest, span: Span) -> ChatRequest:
    """The request, whose `on_text` also passes each piece to the listeners of the trace."""
    tracer, on_text = span.tracer, request.on_text
    if not tracer.hears_text:
        return request

    def pass_on(text: str) -> None:
        # They may hear several attempts, so a piece that they heard prevents no further attempt.
        tracer.piece(text, span=span.id)
        if on_text is not None:
            on_text(text)

    return replace(request, on_text=pass_on)


KvBytes = Callable[[int], int]
"""From the tokens of a prompt to the bytes that they take of a model's KV cache."""


def conversation_text(messages: Iterable[Message]) -> str:
    """The conversation as one text, as the journal keeps it: calls and images after the content."""
    parts: list[str] = []
    for message in messages:
        call_id = f" {message.answers}" if message.answers else ""
        parts.append(f"[{message.role}{call_id}]\n{message.content}")
        parts += _parts_beside_content(message)
    return "\n\n".join(parts)


_LABEL = re.compile(r"(?:\A|\n\n)\[(?:system|user|assistant|tool)(?: [^\]\n]*)?\]\n")
"""The text that `conversation_text` writes before a message."""


def most_tokens_of_conversation(text: str) -> int:
    """The meter's bound on a prompt's tokens, from its `conversation_text`, tools not included."""
    # The meter counts the contents alone; the labels would be two tokens more a message.
    contents, messages = _LABEL.subn("", text)
    return most_tokens_of_messages(contents, messages=messages)


def _parts_beside_content(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        lines = [f"[calls {call.name}, {call.id}]", call.arguments, *_extra_parts(call.extra)]
        yield "\n".join(lines)
    for image in message.images:
        yield image.shown
    yield from _extra_parts(message.extra)


def _extra_parts(extra: Mapping[str, object]) -> Iterator[str]:
    return (f"[{name}]\n{value}" for name, value in extra.items())


def record_answer(
    answer: Completion | Embeddings | Ranking, span: Span, *, kv_bytes: KvBytes | None = None
) -> None:
    """Adds the outcome of a call to its span; that of a chat is made when the trace is written."""
    if isinstance(answer, Completion):
        span.tracer.later(partial(_chat_outcome, answer, span, kv_bytes))
    else:
        span.set(model_id=answer.model_id, input_tokens=answer.input_tokens)


def token_counts(usage: Usage) -> dict[str, int | None]:
    """Usage as the attributes of a span; rarely reported figures are left out if missing."""
    rare = {"reasoning_tokens", "draft_tokens", "accepted_tokens"}
    counts = ((field.name, getattr(usage, field.name)) for field in fields(usage))
    return {name: count for name, count in counts if count is not None or name not in rare}


def _chat_outcome(completion: Completion, span: Span, kv_bytes: KvBytes | None) -> Iterator[Record]:
    """Sets the outcome of a chat on its span; returns the records of its phases."""
    yield from _timings(completion, span)
    is_new, usage = not completion.from_cache, completion.usage
    attributes = {
        "cost_usd": completion.cost_usd,
        "cache_saved_usd": completion.cache_saved_usd,
        "schema": completion.structured,
        "tools": completion.tools,
        "dropped": completion.dropped or None,
        "attempts": completion.attempts if is_new and completion.attempts > 1 else None,
        "connecting_ns": completion.connecting_ns if is_new else None,
    }
    span.set(**{name: value for name, value in attributes.items() if value is not None})
    if not is_new:
        # Its usage and times are on the span of the call that once took them.
        span.set(from_cache=True)
    elif usage is not None:
        span.set(**token_counts(usage))
        is_timed = any(phase.source == "measured" for phase in completion.phases)
        # Reasoning that did not come as text is in no measured decode; in a reported one it is.
        if usage.reasoning_tokens and is_timed and not completion.reasoning:
            span.set(unstreamed_tokens=usage.reasoning_tokens)
        if kv_bytes is not None:
            span.set(prompt_kv_bytes=kv_bytes(usage.input_tokens))
    parts = filter(None, [completion.text, *_parts_beside_content(completion.message)])
    span.set(
        model_id=completion.model_id,
        finish_reason=completion.finish_reason,
        reply_sha256=span.tracer.content("\n\n".join(parts)),
    )


def _timings(completion: Completion, span: Span) -> Iterator[Record]:
    """The records of a chat's phases and first token; sets its latencies on its span."""
    stalls = span.tracer.stalls
    unreliable: set[str] = set()  # latencies measured too late, since the process stood still
    sent_ns, first_ns, itl = completion.sent_ns, completion.first_token_ns, completion.itl
    for phase in completion.phases:
        time = Interval(start_ns=phase.start_ns, end_ns=phase.end_ns)
        # A phase that the server reported holds, whatever our process did meanwhile.
        is_wrong = phase.source != "reported" and stalls.falsify(
            time, from_sending=phase.start_ns == sent_ns
        )
        if phase.name == "decode" and itl is not None:
            if is_wrong:
                unreliable.add("itl_mean_ns")
            if stalls.falsify_gaps(time, longest_ns=itl.max_ns):
                unreliable |= {"itl_p95_ns", "itl_p99_ns", "itl_max_ns"}
        yield SpanRecord(
            id=span.tracer.new_id(),
            parent=span.id,
            name=phase.name,
            start_ns=phase.start_ns,
            end_ns=phase.end_ns,
            attributes={"source": UNRELIABLE if is_wrong else phase.source},
        )
    if first_ns is not None:
        yield Instant(span=span.id, name="first token", time_ns=first_ns)
        span.set(ttft_ns=first_ns - sent_ns)
        if stalls.falsify(Interval(start_ns=sent_ns, end_ns=first_ns), from_sending=True):
            unreliable.add("ttft_ns")
    if itl is not None:
        span.set(itl_mean_ns=itl.mean_ns, itl_p95_ns=itl.p95_ns)
        span.set(itl_p99_ns=itl.p99_ns, itl_max_ns=itl.max_ns)
    if unreliable:
        span.set(unreliable=sorted(unreliable))
