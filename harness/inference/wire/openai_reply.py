"""The OpenAI wire's replies, as its servers send them: whole, or one streamed chunk at a time.

Only what is read is declared; servers add fields of their own freely.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from harness.inference.completion import FinishReason, TokenLogprob, Usage
from harness.inference.phases import ServerTimings

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "content_filter": "content_filter",
}
BROKEN_OFF = frozenset({"abort", "error"})
"""Finish reasons of vLLM, SGLang and MLC for a generation that did not come to its end."""


class PromptTokensDetails(BaseModel):
    """Part of `usage`."""

    cached_tokens: int | None = None


class CompletionTokensDetails(BaseModel):
    """Part of `usage`."""

    reasoning_tokens: int | None = None


class WireUsage(BaseModel):
    """Sent with the last chunk when `stream_options.include_usage` was asked for."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    reasoning_tokens: int | None = None
    """SGLang's place for it."""
    prompt_time: float | None = None
    """TabbyAPI's, in seconds."""
    completion_time: float | None = None
    """TabbyAPI's, in seconds."""


class LlamaTimings(BaseModel):
    """llama-server's `timings`, in milliseconds."""

    prompt_ms: float
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class VllmMetrics(BaseModel):
    """vLLM's `metrics`, in milliseconds; only with `--enable-per-request-metrics`."""

    queue_time_ms: float | None = None
    generation_time_ms: float | None = None


class WireTopLogprob(BaseModel):
    """A token that might have stood in another's place."""

    token: str
    logprob: float


class WireLogprob(WireTopLogprob):
    """A token of the reply."""

    top_logprobs: list[WireTopLogprob] | None = None


class WireLogprobs(BaseModel):
    """Those of a chunk, or of a whole reply."""

    content: list[WireLogprob] | None = None


class Delta(BaseModel):
    """What a chunk adds. vLLM says `reasoning`, llama-server `reasoning_content`."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def thought(self) -> str:
        """The reasoning, by whichever name."""
        return self.reasoning or self.reasoning_content or ""


class Choice(BaseModel):
    """The only choice, since one is asked for."""

    delta: Delta = Delta()
    message: Delta | None = None
    """In place of the delta, where the reply is whole."""
    finish_reason: str | None = None
    logprobs: WireLogprobs | None = None


class Chunk(BaseModel):
    """One `data:` line, or a whole reply.

    The usage chunk has no choices; an error chunk has nothing else.
    """

    model: str | None = None
    kind: str | None = Field(default=None, alias="object")
    choices: list[Choice] = []
    usage: WireUsage | None = None
    timings: LlamaTimings | None = None
    metrics: VllmMetrics | None = None
    error: object = None

    @property
    def is_error(self) -> bool:
        """Whether it tells of a failure, nested or flat."""
        return self.error is not None or self.kind == "error"


def finish_reason(said: str) -> FinishReason:
    """What a server's word for it means; servers have more words, all for a proper end."""
    return _FINISH_REASONS.get(said, "stop")


def token_logprobs(said: WireLogprobs | None) -> tuple[TokenLogprob, ...]:
    """The log probabilities of a chunk."""
    return tuple(
        TokenLogprob(
            token=one.token,
            logprob=one.logprob,
            top=tuple((other.token, other.logprob) for other in one.top_logprobs or ()),
        )
        for one in (said.content or () if said else ())
    )


def usage_of(said: WireUsage | None, timings: LlamaTimings | None) -> Usage | None:
    """Tokens in and out, from whatever places servers have for them."""
    if said is None:
        return None
    cached, thought = said.prompt_tokens_details, said.completion_tokens_details
    return Usage(
        input_tokens=said.prompt_tokens,
        output_tokens=said.completion_tokens,
        cached_tokens=cached.cached_tokens if cached else None,
        reasoning_tokens=thought.reasoning_tokens if thought else said.reasoning_tokens,
        draft_tokens=timings.draft_n if timings else None,
        accepted_tokens=timings.draft_n_accepted if timings else None,
    )


def server_timings(
    *, usage: WireUsage | None, timings: LlamaTimings | None, metrics: VllmMetrics | None
) -> ServerTimings | None:
    """What the server says of the call's time, in whichever place it does."""
    if timings is not None:
        return ServerTimings(
            prefill_ns=_ns(timings.prompt_ms, _NS_PER_MS),
            decode_ns=_ns(timings.predicted_ms, _NS_PER_MS),
        )
    if metrics is not None:
        return ServerTimings(
            queue_ns=_ns(metrics.queue_time_ms, _NS_PER_MS),
            decode_ns=_ns(metrics.generation_time_ms, _NS_PER_MS),
        )
    if usage is not None and usage.prompt_time is not None:
        return ServerTimings(
            prefill_ns=_ns(usage.prompt_time, _NS_PER_S),
            decode_ns=_ns(usage.completion_time, _NS_PER_S),
        )
    return None


def _ns(value: float | None, unit_ns: int) -> int | None:
    return None if value is None else max(0, round(value * unit_ns))
