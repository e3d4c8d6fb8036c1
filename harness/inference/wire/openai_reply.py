"""The OpenAI wire's replies, as its servers send them: one streamed chunk at a time.

Only what is read is declared; servers add fields of their own freely.
"""

from __future__ import annotations

from pydantic import BaseModel

from harness.inference.completion import FinishReason

_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "content_filter": "content_filter",
}


class PromptTokensDetails(BaseModel):
    """Part of `usage`."""

    cached_tokens: int | None = None


class WireUsage(BaseModel):
    """Sent with the last chunk when `stream_options.include_usage` was asked for."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class LlamaTimings(BaseModel):
    """llama-server's `timings`, in milliseconds."""

    prompt_ms: float


class VllmMetrics(BaseModel):
    """vLLM's `metrics`, in milliseconds; only with `--enable-per-request-metrics`."""

    queue_time_ms: float | None = None


class Delta(BaseModel):
    """What a chunk adds. vLLM says `reasoning`, llama-server `reasoning_content`."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(BaseModel):
    """The only choice, since one is asked for."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class Chunk(BaseModel):
    """One `data:` line. The usage chunk has no choices; an error chunk has nothing else."""

    model: str | None = None
    choices: list[Choice] = []
    usage: WireUsage | None = None
    timings: LlamaTimings | None = None
    metrics: VllmMetrics | None = None
    error: object = None


def finish_reason(said: str) -> FinishReason:
    """What a server's word for it means; servers have more words, all for a proper end."""
    return _FINISH_REASONS.get(said, "stop")
