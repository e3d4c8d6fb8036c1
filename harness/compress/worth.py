"""Which parts of a document to keep: those that say most of what is not yet said, for their length.

What a text says is its words, numbers and quotations, each with a weight; saying one again adds
nothing. That is budgeted maximum coverage, and taking the best ratio of gain to length first is its
usual approximation (Gillick and Favre, "A scalable global model for summarization", 2009; Lin and
Bilmes, "A class of submodular functions for document summarization", 2011).
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from harness.compress.parts import Kept, Part, added_chars

# So many words of a section are characteristic of it, and this is what the others weigh beside
# one of them.
_CHARACTERISTIC = 20
_OTHER_WORD = 0.1
# What a word of the focus weighs: in a text full of numbers it must not be outdone by these.
_WANTED = 2.0
# What numbers and quotations weigh, known by their first character.
_NO_WORD = {'"': 3.0} | dict.fromkeys("0123456789", 2.0)
# Room that nothing better needs is filled with what was said before.
_NOTHING_NEW = 0.01
# How much of a mark a part costs beside its own characters, on the average.
_MARK_CHARS = 15

_WORD = re.compile(r"[^\W\d]\w{2,}|[0-9]+(?:[.,][0-9]+)*")
# The words of a focus that carry the matter: not `the`, but `API`.
_MATTER = re.compile(r"\w{4,}|\b[A-Z]{3}\b")
_QUOTED = re.compile(r"“[^”]{8,}”|\"[^\"\n]{8,}\"|«[^»]{8,}»|„[^“”]{8,}[“”]")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A part that can be kept."""

    part: Part
    says: frozenset[str]
    """See `_said`."""
    factor: float
    """What the weight of all that it says new is multiplied by."""


class BestFirst:
    """Hands out the parts of a document, those worth most for their length first.

    What a part says counts if its section does not say it yet. The twenty words that are most
    characteristic of the section, by frequency there times inverse frequency among the sections,
    count alike, the others little; a number or a word of the focus counts for two of them, a
    quotation for three, so that they are kept ahead of plain prose. All that counts up to three
    times at the beginning of a section and at its end, and up to four times in a part that shares
    words with the focus. A paragraph that breaks off at the end of its section is to be seen: that
    too counts for three.

    Args:
        parts: Section by section, what can be kept.
        focus: A text whose words are preferred.
        kept: What is kept already, and need not be said again.
    """

    def __init__(self, parts: Sequence[Sequence[Part]], *, focus: str, kept: Kept) -> None:
        said = [[_said(part) for part in section] for section in parts]
        wanted = frozenset(_words(" ".join(_MATTER.findall(focus))))
        self._unsaid = _weights(said, wanted)
        candidates = [
            _candidate(part, part_said, wanted)
            for section, section_said in zip(parts, said, strict=True)
            for part, part_said in zip(section, section_said, strict=True)
        ]
        for candidate in candidates:
            if kept.get(candidate.part.start) == candidate.part.text:
                self._say(candidate)
        # By falling worth for their length, then in order. What a part is worth may have fallen
        # since, as others came to say the same, but it never rises: only the first is looked at.
        self._heap = [
            (-self._worth(candidate), candidate.part.start, candidate)
            for candidate in candidates
            if kept.get(candidate.part.start) != candidate.part.text
        ]
        heapq.heapify(self._heap)

    def fitting(self, room: int, *, kept: Kept) -> list[Part]:
        """The next parts that certainly fit into the room."""
        chosen: list[Part] = []
        too_long = []
        while self._heap and room > 0:
            _, start, candidate = first = heapq.heappop(self._heap)
            takes = added_chars(candidate.part, candidate.part.text, kept)
            if takes > room:
                too_long.append(first)
                continue
            worth = self._worth(candidate)
            if self._heap and worth < -self._heap[0][0]:
                heapq.heappush(self._heap, (-worth, start, candidate))
                continue
            chosen.append(candidate.part)
            room -= takes
            self._say(candidate)
        for waiting in too_long:
            heapq.heappush(self._heap, waiting)
        return chosen

    def _worth(self, candidate: _Candidate) -> float:
        unsaid = self._unsaid[candidate.part.section]
        # Exact, as a set has no order that every process would sum it in.
        new = math.fsum(unsaid[word] for word in candidate.says if word in unsaid)
        return (new + _NOTHING_NEW) * candidate.factor

    def _say(self, candidate: _Candidate) -> None:
        unsaid = self._unsaid[candidate.part.section]
        for word in candidate.says:
            unsaid.pop(word, None)


def _candidate(part: Part, said: Sequence[str], wanted: frozenset[str]) -> _Candidate:
    says = frozenset(said)
    common = len(says & wanted)
    place = 1 + 0.5 / (1 + part.before) + 1.5 / (1 + part.after)
    # The first words in common count most, however many are wanted.
    relevance = 1 + 3 * common / (common + 2)
    factor = place * relevance / (len(part.text) + _MARK_CHARS)
    return _Candidate(part=part, says=says, factor=factor)


def _weights(said: Iterable[Iterable[Iterable[str]]], wanted: Set[str]) -> list[dict[str, float]]:
    """What all that is said in each section weighs there."""
    known = dict.fromkeys(wanted, _WANTED)
    counts = [Counter(chain.from_iterable(section)) for section in said]
    sections_with = Counter(chain.from_iterable(counts))
    idf = {word: math.log(1 + len(counts) / n) for word, n in sections_with.items()}
    weights = []
    for count in counts:
        by_tf_idf = sorted((-n * idf[word], word) for word, n in count.items())
        best = frozenset(word for _, word in by_tf_idf[:_CHARACTERISTIC])
        weights.append(
            {
                word: _NO_WORD.get(word[0])
                or known.get(word)
                or (1.0 if word in best else _OTHER_WORD)
                for word in count
            }
        )
    return weights


def _said(part: Part) -> list[str]:
    """The words of a part, its numbers, and behind a quotation mark what counts like one."""
    said = _words(part.text)
    if part.block.kind == "quote":
        said.append(f'"{part.start}')
    elif part.block.kind != "code":
        said += [f'"{quotation}' for quotation in _QUOTED.findall(part.text)]
    if not part.after and part.block.kind == "paragraph" and part.text.rstrip()[-1:].isalnum():
        said.append('"breaks off')
    return said


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
