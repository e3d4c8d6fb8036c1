"""A chat request in the OpenAI wire's words, which litellm's callers use too."""

from __future__ import annotations

from collections.abc import Iterable

from harness.inference.request import ChatRequest, Message


def wire_messages(messages: Iterable[Message]) -> list[dict[str, str]]:
    """A conversation as JSON, in the shape that all chat protocols have for it."""
    return [{"role": m.role, "content": m.content} for m in messages]


def wire_fields(request: ChatRequest, model_id: str, *, stream: bool = True) -> dict[str, object]:
    """The fields of a chat call, its schema apart: every server has its own place for that.

    What was not asked for is left out: some servers refuse fields they do not know.
    """
    fields: dict[str, object] = {
        "model": model_id,
        "messages": wire_messages(request.conversation),
        "temperature": request.temperature,
        **request.cutoffs,
    }
    if request.max_output_tokens is not None:
        fields["max_tokens"] = request.max_output_tokens
    if stream:
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True}
    if request.frequency_penalty:
        fields["frequency_penalty"] = request.frequency_penalty
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.top_logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = request.top_logprobs
    return fields
