"""What a document of the lexical lane is, and the queries for some. tantivy's, without a disk."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from harness.memory.passage import Passage
from harness.memory.query_text import read_query
from harness.memory.where import Where, tags_of
from harness.memory.words import analyzer, spaced

if TYPE_CHECKING:
    import tantivy

# Part of the schema on disk, and a lane of another schema does not open: raise the number with
# every change of what a document or a word is, and old lanes are made again.
_FORMAT = 3

_K1 = 1.2  # tantivy's, as is b = 0.75

_MOST_WORDS = 1024
"""Of a query, different ones: all of a megabyte of text would take seconds, and find no more."""

# What a document is, among its tags; those of passages are hexadecimal.
_PASSAGE = "passage"
_POSITION = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """Something to look for."""

    field: str
    """Where."""
    words: tuple[str, ...]
    """One, or several in a row."""
    weight: float = 1.0
    """How much it counts."""


class LexicalSchema:
    """Documents and queries of a store's language.

    Attributes:
        fields: Of a document, as tantivy has them.
        tokenizer: The name under which it looks for the analyzer.
        analyzer: Makes words of texts.
    """

    def __init__(self, language: str) -> None:
        import tantivy  # noqa: PLC0415  # importing harness stays light

        self._tantivy = tantivy
        self.analyzer = analyzer(language)
        self._without_stop_words = analyzer(language, stop_words=False)
        self.tokenizer = f"{language}-{_FORMAT}"
        self.fields = (
            tantivy.SchemaBuilder()
            .add_unsigned_field("sequence", indexed=True, fast=True)
            .add_text_field("body", tokenizer_name=self.tokenizer)
            .add_text_field("title", tokenizer_name=self.tokenizer)
            .add_text_field("tag", tokenizer_name="raw", index_option="basic")
            .build()
        )

    # --- documents ---------------------------------------------------------------------------

    def document(self, sequence: int, passage: Passage) -> tantivy.Document:
        """A passage."""
        document = self._tantivy.Document()
        document.add_unsigned("sequence", sequence)
        document.add_text("body", spaced(passage.searchable))
        document.add_text("title", spaced(passage.title))
        for tag in (_PASSAGE, *tags_of(passage)):
            document.add_text("tag", tag)
        return document

    def position(self, sequence: int) -> tantivy.Document:
        """How far the lane has read."""
        document = self._tantivy.Document()
        document.add_unsigned("sequence", sequence)
        document.add_text("tag", _POSITION)
        return document

    # --- queries -----------------------------------------------------------------------------

    def asked(self, text: str) -> list[Clause]:
        """What is looked for, from terms.

        tantivy's own query syntax would make quotes, colons, brackets and hyphens of a question
        into operators or errors.
        """
        asked = read_query(text)
        clauses = self._each_of(self._words(asked.words))
        phrases = (self._words(phrase) for phrase in asked.phrases)
        titles = (self._words(title) for title in asked.titles)
        return [
            *clauses,
            *(Clause(field="body", words=words) for words in phrases if len(words) > 1),
            *(Clause(field="title", words=words) for words in titles if words),
        ]

    def matter(self, text: str) -> list[Clause]:
        """What a query is about: its words but for such as "the", unless it has no others."""
        words = read_query(text).words
        matter = tuple(self._without_stop_words.analyze(spaced(words)))
        return self._each_of(matter or self._words(words))

    def _each_of(self, words: Iterable[str]) -> list[Clause]:
        return [
            Clause(field="body", words=(word,), weight=count)
            for word, count in islice(Counter(words).items(), _MOST_WORDS)
        ]

    def _words(self, text: str) -> tuple[str, ...]:
        return tuple(self.analyzer.analyze(spaced(text)))

    def any_of(self, clauses: Iterable[Clause]) -> tantivy.Query:
        """Documents that have any of these: the more, and the rarer, the better."""
        query = self._tantivy.Query
        should = []
        for clause in clauses:
            if len(clause.words) == 1:
                one = query.term_query(
                    self.fields, clause.field, clause.words[0], index_option="freq"
                )
            else:
                one = query.phrase_query(self.fields, clause.field, list(clause.words))
            should.append((self._tantivy.Occur.Should, query.boost_query(one, clause.weight)))
        return query.boolean_query(should)

    def positions(self) -> tantivy.Query:
        """The document that says how far the lane has read."""
        return self._tantivy.Query.term_query(self.fields, "tag", _POSITION)

    def numbered(self, sequences: Iterable[int]) -> tantivy.Query:
        """Passages with these sequence numbers."""
        return self._tantivy.Query.term_set_query(self.fields, "sequence", list(sequences))

    def tagged(self, where: Where) -> tantivy.Query:
        """Passages that satisfy a filter."""
        query, occur = self._tantivy.Query, self._tantivy.Occur
        return query.boolean_query(
            [
                (occur.Must, query.term_set_query(self.fields, "tag", list(tags)))
                for tags in where.tags
            ]
        )

    def both(self, scored: tantivy.Query, required: tantivy.Query) -> tantivy.Query:
        """What has both, scored by the first."""
        query, occur = self._tantivy.Query, self._tantivy.Occur
        return query.boolean_query(
            [(occur.Must, scored), (occur.Must, query.const_score_query(required, 0.0))]
        )


def ceiling(searcher: tantivy.Searcher, clauses: Iterable[Clause]) -> float:
    """The score of a document with nothing but what is looked for: none has more."""
    # Not `num_docs`: until it merges their segment tantivy counts the deleted, here as there.
    count = sum(searcher.doc_freq("tag", kind) for kind in (_PASSAGE, _POSITION))
    most = 0.0
    for clause in clauses:
        for word in clause.words:
            having = max(1, searcher.doc_freq(clause.field, word))
            # tantivy's idf; k1 + 1 is what the part of a word's frequency tends to.
            idf = math.log(1 + (count - having + 0.5) / (having + 0.5))
            most += clause.weight * idf * (_K1 + 1)
    return most
