"""The bluntest way to shorten: a beginning and an end, for what nothing else makes short enough."""

from __future__ import annotations

from harness.compress.blocks import BLANK, blocks_of
from harness.compress.parts import LEFT_OUT

_HEAD_SHARE = 0.85
_MARK = f"\n\n{LEFT_OUT}"


def cut_middle(text: str, *, end_of: str, chars: int) -> str:
    """At most `chars` characters: 85 % are the beginning of `text`, the rest the end of `end_of`.

    Between them is a mark. Headings and code that the beginning would be cut in are left out; code
    that the end begins in has its fence opened again. Without room for the mark there is nothing.
    """
    head_chars = int(_HEAD_SHARE * chars) - len(_MARK)
    if head_chars < 0:
        return ""
    tail = _tail(end_of, chars - head_chars - len(_MARK))
    # The least that can be said of an end takes some room as well.
    return (_head(text, head_chars) + _MARK + tail)[:chars]


def _head(text: str, chars: int) -> str:
    start = 0
    for block in blocks_of(text):
        end = start + len(block.text)
        if end > chars:
            # Nothing that would look like something else, or take in what comes after it.
            return text[: start if block.kind in {"heading", "code", "other"} else chars]
        start = end
    return text


def _tail(text: str, chars: int) -> str:
    """What follows the mark: on its line where the end begins within a block."""
    whole = "\n\n"
    cut = len(text) - chars + len(whole)
    start = 0
    for block in blocks_of(text):
        end = start + len(block.text)
        if start < cut < end and block.fence:
            opening = f"{whole}{block.fence}{block.label}\n"
            line = text.find("\n", len(text) - chars + len(opening), end) + 1
            rest = text[line:end] if line else ""
            # Not the line alone that closes the fence.
            return (
                opening + text[line:] if rest.strip(BLANK + block.fence[0]) else whole + text[end:]
            )
        if start < cut < end:
            return " " + text[cut:]
        start = end
    return whole + text[cut:]
