"""Checks of what a draft says: phrases, broken ends, repetition, language."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from harness.compress import Section
from harness.compress.markdown import shown_text
from harness.errors import Notice
from harness.rubric.checks.base import NO_TEXT, Check, Grade, Phrase, quoted, share_without
from harness.rubric.draft import (
    ENOUGH_BYTES,
    Draft,
    Finding,
    items_of_scripts,
    language_of,
    letter_bytes,
    same_language,
    visible_text,
    without_addresses,
)
from harness.rubric.word_forms import phrases_in
from harness.text.folding import folded
from harness.text.languages import Language as LanguageCode
from harness.text.languages import fits_script
from harness.text.numbers import Value, values_in
from harness.text.sentences import ends_sentence, sentences_of
from harness.text.words import terms


class _Phrases(Check):
    phrases: tuple[Phrase, ...] = Field(min_length=1)
    """Looked for as whole words, in headings too, whatever their case, line breaks, quotation marks
    and Unicode forms are."""
    forms: bool = False
    """Whether other forms of the words count, by a dictionary of the rubric's `language`."""

    @property
    def _listed(self) -> str:
        return ", ".join(self.phrases)

    def _occurring_in(self, text: str, draft: Draft) -> list[str]:
        """The phrases in a Markdown text, as it is written or as it is shown."""
        matches: set[str] = set()
        # As it is written: a phrase may be a mark, such as `[TODO]`, or stand in an address.
        for form in {text, shown_text(text)}:
            matches.update(phrases_in(form, self.phrases, draft.language, forms=self.forms))
        return [phrase for phrase in self.phrases if phrase in matches]


class Excludes(_Phrases):
    """Phrases that must not occur: placeholders, talk about the task, boilerplate."""

    check: Literal["excludes"] = "excludes"

    asks: ClassVar[str] = "These do not occur: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections without any of the phrases."""
        findings = []
        for index, section in enumerate(draft.sections):
            if matches := self._occurring_in(visible_text(section.blocks), draft):
                message = f"remove {_quoted(matches)}"
                findings.append(draft.finding(message, index, code="check.phrase-excluded"))
            elif matches := self._occurring_in(section.title, draft):
                # About the whole draft, since a section that is written again keeps its heading.
                message = f'remove {_quoted(matches)} from the heading "{section.title}"'
                findings.append(Finding(message, code="check.phrase-excluded"))
        return Grade(share_without(findings, len(draft.sections)), tuple(findings))


