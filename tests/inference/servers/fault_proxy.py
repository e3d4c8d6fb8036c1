"""Stands between a client and a real server, and breaks what passes: HTTP/1.1 over TCP, byte by
byte.

Requests are passed on whole, each over a connection of its own; a reply is passed on as it comes.
Which request meets which fault is for the caller to say.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, Self

from servers.emulated import let_in

FaultKind = Literal["reset", "cut", "stall", "garbage", "no end", "refuse"]
"""Drop the connection with RST or with FIN; send nothing more; send what is no protocol, and end
well; leave out what says that a reply is over, and end well; answer in the server's place."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with one request."""

    kind: FaultKind
    after_bytes: int | None = None
    """How much of the reply's body comes through first; None for not even a status line. For reset,
    cut, stall and garbage."""
    status: int = 503
    """Of a refusal."""
    body: bytes = b'{"error": {"message": "Loading model", "type": "unavailable_error"}}'
    """Of a refusal."""
    headers: tuple[tuple[str, str], ...] = ()
    """Of a refusal."""


BODIES = {
    "nested": b'{"error": {"message": "boom", "type": "server_error", "code": null}}',
    "a string": b'{"error": "boom"}',
    "flat": b'{"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}',
    "FastAPI's": b'{"detail": "boom"}',
    "JSON in JSON": b'"{\\"object\\": \\"error\\", \\"message\\": \\"boom\\"}"',
    "HTML": b"<h1>boom</h1>",
}
"""A refusal in every shape that servers, and the gateways before them, send."""

GARBAGE = b"data: \x00\xff<h1>It works!</h1>\n\n"
_END = re.compile(
    rb"\[DONE\]"  # OpenAI's
    rb'|"finish_reason": ?"'
    rb'|"done": ?true'  # Ollama's
    rb"|message_stop|message_delta"  # Anthropic's
)


def no_fault(_request_number: int) -> Fault | None:
    """Lets everything through."""
    return None


@dataclass
class FaultProxy:
    """A proxy on the loopback interface; an `async with` block is its lifetime."""

    target_host: str
    target_port: int
    fault: Callable[[int], Fault | None] = no_fault
    """From a request's number, counted from 1, what goes wrong with it."""
    requests: int = 0
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    """Which requests met which."""
    open_connections: int = 0

    async def __aenter__(self) -> Self:
        self.hung_up = asyncio.Event()
        """A client has closed a connection in the middle of a reply."""
        self._handlers: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self._serve), "127.0.0.1", 0)
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.open_connections += 1
        try:
            while request := await _read_request(reader):
                self.requests += 1
                fault = self.fault(self.requests)
                if fault is not None:
                    self.faults.append((self.requests, fault))
                if not await self._play(request, fault, writer):
                    break
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass  # The block is over, or one of both sides has gone: there is no one to serve.
        finally:
            self._handlers.discard(task)
            writer.close()
            self.open_connections -= 1

    async def _play(
        self, request: bytes, fault: Fault | None, writer: asyncio.StreamWriter
    ) -> bool:
        """Answers one request; False when the connection cannot serve another."""
        client = writer.transport.get_protocol()
        assert isinstance(client, _Client)
        relay = asyncio.create_task(self._relay(request, fault, writer))
        gone = asyncio.create_task(client.gone.wait())
        try:
            await asyncio.wait((relay, gone), return_when=asyncio.FIRST_COMPLETED)
            if relay.done() and not relay.exception():
                return relay.result()
            # Either may be the first to notice: in the middle of writing, it is the relay.
            if client.gone.is_set():
                self.hung_up.set()
            return False
        finally:
            relay.cancel()
            gone.cancel()
            await asyncio.gather(relay, gone, return_exceptions=True)

    async def _relay(
        self, request: bytes, fault: Fault | None, writer: asyncio.StreamWriter
    ) -> bool:
        if fault is not None and fault.kind == "refuse":
            writer.write(_refusal(fault))
            await writer.drain()
            return True
        if fault is not None and fault.after_bytes is None and fault.kind != "no end":
            return await _break(fault, writer, chunked=False)
        reader, upstream = await asyncio.open_connection(self.target_host, self.target_port)
        try:
            upstream.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            body = _body(reader, head)
            # Of whatever length its server said it is: it may become another.
            writer.write(_chunked(head))
            async for piece in _until(fault, body):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            if fault is not None and fault.kind != "no end":
                return await _break(fault, writer, chunked=True)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        finally:
            upstream.close()  # What it is still generating, nobody wants.


class _Client(asyncio.StreamReaderProtocol):
    """A client's connection, which tells when the client has gone."""

    def __init__(self, serve: Callable[..., object]) -> None:
        super().__init__(asyncio.StreamReader(), serve)
        self.gone = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


async def _break(fault: Fault, writer: asyncio.StreamWriter, *, chunked: bool) -> bool:
    match fault.kind:
        case "reset":
            # Lingering for no time at all sends RST instead of FIN.
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        case "stall":
            await asyncio.Event().wait()  # until the client has gone
        case "garbage" if chunked:
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(GARBAGE), GARBAGE))
            await writer.drain()
            return True
        case "garbage":
            writer.write(GARBAGE)
            await writer.drain()
    return False


async def _until(fault: Fault | None, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What of a body comes through."""
    if fault is None:
        async for piece in body:
            yield piece
    elif fault.kind == "no end":
        async for event in _events(body):
            if not _END.search(event):
                yield event
    else:
        assert fault.after_bytes is not None
        left = fault.after_bytes
        async for piece in body:
            if left > 0:
                yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return


async def _events(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A body's lines, whole."""
    rest = b""
    async for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _refusal(fault: Fault) -> bytes:
    fields = (
        ("content-type", "application/json"),
        ("content-length", str(len(fault.body))),
        *fault.headers,
    )
    lines = [f"HTTP/1.1 {fault.status} Refused", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + fault.body


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    """A request, head and body; empty at the connection's end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    return head + await reader.readexactly(_length(head) or 0)


def _length(head: bytes) -> int | None:
    found = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
    return int(found[1]) if found else None


def _chunked(head: bytes) -> bytes:
    lines = [
        line
        for line in head.rstrip(b"\r\n").split(b"\r\n")
        if not re.match(rb"(content-length|transfer-encoding|connection):", line, re.IGNORECASE)
    ]
    return b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", b""])


async def _body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """A reply's body, piece by piece as its server sent it."""
    length = _length(head)
    if length is not None:
        yield await reader.readexactly(length)
        return
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
