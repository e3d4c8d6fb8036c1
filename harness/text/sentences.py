"""Sentences, by sentencex and what it leaves open; whether a text ends with one."""

# ruff: noqa: RUF001 - the stops and quotation marks of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

from harness.text.languages import Language

# A blank line, or the end of a line before a list item or a heading.
_PARAGRAPH_END = re.compile(
    r"(?:\n|\r(?!\n))(?:[ \t]*[\r\n]\s*|(?=[ \t]*(?:[-*+]|\d{1,3}[.)]|\#{1,6})[ \t]))"
)
# These end a sentence by themselves.
_FULL_STOPS = "。！？｡．।॥۔؟։።፧။។៕៚།༎܀߹꧉׃᠃"
_CLOSING = "\"'”’»›)\\]*_`」』）】"  # what closes together with a sentence
_REFERENCE = r"\[\^?\w{1,8}\]"
# Stops that sentencex misses: in brackets, in scripts without blanks, behind units (`0.2 s.`).
# It begins with one class of signs, so that `re` is quick to skip all others.
_MISSED_STOP = re.compile(
    rf"[.!?…{_FULL_STOPS}\d](?:(?<=[{_FULL_STOPS}])[{_FULL_STOPS}]*[{_CLOSING}]*\s*"
    rf"|(?<=[.!?…])[{_CLOSING}]+\s+|(?<=\d)\s?(?:[kcmn\u00b5]?[mgls]|h|min)\.\s+)"
)
# What belongs to the sentence before: closing marks, references and blanks, and signs at the end.
_TAIL = re.compile(rf"(?:\s*(?:[{_CLOSING}]|{_REFERENCE})+(?=\s|\Z))*\s*(?:[^\w\s]*\s*\Z)?")
# A stop at the end of a text. `;` behind a Greek letter is the question mark, and `|` behind one of
# India is typed for a danda.
_STOP_AT_END = re.compile(
    rf"(?:[.!?…‽‼⁇⁈⁉{_FULL_STOPS}]|[\u0370-\u03ff\u1f00-\u1fff][;\u037e]|[\u0900-\u0dff]\s?\|)"
    rf"(?:\s?[{_CLOSING}“‘«]|[⁰¹²³⁴-⁹\u200b-\u200f\u2060]|\s?{_REFERENCE})*\s*\Z"
)
_BEFORE_CHARS, _FOLLOWING_CHARS = 20, 12  # around a stop, as much as `_is_end` looks at
_OPENING = "\"'“‘«([*_¿¡"
_TITLE = re.compile(r"(?:^|[\s(.])(?:(?!\d)[\u05d0-\u0dff]|डॉ|प्रो|श्री|ডাঃ|திரு)\.\s*\Z")
# A stop ends no sentence behind a title, an item's number, or an abbreviation before a number.
_NUMBERING = re.compile(r"\W*\d{1,3}[.)]\s*")
_BEFORE_NUMBER = re.compile(
    r"(?i)(?:^|[\s(])(?:approx|art|ca|cf|ch|eqs?|figs?|nos?|pp?|refs?|secs?|tab|v|ver|vol"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\.\s*\Z"
)
# An ordinal ends no sentence before a month, nor, in a text of unknown language, behind a German
# article or preposition, unless a new sentence seems to begin. Other ordinals look like ends.
_MONTH = re.compile(
    r"(?:Januar|Jänner|Februar|Feber|März|April|Mai|May|Ju[nl][iey]|August|September|O[kc]tober"
    r"|November|De[zc]ember)\b"
)
_DAY = re.compile(r"(?<!\d)\d{1,2}(?:st|nd|rd|th)?\.\s*\Z")
_ORDINAL = re.compile(
    r"(?i)\b(?:(?<!\bi )am|v?[io]m|zu[mr]|beim|seit|de[rnms]|das|die(?:s\w+)?|\w{0,2}eine?[mnrs]?)"
    r" \d{1,2}\.\s*\Z"
)
_FIRST_WORD = re.compile(r"(?:D(?:er|ie|as|ann|a)|E[rs]|Sie|Wir|Ich|I[nm]|Am|Und|Aber)\b|\d")
_LETTERS_OF = {"el": re.compile("[\u0370-\u03ff]"), "ru": re.compile("[\u0400-\u04ff]")}
# The time of sentencex grows with the square of a text with open quotation marks or no blanks.
_WINDOW_CHARS = 4_000


