"""Checks of what a draft says: phrases, broken ends, repetition, language."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
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

    def _found_in(self, text: str, draft: Draft) -> list[str]:
        # As written too: a phrase may be a mark, such as `[TODO]`, or stand in an address.
        matches = {
            phrase
            for read in {text, shown_text(text)}
            for phrase in phrases_in(read, self.phrases, draft.language, forms=self.forms)
        }
        return [phrase for phrase in self.phrases if phrase in matches]


class Excludes(_Phrases):
    """Phrases that must not occur: placeholders, talk about the task, boilerplate."""

    check: Literal["excludes"] = "excludes"

    asks: ClassVar[str] = "These do not occur: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections without any of the phrases."""
        findings = []
        for index, section in enumerate(draft.sections):
            if matches := self._found_in(visible_text(section.blocks), draft):
                message = f"remove {_quoted(matches)}"
                findings.append(draft.finding(message, index, code="check.phrase-excluded"))
            elif matches := self._found_in(section.title, draft):
                # About the whole draft: a section that is written again keeps its heading.
                message = f'remove {_quoted(matches)} from the heading "{section.title}"'
                findings.append(Finding(message, code="check.phrase-excluded"))
        return Grade(share_without(findings, len(draft.sections)), tuple(findings))


class ContainsAll(_Phrases):
    """Phrases that must all occur, each somewhere in the draft."""

    check: Literal["contains_all"] = "contains_all"

    asks: ClassVar[str] = "All of these occur: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """The share of phrases that occur."""
        matches = self._found_in(draft.visible, draft)
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
        if self._found_in(draft.visible, draft):
            return Grade(1.0)
        message = f"say one of these: {_quoted(self.phrases)}"
        return Grade(0.0, (Finding(message, code="check.phrase-missing"),))


def _quoted(phrases: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f'"{phrase}"' for phrase in phrases)


_OPEN_FENCE = Notice(code="check.fence-open", message="a code fence is never closed")


class Finished(Check):
    """Every section has a text, which does not break off; every code fence is closed.

    A list may do without full stops, and a colon may lead over to subsections. Of sections in Thai
    or Lao, which have no full stops, only what has no text or an open fence is judged.
    """

    check: Literal["finished"] = "finished"

    asks: ClassVar[str] = "Every section ends with a whole sentence."
    not_for = ("no-stops",)

    def grade(self, draft: Draft) -> Grade:
        """The share of sections that are finished; 0 for a draft without text."""
        if not draft.parts:
            return Grade(0.0, (NO_TEXT,))
        open_fence = {index for index, _, fence in draft.fences if not fence.closed}
        findings = tuple(
            draft.finding(fault.message, index, code=fault.code)
            for index, section in draft.parts
            if (
                fault := _OPEN_FENCE
                if index in open_fence
                else unfinished(section, leads_over=draft.has_subsections(index))
            )
        )
        if not findings and all(_NO_STOPS.search(part.body[-100:]) for _, part in draft.parts):
            return Grade(1.0, unjudged="not for this language: its sentences have no stops")
        return Grade(share_without(findings, len(draft.parts)), findings)


_NO_STOPS = re.compile(r"[\u0e00-\u0eff][^\w\s]*\s*\Z")
# An address, a face of signs or of pictures, a tag, a formula; and Thai and Lao, without stops.
_ENDS_WITHOUT_STOP = re.compile(
    r"(?:\b(?:https?://|www\.)\S+|\S+@\S+\.\w+|\s[:;][-']?[)(DPp3]|\s\#\w+|\$\$|[\u0e00-\u0eff]"
    r"|[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\u200d\ufe0f\U0001f3fb-\U0001f3ff]*)\s*\Z"
)
_TARGET = re.compile(r"\]\([^()\s]*(?:\s+\"[^\"\n]*\")?\)(?=\W*\Z)")
# Abbreviations before something else, and none that may end a sentence, as `etc.` and `Inc.` may.
_LEADS_ON = re.compile(
    r"(?<![\w.])(?:Drs?|Mrs?|Ms|Mx|Prof|Figs?|Eqs?|Abb|Hr|Fr|Nr|Bd|e\.\s?g|i\.\s?e|z\.\s?B|d\.\s?h|u\.\s?a"
    r"|approx|resp|bzw|vgl|vs|viz|cf|ca|incl|inkl|pp)\.\s*\Z"
)
_FOOTNOTE = re.compile(r"\[\^[^\]\n]+\]:")
_SIGNATURE_LINES = 4
_SIGNATURE_WORDS = 5


def unfinished(section: Section, *, leads_over: bool) -> Notice | None:
    """What is missing at a section's end, or None. Whether its code is whole is not checked."""
    if not section.body.strip():
        return Notice(code="check.section-empty", message="this section has no text")
    # Rules, HTML, link definitions and footnotes may stand behind the last sentence.
    written = [
        block
        for block in section.blocks
        if block.kind != "other" and not _FOOTNOTE.match(block.text)
    ]
    if not written or written[-1].kind in {"table", "code"}:
        return None
    last = written[-1]
    # Code inside an item or a quotation.
    if last.kind in {"item", "quote"} and last.text.rstrip().endswith(("```", "~~~")):
        return None
    # Subsections follow, which a colon may announce.
    if _ends(last.text) or (leads_over and last.text.rstrip().endswith(":")):
        return None
    # The items of a list need no full stop, unless the one before has one.
    if items_of_scripts(last)[-1:] == last.text.strip().splitlines()[-1:]:
        return None
    before = written[-2] if len(written) > 1 else None
    if last.kind == "item":
        is_whole = not (before and before.kind == "item" and _ends(before.text))
    else:
        is_whole = before is not None and _is_signature(last.text, after=before.text)
    breaks_off = Notice(code="check.breaks-off", message="the last sentence breaks off; finish it")
    return None if is_whole else breaks_off


