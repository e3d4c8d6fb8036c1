"""Shortens a document by leaving parts out; the rest stays verbatim.

A part's content is its words, numbers and quotations, each with a weight; a repetition adds
nothing. Choosing parts is budgeted maximum coverage, usually approximated by taking the best ratio
of gain to length first (Gillick and Favre, "A scalable global model for summarization", 2009; Lin
and Bilmes, "A class of submodular functions for document summarization", 2011).
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, groupby

from harness.compress.markdown import BLANK, PAIR, Block, Section, lines_of, sections_of
from harness.text.sentences import sentence_pieces
from harness.text.words import in_twos


def condense(
    markdown: str,
    *,
    budget_chars: int,
    focus: str = "",
    sections: Collection[int] = (),
    keep_tail_chars: int = 300,
    cap_chars: int | None = None,
) -> str:
    """The document, shortened to `budget_chars` if it is longer, by leaving parts out.

    All headings stay, in order, and so do the named `sections`, by their indices, even over the
    budget. Of the rest, the last `keep_tail_chars` characters are kept first. The remaining room
    goes to the parts that add most for their length: characteristic words of their section,
    numbers, quotations, and words of `focus`. Sentences of paragraphs are kept one by one; list
    items, quotes, tables and code whole or not at all, except code in which the tail begins. The
    mark `[…]` stands for what is left out.

    Headings and marks are kept even if they alone are longer than the budget. Only over `cap_chars`
    they are cut: 85 % of that is their beginning, the rest the end of the document.

    Not promised: the tail, if there is hardly room for it beside headings and marks, as when it
    begins in a long table, quote or list item. Nothing is rephrased, so a pronoun may have lost its
    noun.
    """
    if cap_chars is not None:
        budget_chars = min(budget_chars, cap_chars)
    if len(markdown) <= budget_chars:
        return markdown
    split = split_sections(sections_of(markdown))
    parts = [part for section in split for part in section.parts]
    kept = {part: part.text for part in parts if part.section in sections}

    # 1. Put the tail back, from its end: it shows whether a draft was cut off.
    cut = len(markdown) - keep_tail_chars
    room = budget_chars - sum(len(section.shown(kept)) for section in split)
    for part in reversed(parts):
        if part.end <= cut:
            break
        text = _tail_of(part, cut)
        if part not in kept and added_chars(part, text, kept) <= room:
            room -= added_chars(part, text, kept)
            kept[part] = text

    # 2. Put back the most valuable parts.
    texts = filled(split, kept, budget_chars=budget_chars, focus=focus)

    # 3. In a document of short parts the marks can cost more than they save.
    text = min(markdown, "".join(texts), key=len)
    if cap_chars is not None and len(text) > cap_chars:
        text = cut_middle(text, end_of=markdown, chars=cap_chars)
    return text


def filled(
    sections: Sequence[SplitSection], kept: dict[Part, str], *, budget_chars: int, focus: str
) -> list[str]:
    """Adds to `kept` the most valuable parts that fit; returns the text of each section."""
    values = _Values(sections, focus=focus)
    for part, text in kept.items():
        if text == part.text:
            values.note_kept(part)
    # The most valuable part first, then by place.
    heap = [
        (-values.of(part), part.start, part)
        for section in sections
        for part in section.parts
        if kept.get(part) != part.text
    ]
    heapq.heapify(heap)
    texts = [section.shown(kept) for section in sections]
    # Parts often take less than was counted for them, so that there is room for further ones.
    while chosen := _fitting(heap, values, kept, room=budget_chars - sum(map(len, texts))):
        kept.update({part: part.text for part in chosen})
        for index in {part.section for part in chosen}:
            texts[index] = sections[index].shown(kept)
    return texts


def _fitting(
    heap: list[tuple[float, int, Part]], values: _Values, kept: Kept, *, room: int
) -> list[Part]:
    """Takes the most valuable parts that surely fit into the room from the heap."""
    chosen = []
    too_long = []
    while heap and room > 0:
        entry = heapq.heappop(heap)
        _, start, part = entry
        chars = added_chars(part, part.text, kept)
        if chars > room:
            too_long.append(entry)
        # The value of a part falls when a part of the same content is chosen, and never rises. If
        # it is below that of the next one now, the part goes back to its new place.
        elif heap and (value := values.of(part)) < -heap[0][0]:
            heapq.heappush(heap, (-value, start, part))
        else:
            room -= chars
            chosen.append(part)
            values.note_kept(part)
    for entry in too_long:
        heapq.heappush(heap, entry)
    return chosen


# --- what a part is worth ---

# The number of characteristic words of a section; these weigh 1 on average.
_CHARACTERISTIC = 20
# Numbers must not outweigh the words of the focus.
_FOCUS_WEIGHT = 2.0
_NUMBER_WEIGHT = 2.0
# All quotations of a section together weigh no more than its characteristic words: dialogue is no
# evidence.
_QUOTATION_WEIGHT = 3.0
# The first signs of numbers and quotations among the words.
_NO_WORD = frozenset('"0123456789')
# The weight of a part that says nothing new, so that spare room is filled with repetitions.
_NOTHING_NEW = 0.01
# What a part costs beside its own characters: more than `MARKS_CHARS`, so that long sentences of
# prose, which say more, win over sentences of a few words.
_PART_COST_CHARS = 30

_WORD = re.compile(rf"[^\W\d]\w{{2,}}|{PAIR}|[0-9]+(?:[.,][0-9]+)*")
# The words of a focus that matter: not `the`, but `API`.
_MATTER = re.compile(rf"\w{{4,}}|\b[A-Z]{{3}}\b|{PAIR}")
QUOTED = re.compile(r"“[^”]{8,}”|\"[^\"\n]{8,}\"|«[^»]{8,}»|„[^“”]{8,}[“”]")


class _Values:
    """The values of parts for their length, beside the parts of their section that are kept.

    A part's words count if its section does not have them yet: by tf-idf over all parts, or as much
    as a number, a quotation or a word of the focus.
    """

    def __init__(self, sections: Sequence[SplitSection], *, focus: str) -> None:
        contents = [[_content_of(part) for part in section.parts] for section in sections]
        focus_words = frozenset(words_in(" ".join(_MATTER.findall(in_twos(focus)))))
        # For each section, the weight of the content that no kept part of it has.
        self._new_weights = _weights(contents, focus_words)
        self._content: dict[Part, frozenset[str]] = {}
        self._factor: dict[Part, float] = {}  # multiplies the weight of a part's new content
        for section, section_contents in zip(sections, contents, strict=True):
            for number, part in enumerate(section.parts):
                content = frozenset(section_contents[number])
                # The beginning and the end of a section count up to three times.
                place = 1 + 0.5 / (1 + number) + 1.5 / (len(section.parts) - number)
                # A part that shares words with the focus counts up to four times; the first words
                # count most.
                common = len(content & focus_words)
                relevance = 1 + 3 * common / (common + 2)
                self._content[part] = content
                self._factor[part] = place * relevance / (len(part.text) + _PART_COST_CHARS)

    def of(self, part: Part) -> float:
        """The value of a part that is not kept."""
        weights = self._new_weights[part.section]
        # `fsum` is exact: in a plain sum the order would count, which differs between processes.
        new = math.fsum(weights[word] for word in self._content[part] if word in weights)
        return (new + _NOTHING_NEW) * self._factor[part]

    def note_kept(self, part: Part) -> None:
        """From now on, the content of this part adds no value to other parts of its section."""
        for word in self._content[part]:
            self._new_weights[part.section].pop(word, None)


def _weights(
    contents: Sequence[Sequence[Sequence[str]]], focus_words: Set[str]
) -> list[dict[str, float]]:
    """The weights of each section's words; `contents` has the words by section and part."""
    all_parts = list(chain.from_iterable(contents))
    parts_with = Counter(chain.from_iterable(map(set, all_parts)))
    weights = []
    for section in contents:
        count = Counter(chain.from_iterable(section))
        tf_idf = {
            word: math.log1p(n) * math.log1p(len(all_parts) / parts_with[word])
            for word, n in count.items()
            if word[0] not in _NO_WORD
        }
        best = heapq.nlargest(_CHARACTERISTIC, tf_idf.values())
        scale = len(best) / math.fsum(best) if best else 0.0
        quotations = sum(word[0] == '"' for word in count)
        quotation_weight = min(_QUOTATION_WEIGHT, _CHARACTERISTIC / max(1, quotations))
        weights.append(
            {word: quotation_weight if word[0] == '"' else _NUMBER_WEIGHT for word in count}
            | {word: score * scale for word, score in tf_idf.items()}
            | dict.fromkeys(focus_words & tf_idf.keys(), _FOCUS_WEIGHT)
        )
    return weights


