"""Stands between a client and a real server, and breaks what passes: HTTP/1.1 over TCP.

Requests are passed on whole, each over a connection of its own; a reply is passed on as it comes.
Which request meets which fault is for the caller to say.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from servers.emulated import Answer, Asked, Emulated

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


GARBAGE = b"data: \x00\xff<h1>It works!</h1>\n\n"
_END = re.compile(
    rb"\[DONE\]"  # OpenAI's
    rb'|"finish_reason": ?"'
    rb'|"done": ?true'  # Ollama's
    rb"|message_stop|message_delta"  # Anthropic's
)
_OWN_HEADERS = {"content-type", "content-length", "transfer-encoding", "connection"}


class FaultProxy(Emulated):
    """A proxy on the loopback interface; an `async with` block is its lifetime.

    Args:
        target: Root address of the server behind it.
        fault: From a request's number, counted from 1, what goes wrong with it, if anything does.
    """

    def __init__(self, target: str, fault: Callable[[int], Fault | None]) -> None:
        super().__init__()
        self._target = urlsplit(target)
        self._fault = fault
        self.faults: list[Fault] = []
        """Those that requests have met."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    async def respond(self, asked: Asked, answer: Answer) -> None:
        fault = self._fault(len(self.asked))
        if fault is not None:
            self.faults.append(fault)
        if fault is None or fault.kind == "no end" or fault.after_bytes is not None:
            await self._relay(asked, fault, answer)
        elif fault.kind == "refuse":
            headers = fault.headers
            await answer.start("application/json", status=fault.status, headers=headers)
            await answer.send(fault.body)
            await answer.end()
        else:
            await _break(fault, answer, begun=False)

    async def _relay(self, asked: Asked, fault: Fault | None, answer: Answer) -> None:
        host, port = str(self._target.hostname), self._target.port or 80
        reader, upstream = await asyncio.open_connection(host, port)
        try:
            upstream.write(_request(asked))
            status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines if line)
            }
            more = [pair for pair in headers.items() if pair[0] not in _OWN_HEADERS]
            status = int(status_line.split()[1])
            await answer.start(headers.get("content-type"), status=status, headers=more)
            async for piece in _until(fault, _body(reader, headers)):
                await answer.send(piece)
            if fault is not None and fault.kind != "no end":
                await _break(fault, answer, begun=True)
            await answer.end()
        finally:
            upstream.close()  # What it is still generating, nobody wants.


async def _break(fault: Fault, answer: Answer, *, begun: bool) -> None:
    match fault.kind:
        case "reset":
            answer.drop()
        case "stall":
            await answer.hold()
        case "garbage" if begun:
            await answer.send(GARBAGE)
        case "garbage":
            await answer.raw(GARBAGE)
            answer.close()
        case _:
            answer.close()


async def _until(fault: Fault | None, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What of a body comes through."""
    if fault is None:
        async for piece in body:
            yield piece
    elif fault.kind == "no end":
        async for line in _lines(body):
            if not _END.search(line):
                yield line
    else:
        assert fault.after_bytes is not None
        left = fault.after_bytes
        async for piece in body:
            if left > 0:
                yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return


async def _lines(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _request(asked: Asked) -> bytes:
    body = b"" if asked.body is None else json.dumps(asked.body).encode()
    headers = asked.headers | {"content-length": str(len(body)), "connection": "close"}
    lines = [f"{asked.method} {asked.path} HTTP/1.1", *(": ".join(h) for h in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """A reply's body, piece by piece as its server sent it."""
    if "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
        return
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