class ContainsAll(_Phrases):
    """Phrases that must all occur, each somewhere in the draft."""

    check: Literal["contains_all"] = "contains_all"

    asks: ClassVar[str] = "All of these occur: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """The share of phrases that occur."""
        matches = self._occurring_in(draft.visible, draft)
        findings = tuple(
            Finding(f'say "{phrase}" where it belongs', code="check.phrase-missing")
            for phrase in self.phrases
            if phrase not in matches
        )
        return Grade(share_without(findings, len(self.phrases)), findings)


class ContainsAny(_Phrases):
    """Phrases of which at least one must occur."""

    check: Literal["contains_any"] = "contains_any"

    asks: ClassVar[str] = "At least one of these occurs: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """1 if one of the phrases occurs, else 0."""
        if self._occurring_in(draft.visible, draft):
            return Grade(1.0)
        message = f"say one of these: {_quoted(self.phrases)}"
        return Grade(0.0, (Finding(message, code="check.phrase-missing"),))


def _quoted(phrases: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f'"{phrase}"' for phrase in phrases)


_OPEN_FENCE = Notice(code="check.fence-open", message="a code fence is never closed")
_NO_BODY = Notice(code="check.section-empty", message="this section has no text")
_BREAKS_OFF = Notice(code="check.breaks-off", message="the last sentence breaks off; finish it")


class Finished(Check):
    """Every section has a text, which does not break off; every code fence is closed.

    A list may do without full stops, and a colon may lead over to subsections. Sections in Thai or
    Lao, which have no full stops, are only asked for a text and closed fences.
    """

    check: Literal["finished"] = "finished"

    asks: ClassVar[str] = "Every section ends with a whole sentence."
    not_for = ("no-stops",)

    def grade(self, draft: Draft) -> Grade:
        """The share of sections that are finished; 0 for a draft without text."""
        if not draft.parts:
            return Grade(0.0, (NO_TEXT,))
        open_fences = {index for index, _, fence in draft.fences if not fence.closed}
        findings = []
        for index, section in draft.parts:
            fault = unfinished(section, leads_over=draft.has_subsections(index))
            if index in open_fences:
                fault = _OPEN_FENCE
            if fault:
                findings.append(draft.finding(fault.message, index, code=fault.code))
        if not findings and all(_NO_STOPS.search(part.body[-100:]) for _, part in draft.parts):
            return Grade(1.0, unjudged="not for this language: its sentences have no stops")
        return Grade(share_without(findings, len(draft.parts)), tuple(findings))


_NO_STOPS = re.compile(r"[\u0e00-\u0eff][^\w\s]*\s*\Z")
# An address, a face of signs or of pictures, a tag, a formula; and Thai and Lao, without stops.
_ENDS_WITHOUT_STOP = re.compile(
    r"(?:\b(?:https?://|www\.)\S+|\S+@\S+\.\w+|\s[:;][-']?[)(DPp3]|\s\#\w+|\$\$|[\u0e00-\u0eff]"
    r"|[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\u200d\ufe0f\U0001f3fb-\U0001f3ff]*)\s*\Z"
)
# Abbreviations before something else, and none that may end a sentence, as `etc.` and `Inc.` may.
_LEADS_ON = re.compile(
    r"(?<![\w.])(?:Drs?|Mrs?|Ms|Mx|Prof|Figs?|Eqs?|Abb|Hr|Fr|Nr|Bd|e\.\s?g|i\.\s?e|z\.\s?B|d\.\s?h|u\.\s?a"
    r"|approx|resp|bzw|vgl|vs|viz|cf|ca|incl|inkl|pp)\.\s*\Z"
)
_FOOTNOTE = re.compile(r"\[\^[^\]\n]+\]:")
_SIGNATURE_LINES = 4
_SIGNATURE_WORDS = 5


def unfinished(section: Section, *, leads_over: bool) -> Notice | None:
    """What is missing at a section's end, or None; a colon may lead over to subsections."""
    if not section.body.strip():
        return _NO_BODY
    # Rules, HTML, link definitions and footnotes may stand behind the last sentence.
    blocks = [
        block
        for block in section.blocks
        if block.kind not in {"other", "metadata"} and not _FOOTNOTE.match(block.text)
    ]
    if not blocks or blocks[-1].kind in {"table", "code"}:
        return None
    last = blocks[-1]
    # An item or a quotation that ends with code.
    if last.kind in {"item", "quote"} and last.text.rstrip().endswith(("```", "~~~")):
        return None
    if _ends(visible_text((last,))) or (leads_over and last.text.rstrip().endswith(":")):
        return None
    # The last line is a list item with a numeral or bullet of another script.
    if items_of_scripts(last)[-1:] == last.text.strip().splitlines()[-1:]:
        return None
    before = blocks[-2] if len(blocks) > 1 else None
    if last.kind == "item":
        # The last item of a list needs a full stop only if the item before has one.
        is_whole = not (before and before.kind == "item" and _ends(before.text))
    else:
        is_whole = before is not None and _is_signature(last.text, after=before.text)
    return None if is_whole else _BREAKS_OFF


def _ends(text: str) -> bool:
    """Whether a text ends as a sentence may: with a stop, or with an address, a face, a formula."""
    # Where a link leads says nothing of how its sentence ends: `[the docs.](x.md)`.
    tail = without_addresses(text)[-200:]
    if _LEADS_ON.search(tail):
        return False
    return ends_sentence(tail) or _ENDS_WITHOUT_STOP.search(tail) is not None


def _is_signature(text: str, *, after: str) -> bool:
    """Whether a paragraph may close a letter: `Best regards,`, then a name, each on its line."""
    lines = [line.split() for line in text.strip().splitlines()]
    if len(lines) > _SIGNATURE_LINES or any(
        len(words) > _SIGNATURE_WORDS or words[0][0].islower() for words in lines if words
    ):
        return False
    if after.rstrip()[-1:] in {",", "،", "，"} and len(after.split()) <= _SIGNATURE_WORDS:  # noqa: RUF001
        return True
    # A single line without a courtesy may as well be a sentence that breaks off.
    return _ends(after) and (len(lines) > 1 or text.lstrip()[0] in "-–—~")  # noqa: RUF001


