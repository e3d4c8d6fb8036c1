"""A model server on the loopback interface that plays scripted replies, byte for byte.

The streams are those of llama-server (b11549) and vLLM (0.32.0): which fields come in which chunk,
how a stream ends, what an error looks like. A test says what is sent and how it ends; the server
keeps what it was asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from servers.emulated import Answer, Asked, Emulated, event

Step = bytes | Callable[[], None] | Callable[[], Awaitable[object]]
"""Bytes to send as one HTTP chunk, or something to do (and wait for) before the next ones."""

Ending = Literal["end", "close", "reset", "hold"]
"""End the body as HTTP wants it, drop the connection (FIN or RST), or say nothing more."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server does with one request."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream"),)
    steps: tuple[Step, ...] = ()
    ending: Ending = "end"
    head: bool = True
    """Whether a status line is sent at all."""


class Loopback(Emulated):
    """Plays its replies in order, one per request; an `async with` block is its lifetime."""

    def __init__(self, replies: Iterable[Reply]) -> None:
        super().__init__()
        self._script = iter(replies)
        self.holding = asyncio.Event()
        """A reply has come to its `hold`."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def requests(self) -> list[Asked]:
        """Every request, in order."""
        return self.asked

    async def respond(self, _asked: Asked, answer: Answer) -> None:
        reply = next(self._script)
        if reply.head:
            await answer.start(None, status=reply.status, headers=reply.headers)
        for step in reply.steps:
            if isinstance(step, bytes):
                await answer.send(step)
            elif (wait := step()) is not None:
                await wait
        match reply.ending:
            case "end":
                await answer.end()
            case "close":
                answer.close()
            case "reset":
                answer.drop()
            case "hold":
                self.holding.set()
                await answer.hold()


# --- what servers say ------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"
GONE_BEFORE_A_BYTE = Reply(head=False, ending="close")


def chunk(*, model: str = "served-name", **fields: object) -> bytes:
    """One `chat.completion.chunk`."""
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": model, **fields})


def delta(*, finish_reason: str | None = None, **said: object) -> bytes:
    """A chunk that adds to the reply."""
    return chunk(choices=[{"index": 0, "delta": said, "finish_reason": finish_reason}])


def usage(
    *, prompt_tokens: int = 31, completion_tokens: int = 3, **more: object
) -> dict[str, object]:
    """A `usage` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **more,
    }


TIMINGS = {"prompt_n": 31, "prompt_ms": 30.0, "predicted_n": 3, "predicted_ms": 18.504}


def llama_server_stream(
    *texts: str, finish_reason: str = "stop", cached_tokens: int = 0
) -> tuple[bytes, ...]:
    """A whole stream as llama-server sends it: timings ride in the usage chunk."""
    return (
        delta(role="assistant", content=None),
        *(delta(content=text) for text in texts),
        delta(finish_reason=finish_reason),
        chunk(
            choices=[],
            usage=usage(prompt_tokens_details={"cached_tokens": cached_tokens}),
            timings=TIMINGS,
        ),
        DONE,
    )


def vllm_stream(
    *texts: str, metrics: dict[str, float] | None = None, cached_tokens: int | None = None
) -> tuple[bytes, ...]:
    """A whole stream as vLLM sends it: details and metrics are null unless their flags are set."""
    details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
    return (
        delta(role="assistant", content=""),
        *(delta(content=text) for text in texts),
        delta(content="", finish_reason="stop"),
        chunk(choices=[], usage=usage(prompt_tokens_details=details), metrics=metrics),
        DONE,
    )


def error_reply(status: int, body: object, *headers: tuple[str, str], raw: bytes = b"") -> Reply:
    """A refusal with a JSON body, or with these bytes."""
    return Reply(
        status=status,
        headers=(("content-type", "application/json"), *headers),
        steps=(raw or json.dumps(body).encode(),),
    )
