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

from harness.compress.markdown import BLANK, Block, Section, lines_of, sections_of
from harness.text.sentences import sentence_pieces


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
    cut = len(markdown) - keep_tail_chars
    split = split_sections(sections_of(markdown))
    kept_texts = {part.start: part.text for index in sections for part in split[index].parts}

    # 1. Put the tail back, from its end: it shows whether a draft was cut off.
    room = budget_chars - sum(len(section.shown(kept_texts)) for section in split)
    for part in reversed([part for section in split for part in section.parts]):
        if part.end <= cut:
            break
        if part.start in kept_texts:
            continue
        text = _tail_of(part, cut)
        takes = added_chars(part, text, kept_texts)
        if takes <= room:
            kept_texts[part.start] = text
            room -= takes

    # 2. Put back the most valuable parts.
    texts = filled(split, kept_texts, budget_chars=budget_chars, focus=focus)

    # 3. In a document of short parts the marks can cost more than they save.
    text = min(markdown, "".join(texts), key=len)
    if cap_chars is not None and len(text) > cap_chars:
        text = cut_middle(text, end_of=markdown, chars=cap_chars)
    return text


def filled(
    sections: Sequence[SplitSection], kept_texts: dict[int, str], *, budget_chars: int, focus: str
) -> list[str]:
    """Each section with its kept parts, and as many more as fit into the budget for all.

    `kept_texts`, by the start of a part, gets the further ones.
    """
    best = BestFirst([section.parts for section in sections], focus=focus, texts=kept_texts)
    texts = [section.shown(kept_texts) for section in sections]
    # A part often takes less than was counted for it, so that there is room for more.
    while chosen := best.take_fitting(budget_chars - sum(map(len, texts))):
        kept_texts.update({part.start: part.text for part in chosen})
        for index in {part.section for part in chosen}:
            texts[index] = sections[index].shown(kept_texts)
    return texts


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
# The share of a mark that a part costs beside its own characters, on average.
_MARK_CHARS = 30

_WORD = re.compile(r"[^\W\d]\w{2,}|[0-9]+(?:[.,][0-9]+)*")
# The words of a focus that matter: not `the`, but `API`.
_MATTER = re.compile(r"\w{4,}|\b[A-Z]{3}\b")
QUOTED = re.compile(r"“[^”]{8,}”|\"[^\"\n]{8,}\"|«[^»]{8,}»|„[^“”]{8,}[“”]")


@dataclass(frozen=True, slots=True)
class _RankedPart:
    part: Part
    content: frozenset[str]
    """Its words, numbers and quotations, from `_content_of`."""
    factor: float
    """Multiplies the weight of the content that no kept part of its section has."""


class BestFirst:
    """Hands out the parts of a document, the most valuable for their length first.

    A part's words count if its section does not have them yet: by tf-idf over all parts, or as much
    as a number, a quotation or a word of the focus.
    """

    def __init__(self, parts: Sequence[Sequence[Part]], *, focus: str, texts: Kept) -> None:
        self._texts = texts  # the caller adds to it
        contents = [[_content_of(part) for part in section] for section in parts]
        focus_words = frozenset(words_in(" ".join(_MATTER.findall(focus))))
        # For each section, the weight of the content that no kept part of it has.
        self._new_weights = _weights(contents, focus_words)
        candidates = [
            _candidate(part, content, focus_words)
            for section, section_contents in zip(parts, contents, strict=True)
            for part, content in zip(section, section_contents, strict=True)
        ]
        for candidate in candidates:
            if texts.get(candidate.part.start) == candidate.part.text:
                self._count_as_kept(candidate)
        # Sorted by falling value, then by place. The value of a part falls when a part of the same
        # content is kept, and never rises: only the first has to be checked.
        self._heap = [
            (-self._worth(candidate), candidate.part.start, candidate)
            for candidate in candidates
            if texts.get(candidate.part.start) != candidate.part.text
        ]
        heapq.heapify(self._heap)

    def take_fitting(self, room: int) -> list[Part]:
        """Takes out the next parts that surely fit into the room; longer ones stay."""
        chosen: list[Part] = []
        too_long = []
        while self._heap and room > 0:
            entry = heapq.heappop(self._heap)
            _, start, candidate = entry
            takes = added_chars(candidate.part, candidate.part.text, self._texts)
            if takes > room:
                # It waits: parts often take less than was counted, so the next turn may have room.
                too_long.append(entry)
                continue
            worth = self._worth(candidate)
            # The value has fallen below that of the next part.
            if self._heap and worth < -self._heap[0][0]:
                heapq.heappush(self._heap, (-worth, start, candidate))
                continue
            chosen.append(candidate.part)
            room -= takes
            self._count_as_kept(candidate)
        for entry in too_long:
            heapq.heappush(self._heap, entry)
        return chosen

    def _worth(self, candidate: _RankedPart) -> float:
        weights = self._new_weights[candidate.part.section]
        # `fsum` is exact: in a plain sum the order would count, which differs between processes.
        new = math.fsum(weights[word] for word in candidate.content if word in weights)
        return (new + _NOTHING_NEW) * candidate.factor

    def _count_as_kept(self, candidate: _RankedPart) -> None:
        weights = self._new_weights[candidate.part.section]
        for word in candidate.content:
            weights.pop(word, None)


