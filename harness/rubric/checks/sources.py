"""Checks of a draft against its sources: numbers, names, sentences. Without sources, unjudged.

Names are found by their capitals, without dictionary or model, in languages that capitalize names
and little else, such as English, Russian or Greek. In German, which capitalizes nouns, and among
letters without capitals, only some are found: then a draft is not judged unless one has no source.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, pairwise
from typing import ClassVar, Literal

from pydantic import Field

from harness.rubric.checks.base import Check, Grade, Phrase, quoted, share_without
from harness.rubric.draft import Draft, visible_text, without_addresses
from harness.text.folding import composed, folded
from harness.text.languages import HANGUL, UNSPACED, has_trait, numerals, ordinals
from harness.text.numbers import TIMES, WORD, Number, Value, numbers
from harness.text.sentences import sentences_of
from harness.text.words import is_long, terms, words

_NO_SOURCES = Grade(1.0, unjudged="there are no sources")


class GroundedNumbers(Check):
    """Every number stands in the sources or in the task.

    Sources may have numbers up to twelve in words, in English or the rubric's language. If a
    section has sources of its own, its numbers must stand in those. 1,024 is 1024, 0.50 is 0.5, 2,5
    is 2.5, and 1.200 is what the other numbers, else the rubric's language, make of it. A minus, a
    percent sign and a unit must be there, too. The marks of lists (`1.`) and references (`[1]`) do
    not count.
    """

    check: Literal["grounded_numbers"] = "grounded_numbers"

    asks: ClassVar[str] = "Every number stands in the sources."
    by_sources = True

    def grade(self, draft: Draft) -> Grade:
        """The share of numbers that have a source; 1 when there are none."""
        if not draft.has_sources:
            return _NO_SOURCES
        units_in_all = _units_by_value(draft.evidence, draft.language)
        total = 0
        findings = []
        for index, section in enumerate(draft.sections):
            sources = draft.own_sources(index)
            units = units_in_all
            if sources:
                # The task counts for every section.
                units = _units_by_value("\n".join((draft.task, *sources)), draft.language)
            text = without_addresses(visible_text(section.blocks))
            in_section = numbers(text, draft.language)
            total += len(in_section)
            findings += [
                draft.finding(
                    f"the number {number.text} is not in the sources",
                    index,
                    code="check.number-not-in-sources",
                )
                for number in in_section
                if not _is_among(number, units)
            ]
        return Grade(share_without(findings, total), tuple(findings))


def _units_by_value(text: str, language: str | None) -> Mapping[Value, Collection[str]]:
    """The values of the numbers in a text, in digits or in words, each with its units."""
    units: defaultdict[Value, set[str]] = defaultdict(set)
    words_of_text = set(words(folded(text)))
    for code in {"en", language}:
        for value, numeral in enumerate(numerals(code)):
            if folded(numeral) in words_of_text:
                units[Decimal(value)].add("")
    for code in ("en", "de"):
        for value, forms in enumerate(ordinals(code), start=1):
            if not words_of_text.isdisjoint(forms):
                units[Decimal(value)].add(WORD)
    # Without the language: a source may be in another, so each reading of its numbers counts.
    for number in numbers(text):
        for part in number.parts:
            units[part].add("")
        for reading in number.readings:
            units[reading.value].add(reading.unit)
            # `Falls by 5` is said of -5.
            if isinstance(reading.value, Decimal):
                units[reading.value.copy_abs()].add(reading.unit)
    return units


def _is_among(number: Number, units: Mapping[Value, Collection[str]]) -> bool:
    """Whether a text with these values and units has one of the readings, or all of the parts."""
    if any(value in units and _fits(unit, units[value]) for value, unit in number.readings):
        return True
    # If the text has another date of the same year, its year and day are not those of this date.
    # Values that are dates are texts, `2026-05-01`, of which five characters are the year.
    years = {value[:5] for value, _ in number.readings if isinstance(value, str)}
    has_other_date = any(isinstance(value, str) and value[:5] in years for value in units)
    return bool(number.parts) and number.parts <= units.keys() and not has_other_date


def _fits(unit: str, units: Collection[str]) -> bool:
    """Whether a number with this unit may be one that stands elsewhere with these units."""
    if unit == TIMES:  # a three before `million` is the same as one before an unknown word
        return not {"", WORD}.isdisjoint(units)
    if unit in {"", WORD} or "" in units:
        return True
    # An unknown word may mean any unit but percent.
    return unit in units or (unit != "%" and WORD in units)


class GroundedNames(Check):
    """Every name stands in the sources or in the task, word by word.

    Names are words that are capitalized in mid-sentence, with the capitalized words after them
    (`Ada Lovelace`), words with capitals inside (`PyTorch`, `vLLM`), and identifiers in backticks.
    The capital of a sentence's first word tells nothing, nor do those of a line all in capitals. In
    languages that inflect names, a name may have another ending in the sources. In German, and in
    scripts without capitals, only words with capitals inside and identifiers are found, and a draft
    is not judged unless one of them has no source.
    """

    check: Literal["grounded_names"] = "grounded_names"
    allowed: tuple[Phrase, ...] = ()
    """Names that need no source."""

    asks: ClassVar[str] = "Every name stands in the sources."
    by_sources = True
    not_for = ("capital-nouns", "no-capitals")

    def grade(self, draft: Draft) -> Grade:
        """The share of names that have a source, each counted once a section; 1 without any."""
        if not draft.has_sources:
            return _NO_SOURCES
        language = draft.likely_language
        nouns_have_capitals = has_trait(language, "capital-nouns")
        names = dict.fromkeys(
            (index, name)
            for index, _, sentence in draft.sentences
            for name in names_in(sentence, nouns_have_capitals=nouns_have_capitals)
        )
        known = _KnownNames("\n".join((draft.evidence, *self.allowed)) if names else "")
        findings = tuple(
            draft.finding(
                f"the name {name.text} is not in the sources",
                index,
                code="check.name-not-in-sources",
            )
            for index, name in names
            if not known.has(name, language)
        )
        if not findings and (nouns_have_capitals or not _has_capitals(draft.visible)):
            return Grade(1.0, unjudged="not for this language: only some of its names are found")
        return Grade(share_without(findings, len(names)), findings)


def _has_capitals(text: str) -> bool:
    """Whether most of its letters are of scripts with capitals."""
    cased = sum(map(str.islower, text)) + sum(map(str.isupper, text))
    return 2 * cased >= sum(map(str.isalpha, text))


class GroundedSentences(Check):
    """Every sentence is made mostly of words that the sources use.

    A section with sources of its own must use their words.
    """

    check: Literal["grounded_sentences"] = "grounded_sentences"
    overlap: float = Field(default=0.6, gt=0, le=1)
    """The share of a sentence's longer words that must occur in one source."""
    verbatim: float = Field(default=0, ge=0, le=1)
    """The share of its pairs of neighbouring words that must be neighbours in one sentence of that
    source, for texts that quote: other words between them are another claim. It must also end where
    a sentence or a part of one ends there."""

    asks: ClassVar[str] = "Every sentence rests on the sources and uses their words."
    by_sources = True

    def grade(self, draft: Draft) -> Grade:
        """The share of sentences that rest on some source."""
        if not draft.has_sources:
            return _NO_SOURCES
        bases = {source: _Basis(source, by_sentence=self.verbatim > 0) for source in draft.sources}
        findings = []
        for index, _, sentence in draft.sentences:
            supporting = [text for text, basis in bases.items() if self._rests_on(basis, sentence)]
            sources = draft.own_sources(index) or draft.sources
            if not set(sources).isdisjoint(supporting):
                continue
            message = "no source says this"
            code = "check.not-in-sources"
            if supporting:
                message = "supported, but by another section's source"
                code = "check.source-of-another-section"
            findings.append(draft.finding(f"{message}: {quoted(sentence)}", index, code=code))
        return Grade(share_without(findings, len(draft.sentences)), tuple(findings))

    def _rests_on(self, basis: _Basis, sentence: str) -> bool:
        words = terms(without_addresses(sentence))
        if _share_in([word for word in words if is_long(word)], basis.words) < self.overlap:
            return False
        pairs = list(pairwise(words))
        if not self.verbatim or not pairs:
            return True
        shares = (_share_in(pairs, source_pairs) for source_pairs in basis.pairs_by_sentence)
        return words[-1] in basis.ends and max(shares, default=0.0) >= self.verbatim


