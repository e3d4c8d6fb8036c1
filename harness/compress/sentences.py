"""Sentences, found by punctuation and a short list of abbreviations: no model, no dictionary.

Made for English prose; the full stops of Chinese and Japanese end a sentence as well. Where these
rules cannot tell, two sentences stay together: half a sentence is the worse mistake.
"""

from __future__ import annotations

import re
from itertools import pairwise

# A full stop after these does not end a sentence …
_ABBREVIATIONS = re.compile(
    r"al|approx|ca|cf|dr|e\.g|i\.e|jr|mr|mrs|ms|ph\.d|prof|resp|sr|st|viz|vs", re.IGNORECASE
)
# … and after these not before a number: `see Fig. 3`, but `They said no. Then`.
_NUMBERED = re.compile(
    r"art|ch|eqs?|figs?|nos?|pp?|refs?|secs?|tab|v|ver|vol"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)
# `J. Smith`, `U.S.`; but an `I` is the word.
_INITIALS = re.compile(r"(?:[A-Z]\.)*[A-HJ-Z]")

_BREAK = re.compile(
    r"""
    (?<=\S) [ \t]* (?>\r\n?|\n)
    (?:
        [ \t]* (?>\r\n?|\n) \s*                           # a blank line
      | (?= [ \t]* (?: [-*+] | \d{1,3}[.)] | \#{1,6} ) [ \t] )  # a list item, a heading
    )
    """,
    re.VERBOSE,
)
_STOP = re.compile(
    r"""
      (?<![.!?…]) (?P<stop>[.!?…]+)   # a whole run: `.`, `...`, `?!`
      ["'”’»)\]*_`]*                  # what closes together with the sentence
      (?: \[ \^? \w{1,8} \] )*        # references: `[3]`, `[^note]`
      \s+
    | [。！？]+ [”’」』）]* \s*          # scripts without a space between sentences
    """,  # noqa: RUF001 - the quotation marks and full stops of several scripts are meant
    re.VERBOSE,
)
_OPENING = "\"'“‘«([*_"  # noqa: RUF001 - as above


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space around them.

    A blank line ends a sentence, and so does the start of a list item or of a heading. Code and
    tables are not recognised; `sections_of` knows where they are.
    """
    return [sentence for piece in sentence_pieces(text) if (sentence := piece.strip())]


def sentence_pieces(text: str) -> list[str]:
    """The sentences of a text, each with the white space after it: joined, they are the text."""
    pieces = []
    for paragraph in _cut(text, [found.end() for found in _BREAK.finditer(text)]):
        ends: list[int] = []
        for found in _STOP.finditer(paragraph):
            if _ends_sentence(paragraph, found, start=ends[-1] if ends else 0):
                ends.append(found.end())
        pieces += _cut(paragraph, ends)
    return pieces


def _ends_sentence(text: str, found: re.Match[str], *, start: int) -> bool:
    """Whether the stop that was found ends the sentence that begins at `start`."""
    following = text[found.end() : found.end() + 4].lstrip(_OPENING)[:1]
    if found["stop"] is None:
        return True
    if following.islower():  # `"Why?" he asked`, `well... yes`
        return False
    if found["stop"] != ".":
        return True
    # No word that matters here is longer, and a text without a space stays cheap.
    before = text[max(start, found.start() - 20) : found.start()]
    word = "".join(before.split()[-1:]).lstrip(_OPENING)
    return not (
        _ABBREVIATIONS.fullmatch(word)
        or _INITIALS.fullmatch(word)
        or (_NUMBERED.fullmatch(word) and following.isdigit())
        or (word.isdigit() and text[start : found.start()].lstrip(_OPENING) == word)  # `1. First`
    )


def _cut(text: str, ends: list[int]) -> list[str]:
    """The text cut at these places, without empty pieces."""
    return [text[a:b] for a, b in pairwise([0, *ends, len(text)]) if a < b]
