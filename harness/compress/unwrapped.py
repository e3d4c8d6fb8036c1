"""A model's reply without the Markdown fence that it put around everything."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness.compress.blocks import lines_of
from harness.compress.same_heading import plain_title
from harness.compress.sections import sections_of

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<label>[^`\r\n]*?)[ \t\r\n]*")


def unwrapped(reply: str, *, titles: Collection[str]) -> str:
    """What is in the fence around a reply, if that is what the fence is for; else the reply.

    It is if it says Markdown, or a heading that is asked for comes first in it; and no such heading
    stands before it or behind it. The parser would not do to find its end: to it, code in the fence
    that opens with as many backticks ends it.

    Args:
        reply: As it came.
        titles: The headings that the reply may have.
    """
    lines = lines_of(reply)
    found = (
        (number, match) for number, line in enumerate(lines) if (match := _FENCE.fullmatch(line))
    )
    start, opening = next(found, (0, None))
    if opening is None or opening["label"].casefold() not in {"", "md", "markdown"}:
        return reply
    closing = [n for n, line in enumerate(lines) if n > start and _closes(line, opening["fence"])]
    end = closing[-1] if closing else len(lines)
    inside = "".join(lines[start + 1 : end])
    outside = "".join([*lines[:start], "\n", *lines[end + 1 :]])
    wanted = {plain_title(title) for title in titles}
    first = next((section.title for section in sections_of(inside)), "")
    begins = bool(opening["label"]) or plain_title(first) in wanted - {""}
    return inside if begins and not wanted & _titles_in(outside) else reply


def _closes(line: str, fence: str) -> bool:
    line = line.strip()
    return line.startswith(fence) and not line.strip(fence[0])


def _titles_in(text: str) -> set[str]:
    return {plain_title(section.title) for section in sections_of(text) if section.level}
