"""What all emulated model servers share: an HTTP/1.1 server on the loopback interface.

An emulated server answers by what it is asked, in its server's own words, and plays one scenario
(`SCENARIOS`). What it says is from that server's code and documentation, by the version its module
names.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

SCENARIOS = (
    "reply",  # answers as it should
    "overflow",  # the prompt is longer than the context
    "unknown model",  # it does not serve the model that is asked for
    "overload",  # it is full, or still loading
    "cut stream",  # the connection ends in the middle of a reply
    "unended stream",  # the reply ends as HTTP wants it, without the protocol's own end
    "late error",  # an error in the middle of a stream
    "garbage",  # what comes is not the protocol
    "silent",  # it takes the request, and sends nothing
    "stalled",  # it sends the beginning of a reply, and then nothing
    "endless",  # it generates until the client hangs up
    "empty",  # a proper reply without a word
    "length",  # the token limit cuts the reply
    "thinking",  # it thinks aloud first
    "no tools",  # it, or its model, was not made for tools
)

TEXT = ("Kraków — ", "naïve ", "façade", ":\u2028", "🦉 ", "done.")
"""The pieces of what is answered: not ASCII, and with a line separator that is none in JSON."""
JSON_TEXT = ('{"city": "Krak', 'ów", "owls": 3}')
"""The pieces of what is answered where a schema is enforced."""
ARGUMENTS = ('{"city": "Krak', 'ów"}')
"""The pieces of what a tool is called with."""
TYPED_CALL = '{"next":{"call":"weather","arguments":{"city":"Kraków"}}}'
TYPED_ANSWER = json.dumps({"next": {"answer": "".join(TEXT)}})
"""What is answered where the reply's type stands for tools, before a result and after it."""
THOUGHT = ("Let me ", "think.")
"""The pieces of what is thought."""


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: Any
    """Its JSON; None for none."""
    connection: int
    """Which connection it came over, counted from 1."""


class Gone(Exception):
    """The client has hung up, or the connection was dropped on purpose."""


class Answer:
    """The way back to the client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def json(
        self, body: object, *, status: int = 200, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """A whole reply."""
        data = json.dumps(body, ensure_ascii=False).encode()
        await self.start("application/json", status=status, headers=headers)
        await self.send(data)
        await self.end()

    async def page(
        self, body: bytes, *, content_type: str = "text/html", status: int = 200
    ) -> None:
        """A whole reply that is not JSON."""
        await self.start(content_type, status=status)
        await self.send(body)
        await self.end()

    async def start(
        self,
        content_type: str | None,
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """The head of a reply that is then sent in pieces."""
        kind = () if content_type is None else (("content-type", content_type),)
        fields = (*kind, *headers, ("transfer-encoding", "chunked"))
        lines = [f"HTTP/1.1 {status} Emulated", *(f"{name}: {value}" for name, value in fields)]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        await self._drain()

    async def send(self, data: bytes) -> None:
        """A piece, as one HTTP chunk."""
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._drain()

    async def end(self) -> None:
        """The proper end of the body."""
        self._writer.write(b"0\r\n\r\n")
        await self._drain()

    async def raw(self, data: bytes) -> None:
        """Bytes that are no HTTP."""
        self._writer.write(data)
        await self._drain()

    async def hold(self) -> None:
        """Sends nothing until the client hangs up."""
        await self._reader.read()
        raise Gone

    def close(self) -> None:
        """Ends the connection in the middle of the body, as the end of a process does (FIN)."""
        self._writer.close()
        raise Gone

    def drop(self) -> None:
        """Ends the connection at once, with a reset."""
        raw = self._writer.get_extra_info("socket")
        # Lingering for no time at all sends RST instead of FIN.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        raise Gone

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise Gone from error
        await asyncio.sleep(0)  # a client in this same loop reads only when it has its turn
        if self._writer.is_closing() or self._reader.at_eof():
            raise Gone


@dataclass
class Emulated(ABC):
    """A server; an `async with` block is its lifetime.

    Subclasses say in `respond` what is answered.
    """

    scenario: str = "reply"
    asked: list[Asked] = field(default_factory=list)
    """Every request, in order."""
    connections: int = 0
    open_connections: int = 0

    @property
    def url(self) -> str:
        """Its base address."""
        return self.root

    async def __aenter__(self) -> Self:
        assert self.scenario in SCENARIOS, self.scenario
        self.hung_up = asyncio.Event()
        """A client has closed a connection in the middle of a reply."""
        self.deserted = asyncio.Event()
        """No connection is open any more."""
        self._handlers: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.root = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await let_in()
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    @abstractmethod
    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        self.open_connections += 1
        connection = self.connections
        try:
            while (asked := await _read(reader, connection)) is not None:
                self.asked.append(asked)
                await self.respond(asked, Answer(reader, writer))
        except Gone:
            self.hung_up.set()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass  # The block is over, or the client has gone: either way there is no one to serve.
        finally:
            self._handlers.discard(task)
            writer.close()
            self.open_connections -= 1
            if not self.open_connections:
                self.deserted.set()


async def let_in() -> None:
    """Waits until a connection that is just being accepted has its handler.

    That takes three turns of the loop; a server that is closed before leaves the socket open.
    """
    for _ in range(3):
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader, connection: int) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = head.split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = request_line.split()
    return Asked(method, path, headers, json.loads(body) if body else None, connection)


def forked(server: Emulated) -> tuple[int, str]:
    """A server in a process of its own: the process, and its address."""
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:

        async def serve() -> None:
            async with server:
                os.write(write_end, f"{server.root}\n".encode())
                await asyncio.Event().wait()

        asyncio.run(serve())
    with os.fdopen(read_end) as pipe:
        return process, pipe.readline().strip()


def event(value: object) -> bytes:
    """One server-sent event, with text as servers send it: UTF-8, not escaped."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


async def stream(
    answer: Answer, text: str, *, model: str, tokens: tuple[int, int] = (4, 4)
) -> None:
    """A whole reply as a stream."""
    await answer.start("text/event-stream")
    await answer.send(events(text, model=model, tokens=tokens))
    await answer.end()


def events(text: str, *, model: str, tokens: tuple[int, int] = (4, 4)) -> bytes:
    """The events of a whole reply; `tokens` are those of the prompt and those written."""
    read, written = tokens
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    delta = {"role": "assistant", "content": text}
    head = {"id": "1", "object": "chat.completion.chunk", "model": model}
    chunks = (
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    )
    return b"".join(event({**head, **chunk}) for chunk in chunks) + b"data: [DONE]\n\n"
