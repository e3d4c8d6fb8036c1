"""OpenAI's chat and embeddings API (2026-10), and that of the providers that copy it.

Its own models count their reasoning and do not show it; those that do (DeepSeek, Together,
Fireworks) call it `reasoning_content`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from servers.emulated import Answer, Asked
from servers.openai_dialects import DIALECTS
from servers.openai_server import Complaint, Dialect, OpenAIServer

REFUSALS = {
    "temperature": "Unsupported value: 'temperature' does not support 0 with this model. Only the "
    "default (1) value is supported.",
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    "'max_completion_tokens' instead.",
    "stream_options": "Unrecognized request argument supplied: stream_options",
}
"""What its reasoning models say; and of the last, older copies of it."""


@dataclass
class OpenAIAPI(OpenAIServer):
    """`POST /v1/chat/completions` and `/v1/embeddings`."""

    dialect: Dialect = field(default_factory=lambda: DIALECTS["openai"], kw_only=True)
    refuses: tuple[str, ...] = ()
    """Fields that the model does not take: of `REFUSALS`."""
    counts_usage: bool = True
    """Whether a reply tells its usage."""

    def __post_init__(self) -> None:
        thought = {"completion_tokens_details": {"reasoning_tokens": 4}}
        told = thought if self.scenario == "thinking" else {}
        counts = "always" if self.counts_usage else "never"
        usage = {**self.dialect.usage, **told}
        self.dialect = replace(self.dialect, usage=usage, counts_usage=counts)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        for name in self.refuses:
            if name in asked.body:
                code = REFUSALS[name].split(":")[0].lower().replace(" ", "_")
                kind = "invalid_request_error"
                refusal = Complaint(status=400, message=REFUSALS[name], kind=kind, code=code)
                await self._refuse(refusal, asked.body, answer)
                return
        await super().respond(asked, answer)