def _ends(text: str) -> bool:
    # Where a link leads says nothing of how its sentence ends: `[the docs.](x.md)`.
    tail = _TARGET.sub("]", text)[-200:]
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

    Sentences of one or two words may be, and a text with other numbers says something else. A
    paragraph says the same as an earlier one that has most of its longer words.
    """

    check: Literal["no_repetition"] = "no_repetition"
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Two sentences repeat each other from this share of common words on (Jaccard index)."""

    asks: ClassVar[str] = "Nothing is said twice."

    def grade(self, draft: Draft) -> Grade:
        """The share of sentences that say something for the first time."""
        sentences = [
            (index, sentence, frozenset(w for w in terms(sentence) if not w.isdecimal()))
            for index, _, sentence in draft.sentences
        ]

        def is_same(new: _Content, earlier: _Content) -> bool:
            common, every = len(new[0] & earlier[0]), len(new[0] | earlier[0])
            # `Yes, please.` may be said twice.
            return len(new[0]) > 2 and new[1] == earlier[1] and common / every >= self.similarity

        findings, repeated = [], set()
        for index, sentence in _repeated(sentences, share=self.similarity, is_same=is_same):
            repeated.add(quoted(sentence))
            message = f"this was said before: {quoted(sentence)}"
            findings.append(draft.finding(message, index, code="check.repeated"))
        findings += _said_in_other_words(draft, repeated=repeated)
        return Grade(share_without(findings, len(sentences)), tuple(findings))


# Different longer words that a paragraph needs to be compared: about two sentences.
_PARAGRAPH_WORDS = 10
# The share of these words that an earlier paragraph must have.
_PARAGRAPH_SHARE = 0.75


def _said_in_other_words(draft: Draft, *, repeated: Set[str]) -> Iterator[Finding]:
    """A finding for each paragraph of which an earlier one has most words, and all numbers."""
    every = (
        (index, block.text, frozenset(w for w in terms(block.text) if len(w) >= 4))
        for index, section in enumerate(draft.sections)
        for block in section.blocks
        if block.kind == "paragraph"
    )
    paragraphs = [paragraph for paragraph in every if len(paragraph[2]) >= _PARAGRAPH_WORDS]

    def is_same(new: _Content, earlier: _Content) -> bool:
        return len(new[0] & earlier[0]) >= _PARAGRAPH_SHARE * len(new[0]) and new[1] <= earlier[1]

    for index, text in _repeated(paragraphs, share=_PARAGRAPH_SHARE, is_same=is_same):
        # A sentence that is said twice has a finding of its own.
        if repeated.isdisjoint(map(quoted, sentences_of(text))):
            message = f"an earlier paragraph says this in other words: {quoted(text)}"
            yield draft.finding(message, index, code="check.repeated")


_Content = tuple[frozenset[str], frozenset[Value]]
"""The words of a text, and its claims."""
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nor|neither|cannot|without|\w+n't|nicht|nie(?:mals)?|kein\w{0,2}|ohne"
    r"|pas|jamais|nunca|mai|niet|geen|inte|ikke|nie|не|нет|никогда)\b"
)
_COUNTED = re.compile(r"\d\s?([^\W\d_]{2,})")


