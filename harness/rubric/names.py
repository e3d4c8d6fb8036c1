"""The names in a sentence, as far as letters tell them: no dictionary, no model.

Made for languages that capitalise names and little else, such as English. Where it cannot tell, a
word is not taken for a name: an author who is asked for the source of `However` loses patience.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.rubric.words import terms

_CODE_SPAN = re.compile(r"(?<!`)`++([^`]++)`++")
_ADDRESS = re.compile(r"\]\([^()\s]*+\)|\b(?:https?://|www\.)\S++|<[^<>\s]++>")
_TOKEN = re.compile(r"[^\W\d_]\w*+(?:['\u2019&.-]\w++)*+")
_PART = re.compile(r"\w{2,}+")
_POSSESSIVE = re.compile(r"['\u2019][sS]\Z")
# `**Key Benefit**: ...`, `Key Benefit: ...`, `[Optional] ...`: a heading of sorts, with the
# capitals of one.
_LABEL = re.compile(
    r"(?:\* )?+[^\w*\[]*+"
    r"(?:\*\*[^*]{1,80}+\*\*|\[[^\]]{1,80}+\](?!\()|(?:[\w'\u2019-]++ ?+){1,5}+:)"
)
# A word behind these may have its capital from its place.
_OPENS = re.compile(r"[.:;!?\u2026|\"\u201c\u201d\u201e\u00ab\u00bb(\[]")
_NUMBERED = frozenset(
    {"appendix", "chapter", "equation", "fig", "figure", "part", "phase", "section", "step"}
    | {"table", "version"}
)
_LOUD = frozenset(
    {"ALL", "ALWAYS", "AND", "BUT", "IF", "IMPORTANT", "MAY", "MUST", "NEVER", "NO", "NOT", "NOTE"}
    | {"OK", "ONLY", "OR", "SHOULD", "TODO", "WARNING"}
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


def names_in(sentence: str) -> Iterator[Name]:
    """The names in a sentence, identifiers in backticks first; some may come more than once."""
    for span in _CODE_SPAN.findall(sentence):
        parts = tuple(identifier_parts(span))
        if parts and not any(c.isspace() for c in span.strip()):
            yield Name(text=f"`{span.strip()}`", parts=parts, exact=True)
    prose = _ADDRESS.sub(" ", _CODE_SPAN.sub(" _ ", sentence))
    for words in _runs(prose):
        yield Name(text=" ".join(words), parts=tuple(p for word in words for p in terms(word)))


def identifier_parts(text: str) -> list[str]:
    """The words of identifiers, in their own case: of `os.path.join(a)` they are os, path, join."""
    return [part for part in _PART.findall(text) if not part.isdecimal()]


def _runs(prose: str) -> Iterator[list[str]]:
    """Words in a row that are names."""
    label = _LABEL.match(prose)
    said = prose[label.end() :] if label else prose
    tokens = list(_TOKEN.finditer(said))
    if not tokens or _is_title(said, tokens):
        return
    run: list[str] = []
    end = 0
    for token in tokens:
        gap = said[end : token.start()]
        opens = end == 0 or _OPENS.search(gap) is not None
        followed_by_number = said[token.end() : token.end() + 2].strip()[:1].isdigit()
        if run and not gap.isspace():
            yield run
            run = []
        word = _POSSESSIVE.sub("", token[0])
        if _is_name(word, opens=opens) and not (followed_by_number and word.lower() in _NUMBERED):
            run.append(word)
        elif run:
            yield run
            run = []
        end = token.end()
    if run:
        yield run


def _is_name(word: str, *, opens: bool) -> bool:
    if word in _LOUD or len(re.split("['\u2019]", word)[0]) < 2:
        return False
    capital_inside = any(c.isupper() for part in word.split("-") for c in part[1:])
    return capital_inside or (word[0].isupper() and not opens)


def _is_title(said: str, tokens: list[re.Match[str]]) -> bool:
    """Whether the capitals are those of a title, or of someone shouting."""
    if not any(c.islower() for c in said):
        return True
    capitals = sum(token[0][0].isupper() for token in tokens)
    stops = set(said[tokens[-1].end() :]) & set(".!?\u2026")
    return not stops and len(tokens) > 3 and capitals * 10 >= len(tokens) * 7
