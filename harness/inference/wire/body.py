"""The bodies of replies: unpacked step by step, and no longer than they may be.

httpx unpacks whatever a server sends in one go: a few kilobytes can become all of the memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

PACKED_AS = "gzip"
"""What servers are told that they may send."""
_STEP_BYTES = 64 << 10
_REFUSAL_BYTES = 64 << 10
"""How much of an error's body is read. litellm searches all of it, 4 seconds a megabyte, while
nothing else in the process runs."""


class BodyTooLong(httpx.DecodingError):
    """A body is longer than it may be; one of httpx's errors, which litellm passes on.

    Attributes:
        most_bytes: How long it may be.
    """

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the body is longer than {most_bytes} bytes")
        self.most_bytes = most_bytes


def bound(response: httpx.Response, *, most_bytes: int) -> None:
    """Limits a body that was not read yet: `BodyTooLong` beyond `most_bytes`.

    Of an error's body, only the beginning is read. For an event hook of a client.
    """
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _Body(
        stream=response.stream,
        packed_as=response.headers.pop("content-encoding", "").strip().lower(),
        most_bytes=most_bytes,
        is_refusal=response.is_error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body(httpx.AsyncByteStream):
    stream: httpx.AsyncByteStream
    packed_as: str
    most_bytes: int
    is_refusal: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for data in self._unpacked():
            length += len(data)
            if length > self.most_bytes:
                raise BodyTooLong(self.most_bytes)
            yield data
            if self.is_refusal and length >= _REFUSAL_BYTES:
                return

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _unpacked(self) -> AsyncIterator[bytes]:
        if self.packed_as in {"", "identity"}:
            async for data in self.stream:
                yield data
            return
        if self.packed_as not in {PACKED_AS, "deflate"}:
            raise httpx.DecodingError(f"its encoding is {self.packed_as}, which was not asked for")
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # which tells the two apart
        try:
            async for packed in self.stream:
                while data := unpacker.decompress(packed, _STEP_BYTES):
                    yield data
                    packed = unpacker.unconsumed_tail  # noqa: PLW2901 - what is left of it
                    await asyncio.sleep(0)
        except zlib.error as error:
            raise httpx.DecodingError(str(error)) from error
