"""How well a store finds what people judged relevant, on a collection in the form of BEIR."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Self

from harness.memory import MemoryStore, Mode, Passage

CRANFIELD = Path(__file__).parents[3] / "shared" / "data" / "ir" / "cranfield"
"""Not in the repository; see `../shared/data/README.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCollection:
    """Documents, questions, and which document answers which question."""

    passages: list[Passage]
    """Of all documents but blank ones, known by the collection's ids."""
    questions: dict[str, str]
    """By their ids; only those that have a relevant document."""
    gains: dict[str, dict[str, int]]
    """Question to document to how relevant it is; 0 where it is not, or nobody judged."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """From `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`."""
        gains: dict[str, dict[str, int]] = {}
        for line in (directory / "qrels" / "test.tsv").read_text().splitlines()[1:]:
            question, document, gain = line.split("\t")
            if int(gain) > 0:
                gains.setdefault(question, {})[document] = int(gain)
        return cls(
            passages=[
                Passage(id=document["_id"], title=document["title"], text=document["text"])
                for document in _lines(directory / "corpus.jsonl")
                if document["title"].strip() or document["text"].strip()
            ],
            questions={
                question["_id"]: question["text"]
                for question in _lines(directory / "queries.jsonl")
                if question["_id"] in gains
            },
            gains=gains,
        )

    def ndcg_at_10(self, store: MemoryStore, mode: Mode) -> float:
        """The mean over all questions."""
        return mean(self.ndcgs_at_10(store, mode).values())

    def ndcgs_at_10(self, store: MemoryStore, mode: Mode) -> dict[str, float]:
        """Of each question, by its id."""
        return {
            question: ndcg(
                [
                    self.gains[question].get(hit.id, 0)
                    for hit in store.search(text, limit=10, mode=mode)
                ],
                self.gains[question].values(),
            )
            for question, text in self.questions.items()
        }


def ndcg(gains: Sequence[int], ideal: Collection[int], *, depth: int = 10) -> float:
    """Linear gain, as trec_eval has it: Järvelin and Kekäläinen, ACM TOIS 2002."""
    best = sorted(ideal, reverse=True)
    return _dcg(gains[:depth]) / _dcg(best[:depth])


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
