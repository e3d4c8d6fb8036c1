"""Chooses the replies that are read closely: where a score may stand, and some of the others."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

READ = 60
OF_THOSE_THAT_MAY = 45
"""At most so many: the others are where a score could be invented."""
SEED = 5

_NEAR_CHARS = 40
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)?(?!\w)")
_WORDS = r"scor\w*|rat(?:e|es|ed|ing|ings)|grad(?:e|es|ed|ing)|points?|marks?|out of|overall"
_JSON_VALUE = re.compile(r"""["']\s*:\s*["']?$""")


def chosen(replies: Iterable[Mapping[str, object]]) -> list[int]:
    """The ids of the replies to read, in order; the same for the same replies."""
    by_id = sorted(replies, key=lambda reply: str(reply["id"]).zfill(6))
    may, others = [], []
    for reply in by_id:
        (may if may_state_a_score(reply) else others).append(int(str(reply["id"])))
    draw = random.Random(SEED)
    first = may if len(may) <= OF_THOSE_THAT_MAY else draw.sample(may, OF_THOSE_THAT_MAY)
    return sorted([*first, *draw.sample(others, READ - len(first))])


def may_state_a_score(reply: Mapping[str, object]) -> bool:
    """Whether a number on the scale stands where a score would: near a word for it, as a value."""
    text, asked, scale = str(reply["text"]), reply["asked"], reply["scale"]
    assert isinstance(asked, Sequence)
    assert isinstance(scale, Mapping)
    words = re.compile("|".join([_WORDS, *map(re.escape, asked)]), re.IGNORECASE)
    return any(
        _JSON_VALUE.search(text[: number.start()])
        or text[number.end() :].startswith("/")
        or words.search(text[max(0, number.start() - _NEAR_CHARS) : number.end() + _NEAR_CHARS])
        for number in _on_the_scale(text, lowest=scale["min"], highest=scale["max"])
    )


def _on_the_scale(text: str, *, lowest: float, highest: float) -> Iterator[re.Match[str]]:
    for number in _NUMBER.finditer(text):
        if lowest <= float(number[0].replace(",", ".")) <= highest:
            yield number