def _content_of(part: Part) -> list[str]:
    """The words and numbers of a part, and its quotations, marked by a quotation mark."""
    words = words_in(part.text)
    if part.block.kind == "quote":
        # The whole block is one quotation, unlike any other.
        words.append(f'"{part.start}')
    elif part.block.kind != "code":
        words += [f'"{quotation}' for quotation in QUOTED.findall(part.text)]
    return words


def words_in(text: str) -> list[str]:
    """Case-folded words of three letters or more, pairs of a script without blanks, and numbers."""
    return _WORD.findall(in_twos(text.casefold()))


# --- parts ---

LEFT_OUT = "[…]"
"""The mark for what is left out."""


# Compared by identity, since two parts in a row may be equal.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """The unit that is kept or left out: a sentence of a paragraph, or another block."""

    block: Block
    text: str
    """Verbatim, with the white space after it."""
    start: int
    """Its offset in the document."""
    section: int
    """Index of its section."""

    @property
    def end(self) -> int:
        """The offset of the next part."""
        return self.start + len(self.text)


Kept = Mapping[Part, str]
"""The text of each kept part: all of it, or what `_tail_of` left of it, behind a mark."""

# The most that marks can grow when one sentence is kept in the middle of a run: one before it, one
# after it, one for the blocks that follow, and the white space around them.
MARKS_CHARS = 3 * len(LEFT_OUT) + 6


