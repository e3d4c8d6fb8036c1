"""Shortening a document by leaving things out: what stays is verbatim, nothing is paraphrased."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.compress.blocks import BLANK, Block, lines_of, unpadded
from harness.compress.sections import Section, sections_of
from harness.compress.sentences import sentence_pieces

_LEFT_OUT = "[…]"
# The most that marks can grow by when one sentence is kept in the middle of a run: one before it,
# one behind it, one for the blocks that follow, and the white space around them.
_MARKS_CHARS = 3 * len(_LEFT_OUT) + 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """A text that was shortened, or was short enough."""

    text: str
    """The text to use."""
    before_chars: int
    """Length of the text that was given."""
    after_chars: int
    """Length of `text`."""
    compressed: bool
    """Whether anything was left out: scores of the full and of a compressed text do not compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What is kept or left out as one: a sentence, or a block that is not a paragraph."""

    block: Block
    """The block that it is, or is a sentence of."""
    text: str
    """Verbatim, with the white space after it."""
    start: int
    """Where it starts in the document."""
    score: float
    """How much it is worth."""

    @property
    def end(self) -> int:
        """Where the next part starts."""
        return self.start + len(self.text)


def condense(
    markdown: str, *, budget_chars: int, focus: str = "", keep_tail_chars: int = 300
) -> Condensed:
    """The document, shortened to `budget_chars` if it is longer, by leaving parts of it out.

    All headings stay, in order. Of the rest, the last `keep_tail_chars` characters are kept first:
    a draft that was cut off shows it there. Then, as long as there is room, what shares words with
    `focus` and with the heading above it, stands early in its section, or has numbers. Sentences
    of paragraphs are kept one by one; list items, quotes, tables and code whole or not at all,
    except code that the tail begins in. What is left out leaves a mark: `[…]`, or a line that says
    how much code or how large a table it was.

    Not promised: the result is over the budget if the headings and marks alone are. The tail is
    missing if there is hardly room for it beside them, as when it begins in a long table, quote or
    list item. And nothing is rephrased, so a pronoun may have lost what it stood for.
    """
    if len(markdown) <= budget_chars:
        return _condensed(markdown, markdown)
    sections = sections_of(markdown)
    cut = len(markdown) - keep_tail_chars
    parts = _parts_of(sections, cut=cut, focus=_words(focus))
    every = [part for section_parts in parts for part in section_parts]

    # 1. Begin with headings and marks only.
    kept: dict[int, str] = {}  # by where the part starts
    text = _shown(sections, parts, kept)

    # 2. Put the tail back, then what is worth most.
    tail = [(part, _tail_of(part, cut)) for part in reversed(every) if part.end > cut]
    best = [(part, part.text) for part in sorted(every, key=lambda part: -part.score)]
    for candidates in (tail, best):
        while chosen := _fitting(candidates, kept, room=budget_chars - len(text)):
            kept |= chosen
            text = _shown(sections, parts, kept)

    # 3. In a document of short parts the marks can cost more than they save.
    return _condensed(markdown, text if len(text) < len(markdown) else markdown)


def _condensed(before: str, after: str) -> Condensed:
    return Condensed(
        text=after, before_chars=len(before), after_chars=len(after), compressed=after != before
    )


# --- what can be kept ------------------------------------------------------------------------


def _parts_of(sections: Sequence[Section], *, cut: int, focus: frozenset[str]) -> list[list[_Part]]:
    """The parts of each section, in order. A sentence that the tail begins in becomes two."""
    found: list[list[_Part]] = []
    start = 0
    for section in sections:
        start += len(section.heading)
        title = _words(section.title)
        parts: list[_Part] = []
        for block in section.blocks:
            for text in _pieces(block, cut=cut - start):
                score = _score(text, focus=focus, title=title, place=len(parts))
                parts.append(_Part(block=block, text=text, start=start, score=score))
                start += len(text)
        found.append(parts)
    return found


def _pieces(block: Block, *, cut: int) -> list[str]:
    """The sentences of a paragraph, the one around the cut divided before its word; else one."""
    if block.kind != "paragraph":
        return [block.text]
    pieces: list[str] = []
    start = 0
    for sentence in sentence_pieces(block.text):
        within = 0 < cut - start < len(sentence)
        head = sentence[: cut - start] if within else ""
        word = max(head.rfind(" "), head.rfind("\n")) + 1
        pieces += [piece for piece in (sentence[:word], sentence[word:]) if piece]
        start += len(sentence)
    return pieces


# --- what is worth keeping -------------------------------------------------------------------


def _fitting(
    candidates: Sequence[tuple[_Part, str]], kept: Mapping[int, str], *, room: int
) -> dict[int, str]:
    """Those candidates, the first ones first, that are not kept yet and certainly fit.

    What a part really takes depends on its neighbours, since one mark stands for a run of parts.
    This counts the most it can be, so that there may be room for more once these are kept.
    """
    chosen: dict[int, str] = {}
    for part, text in candidates:
        mark = _mark(part.block)
        instead_of = kept.get(part.start, mark if mark != _LEFT_OUT else "")
        takes = len(text) - len(instead_of) + _MARKS_CHARS
        if takes <= room and instead_of != text:
            chosen[part.start] = text
            room -= takes
    return chosen


def _tail_of(part: _Part, cut: int) -> str:
    """The part, or of code only from the line that the cut is in, with its fence opened again."""
    before = lines_of(part.text[: max(cut - part.start, 0)])[:-1]
    if part.block.kind != "code" or not before:
        return part.text
    fence = part.block.fence
    opening = f"{fence}{part.block.label}\n{_LEFT_OUT}\n" if fence else f"{_LEFT_OUT}\n\n"
    return opening + part.text[len("".join(before)) :]


def _score(text: str, *, focus: frozenset[str], title: frozenset[str], place: int) -> float:
    """Worth of a text that stands at this place of its section, counted from 0."""
    words = _words(text)
    shared = 3 * _overlap(words, focus) + _overlap(words, title)
    number = 0.5 if re.search(r"\d", text) else 0.0
    # A long piece has more words to share, and takes the room of many others.
    return (shared + number + 1 / (1 + place)) / (1 + len(text) / 300)


def _overlap(words: frozenset[str], wanted: frozenset[str]) -> float:
    """From 0 to 1; the first words in common count most, however many are wanted."""
    common = len(words & wanted)
    return common / (common + 2)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{3,}", text.casefold()))


# --- what it looks like ----------------------------------------------------------------------


def _shown(
    sections: Sequence[Section], parts: Sequence[Sequence[_Part]], kept: Mapping[int, str]
) -> str:
    """The document with its headings, what was kept, and marks for the rest."""
    return "".join(
        section.heading + _body(section_parts, kept)
        for section, section_parts in zip(sections, parts, strict=True)
    )


def _body(parts: Sequence[_Part], kept: Mapping[int, str]) -> str:
    """A section's body: what was kept of it, and marks for the rest."""
    body = ""
    last = ""
    # Blocks are told apart by identity: two items of a list may well be equal.
    for _, group in groupby(parts, key=lambda part: id(part.block)):
        block_parts = list(group)
        texts = [kept.get(part.start, "") for part in block_parts]
        if any(texts):
            last = _elided(texts)
            body += last
            continue
        mark = _mark(block_parts[0].block)
        if last == mark == _LEFT_OUT:  # one mark for a run of blocks
            continue
        # A paragraph of its own: else a list or a quote would take it in as another line.
        if body and not body.endswith(("\n\n", "\r\n\r\n")):
            body += "\n"
        body += f"{mark}\n\n"
        last = mark
    return body


def _elided(texts: Sequence[str]) -> str:
    """A block of which something was kept: one mark for every run of sentences left out."""
    shown = ""
    for text in texts:
        if text:
            shown += text
        elif not shown.endswith(f"{_LEFT_OUT} "):
            shown += f"{_LEFT_OUT} "
    return shown if texts[-1] else shown.rstrip(BLANK) + "\n\n"


def _mark(block: Block) -> str:
    """What stands in place of a block."""
    if block.kind not in {"code", "table"}:
        return _LEFT_OUT
    lines = lines_of(unpadded(block.text))
    if block.kind == "table":
        return f"[table left out, rows: {len(lines) - 2}]"
    if block.fence:
        closed = not lines[-1].strip(BLANK + block.fence[0])
        lines = lines[1:-1] if closed else lines[1:]
    language = re.match(r"[\w+#.-]*", block.label)
    name = f"{language[0]} code" if language and language[0] else "code"
    return f"[{name} left out, lines: {len(lines)}]"