def _claims_of(text: str) -> frozenset[Value]:
    """What makes two texts of the same words differ: numbers, what they count, a negation."""
    read = folded(text)
    counted = {unit.removesuffix("s") for unit in _COUNTED.findall(read)}
    negation = {"not"} if _NEGATION.search(read) else set()
    return values_in(text) | counted | negation


def _repeated(
    texts: Sequence[tuple[int, str, frozenset[str]]],
    *,
    share: float,
    is_same: Callable[[_Content, _Content], bool],
) -> Iterator[tuple[int, str]]:
    """Section and text of each text that repeats an earlier one, as `is_same` decides."""
    count = Counter(word for _, _, words in texts for word in words)
    earlier_texts: set[_Content] = set()
    by_word: defaultdict[str, list[_Content]] = defaultdict(list)
    for index, text, words in texts:
        new = words, _claims_of(text)
        # A little less, so that rounding errors do not lift the product over a whole number.
        needed = math.ceil(share * len(words) - 1e-9)
        ranked = sorted(words, key=lambda word: (count[word], word))
        # A set that has a share `t` of the words of another has one of any `n - ceil(t * n) + 1` of
        # them: the prefix filter of Chaudhuri, Ganti and Kaushik, "A primitive operator for
        # similarity joins" (ICDE 2006). With the rarest, that leaves few to compare; comparing each
        # with all would take quadratic time.
        near = chain.from_iterable(by_word[word] for word in ranked[: len(words) - needed + 1])
        if any(is_same(new, earlier) for earlier in chain({new} & earlier_texts, near)):
            yield index, text
        if new not in earlier_texts:
            earlier_texts.add(new)
            for word in words:
                by_word[word].append(new)


# Code spans, addresses and tags are of no language.
_NOT_PROSE = re.compile(r"(?<!`)`++[^`]++`++|\]\([^()\s]*+\)|\bhttps?://\S++|<[^<>\s]++>")

_TAG = re.compile(r"([a-z]{2})(?:[-_]\w+)*", re.IGNORECASE)


def _without_region(code: object) -> object:
    """The language of a tag such as `pt-BR`; Norwegian Bokmål (`nb`) is known as `no`."""
    tag = _TAG.fullmatch(code) if isinstance(code, str) else None
    if tag is None or (tag[0] == tag[1] and code != "nb"):
        return code
    language = tag[1].lower()
    return "no" if language == "nb" else language


class Language(Check):
    """The prose is in one language. Code, tables, headings and addresses do not count.

    Sections too short to tell are taken together; of a draft that is too short, only the script is
    judged. Close relatives (Croatian and Serbian, say) are taken for one language.
    """

    check: Literal["language"] = "language"
    code: Annotated[LanguageCode, BeforeValidator(_without_region)]
    """The language by its code in ISO 639-1: `en`, `de`, `zh`; a region may follow: `pt-BR`."""

    asks: ClassVar[str] = "All prose is in the language with the code '{self.code}'."

    def grade(self, draft: Draft) -> Grade:
        """The share of prose in that language, by the length of the sections."""
        prose = _prose(draft)
        short = [index for index, letters in prose.items() if letter_bytes(letters) < ENOUGH_BYTES]
        together = " ".join(prose[index] for index in short)
        texts = [([index], text) for index, text in prose.items() if index not in set(short)]
        if letter_bytes(together) >= ENOUGH_BYTES or fits_script(together, self.code) is not None:
            texts.append((short, together))
        if not texts:
            return Grade(1.0, unjudged="it is too short to tell its language")
        right = 0
        findings: list[Finding] = []
        for indices, text in texts:
            if letter_bytes(text) < ENOUGH_BYTES:
                fits, seen = fits_script(text, self.code), "another script"
            else:
                language = language_of(text)
                fits, seen = same_language(language, self.code), f"'{language}'"
            if fits:
                right += letter_bytes(text)
            else:
                message = f"this reads as {seen}; write it in '{self.code}'"
                findings += [draft.finding(message, i, code="check.language") for i in indices]
        total = sum(letter_bytes(text) for _, text in texts)
        return Grade(right / total, tuple(sorted(findings, key=lambda f: f.section_index or 0)))


def _prose(draft: Draft) -> dict[int, str]:
    prose: dict[int, list[str]] = {}
    for index, _, sentence in draft.sentences:
        prose.setdefault(index, []).append(_NOT_PROSE.sub(" ", sentence))
    return {index: " ".join(sentences) for index, sentences in prose.items()}
