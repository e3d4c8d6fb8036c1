"""Turns texts and queries into terms of the lexical index, and into tantivy's objects."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from harness.errors import InvalidInput, did_you_mean
from harness.files import path_text
from harness.memory.passage import Passage, WantedTags, tags_of
from harness.text.folding import folded
from harness.text.languages import stemmers
from harness.text.words import in_twos

if TYPE_CHECKING:
    import tantivy

LANGUAGES = (*stemmers(), "none")
"""Languages whose words can be stemmed (Snowball, in tantivy); `none` leaves words as they are."""

_WITH_STOP_WORDS = set(LANGUAGES) - {"arabic", "greek", "romanian", "tamil", "turkish", "none"}

# Part of the schema on disk: an index of another schema does not open, and is made again. So this
# number has to be raised with every change to documents or words.
_FORMAT = 9

K1, B = 1.2, 0.75  # BM25's parameters, which tantivy fixes

# The most different words of a query: all words of a megabyte would take seconds, and find no more.
_MOST_WORDS = 1024

_MOST_PHRASES = 16
_LONGEST_PHRASE = 400  # characters

# BM25 prefers short passages, but a longer turn of a conversation says more. So shorter turns are
# filled up to this number of words. Other passages are not: among the sentences of Cranfield's
# abstracts, nDCG@10 would fall from 0.32 to 0.25.
_TURN_WORDS = 64
_FILLER = "xfillerx"

# Tags for the two kinds of documents. The tags of filters are hexadecimal, and so never the same.
_PASSAGE = "passage"
_POSITION = "position"


def check_language(language: str) -> None:
    """Raises `InvalidInput` for an unknown language."""
    if language not in LANGUAGES:
        raise InvalidInput(
            f"no language '{language}'; {did_you_mean(language, LANGUAGES)}",
            code="memory.unknown-language",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A part of a query: one word, or several in a row."""

    field: str
    words: tuple[str, ...]
    weight: float = 1.0


