"""The natural language of a draft, told offline and repeatably by the letters of its prose."""

from __future__ import annotations

import re
from typing import Literal

from harness.compress import Section
from harness.rubric.checks.check import Check, Grade
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

# fmt: off
LanguageCode = Literal[
    "af", "am", "an", "ar", "as", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "cs", "cy",
    "da", "de", "dz", "el", "en", "eo", "es", "et", "eu", "fa", "fi", "fo", "fr", "fy", "ga",
    "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id", "ig", "is", "it", "ja",
    "jv", "ka", "kk", "km", "kn", "ko", "ku", "ky", "la", "lb", "lg", "ln", "lo", "lt", "lv",
    "mg", "mk", "ml", "mn", "mr", "ms", "mt", "my", "ne", "nl", "nn", "no", "oc", "om", "or",
    "pa", "pl", "ps", "pt", "qu", "ro", "ru", "rw", "sa", "se", "si", "sk", "sl", "sn", "so",
    "sq", "sr", "st", "sv", "sw", "ta", "te", "tg", "th", "tk", "tl", "tr", "tt", "ug", "uk",
    "ur", "uz", "vi", "vo", "wa", "xh", "yo", "zh", "zu",
]
# fmt: on
"""The languages that can be told, by ISO 639-1."""

# Near enough to each other to be taken for each other, in a text of any length.
_ALIKE: tuple[frozenset[str], ...] = (
    frozenset({"bs", "hr", "sr"}),
    frozenset({"nn", "no"}),
    frozenset({"id", "ms"}),
)
# Code spans, addresses and tags are of no language.
_NOT_PROSE = re.compile(r"(?<!`)`++[^`]++`++|\]\([^()\s]*+\)|\bhttps?://\S++|<[^<>\s]++>")
_ENOUGH_BYTES = 100
"""Of letters, in UTF-8: about 17 words of English, 33 characters of Chinese."""


class Language(Check):
    """The prose is in one language. Code, tables, headings and addresses do not count.

    Sections too short to tell are taken together; a draft too short to tell is not judged. Close
    relatives (Croatian and Serbian, say) are taken for one language.
    """

    check: Literal["language"] = "language"
    code: LanguageCode
    """The language by its code in ISO 639-1: `en`, `de`, `zh`."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"All prose is in the language with the code '{self.code}'."

    def grade(self, draft: Draft) -> Grade:
        """The share of prose in that language, by the length of the sections."""
        prose = _prose(draft)
        short = [index for index, letters in prose.items() if _bytes(letters) < _ENOUGH_BYTES]
        together = " ".join(prose[index] for index in short)
        texts = [([index], text) for index, text in prose.items() if index not in set(short)]
        if _bytes(together) >= _ENOUGH_BYTES:
            texts.append((short, together))
        if not texts:
            return Grade(1.0, unjudged="it is too short to tell its language")
        right = 0
        findings: list[Finding] = []
        for indices, text in texts:
            found = _language_of(text)
            if _same(found, self.code):
                right += _bytes(text)
            else:
                findings += [self._finding(i, draft.sections[i], found) for i in indices]
        total = sum(_bytes(text) for _, text in texts)
        return Grade(right / total, tuple(sorted(findings, key=_section_index)))

    def _finding(self, index: int, section: Section, found: str) -> Finding:
        return Finding(
            f"this reads as '{found}'; write it in '{self.code}'",
            section.title,
            index,
            code="check.language",
        )


def _prose(draft: Draft) -> dict[int, str]:
    """The prose of every section that has some, by its index."""
    prose: dict[int, list[str]] = {}
    for index, _, sentence in draft.sentences:
        prose.setdefault(index, []).append(_NOT_PROSE.sub(" ", sentence))
    return {index: " ".join(sentences) for index, sentences in prose.items()}


def _bytes(text: str) -> int:
    """How long the letters of a text are."""
    letters = "".join(c for c in text if c.isalpha())
    return len(letters.encode("utf-8"))


def _language_of(text: str) -> str:
    """The likeliest of the languages that ISO 639-1 has a code for."""
    # Imported at the first use: it takes half a second to load its model.
    import py3langid  # noqa: PLC0415

    return next(str(code) for code, _ in py3langid.rank(text) if len(code) == 2)


def _same(a: str, b: str) -> bool:
    return a == b or any({a, b} <= alike for alike in _ALIKE)


def _section_index(finding: Finding) -> int:
    return finding.section_index or 0
