"""Streams of lines: server-sent events, as far as chat streams use them, and Ollama's JSON."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every line without its LF; the last one too if its end is missing.

    Lines end with LF or CRLF only. Splitting decoded text instead would also cut at U+2028, which
    servers send unescaped inside JSON strings, and within characters that span two chunks.
    """
    begun: list[bytes] = []
    mark = codecs.BOM_UTF8  # some proxies begin a stream with one
    async for chunk in chunks:
        rest, *more = chunk.split(b"\n")
        for following in more:
            # Joined once: to add each chunk to what came before takes minutes for a long line.
            begun.append(rest)
            yield b"".join(begun).removeprefix(mark)
            begun, rest, mark = [], following, b""
        begun.append(rest)
    if last := b"".join(begun).removeprefix(mark):
        yield last


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of every `data:` line; comments (keep-alive pings) and other fields are skipped.

    llama-server of 2025 told of a failure in a field `error:`, which comes here as the `data:` that
    all others send.
    """
    async for line in lines(chunks):
        if line.startswith(b"data:"):
            yield line[5:].strip()
        elif line.startswith(b"error:"):
            yield b'{"error":' + line[6:].strip() + b"}"


async def json_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every line that is not blank: newline-delimited JSON, as Ollama streams its replies."""
    async for line in lines(chunks):
        if line.strip():
            yield line