class LexicalSchema:
    """Makes tantivy's indexes, documents and queries, for the language of a store."""

    def __init__(self, language: str) -> None:
        import tantivy  # noqa: PLC0415  # importing harness stays light

        self._tantivy = tantivy
        self._analyzer = analyzer(language)
        self._without_stop_words = analyzer(language, stop_words=False)
        self._tokenizer = f"{language}-{_FORMAT}"
        self._fields = (
            tantivy.SchemaBuilder()
            .add_unsigned_field("sequence", indexed=True, fast=True)
            .add_text_field("body", tokenizer_name=self._tokenizer)
            .add_text_field("title", tokenizer_name=self._tokenizer)
            .add_text_field("tag", tokenizer_name="raw", index_option="basic")
            .build()
        )

    def opened(self, directory: Path) -> tantivy.Index:
        """The index in a directory, or a new one."""
        # tantivy reads a path as UTF-8, whatever the locale is.
        index = self._tantivy.Index(self._fields, path=path_text(directory))
        index.register_tokenizer(self._tokenizer, self._analyzer)
        # Otherwise a thread of tantivy's reloads the index twice a second if `meta.json` has
        # changed, and if a file was truncated meanwhile, the process ends (SIGBUS).
        index.config_reader(reload_policy="manual")
        return index

    # --- documents ---------------------------------------------------------------------------

    def document(self, sequence: int, passage: Passage) -> tantivy.Document:
        """A passage as the index has it: number, words, title and tags."""
        document = self._tantivy.Document()
        document.add_unsigned("sequence", sequence)
        document.add_text("body", self._body(passage))
        document.add_text("title", spaced(passage.title))
        for tag in (_PASSAGE, *tags_of(passage)):
            document.add_text("tag", tag)
        return document

    def position(self, sequence: int) -> tantivy.Document:
        """The document that says how far the index has read."""
        document = self._tantivy.Document()
        document.add_unsigned("sequence", sequence)
        document.add_text("tag", _POSITION)
        return document

    def _body(self, passage: Passage) -> str:
        """The text of a passage, filled up to `_TURN_WORDS` if it is a turn."""
        body = spaced(passage.searchable)
        if passage.turn is not None:
            body += f" {_FILLER}" * (_TURN_WORDS - len(self._analyzer.analyze(body)))
        return body

    # --- queries -----------------------------------------------------------------------------

    def clauses(self, text: str) -> list[Clause]:
        """The clauses of a query: its words, phrases of several words, and titles."""
        # Not by tantivy's own query syntax, which would read quotes, colons, brackets and hyphens
        # of a question as operators or errors.
        parts = parse_query(text)
        phrases = [words for words in map(self._words, parts.phrases) if len(words) > 1]
        titles = [words for words in map(self._words, parts.titles) if words]
        clauses = _clauses_of_words(self._words(parts.words))
        clauses += [Clause(field="body", words=words) for words in phrases]
        return clauses + [Clause(field="title", words=words) for words in titles]

    def content_words(self, text: str) -> list[Clause]:
        """A query's words without stop words such as "the", unless it has no others."""
        words = parse_query(text).words
        content_words = tuple(self._without_stop_words.analyze(spaced(words)))
        return _clauses_of_words(content_words or self._words(words))

    def _words(self, text: str) -> tuple[str, ...]:
        return tuple(self._analyzer.analyze(spaced(text)))

    def any_of(self, clauses: Iterable[Clause]) -> tantivy.Query:
        """Documents that have any of the clauses: the more, and the rarer, the better."""
        query = self._tantivy.Query
        alternatives = []
        for clause in clauses:
            if len(clause.words) == 1:
                scored = query.term_query(
                    self._fields, clause.field, clause.words[0], index_option="freq"
                )
            else:
                scored = query.phrase_query(self._fields, clause.field, list(clause.words))
            weighted = query.boost_query(scored, clause.weight)
            alternatives.append((self._tantivy.Occur.Should, weighted))
        return query.boolean_query(alternatives)

    def positions(self) -> tantivy.Query:
        """The document that says how far the index has read."""
        return self._tantivy.Query.term_query(self._fields, "tag", _POSITION)

    def numbered(self, sequences: Iterable[int]) -> tantivy.Query:
        """Passages with these sequence numbers."""
        return self._tantivy.Query.term_set_query(self._fields, "sequence", list(sequences))

    def tagged(self, where: WantedTags) -> tantivy.Query:
        """Passages that satisfy a filter."""
        query, must = self._tantivy.Query, self._tantivy.Occur.Must
        groups = (query.term_set_query(self._fields, "tag", list(tags)) for tags in where)
        return query.boolean_query([(must, group) for group in groups])

    def both(self, scored: tantivy.Query, required: tantivy.Query) -> tantivy.Query:
        """Documents that satisfy both, scored by the first."""
        query, must = self._tantivy.Query, self._tantivy.Occur.Must
        return query.boolean_query([(must, scored), (must, query.const_score_query(required, 0.0))])

    # --- passages that the index has not read yet ----------------------------------------------
    # A commit of tantivy takes 70 to 115 ms. So new passages are scored here, with the figures of
    # the index, until a commit in the background has them.

    def recent_scores(
        self,
        passages: Mapping[int, Passage],
        clauses: Sequence[Clause],
        *,
        where: WantedTags | None,
        searcher: tantivy.Searcher,
    ) -> dict[int, float]:
        """Sequence number to BM25 score of the passages that have any of the clauses."""
        scores = dict.fromkeys(passages, 0.0)
        for field in ("body", "title"):
            field_clauses = [clause for clause in clauses if clause.field == field]
            if not field_clauses:
                continue
            # The body with its filler words, which count in the index too.
            words = {
                sequence: self._analyzer.analyze(
                    self._body(passage) if field == "body" else spaced(passage.title)
                )
                for sequence, passage in passages.items()
            }
            average_length = self._average_length(field_clauses, searcher)
            if average_length is None:
                average_length = fmean(map(len, words.values()))
            for clause in field_clauses:
                # The score that BM25 nears as the frequency of the clause grows.
                limit = ceiling(searcher, [clause])
                for sequence in passages:
                    frequency = _count(clause.words, words[sequence])
                    relative_length = len(words[sequence]) / max(1, average_length)
                    saturation = K1 * (1 - B + B * relative_length)
                    scores[sequence] += limit * frequency / (frequency + saturation)
        return {
            sequence: score
            for sequence, score in scores.items()
            if score > 0 and all({*group} & {*tags_of(passages[sequence])} for group in where or ())
        }

    def _average_length(
        self, clauses: Sequence[Clause], searcher: tantivy.Searcher
    ) -> float | None:
        """The average length of the clauses' field in the index, in words.

        None if no document has any of the words, or the average is 0.
        """
        words = dict.fromkeys(word for clause in clauses for word in clause.words)
        query = self.any_of(Clause(field=clauses[0].field, words=(word,)) for word in words)
        hits = searcher.search(query, limit=1, count=False).hits
        if not hits:
            return None
        # tantivy reports the average length nowhere else.
        explanation = query.explain(searcher, hits[0][1]).to_json()
        match = re.search(r'"value": ([\d.]+),\s*"description": "avgdl', explanation)
        return (float(match[1]) or None) if match else None


def _count(phrase: tuple[str, ...], words: Sequence[str]) -> int:
    """How often a phrase is in a text of these words."""
    runs = zip(*(words[start:] for start in range(len(phrase))), strict=False)
    return sum(run == phrase for run in runs)


def _clauses_of_words(words: Iterable[str]) -> list[Clause]:
    """A clause for each different word, weighted by how often it occurs."""
    return [
        Clause(field="body", words=(word,), weight=count)
        for word, count in islice(Counter(words).items(), _MOST_WORDS)
    ]


def ceiling(searcher: tantivy.Searcher, clauses: Iterable[Clause]) -> float:
    """The score that no document can exceed for these clauses."""
    # Not `num_docs`: tantivy's scores count deleted documents until their segment is merged, and so
    # do these frequencies.
    documents = sum(searcher.doc_freq("tag", kind) for kind in (_PASSAGE, _POSITION))
    score = 0.0
    for clause in clauses:
        for word in clause.words:
            frequency = max(1, searcher.doc_freq(clause.field, word))
            # tantivy's idf; k1 + 1 is the limit of the factor for a word's frequency.
            idf = math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))
            score += clause.weight * idf * (K1 + 1)
    return score


