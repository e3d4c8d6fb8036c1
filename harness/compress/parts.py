"""What of a document can be kept or left out, piece by piece, and how the rest is marked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harness.compress.blocks import BLANK, Block, lines_of, unpadded
from harness.compress.sections import Section
from harness.compress.sentences import sentence_pieces

LEFT_OUT = "[…]"
"""Stands in place of prose."""

MARK = re.compile(r"\[…\]|\[(?:[\w+#.-]+ )?(?:code|table) left out, (?:lines|rows): \d+\]")
"""Finds whatever stands in place of something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is kept or left out as one: a sentence, or a block that is not a paragraph."""

    block: Block
    """The block that it is, or is a sentence of."""
    text: str
    """Verbatim, with the white space after it."""
    start: int
    """Where it starts in the document."""
    section: int
    """Index of its section."""
    before: int
    """How many parts of its section stand before it."""
    after: int
    """How many parts of its section stand after it."""
    mark: str
    """What stands in place of its whole block."""

    @property
    def end(self) -> int:
        """Where the next part starts."""
        return self.start + len(self.text)


# The most that marks can grow by when one sentence is kept in the middle of a run: one before it,
# one behind it, one for the blocks that follow, and the white space around them.
_MARKS_CHARS = 3 * len(LEFT_OUT) + 6

SectionParts = Sequence[Sequence[Part]]
"""The parts of one section, block by block."""

Kept = Mapping[int, str]
"""What is shown of the parts that are not left out, by where they start."""


def parts_of(sections: Sequence[Section], *, cut: int) -> list[SectionParts]:
    """The parts of each section. A sentence that the cut is in becomes two, before its word."""
    found: list[SectionParts] = []
    start = 0
    for number, section in enumerate(sections):
        start += len(section.heading)
        starts = accumulate((len(block.text) for block in section.blocks), initial=start)
        pieces = [
            _pieces(block, cut=cut - block_start)
            for block, block_start in zip(section.blocks, starts, strict=False)
        ]
        before, after = 0, sum(map(len, pieces))
        parts: list[list[Part]] = []
        for block, texts in zip(section.blocks, pieces, strict=True):
            mark = _mark(block)
            parts.append([])
            for text in texts:
                after -= 1
                part = Part(
                    block=block,
                    text=text,
                    start=start,
                    section=number,
                    before=before,
                    after=after,
                    mark=mark,
                )
                parts[-1].append(part)
                before += 1
                start += len(text)
        found.append(parts)
    return found


def tail_of(part: Part, cut: int) -> str:
    """The part, or of code only from the line that the cut is in, with its fence opened again."""
    before = lines_of(part.text[: max(cut - part.start, 0)])[:-1]
    if part.block.kind != "code" or not before:
        return part.text
    fence = part.block.fence
    opening = f"{fence}{part.block.label}\n{LEFT_OUT}\n" if fence else f"{LEFT_OUT}\n\n"
    return opening + part.text[len("".join(before)) :]


def added_chars(part: Part, text: str, kept: Kept) -> int:
    """The most that the document grows by when this text of the part is kept.

    What it really takes depends on its neighbours, since one mark stands for a run of parts.
    """
    instead_of = kept.get(part.start, part.mark if part.mark != LEFT_OUT else "")
    return len(text) - len(instead_of) + _MARKS_CHARS


def shown(section: Section, parts: SectionParts, kept: Kept) -> str:
    """The section with its heading, what was kept, and marks for the rest."""
    text = section.heading
    body = ""
    last = ""
    for block_parts in parts:
        texts = [kept.get(part.start, "") for part in block_parts]
        if any(texts):
            last = _elided(texts)
            body += last
            continue
        mark = block_parts[0].mark
        if last == mark == LEFT_OUT:  # one mark for a run of blocks
            continue
        # A paragraph of its own: else a list or a quote would take it in as another line.
        if body and not body.endswith(("\n\n", "\r\n\r\n")):
            body += "\n"
        body += f"{mark}\n\n"
        last = mark
    return text + body


def _pieces(block: Block, *, cut: int) -> list[str]:
    """The sentences of a paragraph, the one around the cut divided before its word; else one."""
    if block.kind != "paragraph":
        return [block.text]
    sentences = sentence_pieces(block.text)
    if not 0 < cut < len(block.text):
        return sentences
    pieces: list[str] = []
    start = 0
    for sentence in sentences:
        within = 0 < cut - start < len(sentence)
        head = sentence[: cut - start] if within else ""
        word = max(head.rfind(" "), head.rfind("\n")) + 1
        pieces += [piece for piece in (sentence[:word], sentence[word:]) if piece]
        start += len(sentence)
    return pieces


def _mark(block: Block) -> str:
    """What stands in place of a block."""
    if block.kind not in {"code", "table"}:
        return LEFT_OUT
    lines = lines_of(unpadded(block.text))
    if block.kind == "table":
        return f"[table left out, rows: {len(lines) - 2}]"
    if block.fence:
        closed = not lines[-1].strip(BLANK + block.fence[0])
        lines = lines[1:-1] if closed else lines[1:]
    language = re.match(r"[\w+#.-]*", block.label)
    name = f"{language[0]} code" if language and language[0] else "code"
    return f"[{name} left out, lines: {len(lines)}]"


def _elided(texts: Sequence[str]) -> str:
    """A block of which something was kept: one mark for every run of sentences left out."""
    elided = ""
    for text in texts:
        if text:
            elided += text
        elif not elided.endswith(f"{LEFT_OUT} "):
            elided += f"{LEFT_OUT} "
    return elided if texts[-1] else elided.rstrip(BLANK) + "\n\n"
