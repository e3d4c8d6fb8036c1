"""The JSON values in the body of a reply, in whatever frame a server sends them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import orjson

_END_MARK = re.compile(r"\W*done\W*", re.IGNORECASE)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every line without its end, and the last one even if its end is missing."""
    # Lines end with LF, CRLF or CR only. Splitting decoded text instead would also cut at U+2028,
    # which servers send unescaped inside JSON strings, and within characters that span two chunks.
    bom = codecs.BOM_UTF8  # some proxies begin a stream with one
    held_cr = b""
    # The line so far, joined once: adding each chunk to a text takes minutes for a long line.
    line_parts: list[bytes] = []
    async for chunk in chunks:
        joined = held_cr + chunk if held_cr else chunk
        # A CR at a chunk's end is held back: the next chunk may begin with its LF.
        held_cr = b"\r" if joined.endswith(b"\r") else b""
        text = joined.removesuffix(held_cr).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *line_ends, unfinished = text.split(b"\n")
        for line_end in line_ends:
            line_parts.append(line_end)
            yield b"".join(line_parts).removeprefix(bom)
            line_parts = []
            bom = b""  # only the first line may begin with one
        line_parts.append(unfinished)
    if last := b"".join(line_parts).removeprefix(bom):
        yield last


async def json_values(chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """The JSON values of a body, whether they come as events, as lines, or as one document.

    Servers and the proxies before them mix the three: events without blank lines between them, one
    event of many lines, a whole reply in place of a stream, with an end mark behind it. Comments
    and fields without data are skipped; data that are no JSON, such as a ping, are given as text.
    An event or field named `error` is given as `{"error": …}`.
    """
    data_lines: list[bytes] = []  # of the event so far
    event = b""
    async for line in lines(chunks):
        name, _, content = line.partition(b":")
        if not line.strip():
            for value in _values(data_lines):
                yield _with_event(value, event)
            data_lines = []
            event = b""
        elif name == b"event":
            event = content.strip()
        elif name not in {b"", b"id", b"retry"}:  # a comment has no name
            if name == b"error":
                event = name
            # A line with any other name before its colon is JSON, which has colons too.
            data_lines.append(content.strip() if name in {b"data", b"error"} else line)
            # A line with a whole value is given at once, since a blank line may never come.
            if len(data_lines) == 1 and line.rstrip()[-1:] in b"}]":
                value = _json_or_text(data_lines[0])
                if not isinstance(value, str):
                    yield _with_event(value, event)
                    data_lines = []
    for value in _values(data_lines):
        yield _with_event(value, event)


def _values(data_lines: list[bytes]) -> Iterator[Any]:
    """The value of one event's lines together, or of each line if together they are no JSON."""
    if not data_lines:
        return  # as mostly: blank lines follow values that were given at once
    together = _json_or_text(b"\n".join(data_lines))
    if not isinstance(together, str):
        yield together
    else:
        yield from (value for value in map(_json_or_text, data_lines) if value != "")


def _json_or_text(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """The value of JSON, "" for an empty list; the text of data that are no JSON."""
    text = data.decode("utf-8", "replace").strip()  # a broken character must not cost the reply
    try:
        return value if (value := orjson.loads(text)) != [] else ""
    except orjson.JSONDecodeError:
        # Python's parser also takes NaN and numbers beyond any float: they cost no reply.
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _with_event(value: object, event: bytes) -> object:
    is_nested = isinstance(value, dict) and "error" in value
    return {"error": value} if event == b"error" and not is_nested else value


def is_end_mark(value: object) -> bool:
    """Whether a value of a stream is `[DONE]`, in any spelling."""
    return isinstance(value, str) and _END_MARK.fullmatch(value) is not None