# --- words -----------------------------------------------------------------------------------


def analyzer(language: str, *, stop_words: bool = True) -> tantivy.TextAnalyzer:
    """Makes words: runs of letters and digits, lower-cased, stemmed, without accents.

    Stop words such as "the" stay, unless `stop_words` is false and tantivy has a list for the
    language.
    """
    import tantivy  # noqa: PLC0415  # importing harness stays light

    builder = (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        .filter(tantivy.Filter.remove_long(256))  # longer ones are encoded data
        .filter(tantivy.Filter.lowercase())
    )
    # The index keeps stop words: BM25 weighs them near zero anyway, and so "to be" can be found.
    if not stop_words and language in _WITH_STOP_WORDS:
        builder = builder.filter(tantivy.Filter.stopword(language))
    if language == "english":
        builder = builder.filter(tantivy.Filter.ascii_fold())
    if language != "none":
        builder = builder.filter(tantivy.Filter.stemmer(language))
    # Accents are removed after stemming where endings have accents, too.
    return builder.filter(tantivy.Filter.ascii_fold()).build()


# tantivy folds Latin letters alone. Others lose marks that many writers leave out: accents of Greek
# and of stress, the dots of ё, hamza over alef. Letters of their own, such as й, ї and ة, remain.
_UNMARKED = dict.fromkeys(range(0x300, 0x370), "") | {
    ord(letter): unicodedata.normalize("NFD", letter)[0]
    for letter in [*"ёѐѝأإآ", *map(chr, (*range(0x370, 0x400), *range(0x1F00, 0x2000)))]
}


# Names that end in signs, which the tokenizer drops, get a second word: C++, Notepad++, C#.
_PLUS_PLUS = re.compile(r"\b([^\W\d_]\w*)\+\+")
_SHARP = re.compile(r"\b([A-Za-z])[#♯](?!\w)")


# Parts of names in camelCase stand before the name: `getUserById`, `HTTPServer`, not `PDFs`. Longer
# words are encoded data. Hyphen compounds are not joined: Cranfield is found no better.
_LATIN = "A-Za-z0-9À-ɏ"
_CAMEL = re.compile(
    rf"(?<![{_LATIN}])(?![{_LATIN}]{{65}})(?:[A-Z]{{2,}}[a-z]{{2}}|"
    rf"[A-ZÀ-Þ]*[a-z0-9ß-ɏ]++(?:(?<!\d)[A-ZÀ-Þ]|(?<=\d)[A-Z][a-z]))[{_LATIN}]*"
)
_PART = re.compile(r"(?<=[a-zß-ɏ])(?=[A-ZÀ-Þ])|(?<=\d)(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_THOUSANDS = re.compile(r"[1-9](?<![\w.,].)\d{0,2}(?:,\d{3})+(?!\w|,\d)")


def spaced(text: str) -> str:
    """The text as an analyzer needs it: folded, with blanks where words may end."""
    text = _CAMEL.sub(lambda name: f"{_PART.sub(' ', name[0])} {name[0]}", text)
    text = _THOUSANDS.sub(lambda number: f"{number[0]} {number[0].replace(',', '')}", text)
    words = in_twos(folded(text).translate(_UNMARKED))
    if any(sign in words for sign in ("++", "#", "♯")):  # few texts have one
        words = _SHARP.sub(r"\1 \1sharp ", _PLUS_PLUS.sub(r"\1 \1plusplus ", words))
    return words


# --- the text of a query ---------------------------------------------------------------------

_QUOTED = re.compile(r'"([^"\n]+)"')
_TITLE = re.compile(r'\btitle:(?:"([^"\n]+)"|([^\s"]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParts:
    """The parts of a query. `words` has the words of phrases and titles, too."""

    words: str
    phrases: tuple[str, ...] = ()  # the parts in quotes
    titles: tuple[str, ...] = ()  # the word or quote after each `title:`


def parse_query(text: str) -> QueryParts:
    """Divides a query. Any text is a query: there is no syntax to get wrong."""
    titles = (quoted or word for quoted, word in _TITLE.findall(text))
    phrases = _QUOTED.findall(_TITLE.sub(" ", text))
    return QueryParts(
        words=_TITLE.sub(lambda match: f" {match[1] or match[2]} ", text),
        phrases=_first_phrases(phrases),
        titles=_first_phrases(titles),
    )


def _first_phrases(phrases: Iterable[str]) -> tuple[str, ...]:
    """The first different phrases, at most `_MOST_PHRASES`, and none that is very long."""
    # The limits are for a text with a megabyte of quotes, which no person wrote as a query.
    short = (phrase for phrase in phrases if len(phrase) <= _LONGEST_PHRASE)
    return tuple(islice(dict.fromkeys(short), _MOST_PHRASES))
