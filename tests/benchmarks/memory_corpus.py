"""Any number of passages, mixed from real ones, and real questions to ask about them.

A passage is a heading of two real ones and sentences that are drawn at random from some 28,000, up
to about 100 words: its words are those of real prose, as often as there, and hardly any two say the
same. It has no one subject, so that a question's words are in more passages than they would be in
real ones: the harder case for any index.

The collections are not in the repository: see `../shared/data/README.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self

from harness.compress import sentences_of
from harness.memory import Passage

DATA = Path(__file__).parents[3] / "shared" / "data"
COLLECTIONS = ("corpus/sqlite_docs.jsonl", "ir/cranfield/corpus.jsonl")
QUESTIONS = "ir/cranfield/queries.jsonl"

WORDS = 100
"""Of a passage, about."""

QUERIES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """What passages are mixed from."""

    headings: list[str]
    """Of three words and more."""
    sentences: list[str]
    """Of 5 to 40 words: shorter ones are rubble, and longer ones tables."""
    questions: list[str]
    """As people put them."""

    @classmethod
    def read(cls) -> Self:
        """Ends the program when there is none."""
        if not DATA.exists():
            raise SystemExit(f"no collections at {DATA}: passages are mixed from real ones")
        documents = [document for name in COLLECTIONS for document in _lines(name)]
        sentences = {
            " ".join(sentence.split())
            for document in documents
            for sentence in sentences_of(document["text"])
        }
        headings = {" ".join(document["title"].split()) for document in documents}
        return cls(
            headings=sorted(one for one in headings if 3 <= len(one.split()) <= 12),
            sentences=sorted(one for one in sentences if 5 <= len(one.split()) <= 40),
            questions=[question["text"] for question in _lines(QUESTIONS)],
        )

    def passages(self, count: int, *, seed: int = 7) -> Iterator[Passage]:
        """Of equal seeds, the fewer are the first of the more."""
        random = Random(seed)
        for number in range(count):
            text = random.choice(self.sentences)
            while text.count(" ") < WORDS - 10:
                text += " " + random.choice(self.sentences)
            title = f"{random.choice(self.headings)}: {random.choice(self.headings)}"
            yield Passage(text=text, title=title, source=f"mixed/{number}")

    def queries(self, *, seed: int = 7) -> list[str]:
        """Half of them questions, 18 words long at the median, half headings, 5 words long."""
        random = Random(seed)
        drawn = random.sample(self.headings, QUERIES // 2)
        drawn += random.choices(self.questions, k=QUERIES // 2)
        random.shuffle(drawn)
        return drawn


def _lines(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