class _Basis:
    """The words of a source; with `by_sentence`, also pairs of neighbours and last words."""

    def __init__(self, source: str, *, by_sentence: bool) -> None:
        self.words = frozenset(terms(source))
        sentences = sentences_of(source) if by_sentence else []
        self.pairs_by_sentence = [frozenset(pairwise(terms(s))) for s in sentences]
        # The last word of each sentence, and of each part of one.
        clauses = (terms(clause) for s in sentences for clause in _MARKS.split(s))
        self.ends = frozenset(clause[-1] for clause in clauses if clause)


_MARKS = re.compile(r"[^\w\s'\u2019/-]+")


def _share_in(parts: Sequence[object], source: Set[object]) -> float:
    """The share of the parts that a source has; 1 without parts."""
    return sum(part in source for part in parts) / len(parts) if parts else 1.0


class _KnownNames:
    """What names may be made of: the words, the initials and the identifiers of a text."""

    def __init__(self, text: str) -> None:
        self._identifiers = frozenset(identifier_parts(text))
        text = _without_dots(text)
        self._initials = _initials_in(text)  # runs of capitals: `DJ DOJ`
        # By their first letters, since endings change with the case.
        self._words_by_start: dict[str, set[str]] = {}
        for word in terms(text):
            plain = _without_yo(word)
            self._words_by_start.setdefault(plain[:_STEM], set()).add(plain)

    def has(self, name: Name, language: str | None) -> bool:
        """Whether all parts of a name are known, or a name in capitals is known as initials."""
        if name.exact:
            return self._identifiers.issuperset(name.parts)
        if all(self._has_word(part, language) for part in name.parts):
            return True
        return name.text.isupper() and name.text in self._initials

    def _has_word(self, part: str, language: str | None) -> bool:
        """Whether a word of a name is known, by another ending if the language has cases."""
        part = _without_yo(part)
        alike = self._words_by_start.get(part[:_STEM], set())
        # `GPUs` are known from a source that speaks of a GPU.
        if part in alike or part.removesuffix("s") in alike:
            return True
        # Beyond Latin (U+024F), letters with capitals are of languages with cases: Greek, Russian.
        inflected = has_trait(language, "inflected-names") or part[:1] > "\u024f"
        return inflected and any(
            word.startswith(part[: max(_STEM, len(part) - _ENDING)])
            and part.startswith(word[: max(_STEM, len(word) - _ENDING)])
            for word in alike
        )


