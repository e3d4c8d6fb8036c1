"""A proxy that notes when each piece of a streamed reply came from its server, by its own clock.

    python tests/benchmarks/recording_proxy.py HOST PORT LOG

Prints its own port and forwards what comes there to HOST:PORT until standard input closes. Of each
request that carries a `traceparent`, LOG gets a line of JSON: the header, when the request came,
when each token came, when the reply was over (all in nanoseconds of `time.perf_counter_ns`, which
on Linux every process reads from the same clock), and what the server said of its time.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any


async def main(host: str, port: int, log: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                came_ns = time.perf_counter_ns()
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                source, upstream = await asyncio.open_connection(host, port)
                upstream.write(head + body)
                reply = _Reply(came_ns)
                await reply.forward(source, writer)
                upstream.close()
                if parent := re.search(rb"(?i)traceparent: *(\S+)", head):
                    with log.open("a") as file:
                        print(json.dumps(reply.noted(parent[1].decode())), file=file)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=wait, daemon=True).start()
    await closed.wait()
    await asyncio.sleep(0.5)  # for what is still to be noted


class _Reply:
    """One reply on its way."""

    def __init__(self, came_ns: int) -> None:
        self._came_ns = came_ns
        self._token_ns: list[int] = []
        self._done_ns = came_ns
        self._said: dict[str, Any] = {}

    async def forward(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Passes it on as it comes."""
        head = await source.readuntil(b"\r\n\r\n")
        to.write(head)
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if length:
            to.write(await source.readexactly(int(length[1])))
            return
        rest = ended = b""
        while not ended.endswith(b"\r\n0\r\n\r\n"):
            piece = await source.read(1 << 16)
            now_ns = time.perf_counter_ns()
            if not piece:
                raise ConnectionError
            to.write(piece)
            ended = (ended + piece)[-16:]
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._note(line.strip(), now_ns)

    def noted(self, traceparent: str) -> dict[str, Any]:
        return {
            "traceparent": traceparent,
            "came_ns": self._came_ns,
            "token_ns": self._token_ns,
            "done_ns": self._done_ns,
            "said": self._said,
        }

    def _note(self, line: bytes, now_ns: int) -> None:
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        self._said |= event.get("metrics") or event.get("timings") or {}
        for choice in event.get("choices", ()):
            if (choice.get("delta") or {}).get("content"):
                self._token_ns.append(now_ns)
            if choice.get("finish_reason"):
                self._done_ns = now_ns


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