class NoRepetition(Check):
    """No sentence is said twice, whether in one section or in two, and no paragraph in other words.

    Sentences of one or two words may be said twice, and a text with other numbers says something
    else. A paragraph says the same as an earlier one that has most of its longer words.
    """

    check: Literal["no_repetition"] = "no_repetition"
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Two sentences repeat each other from this share of common words on (Jaccard index)."""

    asks: ClassVar[str] = "Nothing is said twice."

    def grade(self, draft: Draft) -> Grade:
        """The share of sentences that say something for the first time."""
        sentences = []
        for index, _, sentence in draft.sentences:
            seen = without_addresses(sentence)
            words = frozenset(word for word in terms(seen) if not word.isdecimal())
            sentences.append(_ComparedText(index, sentence, words, _claims_of(seen)))

        def is_same(new: _ComparedText, earlier: _ComparedText) -> bool:
            # `Yes, please.` may be said twice.
            if len(new.words) <= 2 or new.claims != earlier.claims:
                return False
            common = len(new.words & earlier.words)
            return common / len(new.words | earlier.words) >= self.similarity

        findings = []
        repeated: set[str] = set()
        for repetition in _repeated(sentences, share=self.similarity, is_same=is_same):
            sentence = quoted(repetition.text)
            repeated.add(sentence)
            message = f"this was said before: {sentence}"
            findings.append(draft.finding(message, repetition.section_index, code="check.repeated"))
        findings += _said_in_other_words(draft, repeated=repeated)
        return Grade(share_without(findings, len(sentences)), tuple(findings))


# Different longer words that a paragraph needs to be compared: about two sentences.
_PARAGRAPH_WORDS = 10
# The share of these words that an earlier paragraph must have.
_PARAGRAPH_SHARE = 0.75


def _said_in_other_words(draft: Draft, *, repeated: Set[str]) -> Iterator[Finding]:
    """A finding for each paragraph of which an earlier one has most words, and all claims."""
    paragraphs = []
    for index, section in enumerate(draft.sections):
        for text in [block.text for block in section.blocks if block.kind == "paragraph"]:
            seen = without_addresses(text)
            words = frozenset(word for word in terms(seen) if len(word) >= 4)
            if len(words) >= _PARAGRAPH_WORDS:
                paragraphs.append(_ComparedText(index, text, words, _claims_of(seen)))

    def is_same(new: _ComparedText, earlier: _ComparedText) -> bool:
        common = len(new.words & earlier.words)
        return common >= _PARAGRAPH_SHARE * len(new.words) and new.claims <= earlier.claims

    for repetition in _repeated(paragraphs, share=_PARAGRAPH_SHARE, is_same=is_same):
        # A sentence that is said twice has a finding of its own.
        if repeated.isdisjoint(map(quoted, sentences_of(repetition.text))):
            message = f"an earlier paragraph says this in other words: {quoted(repetition.text)}"
            yield draft.finding(message, repetition.section_index, code="check.repeated")


@dataclass(frozen=True, slots=True)
class _ComparedText:
    """A sentence or a paragraph; two of them are equal if their words and claims are."""

    section_index: int = field(compare=False)
    text: str = field(compare=False)
    words: frozenset[str]
    claims: frozenset[Value]


_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nor|neither|cannot|without|\w+n't|nicht|nie(?:mals)?|kein\w{0,2}|ohne"
    r"|pas|jamais|nunca|mai|niet|geen|inte|ikke|nie|не|нет|никогда)\b"
)
_COUNTED = re.compile(r"\d\s?([^\W\d_]{2,})")


def _claims_of(text: str) -> frozenset[Value]:
    """What makes two texts of the same words differ: numbers, what they count, a negation."""
    searched = folded(text)
    counted = {unit.removesuffix("s") for unit in _COUNTED.findall(searched)}
    negation = {"not"} if _NEGATION.search(searched) else set()
    return values_in(text) | counted | negation


def _repeated(
    texts: Sequence[_ComparedText],
    *,
    share: float,
    is_same: Callable[[_ComparedText, _ComparedText], bool],
) -> Iterator[_ComparedText]:
    """The texts that repeat an earlier one, by `is_same(new, earlier)`, which wants this share."""
    count = Counter(word for text in texts for word in text.words)
    earlier_texts: set[_ComparedText] = set()
    by_word: defaultdict[str, list[_ComparedText]] = defaultdict(list)
    for new in texts:
        words = new.words
        # A little less, so that rounding errors do not lift the product over a whole number.
        needed = math.ceil(share * len(words) - 1e-9)
        rarest_first = sorted(words, key=lambda word: (count[word], word))
        # A set that has a share `t` of the words of another has one of any `n - ceil(t * n) + 1` of
        # them: the prefix filter of Chaudhuri, Ganti and Kaushik, "A primitive operator for
        # similarity joins" (ICDE 2006). With the rarest, that leaves few to compare; comparing each
        # with all would take quadratic time.
        prefix = rarest_first[: len(words) - needed + 1]
        near = chain.from_iterable(by_word[word] for word in prefix)
        if any(is_same(new, earlier) for earlier in near):
            yield new
        if new not in earlier_texts:
            earlier_texts.add(new)
            for word in words:
                by_word[word].append(new)


# Code spans and addresses, which are in no language.
_NOT_PROSE = re.compile(r"(?<!`)`++[^`]++`++|\bhttps?://\S++|<[^<>\s]++>")

_TAG = re.compile(r"([a-z]{2})(?:[-_]\w+)*", re.IGNORECASE)


def _without_region(code: object) -> object:
    """The language of a tag such as `pt-BR`; `nb`, Norwegian Bokmål, becomes `no`."""
    tag = _TAG.fullmatch(code) if isinstance(code, str) else None
    if tag is None or (tag[0] == tag[1] and code != "nb"):
        return code
    language = tag[1].lower()
    return "no" if language == "nb" else language


class Language(Check):
    """The prose is in one language. Code, tables, headings and addresses do not count.

    Sections that are too short to tell are judged together; if the draft is too short, only its
    script is judged. Close relatives, such as Croatian and Serbian, count as one language.
    """

    check: Literal["language"] = "language"
    code: Annotated[LanguageCode, BeforeValidator(_without_region)]
    """The language by its code in ISO 639-1: `en`, `de`, `zh`; a region may follow: `pt-BR`."""

    asks: ClassVar[str] = "All prose is in the language with the code '{self.code}'."

    def grade(self, draft: Draft) -> Grade:
        """The share of prose in that language, by the length of the sections."""
        prose = _prose(draft)
        short = {index for index, text in prose.items() if letter_bytes(text) < ENOUGH_BYTES}
        texts = [([index], text) for index, text in prose.items() if index not in short]
        together = " ".join(prose[index] for index in sorted(short))
        if letter_bytes(together) >= ENOUGH_BYTES or fits_script(together, self.code) is not None:
            texts.append((sorted(short), together))
        if not texts:
            return Grade(1.0, unjudged="it is too short to tell its language")
        right = 0
        findings: list[Finding] = []
        for indices, text in texts:
            mismatch = self._mismatch(text)
            if mismatch:
                message = f"this reads as {mismatch}; write it in '{self.code}'"
                findings += [draft.finding(message, i, code="check.language") for i in indices]
            else:
                right += letter_bytes(text)
        total = sum(letter_bytes(text) for _, text in texts)
        return Grade(right / total, tuple(sorted(findings, key=lambda f: f.section_index or 0)))

    def _mismatch(self, text: str) -> str:
        """What a text is in, if not in the language; else empty."""
        if letter_bytes(text) < ENOUGH_BYTES:
            return "" if fits_script(text, self.code) else "another script"
        language = language_of(text)
        return "" if same_language(language, self.code) else f"'{language}'"


def _prose(draft: Draft) -> dict[int, str]:
    """The sentences of each section without code and addresses, by the section's index."""
    prose: dict[int, list[str]] = {}
    for index, _, sentence in draft.sentences:
        prose.setdefault(index, []).append(_NOT_PROSE.sub(" ", without_addresses(sentence)))
    return {index: " ".join(sentences) for index, sentences in prose.items()}
