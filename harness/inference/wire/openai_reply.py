"""The OpenAI wire's replies, as its servers send them: whole, or one streamed chunk at a time.

Only what is read is declared; servers add fields of their own freely.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, Field

from harness.inference.completion import FinishReason, TokenLogprob, Usage

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",  # Together
    "eos_token": "stop",  # TGI
    "stop_sequence": "stop",  # TGI, Anthropic
    "end_turn": "stop",  # Anthropic
    "complete": "stop",  # Cohere
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",  # Anthropic
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",  # Anthropic, Cohere, Gemini
    "model_length": "length",  # Mistral
    "model_context_window_exceeded": "length",  # Anthropic
    "content_filter": "content_filter",
    "refusal": "content_filter",  # Anthropic
    "safety": "content_filter",  # Gemini
    "sensitive": "content_filter",  # GLM
}
"""In lower case. What is left out, on purpose: `abort` and `error` (vLLM, SGLang, MLC), `timeout`
and `cancelled` (TensorRT-LLM), `insufficient_system_resource` (DeepSeek), `network_error` (GLM)."""


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


class TextPart(BaseModel):
    """A part of content that comes in parts; of any other kind, we have no use for the reply."""

    text: str


class Delta(BaseModel):
    """What a chunk adds. vLLM says `reasoning`, llama-server `reasoning_content`."""

    said: str | list[TextPart] | None = Field(default=None, alias="content")
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def content(self) -> str | None:
        """A piece of the answer."""
        if isinstance(self.said, list):
            return "".join(part.text for part in self.said)
        return self.said

    @property
    def thought(self) -> str:
        """The reasoning, by whichever name."""
        return self.reasoning or self.reasoning_content or ""


_NOTHING = Delta()


class Choice(BaseModel):
    """A reply, or what a chunk has of it."""

    index: int | None = None
    added: Delta | None = Field(default=None, alias="delta")
    message: Delta | None = None
    """In place of the delta, where the reply is whole."""
    finish_reason: str | None = None
    logprobs: WireLogprobs | None = None

    @property
    def delta(self) -> Delta:
        """What it adds, which may be nothing."""
        return self.added or _NOTHING


class Chunk(BaseModel):
    """One `data:` line, or a whole reply.

    The usage chunk has no choices; an error chunk has nothing else.
    """

    model: str | None = None
    kind: str | None = Field(default=None, alias="object")
    given: list[Choice] | None = Field(default=None, alias="choices")
    usage: WireUsage | None = None
    timings: LlamaTimings | None = None
    metrics: VllmMetrics | None = None
    error: object = None

    @property
    def choices(self) -> list[Choice]:
        """One, or none: a second reply, which nobody asked for, is no part of the first."""
        return [choice for choice in self.given or () if not choice.index]

    @property
    def is_error(self) -> bool:
        """Whether it tells of a failure, nested or flat."""
        return self.error is not None or self.kind == "error"


def finish_reason(said: str) -> FinishReason | None:
    """What a server's word for it means; None for one that is not known to be of a proper end."""
    return _FINISH_REASONS.get(said.lower())


def token_logprobs(said: WireLogprobs | None) -> tuple[TokenLogprob, ...]:
    """The log probabilities of a chunk."""
    if said is None:
        return ()  # as in most replies, once for every token
    return tuple(
        TokenLogprob(
            token=one.token,
            logprob=one.logprob,
            top=tuple((other.token, other.logprob) for other in one.top_logprobs or ()),
        )
        for one in said.content or ()
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
