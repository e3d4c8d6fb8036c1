"""A score as models state it: `8`, `8.0`, `8/10`, `8 out of 10`, `**8** - because …`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.rubric.rubric import Scale
from harness.rubric.verdict import half_up

# What may stand between a label and its score. A dash before a digit would be a minus.
_FILLER = re.compile(
    r"(?:[ \t:\uff1a=|>*_\"'\u201c\u201d`({\[]|[-\u2013\u2014](?=[ \t])"
    r"|\b(?:score|scored|rating|rated|is|of|a|an|at)\b){0,40}+",
    re.IGNORECASE,
)
# `8` and `8/10`, not the 8 of `8 sections`, `7-8`, `8,5`, `8%` or `80`: behind it stands an end, a
# mark that ends something, or a reason.
_NO_RANGE = r"(?<!\d[-\u2013\u2014])(?<!\d [-\u2013\u2014] )(?<!\d to )(?<!\d or )"
# Nor the beginning of a list: `1. Intro`, and the anchors `9: Yes. 3: No.`
_NO_LIST = r"(?!1[.)][ \t]+\w)(?!\d{1,3}:[^\n]{1,300}?[ \t(;]\d{1,3}:[ \t])"
_NUMBER = rf"(?<![\w.,]){_NO_RANGE}{_NO_LIST}(?P<number>-?\d{{1,6}}(?:\.\d{{1,6}})?)(?!\.?\d)"
_OF = (
    r"[*_ \t]{0,6}(?:/|\bout[ ]of\b|\bof\b)[*_ \t]{0,6}"
    r"(?P<most>\d{1,6}(?:\.\d{1,6})?)(?![\w%]|[.,]\d)"
)
_REASON = r"because|since|due|as|but|although|though|given|points?|reason(?:ing)?(?=[ \t*]*:)"
_END = (
    r"(?=[ \t]*+(?:\Z|[\r\n|;)\]}<\"'\u201d`!(\u2026\u5206\uff0c\u3002]"
    r"|[*_]+(?![*_ \t]*/)|[.,:](?!\d)|[-\u2013\u2014](?![ \t]*{range})|(?:{words})\b))"
)
_END_OF_NUMBER = _END.replace("{words}", _REASON).replace("{range}", r"\d")
# A number of ten is a score too in `8/10 for style and …`, in `8/10 It is clear.`, and in
# `8/10 - 2 parts are missing`, where `8/10 - 9` is a range.
_END_OF_FRACTION = _END.replace(
    "{words}", f"{_REASON}|and|for|in|on|with|here|overall|(?-i:[A-Z])\\w*"
).replace("{range}", r"\d[\d.]*+[ \t]*+(?:/|out\b|[^ \t\w]|\Z)")
_STATED = re.compile(f"{_NUMBER}(?:{_OF}{_END_OF_FRACTION}|{_END_OF_NUMBER})", re.IGNORECASE)
_FRACTION = re.compile(f"{_NUMBER}{_OF}{_END_OF_FRACTION}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StatedScore:
    """A score, and where its number stands."""

    score: float
    """On the scale, and on its step."""
    start: int
    end: int
    behind: int
    """Where what belongs to it ends: the `/10` of `8/10`."""

    def moved(self, chars: int) -> StatedScore:
        """The same in a text that has so many characters more before it."""
        return StatedScore(self.score, self.start + chars, self.end + chars, self.behind + chars)


def score_at(text: str, position: int, end: int, scale: Scale) -> StatedScore | None:
    """The score that is stated right there, or behind what may stand before one."""
    filler = _FILLER.match(text, position, end)
    found = _STATED.match(text, filler.end() if filler else position, end)
    return _on_scale(found, scale) if found else None


def only_fraction_in(text: str, position: int, end: int, scale: Scale) -> StatedScore | None:
    """The one `8/10` of a stretch of text; None when there are two, which cannot be told apart."""
    found = list(_FRACTION.finditer(text, position, end))
    return _on_scale(found[0], scale) if len(found) == 1 else None


def _on_scale(found: re.Match[str], scale: Scale) -> StatedScore | None:
    """Off the scale it is no score, and neither is `8/20` on a scale that ends at 10."""
    number = float(found["number"])
    if not scale.min <= number <= scale.max:
        return None
    if found["most"] is not None and not math.isclose(float(found["most"]), scale.max):
        return None
    return StatedScore(
        score=half_up(number, scale.step, start=scale.min),
        start=found.start("number"),
        end=found.end("number"),
        behind=found.end(),
    )
