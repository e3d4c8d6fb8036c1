"""Shortens documents to the passages that a text relies on; the rest stays verbatim."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate, count, groupby, pairwise

from harness.compress.condense import (
    LEFT_OUT,
    MARKS_CHARS,
    QUOTED,
    Part,
    SplitSection,
    added_chars,
    filled,
    split_sections,
    words_in,
)
from harness.compress.markdown import Block, Section, blocks_of, pieces_of, sections_of
from harness.text.sentences import sentences_of

# The most of the room that evidence takes which is not quoted: a reader must also see what the
# documents say and the text does not.
_NEAR_SHARE = 2 / 3
# The most of the room left by the evidence that the headings of other sections take.
_OUTLINE_SHARE = 1 / 2
# Longer tables, code, list items and sentences are kept in pieces.
_PART_CHARS = 1_000
# Stands for sections in a row of which nothing is shown.
_GAP = f"\n{LEFT_OUT}\n\n"
_NOTHING = SplitSection(heading="", parts=())


def condense_toward(
    documents: Sequence[str],
    *,
    draft: str,
    budget_chars: int,
    focus: str = "",
    frame_chars: int = 0,
) -> tuple[str, ...]:
    """The documents, shortened together to `budget_chars` if they are longer.

    First stays what `draft` quotes: parts that share five words in a row with one of its sentences
    or quotations, or all words of a shorter one; words of one or two letters do not count, except
    pairs of letters in scripts without blanks. Up to two thirds of the room then go to the parts
    nearest to its sentences, the rest to headings and to what `condense` would keep. Where there is
    not room for all, parts that serve most for their length go first. Marks stand for what is left
    out, a whole section with its heading among it.

    Args:
        documents: In Markdown.
        draft: A text that draws on them, in Markdown.
        budget_chars: Never exceeded.
        focus: Its words are preferred where `draft` does not decide.
        frame_chars: What is put around each document that is shown, and counts too.

    Returns:
        What is shown of each document; empty for nothing.
    """
    if sum(len(document) + frame_chars for document in documents) <= budget_chars:
        return tuple(documents)
    by_document = [sections_of(document) for document in documents]
    document_of = [number for number, sections in enumerate(by_document) for _ in sections]
    sections = split_sections([_in_pieces(s) for document in by_document for s in document])
    kept: dict[Part, str] = {}
    shown_sections: set[int] = set()
    shown_documents: set[int] = set()
    room = budget_chars

    def take_room(index: int, chars: int, *, leaving: float) -> bool:
        """Whether a section and so many more characters of it leave enough room: they take it."""
        nonlocal room
        document = document_of[index]
        if index not in shown_sections:
            chars += len(sections[index].heading) + 3 * len(_GAP)
        if document not in shown_documents:
            chars += frame_chars
        if chars > room - leaving:
            return False
        shown_sections.add(index)
        shown_documents.add(document)
        room -= chars
        return True

    # 1. Evidence.
    reserve = (1 - _NEAR_SHARE) * budget_chars
    for part, is_quoted in _evidence(draft, [p for s in sections for p in s.parts]):
        part_chars = added_chars(part, part.text, kept)
        if take_room(part.section, part_chars, leaving=0 if is_quoted else reserve):
            kept[part] = part.text

    # 2. Headings of other sections, those of the same documents first.
    least_room = room * (1 - _OUTLINE_SHARE)
    for index in sorted(range(len(sections)), key=lambda i: document_of[i] not in shown_documents):
        take_room(index, 0, leaving=least_room)

    # 3. The parts that add most, in the room that marks did not take.
    spans = [slice(*ends) for ends in pairwise(accumulate(map(len, by_document), initial=0))]
    visible = [section if i in shown_sections else _NOTHING for i, section in enumerate(sections)]
    texts = [section.shown(kept) for section in visible]
    joined = [_joined(texts[span]) for span in spans]
    gaps_chars = sum(len(text) + frame_chars for text in joined if text) - sum(map(len, texts))
    texts = filled(visible, kept, budget_chars=budget_chars - gaps_chars, focus=focus)
    # A section that ends with a mark needs no mark for the sections left out after it.
    joined = [_joined(texts[span]).replace(2 * _GAP, _GAP) for span in spans]
    return tuple(min(pair, key=len) for pair in zip(documents, joined, strict=True))


def _in_pieces(section: Section) -> Section:
    blocks = (
        block if text == block.text else Block(kind="other", text=text)
        for block in section.blocks
        for text in pieces_of(block, _PART_CHARS)
    )
    return replace(section, blocks=tuple(blocks))


def _joined(texts: Sequence[str]) -> str:
    """The sections of a document, with marks for those without text; empty if none has any."""
    runs = groupby(texts, key=bool) if any(texts) else ()
    return "".join("".join(run) if has_text else _GAP for has_text, run in runs)


# A run of fewer words may be common by chance.
_RUN_WORDS = 5
# The weight of a quoted run is more than that of all the words of a sentence.
_QUOTED_WEIGHT = 1_000.0
# The most parts for a sentence that it does not quote, each for words that the others lack.
_NEAREST = 3


def _evidence(draft: str, parts: Sequence[Part]) -> list[tuple[Part, bool]]:
    """The parts that bear on a text, and whether it quotes them; the most useful first."""
    blocks = [block.text for block in blocks_of(draft) if block.kind != "heading"]
    sentences = (sentence for text in blocks for sentence in sentences_of(text))
    claims = [words_in(claim) for claim in dict.fromkeys([*sentences, *QUOTED.findall(draft)])]
    # A feature of a part is a word, or a run of words as long as a claim can quote.
    lengths = sorted({min(_RUN_WORDS, len(words)) for words in claims} - {0, 1})
    features = [
        {*words, *(run for length in lengths for run in _runs(words, length))}
        for words in (words_in(part.text) for part in parts)
    ]
    parts_by_feature: dict[str, list[int]] = defaultdict(list)
    for number, part_features in enumerate(features):
        for feature in part_features:
            parts_by_feature[feature].append(number)

    served: dict[int, float] = defaultdict(float)  # part → weight of what it has of the claims
    for words in claims:
        for number, weight in _serving(words, features, parts_by_feature):
            served[number] += weight

    def order(number: int) -> tuple[bool, float, int]:
        value = served[number] / (len(parts[number].text) + MARKS_CHARS)
        return served[number] < _QUOTED_WEIGHT, -value, number

    return [(parts[n], served[n] >= _QUOTED_WEIGHT) for n in sorted(served, key=order)]


def _serving(
    claim: Sequence[str], features: Sequence[Set[str]], parts_by_feature: Mapping[str, list[int]]
) -> Iterator[tuple[int, float]]:
    """The parts that together have what can be found of a claim, each with its share's weight.

    In turn, the part that has most of what the parts before it lack.
    """
    # Inverse document frequency, parts being the documents: Spärck Jones, "A statistical
    # interpretation of term specificity and its application in retrieval", 1972.
    lacks = {
        word: math.log(1 + len(features) / len(parts_by_feature[word]))
        for word in claim
        if word in parts_by_feature
    }
    quoted_runs = [run for run in _runs(claim, _RUN_WORDS) if run in parts_by_feature]
    lacks |= dict.fromkeys(quoted_runs, _QUOTED_WEIGHT)
    for turn in count():
        # Up to three parts for the claim's words, and as many as it takes for its quotations.
        if not lacks or (turn >= _NEAREST and not lacks.keys() & quoted_runs):
            return
        # Rare features first, until a part has more than is left (MaxScore, Turtle and Flood 1995).
        weights: dict[int, float] = {}
        most, left = 0.0, sum(lacks.values()) + 1e-6  # more than sums are off by
        for feature in sorted(lacks, key=lambda feature: len(parts_by_feature[feature])):
            if most > left:
                break
            left -= lacks[feature]
            for number in parts_by_feature[feature]:
                if number not in weights:
                    weights[number] = math.fsum(lacks[f] for f in lacks.keys() & features[number])
                    most = max(most, weights[number])
        # Of equal parts, the first in the documents is taken: the result is always the same.
        best = min(weights, key=lambda n: (-weights[n], n))
        yield best, weights[best]
        lacks = {feature: w for feature, w in lacks.items() if feature not in features[best]}


def _runs(words: Sequence[str], length: int) -> list[str]:
    """Each `length` words in a row; all words if there are fewer, but nothing for a single word."""
    starts = range(max(1, len(words) - length + 1)) if len(words) > 1 else ()
    return [" ".join(words[start : start + length]) for start in starts]
