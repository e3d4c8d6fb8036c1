"""What litellm makes of a provider's reply, whole or piece by piece, in this package's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from harness.errors import ServerError, StreamCut
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.managed.finish_word import FinishWord
from harness.inference.reply_in_progress import ReplyInProgress
from harness.inference.wire.openai_reply import (
    Chunk,
    WireUsage,
    finish_reason,
    token_logprobs,
    usage_of,
)


class LiteLLMReply:
    """Reads one reply.

    Args:
        progress: Gathers its text.
        endpoint: Where it comes from.
    """

    def __init__(self, progress: ReplyInProgress, *, endpoint: Endpoint) -> None:
        self._progress = progress
        self._endpoint = endpoint
        self._finish_reason: str | None = None
        self._model_id: str | None = None
        self._usage: WireUsage | None = None
        self._last: Any = None

    async def read(self, stream: Any) -> None:  # noqa: ANN401 - litellm's own type
        """Takes in a streamed reply to its end."""
        async for piece in stream:
            chunk = self._parse(piece)
            for choice in chunk.choices:
                if choice.finish_reason:
                    self._progress.end()
                self._progress.add(
                    choice.delta.content or "",
                    reasoning=choice.delta.thought,
                    logprobs=token_logprobs(choice.logprobs),
                )
        # Not the last piece's: litellm writes "stop" there whether or not the provider said so.
        # And where the provider did not count, the last piece has what litellm estimates.
        self._finish_reason = stream.received_finish_reason
        if not any(getattr(piece, "usage", None) for piece in stream.chunks):
            self._usage = None

    def add_whole(self, said: Any) -> None:  # noqa: ANN401 - litellm's own type
        """Takes in a reply that was not streamed."""
        for choice in self._parse(said).choices:
            message = choice.message or choice.delta
            self._finish_reason = choice.finish_reason
            self._progress.add(logprobs=token_logprobs(choice.logprobs))
            self._progress.add_whole(message.content or "", reasoning=message.thought)

    def completion(
        self,
        litellm: Any,  # noqa: ANN401 - the module
        dropped: tuple[str, ...],
        finish_word: FinishWord,
    ) -> Completion:
        """The completion, now that the reply has come to its end."""
        word = finish_word.or_else(self._finish_reason)
        if word is None:
            raise StreamCut("the reply ended without a finish reason", endpoint=self._endpoint.tag)
        ended = finish_reason(word)
        if ended is None:
            raise StreamCut(
                f"the provider broke the generation off (finish reason '{word}')",
                endpoint=self._endpoint.tag,
            )
        return self._progress.completion(
            finish_reason=ended,
            usage=usage_of(self._usage, None),
            model_id=self._model_id or self._endpoint.model_id,
            dropped=dropped,
            cost_usd=self._cost_usd(litellm) if self._usage else None,
        )

    def _parse(self, piece: Any) -> Chunk:  # noqa: ANN401 - litellm's own type
        said = piece.model_dump()
        try:
            chunk = Chunk.model_validate(said)
        except ValidationError as error:
            raise ServerError(
                f"litellm made of the reply what is not a part of one: {error}",
                endpoint=self._endpoint.tag,
            ) from error
        self._model_id = chunk.model or self._model_id
        if chunk.usage is not None and chunk.usage.prompt_tokens + chunk.usage.completion_tokens:
            self._usage, self._last = _as_told(chunk.usage, said["usage"]), piece
        return chunk

    def _cost_usd(self, litellm: Any) -> float | None:  # noqa: ANN401 - litellm's own type
        """By litellm's price list, the one it was published with; None for what is not on it."""
        try:
            cost: float = litellm.completion_cost(self._last, model=self._endpoint.model_id)
        except Exception:  # noqa: BLE001 - it raises a bare Exception for an unknown model
            return None
        return cost


def _as_told(usage: WireUsage, said: Mapping[str, Any]) -> WireUsage:
    """Without the count of reasoning tokens where that is litellm's: it then has text tokens too.

    Of Anthropic's replies, and some others', it counts them itself by another model's tokenizer.
    """
    details = said.get("completion_tokens_details") or {}
    if details.get("text_tokens") is None:
        return usage
    return usage.model_copy(update={"completion_tokens_details": None})
