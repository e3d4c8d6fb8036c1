"""OpenAI's chat and embeddings API (2026-10), and that of the providers that copy it.

Its own models count their reasoning and do not show it; those that do (DeepSeek, Together,
Fireworks) call it `reasoning_content`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from servers.emulated import JSON_TEXT, TEXT, THOUGHT, Answer, Asked, Emulated, event

OVERFLOW = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 "
    "tokens. Please reduce the length of the messages."
)
REFUSALS = {
    "temperature": "Unsupported value: 'temperature' does not support 0 with this model. Only the "
    "default (1) value is supported.",
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    "'max_completion_tokens' instead.",
    "stream_options": "Unrecognized request argument supplied: stream_options",
}
"""What its reasoning models say; and of the last, older copies of it."""


@dataclass
class OpenAIAPI(Emulated):
    """`POST /v1/chat/completions` and `/v1/embeddings`."""

    refuses: tuple[str, ...] = ()
    """Fields that the model does not take: of `REFUSALS`."""
    counts_usage: bool = True
    """Whether a reply tells its usage."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    async def respond(self, asked: Asked, answer: Answer) -> None:
        body = asked.body
        if asked.path == "/v1/embeddings":
            await answer.json(_embeddings(body))
            return
        for name in self.refuses:
            if name in body:
                code = REFUSALS[name].split(":")[0].lower().replace(" ", "_")
                await self._refuse(answer, 400, REFUSALS[name], code=code, param=name)
                return
        match self.scenario:
            case "overflow":
                await self._refuse(
                    answer, 400, OVERFLOW, code="context_length_exceeded", param="messages"
                )
            case "unknown model":
                said = (
                    f"The model `{body['model']}` does not exist or you do not have access to it."
                )
                await self._refuse(answer, 404, said, code="model_not_found")
            case "overload":
                said = "The engine is currently overloaded, please try again later"
                await self._refuse(answer, 503, said, kind="server_error")
            case "silent":
                await answer.hold()
            case _ if body.get("stream"):
                await self._stream(body, answer)
            case "garbage":
                await answer.page(b"<h1>It works!</h1>")
            case _:
                await answer.json(self._whole(body))

    async def _stream(self, body: Any, answer: Answer) -> None:
        await answer.start("text/event-stream; charset=utf-8")
        if self.scenario == "garbage":
            await answer.send(b"data: {not JSON}\n\n")
            await answer.end()
            return
        deltas = list(self._deltas(body))
        if self.scenario in {"cut stream", "unended stream", "late error", "stalled", "endless"}:
            deltas = deltas[:3]
        for delta in deltas:
            await answer.send(_chunk(body, delta))
        match self.scenario:
            case "cut stream":
                answer.drop()
            case "stalled":
                await answer.hold()
            case "late error":
                error = {"message": "The server had an error", "type": "server_error"}
                await answer.send(event({"error": error | {"param": None, "code": None}}))
            case "endless":
                while True:
                    await answer.send(_chunk(body, {"content": "na "}))
            case "reply" | "empty" | "length" | "thinking":
                await answer.send(_chunk(body, {}, finish_reason=self._finish_reason()))
                if self.counts_usage:
                    await answer.send(event(_head(body) | {"choices": [], "usage": self._usage()}))
                await answer.send(b"data: [DONE]\n\n")
        await answer.end()

    def _deltas(self, body: Any) -> Iterator[dict[str, object]]:
        yield {"role": "assistant", "content": "", "refusal": None}
        if self.scenario == "thinking":
            yield from ({"reasoning_content": piece} for piece in THOUGHT)
        if self.scenario != "empty":
            yield from ({"content": piece} for piece in _pieces(body))

    def _whole(self, body: Any) -> dict[str, object]:
        message = {
            "role": "assistant",
            "content": "" if self.scenario == "empty" else "".join(_pieces(body)),
        }
        if self.scenario == "thinking":
            message["reasoning_content"] = "".join(THOUGHT)
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason()}
        if body.get("logprobs"):
            choice["logprobs"] = _logprobs(message["content"])
        usage = {"usage": self._usage()} if self.counts_usage else {}
        return _head(body, kind="chat.completion") | {"choices": [choice]} | usage

    def _finish_reason(self) -> str:
        return "length" if self.scenario == "length" else "stop"

    def _usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": 31,
            "completion_tokens": 12,
            "total_tokens": 43,
            "prompt_tokens_details": {"cached_tokens": 24, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 4 if self.scenario == "thinking" else 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    async def _refuse(
        self,
        answer: Answer,
        status: int,
        said: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        error = {"message": said, "type": kind, "param": param, "code": code}
        await answer.json({"error": error}, status=status)


def _pieces(body: Any) -> tuple[str, ...]:
    return JSON_TEXT if "response_format" in body else TEXT


def _head(body: Any, *, kind: str = "chat.completion.chunk") -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": kind,
        "created": 1_760_000_000,
        "model": body["model"],
        "system_fingerprint": "fp_1",
    }


def _chunk(body: Any, delta: dict[str, object], *, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    if body.get("logprobs") and delta.get("content"):
        choice["logprobs"] = _logprobs(str(delta["content"]))
    return event(_head(body) | {"choices": [choice], "usage": None})


def _logprobs(text: str) -> dict[str, object]:
    top = [{"token": token, "bytes": None, "logprob": -0.25} for token in (text, "?")]
    return {"content": [top[0] | {"top_logprobs": top}], "refusal": None}


def _embeddings(body: Any) -> dict[str, object]:
    rows = [
        {"object": "embedding", "index": index, "embedding": _coded([len(text), 0.5], body)}
        for index, text in enumerate(body["input"])
    ]
    # The order is not promised; the index is.
    return {
        "object": "list",
        "data": rows[::-1],
        "model": body["model"],
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }


def _coded(vector: list[float], body: Any) -> object:
    if body.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
