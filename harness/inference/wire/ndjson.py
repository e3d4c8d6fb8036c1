"""Newline-delimited JSON, as Ollama streams its replies."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def json_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every line that is not blank, the last one too if its end is missing.

    Lines end with LF or CRLF only. Splitting decoded text instead would also cut at U+2028, which
    may stand unescaped inside JSON strings, and within characters that span two chunks.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        yield rest
