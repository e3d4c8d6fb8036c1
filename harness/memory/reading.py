"""Finds passages that say the same in the same words, in any typing.

There are two rules, for title and text each. `same`: equal in Unicode's composed form (NFC), with a
blank for any white space. `near`: also equal with typewriter signs for typographic ones, and
without punctuation that cannot change the meaning.

Nothing else may differ, in any language. No list of empty words is safe: "few" is not "a few", "out
of question" not "out of the question", "Hepatitis A" no hepatitis, "den Hund" not "der Hund",
"personne" (no one) not "la personne". No list of signs is, either: a comma can turn a sentence
around, a hyphen be a minus, a range or a part of a name, an accent or a capital make another word,
a full stop after a number an ordinal.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from harness.memory.passage import Passage, Rule

Reading = tuple[str, str]
"""Title and text, without the differences that a rule allows."""


def reading(passage: Passage, rule: Rule) -> Reading:
    """Equal for two passages that are one by this rule."""
    read = _near if rule == "near" else _same
    return read(passage.title), read(passage.text)


def number_of(passage: Passage) -> int:
    """64 bits, equal for passages that are one by either rule, and by chance for others.

    It is stored: with changed rules, numbers would miss the stored ones.
    """
    content = "\0".join(reading(passage, "near")).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)


# Composing takes quadratic time where a thousand accents follow each other.
_COMPOSED_UP_TO = 1000


def _same(text: str) -> str:
    words = text.split()
    if not text.isascii():
        # No letter composes with a blank.
        words = [
            unicodedata.normalize("NFC", word) if len(word) <= _COMPOSED_UP_TO else word
            for word in words
        ]
    return " ".join(words)


def _near(text: str) -> str:
    # 1. Signs of a typewriter; a removed one may leave two blanks.
    text = _same(text)
    if not text.isascii():
        text = _same(_HYPHEN.sub("-", text.translate(_TYPED)))
    # 2. The blank that French has before these signs.
    text = _BLANK.sub("", text)
    # 3. A capital at the beginning, of a word that is not written with one.
    first = text.partition(" ")[0]
    if first.lower() in _ARTICLES and first[1:].islower():
        text = first.lower() + text[len(first) :]
    # 4. The last full stop, unless it could end an ordinal, an abbreviation or a dotted line.
    last = _FULL_STOP.search(text)
    return text[:-1] if last and last[1].islower() else text


_TYPED = str.maketrans(
    {
        **{chr(wide): chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5E)},
        **dict(
            zip("\ufb00\ufb01\ufb02\ufb03\ufb04", ("ff", "fi", "fl", "ffi", "ffl"), strict=True)
        ),
        # Not the other quotation marks: one turned round can be a letter of Arabic, two be "less".
        **dict.fromkeys("\u201c\u201d\u201e", '"'),
        "\u2019": "'",
        "\u2026": "...",
        "\u00b5": "\u03bc",
        # No width, and no meaning: unlike those between letters of Thai, Persian or Hindi.
        **dict.fromkeys("\u2060\ufeff", ""),
    }
)
_LETTER = r"[^\W\d_]"
_HYPHEN = re.compile(rf"(?<={_LETTER})[\u2010\u2011](?={_LETTER})")
_BLANK = re.compile(rf"(?<={_LETTER}{_LETTER}) (?=[;:!?](?: |\Z))")
_FULL_STOP = re.compile(rf"(?<!\S)({_LETTER}{{2,}})\.\Z")
_ARTICLES = frozenset(
    [
        *("the", "this", "these", "that", "those"),
        *("der", "die", "das", "le", "la", "les", "el", "los", "las"),
    ]
)
