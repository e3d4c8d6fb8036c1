"""A model server on the loopback interface that plays scripted replies, byte for byte.

The streams are those of llama-server (b11549) and vLLM (0.32.0): which fields come in which chunk,
how a stream ends, what an error looks like. A test says what is sent and how it ends; the server
keeps what it was asked.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Self

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


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: dict[str, object]
    connection: int
    """Which connection it came over, counted from 1."""


@dataclass
class Loopback:
    """Plays its replies in order, one per request; an `async with` block is its lifetime."""

    replies: Iterable[Reply]
    requests: list[Received] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> Self:
        self._script = iter(self.replies)
        self._handlers: set[asyncio.Task[None]] = set()
        self.holding = asyncio.Event()
        """A reply has come to its `hold`."""
        self.hung_up = asyncio.Event()
        """The client has closed a connection that was on hold."""
        self.open_connections = 0
        self.deserted = asyncio.Event()
        """No connection is open any more."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        self.open_connections += 1
        connection = self.connections
        try:
            while (request := await _read(reader, connection)) is not None:
                self.requests.append(request)
                if not await self._play(next(self._script), reader, writer):
                    break
        except (asyncio.CancelledError, ConnectionError):
            pass  # The block is over, or the client has gone: either way there is no one to serve.
        finally:
            self._handlers.discard(task)
            writer.close()
            self.open_connections -= 1
            if not self.open_connections:
                self.deserted.set()

    async def _play(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Sends one reply; False when the connection cannot serve another."""
        if reply.head:
            writer.write(_head(reply))
        for step in reply.steps:
            if isinstance(step, bytes):
                writer.write(b"%x\r\n%b\r\n" % (len(step), step))
                await writer.drain()
            elif (wait := step()) is not None:
                await wait
        match reply.ending:
            case "end":
                writer.write(b"0\r\n\r\n")
                return True
            case "hold":
                self.holding.set()
                await reader.read()
                self.hung_up.set()
            case "reset":
                # Lingering for no time at all sends RST instead of FIN.
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        return False


async def _read(reader: asyncio.StreamReader, connection: int) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = head.split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(request_line.split()[1], headers, json.loads(body), connection)


def _head(reply: Reply) -> bytes:
    fields = (*reply.headers, ("transfer-encoding", "chunked"))
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


# --- what servers say ------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"
GONE_BEFORE_A_BYTE = Reply(head=False, ending="close")


def event(value: object) -> bytes:
    """One server-sent event, with text as servers send it: UTF-8, not escaped."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


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


TIMINGS = {
    "cache_n": 0,
    "prompt_n": 31,
    "prompt_ms": 30.0,
    "prompt_per_token_ms": 0.97,
    "prompt_per_second": 1033.3,
    "predicted_n": 3,
    "predicted_ms": 18.504,
    "predicted_per_token_ms": 6.168,
    "predicted_per_second": 162.1,
}


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
