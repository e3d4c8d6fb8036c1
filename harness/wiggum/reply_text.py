"""What a producer's reply has for a draft: its text, without courtesies, fences, broken ends."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.compress import sections_of
from harness.compress.edits import COURTESY, plain_title, unwrapped
from harness.compress.markdown import blocks_of, closes_fence, lines_of, unpadded
from harness.text.sentences import ends_sentence, sentences_of

# What opens or closes code; behind backticks, a line with more of them is prose.
_CODE_MARK = re.compile(r"[ \t]*(?:`{3,}(?!.*`)|~{3,})")
_PROSE = {"paragraph", "item", "quote"}  # kinds of blocks that are made of sentences


def text_in(reply: str, *, before: str = "") -> str:
    """The text that a reply has in place of `before`, without what the model put around it.

    Left out are a courtesy in English, a fence around the rest that says Markdown or begins with a
    heading of `before`, and any words in front of the first heading of `before`. Where `before`
    begins a section in this way too, it may be the text's own.
    """
    sections = sections_of(before)
    bodies = [unpadded(section.body) for section in sections]
    titles = [section.title for section in sections if section.level]
    text = reply.strip()
    if not any(map(COURTESY.match, bodies)):
        text = COURTESY.sub("", text)
    lines = lines_of(text)
    opening = _CODE_MARK.match(text)
    if opening is not None and not any(map(_CODE_MARK.match, bodies)):
        closing = [n for n, line in enumerate(lines) if n and closes_fence(line, opening[0])]
        # The fence of a reply that was cut has no end.
        if not closing or closing[-1] == len(lines) - 1:
            text = unwrapped(text, titles=titles)
    parts = sections_of(text)
    if sections and sections[0].level and len(parts) > 1 and not parts[0].level:
        is_own_heading = plain_title(parts[1].title) == plain_title(titles[0])
        text = text.removeprefix(parts[0].text) if is_own_heading else text
    return text.strip()


def without_broken_end(text: str) -> str:
    """A cut reply without the sentence, table row or line of code that it was cut in.

    An open code fence is closed. If that would leave nothing, the reply stays as it is.
    """
    if not text.strip():
        return text
    last = blocks_of(text)[-1]
    before = text[: len(text) - len(last.text)]
    lines = last.text.rstrip().splitlines(keepends=True)
    # An item of a list is one block, with the code in it.
    start, fence = _open_fence(lines) if last.kind == "item" else (0, last.fence)
    *whole_lines, end = lines[start:]
    if fence and not (whole_lines and closes_fence(end, fence.strip())):
        # The last line stays if the code has no other.
        code = whole_lines if len(whole_lines) > 1 else [*whole_lines, end]
        return f"{before}{''.join([*lines[:start], *code]).rstrip()}\n{fence}"
    if ends_sentence(text):
        return text
    if last.kind == "table":
        return (before + "".join(whole_lines)).rstrip()
    if last.kind not in _PROSE or _CODE_MARK.match(end):
        return text
    broken_sentence = sentences_of(last.text)[-1]
    return text[: text.rindex(broken_sentence)].rstrip() or text


def _open_fence(lines: Sequence[str]) -> tuple[int, str]:
    """Where code begins that no line closes, and the line that would close it; else `(0, "")`."""
    start, fence = 0, ""
    for number, line in enumerate(lines):
        if fence:
            fence = "" if closes_fence(line, fence.strip()) else fence
        elif match := _CODE_MARK.match(line):
            start, fence = number, match[0]
    return (start, fence) if fence else (0, "")
