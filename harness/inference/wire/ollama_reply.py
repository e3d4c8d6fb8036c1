"""Ollama's replies: whole, or one streamed line at a time. All durations are in nanoseconds."""

from __future__ import annotations

from pydantic import BaseModel

from harness.inference.completion import TokenLogprob, Usage
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.wire.openai_reply import WireLogprob, WireLogprobs, token_logprobs


class OllamaMessage(BaseModel):
    """What a line adds to the reply."""

    content: str | None = None
    thinking: str | None = None


class OllamaLine(BaseModel):
    """One line of a stream, or a whole reply. Counts and durations come with the last one.

    Ollama leaves out numbers that are zero.
    """

    model: str | None = None
    message: OllamaMessage = OllamaMessage()
    logprobs: list[WireLogprob] | None = None
    done: bool = False
    done_reason: str | None = None
    load_duration: int | None = None
    """Of a model that was loaded already: what it took to find that out, some milliseconds."""
    prompt_eval_count: int | None = None
    """The whole prompt; up to 0.30 without its cached part, and sometimes missing."""
    prompt_eval_cached_count: int | None = None
    """Told since 0.33."""
    prompt_eval_duration: int | None = None
    """Of the part that was not cached."""
    eval_count: int | None = None
    eval_duration: int | None = None
    error: object = None
    """Then there is nothing else."""

    @property
    def tokens(self) -> tuple[TokenLogprob, ...]:
        """Its log probabilities, which have the shape of OpenAI's."""
        return token_logprobs(WireLogprobs(content=self.logprobs))

    @property
    def usage(self) -> Usage | None:
        """Tokens in and out, of a last line."""
        if self.prompt_eval_count is None:
            return None
        return Usage(
            input_tokens=self.prompt_eval_count,
            output_tokens=self.eval_count or 0,
            cached_tokens=self.prompt_eval_cached_count,
        )

    @property
    def timings(self) -> ServerTimings:
        """Where the time went, of a last line."""
        return ServerTimings(
            load_ns=self.load_duration,
            prefill_ns=self.prompt_eval_duration,
            decode_ns=self.eval_duration,
        )


class OllamaEmbeddings(BaseModel):
    """The reply of `/api/embed`."""

    model: str | None = None
    embeddings: list[list[float]]
    prompt_eval_count: int | None = None
