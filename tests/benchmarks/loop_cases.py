"""What `bench_loop.py` has drafted, and how near it comes to what people wrote.

- A folder of `.md` files: three sections of prose of each document, without references.
- A folder with the `dialogsum.test.jsonl` of DialogSum (Chen et al., 2021): dialogues, without
  sections. People wrote three summaries of each.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.compress import passages_of, sections_of
from harness.compress.markdown import blocks_of
from harness.text.words import terms

SECTIONS = 3
SOURCE_CHARS = (250, 1_200)
CHARACTERISTIC = 30
LEAST_LETTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section to write, or the whole text."""

    title: str
    """Empty for a whole text, which has no headings."""
    source: str
    references: tuple[str, ...] = ()
    """Summaries that people wrote of it."""
    wanted: frozenset[str]
    """Words that a good text has: those that references share, else the most characteristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A text to write."""

    name: str
    parts: tuple[Part, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it has no sections."""
        return not self.parts[0].title


def cases_in(folder: Path) -> list[Case]:
    """The cases of a folder, whichever of the two kinds it is."""
    if (path := folder / "dialogsum.test.jsonl").exists():
        return _dialogues(path)
    return _documents(folder)


def _documents(folder: Path) -> list[Case]:
    """Of each document that has them, the sections spread most evenly over it."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    documents_with = Counter(word for text in texts.values() for word in set(terms(text)))
    cases = []
    for name, text in texts.items():
        prose = {
            section.title: passages_of(body, max_chars=SOURCE_CHARS[1])[0].text.strip()
            for section in sections_of(text)
            if section.title and len(body := _prose_of(section.body)) >= SOURCE_CHARS[0]
        }
        titles = [title for title, text in prose.items() if len(text) >= SOURCE_CHARS[0]]
        if len(titles) < SECTIONS:
            continue
        chosen = [titles[n * (len(titles) - 1) // (SECTIONS - 1)] for n in range(SECTIONS)]
        counts = Counter(terms(" ".join(prose[title] for title in chosen)))
        weights = {
            word: n * math.log(len(texts) / max(1, documents_with[word]))
            for word, n in counts.items()
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))[:CHARACTERISTIC]
        parts = [
            Part(
                title=title,
                source=prose[title],
                wanted=frozenset(best).intersection(terms(prose[title])),
            )
            for title in chosen
        ]
        cases.append(Case(name=name, parts=tuple(parts)))
    return cases


def _prose_of(markdown: str) -> str:
    """Its paragraphs and lists: no code, no tables."""
    kept = [block.text for block in blocks_of(markdown) if block.kind in {"paragraph", "item"}]
    return "".join(kept).strip()


def _dialogues(path: Path) -> list[Case]:
    cases = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        dialogue = row["dialogue"].replace("#", "")
        if not SOURCE_CHARS[0] <= len(dialogue) <= SOURCE_CHARS[1]:
            continue
        references = tuple(row[f"summary{n}"].replace("#", "") for n in (1, 2, 3))
        part = Part(title="", source=dialogue, references=references, wanted=_shared(references))
        cases.append(Case(name=row["fname"], parts=(part,)))
    return cases


def _shared(references: Iterable[str]) -> frozenset[str]:
    """The longer words that two references have, or more."""
    counts = Counter(word for text in references for word in set(terms(text)))
    return frozenset(w for w, n in counts.items() if n > 1 and len(w) >= LEAST_LETTERS)


# --- ROUGE (Lin, 2004) -------------------------------------------------------------------------


def rouge_2(text: str, references: Sequence[str]) -> float:
    """F1 of the pairs of neighbouring words, against the nearest reference; no stemming."""
    ours = _pairs(text)
    return max(
        _f1((ours & theirs).total(), ours.total(), theirs.total())
        for theirs in map(_pairs, references)
    )


def rouge_l(text: str, references: Sequence[str]) -> float:
    """F1 of the longest common subsequence of words, against the nearest reference."""
    ours = terms(text)
    return max(
        _f1(_common(ours, theirs), len(ours), len(theirs)) for theirs in map(terms, references)
    )


def _pairs(text: str) -> Counter[tuple[str, str]]:
    return Counter(pairwise(terms(text)))


def _common(ours: Sequence[str], theirs: Sequence[str]) -> int:
    lengths = [0] * (len(theirs) + 1)
    for word in ours:
        before = lengths[:]
        for index, other in enumerate(theirs, start=1):
            lengths[index] = (
                before[index - 1] + 1 if word == other else max(before[index], lengths[index - 1])
            )
    return lengths[-1]


def _f1(matches: int, ours: int, theirs: int) -> float:
    return 2 * matches / (ours + theirs) if ours + theirs else 0.0