def _candidate(part: Part, words: Sequence[str], focus_words: frozenset[str]) -> _RankedPart:
    content = frozenset(words)
    common = len(content & focus_words)
    # The beginning and the end of a section count up to three times.
    place = 1 + 0.5 / (1 + part.before) + 1.5 / (1 + part.after)
    # A part that shares words with the focus counts up to four times; the first words count most.
    relevance = 1 + 3 * common / (common + 2)
    factor = place * relevance / (len(part.text) + _MARK_CHARS)
    return _RankedPart(part=part, content=content, factor=factor)


def _weights(
    contents: Sequence[Sequence[Sequence[str]]], focus_words: Set[str]
) -> list[dict[str, float]]:
    """The weights of the words of each section, of which `contents` has those of each part."""
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
    """The words of three letters and more, and the numbers, case-folded."""
    return _WORD.findall(text.casefold())


# --- parts ---

LEFT_OUT = "[…]"
"""The mark for what is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The unit that is kept or left out: a sentence of a paragraph, or another block."""

    block: Block
    text: str
    """Verbatim, with the white space after it."""
    start: int
    """Its offset in the document."""
    section: int
    """Index of its section."""
    before: int
    """The number of parts before it in its section."""
    after: int
    """The number of parts after it in its section."""

    @property
    def end(self) -> int:
        """The offset of the next part."""
        return self.start + len(self.text)


# The most that marks can grow when one sentence is kept in the middle of a run: one before it, one
# after it, one for the blocks that follow, and the white space around them.
_MARKS_CHARS = 3 * len(LEFT_OUT) + 6

Kept = Mapping[int, str]
"""The text of each kept part, by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSection:
    """A section, and its parts in order."""

    heading: str
    parts: Sequence[Part]

    def shown(self, kept_texts: Kept) -> str:
        """The section with its heading, the kept parts, and marks for the rest."""
        body = ""
        # By identity, since two blocks in a row may be equal.
        for _, of_block in groupby(self.parts, key=lambda part: id(part.block)):
            texts = [kept_texts.get(part.start, "") for part in of_block]
            # One mark stands for a run of parts.
            is_marked = body.rstrip(BLANK).endswith(LEFT_OUT)
            if any(texts):
                text = _elided(texts)
                body += text.removeprefix(f"{LEFT_OUT} ") if is_marked else text
            elif not is_marked:
                # A paragraph of its own: otherwise a list or a quote would continue with it.
                if body and not body.endswith(("\n\n", "\r\n\r\n")):
                    body += "\n"
                body += f"{LEFT_OUT}\n\n"
        return self.heading + body


def split_sections(sections: Sequence[Section]) -> list[SplitSection]:
    """Splits all sections of a text into parts."""
    split: list[SplitSection] = []
    start = 0
    for number, section in enumerate(sections):
        start += len(section.heading)
        pieces = [(block, text) for block in section.blocks for text in _part_texts(block)]
        parts: list[Part] = []
        for before, (block, text) in enumerate(pieces):
            part = Part(
                block=block,
                text=text,
                start=start,
                section=number,
                before=before,
                after=len(pieces) - before - 1,
            )
            parts.append(part)
            start += len(text)
        split.append(SplitSection(heading=section.heading, parts=parts))
    return split


def _part_texts(block: Block) -> list[str]:
    """The sentences of a paragraph; another block whole."""
    return sentence_pieces(block.text) if block.kind == "paragraph" else [block.text]


def _tail_of(part: Part, cut: int) -> str:
    """The part; of a sentence what is behind offset `cut`, of code the lines from there on."""
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


def added_chars(part: Part, text: str, texts: Kept) -> int:
    """The most that the document grows when this text of the part is kept."""
    # The true growth depends on its neighbors, since one mark stands for a run of parts.
    return len(text) - len(texts.get(part.start, "")) + _MARKS_CHARS


def _elided(texts: Sequence[str]) -> str:
    """A block that is kept in part: one mark for every run of sentences left out."""
    elided = ""
    mark = f"{LEFT_OUT} "
    for text in texts:
        shown = text or mark
        elided += shown.removeprefix(mark) if elided.endswith(mark) else shown
    return elided if texts[-1] else elided.rstrip(BLANK) + "\n\n"


# --- the last resort ---

_HEAD_SHARE = 0.85
_MARK = f"\n\n{LEFT_OUT}\n\n"


def cut_middle(text: str, *, end_of: str, chars: int) -> str:
    """At most `chars` characters: 85 % are the beginning of `text`, the rest the end of `end_of`.

    Between them is a mark. Empty without room for it.
    """
    head_chars = int(_HEAD_SHARE * chars) - len(_MARK)
    if head_chars < 0:
        return ""
    tail_chars = chars - head_chars - len(_MARK)
    return text[:head_chars] + _MARK + end_of[len(end_of) - tail_chars :]
