"""The fenced code of a Markdown text, that in lists and quotations included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.compress.blocks import Block, blocks_of, lines_of

_MARKER = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$)")
_QUOTED = re.compile(r"[ \t]{0,3}> ?")
_DEPTH = 3
"""Code in a list in a list in a list is found, and none below: each level is one more parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One block of fenced code."""

    language: str
    """The first word behind the opening fence, in lower case: `python`, `json`; or empty."""
    code: str
    """What stands between the fences."""
    closed: bool
    """Whether there is a closing fence, and no other fence is opened before it."""


def fences_in(blocks: Sequence[Block], *, depth: int = _DEPTH) -> Iterator[Fence]:
    """The fenced code of some blocks, in order."""
    for block in blocks:
        if block.fence:
            yield _fence(block)
        # Most items and quotations have no code, and need no second parse.
        elif depth and block.kind in {"item", "quote"} and re.search("```|~~~", block.text):
            yield from fences_in(blocks_of(_unwrapped(block)), depth=depth - 1)


def _fence(block: Block) -> Fence:
    language, *_ = (*block.label.lower().split(), "")
    lines = lines_of(block.text)
    while not lines[0].strip():
        del lines[0]
    while len(lines) > 1 and not lines[-1].strip():
        del lines[-1]
    opening, *inside = lines
    ends = bool(inside) and _behind_marks(inside[-1], block.fence) == ""
    if ends:
        del inside[-1]
    # A fence that opens inside another, as long as that one, tells that its end was left out: what
    # was meant for prose stands in code from there on.
    opens = any(re.match(r"[\w{]", _behind_marks(line, block.fence) or "") for line in inside)
    return Fence(
        language=language.strip("{}."),
        code="".join(_outdented(line, _indent(opening)) for line in inside),
        closed=ends and not opens,
    )


def _behind_marks(line: str, fence: str) -> str | None:
    """What follows the marks of a fence of at least that length; None when the line has none."""
    marks = line.strip()
    if _indent(line) > 3 or not marks.startswith(fence):
        return None
    return marks.lstrip(fence[0])


def _unwrapped(block: Block) -> str:
    """What stands in an item or a quotation, without the marks and the indentation of that."""
    if block.kind == "quote":
        return "".join(_QUOTED.sub("", line, count=1) for line in lines_of(block.text))
    lines = lines_of(block.text.expandtabs(4))
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    marker = _MARKER.match(lines[first])
    width = marker.end() if marker else 0
    inside = (_outdented(line, width) for line in lines[first + 1 :])
    return "".join([lines[first][width:], *inside])


def _outdented(line: str, width: int) -> str:
    return line[min(width, _indent(line)) :]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