def sentences_of(text: str, language: Language | None = None) -> list[str]:
    """The sentences of a text, without the white space around them; code is not recognized."""
    return [piece.strip() for piece in sentence_pieces(text, language) if piece.strip()]


def ends_sentence(text: str) -> bool:
    """Whether a text ends with the stop of a sentence, in any script; a reference may follow."""
    return _STOP_AT_END.search(text, max(0, len(text) - 200)) is not None


def sentence_pieces(text: str, language: Language | None = None) -> list[str]:
    """The sentences of a text, each with the white space after it: joined, they are the text."""
    start = len(text) - len(text.lstrip())
    paragraphs = _cut(text, [line.end() for line in _PARAGRAPH_END.finditer(text, start)])
    return [piece for part in paragraphs for piece in _cut(part, _sentence_ends(part, language))]


def _cut(text: str, ends: Iterable[int]) -> list[str]:
    """The text cut at these positions, without empty pieces."""
    return [text[a:b] for a, b in pairwise([0, *ends, len(text)]) if a < b]


def _sentence_ends(paragraph: str, language: Language | None) -> Iterator[int]:
    stops = (stop.end() for stop in _MISSED_STOP.finditer(paragraph))
    start = end = 0
    for candidate in sorted({*_sentencex_ends(paragraph, language), *stops}):
        if candidate < end:  # within the closing marks of the sentence before
            continue
        end = tail.end() if (tail := _TAIL.match(paragraph, candidate)) else candidate
        if end == start or _NUMBERING.fullmatch(paragraph, start, end):
            continue
        before = paragraph[max(start, end - _BEFORE_CHARS) : end]
        following = paragraph[end : end + _FOLLOWING_CHARS].lstrip(_OPENING)
        if _is_end(before, following, language):
            yield end
            start = end


def _sentencex_ends(paragraph: str, language: Language | None) -> Iterator[int]:
    import sentencex  # noqa: PLC0415 - a binary of 4 MB, for the first sentence

    by_letters = (c for c, letters in _LETTERS_OF.items() if letters.search(paragraph))
    code = next(by_letters, "en") if language is None else language
    # Half of a pair of surrogates is no text to it.
    text = re.sub(r"[\ud800-\udfff]", "?", paragraph)
    start = 0
    while window := text[start : start + _WINDOW_CHARS]:
        if goes_on := start + len(window) < len(text):  # half a word may look like a whole one
            window = window[: window.rfind(" ") + 1] or window
        ends = [*accumulate(map(len, sentencex.segment(code, window)))]
        # The last sentence may go on behind the window: the next window begins with it.
        ends = ends[:-1] if goes_on else ends
        yield from (start + end for end in ends)
        if ends:
            start += ends[-1]
        else:  # no sentence ends in the window: go on at its last word, or behind it without blanks
            start += window.rstrip().rfind(" ") + 1 or len(window)


def _is_end(before: str, following: str, language: Language | None) -> bool:
    """Whether a sentence ends where `before` does, with `following`, less opening marks, behind."""
    mark, last = before.rstrip()[-1:], before.rstrip().rstrip(_CLOSING)[-1:]
    first = following[:1]
    has_no_case = first.isalpha() and first == first.lower() == first.title()  # also Georgian
    is_small = first.islower() and not has_no_case and following.split(maxsplit=1)[0].islower()
    may_go_on = is_small or not before[-1].isspace()
    # `etc. and`, but `macOS` begins one. In doubt two stay together: half is the worse mistake.
    if last not in _FULL_STOPS and may_go_on:
        return False
    # `Fig. 3`, `डॉ. शर्मा`.
    abbreviations = _BEFORE_NUMBER if following.lstrip("$€£")[:1].isdigit() else _TITLE
    # `"…!" बोले`: who spoke stands behind, which no small letter shows; in Japanese と does.
    is_quoted = first == "と" if mark in "」』" else has_no_case and mark in "\"'”’»›"
    if is_quoted or abbreviations.search(before):
        return False
    if last != ".":
        return True
    # `vom 1. FC Köln`, and then `am 3. Mai`: the stop of an ordinal ends nothing.
    if language is None and _ORDINAL.search(before) and not _FIRST_WORD.match(following):
        return False
    return not (_MONTH.match(following) and _DAY.search(before))
