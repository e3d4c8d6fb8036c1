"""Server-sent events, as far as chat streams use them."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of every `data:` line; comments (keep-alive pings) and other fields are skipped.

    Lines end with LF or CRLF only. Splitting decoded text instead would also cut at U+2028, which
    servers send unescaped inside JSON strings.

    llama-server of 2025 told of a failure in a field `error:`, which comes here as the `data:` that
    all others send.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
            elif line.startswith(b"error:"):
                yield b'{"error":' + line[6:].strip() + b"}"
    if rest.startswith(b"data:"):
        yield rest[5:].strip()
