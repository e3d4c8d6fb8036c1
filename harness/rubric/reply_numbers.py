"""Numbers in an evaluator's reply: what is a score, on which scale, and what takes it back.

A score is a figure, a word such as `seven`, or `pass`. Its scale stands with it (`7/10`), or is the
one that the text names nearest to it. `reply_line_scores.py` finds the dimension of a score.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence

from harness.rubric.rubric import Scale


def _any(*patterns: str) -> str:
    return f"(?:{'|'.join(patterns)})"


# --- a number and its scale ----------------------------------------------------------------------

_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_WORD = rf"{_any(*_WORDS)}\b"
DIGITS = (
    # `7,5` is 7.5, but between commas it is two cells of a row.
    r"[-\u2212]?(?:(?<![,;])\d{1,3},\d{1,2}(?![\d,])"
    r"|(?:\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})(?:e[-+]?\d)?)"
)
_PASS = {"pass", "passed", "passes", "yes", "true"}
_FAIL = {"fail", "failed", "fails", "no", "false"}
# A number in words stands alone: not the `two` of `two or three parts`.
_WORD_ALONE = rf"{_WORD}(?=[*_ \t]*(?:[\r\n/]|\.?\s*\Z|(?:out|of|von|sur|de)\b))"
_PASS_OR_FAIL = rf"{_any(*sorted(_PASS | _FAIL, reverse=True))}\b"
_NUMBER = rf"(?P<number>{DIGITS}|{_PASS_OR_FAIL}|{_WORD_ALONE})"
PERCENT = r"(?:%|per[ ]?cent(?:age)?\b)"
_UNIT = r"(?:[ \t]{0,2}(?:(?:points?|pts|Punkten?|p[uo]n(?:t[io]s?|ten)|балл\w{0,2})\b|[点分점]))"


def score_in(
    number: re.Match[str] | None, scale: Scale, ends: Sequence[float] = ()
) -> tuple[float, Sequence[float]] | None:
    """A score and the ends of its scale; None if `number` is no score on a scale of this kind.

    The ends are what stands with the number, else `ends`.
    """
    if number is None:
        return None
    word = number["number"].casefold()
    if word in _PASS | _FAIL:
        return (scale.at(float(word in _PASS)), [scale.max]) if scale.is_pass_fail else None
    if number["percent"]:
        # On a scale from 1 to 100, 80 % of the way is not a score of 80.
        return None if scale.min else (_value(word), [100.0])
    return _value(word), [_value(number["scale_end"])] if number["scale_end"] else ends


def _value(text: str) -> float:
    text = re.sub(PERCENT, "100", text, flags=re.IGNORECASE)
    if text.casefold() in _WORDS:
        return _WORDS.index(text.casefold()) + 1.0
    return float(text.replace(",", ".").replace("\u2212", "-"))


USUAL_ENDS = {3.0, 4.0, 5.0, 6.0, 7.0, 10.0, 20.0, 100.0}  # not `out of 12 terms`
_BEST = r"(?:max(?:imum)?|highest|best|possible|top|excellent)\b"
_END = rf"(?P<end>(?<![a-z_\d])(?<!\d[.,])\d{{1,3}}(?:\.0)?(?![\d.,]*\d)|\b{_WORD})"
# How a text names the end of a scale apart from any score.
_NAMED_SCALES = (
    # `/5`, `out of 5`, `max. 5`; behind another number it counts something else: `3/5 of the terms`
    re.compile(
        r"(?<!\d)(?<!\d )(?:[/\u2044\uff0f][ ]?|\bout of (?:an? |the )?|\bscale of (?:the )?"
        rf"|\b(?:max|highest|best)(?:imum)?\.?(?:[ ]possible)?(?:[ ]score)?(?:[ ]is)?:?[ ]){_END}",
        re.IGNORECASE,
    ),
    # `1-5`, `1 (poor) to 5`
    re.compile(
        r"(?<![\d.,])[01][ ]?(?:\([^()\n\d]{1,20}\)[ ]?)?"
        r"(?:[-\u2013\u2014~\u301c\uff5e]|\.\.|から|(?:to|bis|à|a|do|tot|до|and)\b)[ ]?"
        rf"{_END}",
        re.IGNORECASE,
    ),
    # `5-point`, `5点満点`, `5 = good`, `5 is the best`
    re.compile(
        rf"{_END}(?:[ ]?[点分段점]|[ ](?:point|star)\b|-?(?:point|star|punkt|балл|er-Skala)"
        rf"|[ ]?=[ ]?\w|[ =:(\u2013-]{{1,4}}(?:(?:is|being|points?|the|as|very)[ ]){{0,3}}{_BEST})",
        re.IGNORECASE,
    ),
)
_LINE_ON_SCALE = re.compile(
    r"^(?:.*(?:skala|échelle|escala|\bscala d|\bschaal van|шкал|балльн|段階評価"
    r"|[一二三四五六七八九十百](?:分制|点満点)).*"
    # `Scores in percent:` or `| Score (%) |` alone: among words, the text may be about it.
    rf"|(?:.*\|)?[ *_#-]*(?:score|rating)s?[ ][(\[]?(?:in[ ])?{PERCENT}[ )\]*_:\r]*(?:\|.*)?)$",
    re.IGNORECASE | re.MULTILINE,
)
# At the end of a line or a cell, a number may be one in any language: `sur 20`.
_END_OF_LINE = re.compile(rf"{_END}[)\]*_#: ]*(?:\||\r?$)", re.IGNORECASE | re.MULTILINE)
_MOST_NEAR = 8  # ends to look at on each side, so that reading takes linear time


def ends_named(text: str) -> list[tuple[int, float]]:
    """The highest scores of scales that a text names, each as (position, end)."""
    ends = _usual_ends(text, *_NAMED_SCALES)
    for line in _LINE_ON_SCALE.finditer(text):
        # A number that we cannot read, as in `fünfstufige Skala`: in doubt, the scale is another.
        [end] = highest_in(line[0]) or [math.inf]
        ends.append((line.start(), end))
    return sorted(ends)


def ends_of_lines(text: str) -> list[tuple[int, float]]:
    """The numbers at the ends of lines that may be the highest scores of scales."""
    return _usual_ends(text, _END_OF_LINE)


def _usual_ends(text: str, *patterns: re.Pattern[str]) -> list[tuple[int, float]]:
    ends = ((scale.start(), _value(scale["end"])) for p in patterns for scale in p.finditer(text))
    return [(position, end) for position, end in ends if end in USUAL_ENDS]


def ends_beside(label: str, behind: str) -> list[float]:
    """The numbers right beside a score that may be the highest of its scale: `(5 is best)`."""
    numbers = re.finditer(_END, f"{label} {behind}", re.IGNORECASE)
    ends = [*(_value(number["end"]) for number in numbers), *ends_in(label)]
    return [end for end in ends if end in USUAL_ENDS]


def ends_in(label: str) -> list[float]:
    """The highest scores of the scales that a label names: `clear (1-5)`, `clear (%)`."""
    percent = re.findall(rf"[(\[](?:in[ ])?({PERCENT})[)\]]", label, re.IGNORECASE)
    return [*(end for _, end in ends_named(label)), *map(_value, percent)]


def highest_in(text: str) -> list[float]:
    """The highest number in the description of a scale: `1-5`, `percent`; empty if it has none."""
    numbers = re.findall(rf"\d+(?:\.\d+)?|\b{_WORD}|{PERCENT}", text, re.IGNORECASE)
    return [max(map(_value, numbers))] if numbers else []


def end_near(named: Sequence[tuple[int, float]], position: int, score: float) -> list[float]:
    """The nearest of the `named` ends before a bare score, else behind it; empty if none fits."""
    next_end = bisect_left(named, (position, 0.0))
    before = named[max(0, next_end - _MOST_NEAR) : next_end]
    behind = named[next_end : next_end + _MOST_NEAR]
    # An end below the score belongs to something else: `7: sections 1-5 are thin`.
    return [end for _, end in (*reversed(before), *behind) if end >= score][:1]


# --- where a score stands ------------------------------------------------------------------------

# Refuses the beginning of a list: `1. Intro`, or anchors such as `9: Yes. 3: No.`
_NO_LIST = r"(?!1[.)][ \t]+\w)(?!\d{1,3}:[^\n]{1,300}?[ \t(;]\d{1,3}:[ \t])"
# What may stand between a label and its score.
_FILLER = _any(
    r"[ \t:\uff1a=|>*_({\[\]\u2192\u2705\u2713\u2714]",
    r"[,;](?=\d)",
    # A dash before a digit is a minus.
    r"[-\u2013\u2014](?=[ \t>])",
    r"[\u274c\u2717\u2718](?=[ \t*]{0,3}(?:fail|no))",
    r"\bfrom[ \t]\d{1,3}[ \t]to\b",
    r"\b(?:scored?|rated|is|of|an?|at|to|now|should|must|ought|have|been|be|becomes?|deserves?"
    r"|rather|gets?|goes|up|down|raised|lowered|revised|corrected|changed)\b",
)
_FILLERS = rf"(?>{_FILLER}{{0,40}})"
ARROW = r"(?:[-=\u2013\u2014]+>|\u2192)"
# `-> now 9`, but not `-> a 10-line sample`. What counts (`-> 2 gaps`) surely revises nothing.
_CHANGE = (
    rf"{ARROW}{_FILLERS}(?:\d[\d.,]*+(?!-(?!ish|point|star)[a-z]|(?:st|nd|rd|th|x)\b)"
    rf"|{_WORD_ALONE})"
)
_COUNTED = r"(?:[\d -]{0,6}|[ ]of[ ]\d{1,3})[ ](?!points|stars|seems|feels|is|as|th)[a-z]+s\b"
REVISION = rf"(?!{ARROW}[ ]up[ ]to){_CHANGE}(?!{_COUNTED})"
# What ends a score: a mark, a dash that begins no range, or a word that gives the reason.
_SCORE_ENDS = _any(
    r"\Z",
    r"[\r\n;)\]}<`!#(\u2026\uff08\uff09\uff0c\u3002]",
    r"[*_]+(?![*_ \t]*/)",
    # Ticks, crosses and lights. Stars do not, as four may be of five, nor do signs of sums.
    r"[\u2705\u2713\u2714\u2717\u2718\u26a0\u274c\U0001f44d\U0001f44e\U0001f534\U0001f7e0-\U0001f7e2]",
    r"\|(?!\w)",
    r"[.:](?!\d)",
    # A comma ends no score in a list: `clear, useful: 7, 5`.
    r",(?!\d|[ \t]\d[\d.]*[ \t]*(?:[,;\r\n]|and\b|\Z))",
    r"[-\u2013\u2014](?![ \t]*\d|[-\u2013\u2014]*>)",
    rf"(?!{_CHANGE}){ARROW}",
    r"(?:because|since|due|as|but|although|though|given|instead|now|reason(?:ing)?(?=[ \t*]*:))\b",
)
_END_OF_SCORE = rf"(?=[ \t]*+{_SCORE_ENDS})"
# What may stand between a score and the end of its scale: `4/5`, `4 stars out of 5`, `4 von 5`.
_OF_WORD = r"\b(?:(?:out )?of|von|sur|sobre|de|su|van|av|z|из)\b"
_ARTICLES = r"[*_ \t]{0,6}(?:(?:an?|the|de|possible|max(?:\.|imum|imal)?|of)[ ]){0,4}"
_STARS = rf"(?:{_UNIT}|[ ]stars?\b)?"
_OF = (
    rf"{_STARS}[*_ \t]{{0,6}}(?:(?P<slash>[/\u2044\uff0f])|{_OF_WORD}){_ARTICLES}"
    rf"(?P<scale_end>\d{{1,6}}(?:\.\d{{1,6}})?|{_WORD}){_STARS}(?![a-z\d%]|[.,]\d)"
)
# Words may follow `8/10`, but not `8 out of 10`, of claims. `8/10 - 9` is a range.
_RANGE = r"[ \t]*+[-\u2013\u2014][ \t]*+\d[\d.]*+[ \t]*+(?:[^ \t\w/]|\Z)"
_BEHIND = (
    rf"(?!\.?\d)(?:{_OF}(?(slash)(?!{_RANGE}|[ \t]*+(?:/|{REVISION}))|{_END_OF_SCORE})"
    rf"|(?P<percent>%)?{_UNIT}?{_END_OF_SCORE})"
)
AT_FIRST = re.compile(rf"[\s*_`\[-]*+{_NO_LIST}(?!{_WORD}){_NUMBER}{_BEHIND}", re.IGNORECASE)
"""A score that begins a line."""
ALONE = re.compile(
    rf"[\s*_]*+{_NUMBER}(?:{_OF}|(?P<percent>[ ]?%))?{_UNIT}?[\s*_)\uff09\]]*+\.?\s*", re.IGNORECASE
)
"""A score that is all of a cell or a value."""
_ASIDE = r"[ \t*_]*+[(\uff08\[](?![*_ \t]*\d[\d.]*[*_ \t]*[/\uff0f])[^()\[\]\n]{0,60}+[)\uff09\]]"
STATED = re.compile(
    rf"(?:{_ASIDE})?(?P<between>{_FILLERS}){_NO_LIST}{_NUMBER}{_BEHIND}", re.IGNORECASE
)
"""A score behind a label: `: 8`, `(0-10): 8`, `(8/10): because`, `deserves a 7`."""
SUFFIX = re.compile(
    r"[*_`]*+(?:[-\u2013:][^\W\d_]|-[ \t\r]*+(?:\Z|[\n|,;)\]}])|(?:\.{2,}+|\u2026)\d)"
)
"""What makes a score before it doubtful: `10-point scale: 7`, `10:stä 7`, `7-`, `7...8`."""
CORRECTED_CHARS = 200  # how far behind a score its correction may stand
CORRECTED = re.compile(
    r"(?:[,.;:(\n]|[ \t][-\u2013\u2014])[ \t*_]{0,4}"
    r"(?:no|maybe|perhaps|sorry|actually|rather|wait|correct(?:ion|ed)|revis(?:ed|ion)|adjusted|raised|lowered"
    r"|changed|should (?:be|have been)|make (?:that|it)|on reflection|or rather|better"
    r"|edit|update|was)\b"
    rf"[ \t,:*_]{{0,4}}(?:(?:to|a|an|at|is|now)\b[ \t]{{0,3}})?{_NUMBER}{_BEHIND}",
    re.IGNORECASE,
)
"""Another score behind a score, which corrects it without repeating the name."""
_REDUCED = re.compile(r"[ \t,;(-]{0,4}(?:minus|plus|less)\b[ \t]{0,3}\d", re.IGNORECASE)
_NO = r"\bno\b[ \t]*(?:[.,;!)]|\Z)"
_FAILS = re.compile(rf"(?<!not )\bfail(?:s|ed)?\b|\bfalse\b|\bnot pass\b|{_NO}", re.IGNORECASE)
_PASSES = re.compile(r"(?<!not )(?<!to )\bpass(?:es|ed)?\b|\btrue\b|\byes\b", re.IGNORECASE)


def is_taken_back(score: float, scale: Scale, rest: str) -> bool:
    """Whether words behind a score take it back: `9, minus 2`, `pass (fails on names)`."""
    if not scale.is_pass_fail:
        return bool(_REDUCED.match(rest))
    opposite = _FAILS if score == scale.max else _PASSES
    return bool(opposite.search(rest))
