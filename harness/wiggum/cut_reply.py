"""What can be kept of a reply that the token limit cut."""

from __future__ import annotations

import re

from harness.compress import sentences_of
from harness.compress.blocks import blocks_of

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)")
_ENDED = re.compile(r"[.!?…。！？][\"'”’»)\]*_`」』）]*\Z")  # noqa: RUF001 - of several scripts

_PROSE = {"paragraph", "item", "quote"}


def without_broken_end(text: str) -> str:
    """A cut reply without the sentence, the row or the line of code that it was cut in.

    A code fence that is open is closed. Left as it is when that would leave nothing.
    """
    if not text.strip():
        return text
    last = blocks_of(text)[-1]
    before = text[: len(text) - len(last.text)]
    if opening := _open_fence(last.text):
        start, closing = opening
        lines = last.text[start:].splitlines(keepends=True)
        code = "".join(lines[:-1] if len(lines) > 2 else lines)
        return f"{before}{last.text[:start]}{code.rstrip()}\n{closing}"
    lines = last.text.rstrip().splitlines(keepends=True)
    if _ENDED.search(text.rstrip()):
        return text
    if last.kind == "table":
        return (before + "".join(lines[:-1])).rstrip()
    if last.kind not in _PROSE or _FENCE.match(lines[-1]):
        return text
    cut_in = sentences_of(last.text)[-1]
    return text[: text.rindex(cut_in)].rstrip() or text


def is_broken(text: str) -> bool:
    """Whether a cut reply ends where it was cut, since nothing whole would be left before that."""
    return without_broken_end(text) == text and not _ENDED.search(text.rstrip())


def _open_fence(text: str) -> tuple[int, str] | None:
    """Where a fence begins that is never closed, and what closes it."""
    opened: tuple[int, str] | None = None
    start = 0
    for line in text.splitlines(keepends=True):
        if found := _FENCE.match(line):
            fence, info = found["fence"], found["info"].strip()
            if opened is None:
                opened = (start, found["indent"] + fence)
            elif fence.startswith(opened[1].strip()) and not info:
                opened = None
        start += len(line)
    return opened