def added_chars(part: Part, text: str, kept: Kept) -> int:
    """The most that the document grows when this text of the part is kept."""
    # The true growth depends on its neighbors, since one mark stands for a run of parts.
    return len(text) - len(kept.get(part, "")) + MARKS_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSection:
    """A section, and its parts in order."""

    heading: str
    parts: Sequence[Part]

    def shown(self, kept: Kept) -> str:
        """The section with its heading, the kept parts, and marks for the rest."""
        body = ""
        for _, of_block in groupby(self.parts, key=lambda part: id(part.block)):
            texts = [kept.get(part, "") for part in of_block]
            is_marked = body.rstrip(BLANK).endswith(LEFT_OUT)
            if any(texts):
                text = _elided(texts)  # it begins with a mark if its first part is left out
                body += text.removeprefix(f"{LEFT_OUT} ") if is_marked else text
            elif not is_marked:
                # A paragraph of its own: otherwise a list or a quote would continue with it.
                if body and not body.endswith(("\n\n", "\r\n\r\n")):
                    body += "\n"
                body += f"{LEFT_OUT}\n\n"
        return self.heading + body


def _elided(texts: Sequence[str]) -> str:
    """A block that is kept in part: one mark for every run of sentences left out."""
    elided = ""
    mark = f"{LEFT_OUT} "
    for text in texts:
        shown = text or mark
        elided += shown.removeprefix(mark) if elided.endswith(mark) else shown
    return elided if texts[-1] else elided.rstrip(BLANK) + "\n\n"


def split_sections(sections: Sequence[Section]) -> list[SplitSection]:
    """Splits all sections of a text into parts: paragraphs at sentence ends."""
    split: list[SplitSection] = []
    start = 0
    for number, section in enumerate(sections):
        start += len(section.heading)
        parts: list[Part] = []
        for block in section.blocks:
            is_paragraph = block.kind == "paragraph"
            for text in sentence_pieces(block.text) if is_paragraph else [block.text]:
                parts.append(Part(block=block, text=text, start=start, section=number))
                start += len(text)
        split.append(SplitSection(heading=section.heading, parts=parts))
    return split


def _tail_of(part: Part, cut: int) -> str:
    """The part from offset `cut` on: words of a sentence, lines of code, else all of it."""
    head = part.text[: max(cut - part.start, 0)]
    if part.block.kind == "paragraph":
        word = max(head.rfind(" "), head.rfind("\n")) + 1
        return f"{LEFT_OUT} {part.text[word:]}" if word else part.text
    lines_before = lines_of(head)[:-1]
    if part.block.kind != "code" or not lines_before:
        return part.text
    # Opened again, or the rest of the document would be code.
    fence = part.block.fence
    opening = f"{fence}{part.block.label}\n{LEFT_OUT}\n" if fence else f"{LEFT_OUT}\n\n"
    return opening + part.text[len("".join(lines_before)) :]


# --- the last resort ---

_HEAD_SHARE = 0.85
_MARK_BETWEEN = f"\n\n{LEFT_OUT}\n\n"


def cut_middle(text: str, *, end_of: str, chars: int) -> str:
    """At most `chars` characters: 85 % are the beginning of `text`, the rest the end of `end_of`.

    Between them is a mark. Empty without room for it.
    """
    head_chars = int(_HEAD_SHARE * chars) - len(_MARK_BETWEEN)
    if head_chars < 0:
        return ""
    tail_chars = chars - head_chars - len(_MARK_BETWEEN)
    return text[:head_chars] + _MARK_BETWEEN + end_of[len(end_of) - tail_chars :]