def _without_yo(word: str) -> str:
    # Russian texts mostly leave out the two dots of this letter.
    return word.replace("\u0451", "\u0435")


def _initials_in(text: str) -> str:
    """The first letters of a text's words: capitals in a row stand together, others are blanks."""
    # `Department of Justice` is both DJ and DOJ.
    without_small = _SMALL.sub("", text)
    with_small = _SMALL.sub(lambda word: word[0].title(), text)
    first_letters = [*_FIRST.findall(without_small), *_FIRST.findall(with_small)]
    return "".join(letter if letter.isupper() else " " for letter in first_letters)


_SMALL = re.compile(r"\b(?:of|for|the|and)\b")
# First letters, and the marks at which one thought ends: not the full stop of `J. F. Kennedy`.
_FIRST = re.compile(r"\b[^\W\d_]|(?<!\b[^\W\d_])[.!?](?=\s)|[;:()|]|\n[ \t]*\n")
_STEM = 3  # the least letters of a stem
_ENDING = 3  # the most letters of an ending

_CODE_SPAN = re.compile(r"(?<!`)`++([^`]++)`++")
_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S++|<[^<>\s]++>")
# A letter of a script with blanks: other scripts may have a Latin name right among their letters.
_LETTER = f"[^\\W{UNSPACED}{HANGUL}]"
_TOKEN = re.compile(rf"(?!\d|_){_LETTER}++(?>(?:['\u2019&.-]{_LETTER}++)*)")
_PART = re.compile(r"\w{2,}+")
# `Ada's`, `İstanbul'da`, `dell'Italia`: what is written onto a name.
_AFFIX = re.compile(r"\A[^\W\d_A-Z]{1,7}['\u2019](?=[^\Wa-z])|['\u2019](?:[^\W\d_A-Z]{1,5}|S)\Z")
# `**Key Benefit**: ...`, `Key Benefit: ...`, `[Optional] ...`: a heading of sorts, with the
# capitals of one.
_LABEL = re.compile(
    r"(?>(?:\* )?)[^\w*\[]*+"
    r"(?:\*\*[^*]{1,80}+\*\*|\[[^\]]{1,80}+\](?!\()|(?>(?:[\w'\u2019-]++ ?+){1,5}):)"
)
# A word behind these may have its capital from its place.
_OPENS = re.compile(r"[.:;!?\u2026|\"\u201c\u201d\u201e\u00ab\u00bb(\[]")
_NUMBERED = frozenset(
    {"appendix", "chapter", "equation", "fig", "figure", "part", "phase", "section", "step"}
    | {"table", "version"}
)
_LOUD = frozenset(
    {"ALL", "ALWAYS", "AND", "BUT", "IF", "IMPORTANT", "MAY", "MUST", "NEVER", "NO", "NOT", "NOTE"}
    | {"OK", "ONLY", "OR", "SHOULD", "TODO", "WARNING", "Dr", "Mr", "Mrs", "Ms", "Mx", "Prof", "St"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name, as it was written."""

    text: str
    """The whole of it: `Ada Lovelace`, `max_rounds`."""
    parts: tuple[str, ...]
    """The words of which each must be known."""
    exact: bool = False
    """Whether case matters, as it does to identifiers; the parts of others are case-folded."""


def names_in(sentence: str, *, nouns_have_capitals: bool = False) -> Iterator[Name]:
    """The names in a sentence, identifiers in backticks first; some may come more than once."""
    for span in _CODE_SPAN.findall(sentence):
        parts = tuple(identifier_parts(span))
        # With blanks in it, a span is a command or code.
        if parts and not any(c.isspace() for c in span.strip()):
            yield Name(text=f"`{span.strip()}`", parts=parts, exact=True)
    prose = without_addresses(_CODE_SPAN.sub(" _ ", composed(sentence)))
    prose = _without_dots(_ADDRESS.sub(" ", prose))
    for run in _runs(prose, nouns_have_capitals=nouns_have_capitals):
        # Of `NATO-led`, NATO alone is a name; of `vLLM`, all.
        names = (
            part
            for word in run
            for part in word.split("-")
            if part == word or not part[:1].islower()
        )
        yield Name(text=" ".join(run), parts=tuple(chain.from_iterable(map(terms, names))))


def _without_dots(text: str) -> str:
    """The text with `U.S.` as US, and `J. R. R. Tolkien` as JRR Tolkien."""
    return _DOTTED.sub(lambda letters: re.sub(r"\W", "", letters[0]), text)


_DOTTED = re.compile(r"\b[^\W\d_a-z]\.(?:\s?[^\W\d_a-z]\.)+")


def identifier_parts(text: str) -> list[str]:
    """The words of identifiers, in their own case: of `os.path.join(a)` they are os, path, join."""
    return [part for part in _PART.findall(composed(text)) if not part.isdecimal()]


def _runs(prose: str, *, nouns_have_capitals: bool) -> Iterator[list[str]]:
    """The words of each name, with their capitals."""
    label = _LABEL.match(prose)
    sentence = prose[label.end() :] if label else prose
    tokens = list(_TOKEN.finditer(sentence))
    if not tokens or _is_title(sentence, tokens):
        return
    run: list[str] = []
    end = 0
    for token in tokens:
        gap = sentence[end : token.start()]
        end = token.end()
        # Its capital tells nothing where nouns have one, or at the beginning of a sentence.
        opens = nouns_have_capitals or token is tokens[0] or _OPENS.search(gap) is not None
        word = _AFFIX.sub("", token[0])
        is_number = sentence[end : end + 2].strip()[:1].isdigit() and word.lower() in _NUMBERED
        is_name = _is_name(word, opens=opens) and not is_number
        # Only blanks join words to one name: after a comma, another name begins.
        if run and not (is_name and gap.isspace()):
            yield run
            run = []
        if is_name:
            run.append(word)
    if run:
        yield run


def _is_name(word: str, *, opens: bool) -> bool:
    # In doubt it is none: authors lose patience when asked for the source of `However`.
    if word in _LOUD or len(re.split("['\u2019]", word)[0]) < 2:
        return False
    capital_inside = any(c.isupper() for part in word.split("-") for c in part[1:])
    return capital_inside or (word[0].isupper() and not opens)


def _is_title(sentence: str, tokens: list[re.Match[str]]) -> bool:
    """Whether the capitals are those of a title, or of someone shouting."""
    if not any(c.islower() for c in sentence):
        return True
    capitals = sum(token[0][0].isupper() for token in tokens)
    stops = set(sentence[tokens[-1].end() :]) & set(".!?\u2026")
    return not stops and len(tokens) > 3 and capitals * 10 >= len(tokens) * 7
