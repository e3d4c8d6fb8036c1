"""BM25 of the few passages that the lexical index has not read yet.

A commit of tantivy takes 70 to 115 ms. So new passages are scored here, with the figures of the
index, until a commit in the background has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from harness.memory.passage import Passage, WantedTags, tags_of
from harness.memory.terms import K1, B, Clause, LexicalSchema, ceiling

if TYPE_CHECKING:
    import tantivy

MOST_RECENT = 32
"""So many passages are scored here; with more, a search waits for the commit."""


def recent_scores(
    passages: Mapping[int, Passage],
    clauses: Sequence[Clause],
    *,
    where: WantedTags | None,
    searcher: tantivy.Searcher,
    schema: LexicalSchema,
) -> dict[int, float]:
    """Sequence number to BM25 score of the passages that have any of the words."""
    scores = dict.fromkeys(passages, 0.0)
    for field, words_of in (("body", schema.body_words), ("title", schema.title_words)):
        if not (matches := [clause for clause in clauses if clause.field == field]):
            continue
        words = {sequence: words_of(passage) for sequence, passage in passages.items()}
        average = _average_length(matches, searcher, schema) or fmean(map(len, words.values()))
        for clause in matches:
            # BM25's limit for endless repetition, idf * (k1 + 1): a frequency has a share of it.
            limit = ceiling(searcher, [clause])
            for sequence in passages:
                frequency = _count(clause.words, words[sequence])
                length = K1 * (1 - B + B * len(words[sequence]) / max(1, average))
                scores[sequence] += limit * frequency / (frequency + length)
    tags = {sequence: set(tags_of(passage)) for sequence, passage in passages.items()}
    return {
        sequence: score
        for sequence, score in scores.items()
        if score > 0 and not any(tags[sequence].isdisjoint(group) for group in where or ())
    }


def _count(phrase: Sequence[str], words: Sequence[str]) -> int:
    """How often the words of a phrase stand in a row."""
    if len(phrase) == 1:
        return words.count(phrase[0])
    return sum(
        tuple(words[start : start + len(phrase)]) == tuple(phrase)
        for start in range(len(words) - len(phrase) + 1)
    )


def _average_length(
    clauses: Sequence[Clause], searcher: tantivy.Searcher, schema: LexicalSchema
) -> float | None:
    """The average length of a field in the index; None if no document has any of the words."""
    words = dict.fromkeys(word for clause in clauses for word in clause.words)
    query = schema.any_of(Clause(field=clauses[0].field, words=(word,)) for word in words)
    hits = searcher.search(query, limit=1, count=False).hits
    if not hits:
        return None
    # tantivy tells it nowhere else.
    explanation = query.explain(searcher, hits[0][1]).to_json()
    average = re.search(r'"value": ([\d.]+),\s*"description": "avgdl', explanation)
    return float(average[1]) if average else None
