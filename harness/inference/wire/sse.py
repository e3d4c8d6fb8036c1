"""Server-sent events, as far as chat streams use them."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of every `data:` line; comments (keep-alive pings) and other fields are skipped.

    Lines end with LF or CRLF only. Splitting decoded text instead would also cut at U+2028, which
    servers send unescaped inside JSON strings.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()
