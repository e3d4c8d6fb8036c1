"""Scores in a reply that is not JSON: `**Relevance**: 8/10 - because …`, tables, `Score: 7`.

The reply is read line by line, keeping the dimension that was named last. A number counts only
where it is stated as a score: right behind a dimension's name, behind `Score:`, or in a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.rubric.prompt import REASON_CHARS
from harness.rubric.rubric import Scale
from harness.rubric.scoring import Judgement
from harness.rubric.verdict import half_up

_OPENING = re.compile(
    r"(?:[\s>#*_|+\u2022\u00b7\u2190-\u2bff\ufe0f\U0001f300-\U0001faff\"'`{\[-]"
    r"|\d{1,2}[.)](?=[\s*]))*+"
    r"(?:(?:dimension|criterion|category|aspect)[ \t]*+\d{0,2}[ \t:*_\"'.-]*+)?",
    re.IGNORECASE,
)
"""What may stand before a dimension's name at the start of a line: list marks, ticks, stars."""
_BEFORE_NAME = re.compile(r"(?:(?:[,;|.(]|\bscores?:)[ \t*_\"'(]*|\band[ \t]+[*_]*)\Z", re.I)
"""The same within a line."""
_BEHIND_NAME = re.compile(r"[ \t]*+(?:[:\uff1a=|(\[*_\"'\])}\u2013\u2014-]|\r?\Z|is\b|\d)")
_ASIDE = re.compile(r"[ \t*_]*+\([^()\n]{0,60}+\)")
"""`(0-10)`, `(weight 2)` between a name and its score."""
_SCORE = re.compile(
    # At the start of a line, or behind what ends something: not in `clarity score: 8`.
    r"(?:^[\s<>#*_|+\u2022\"'`{-]*+(?:\d{1,2}[.)][ \t]+)?(?:(?:my|the|your)[ \t]+)?"
    r"(?P<final>final[ \t]+)?(?P<total>(?:overall|total)[ \t]+)?"
    r"|(?:(?<=[.;,!?|(])|(?<=[\u2013\u2014-][ \t]))[ \t*_\"'(]{0,8}|(?<=\*))"
    r"(?:score|rating|grade|scores(?=[ \t:*_]*+\d[\d./]*+[\s*_]*+\Z))(?![\w-])"
    r"(?:[ \t*_]*+\([^()\n]{0,60}+\))?"
    # How models that were trained on mathematics end.
    r"|(?P<boxed>\\boxed(?=\{))",
    re.IGNORECASE,
)
_I_GIVE = re.compile(
    r"\bI(?:['\u2019]d| would| will)?\s+(?:give|rate|score|assign|award)\b", re.IGNORECASE
)
_I_GIVE_CHARS = 120
"""How far behind that the score may stand."""
_DENIED = re.compile(r"\b(?:not|never|cannot|nor)\b|n['\u2019]t\b", re.IGNORECASE)
_HEADING = re.compile(
    r"[\s>*_+\u2022-]*+(?:\d{1,2}[.)]\s+[*_]*+)?"
    r"(?P<title>[^\W\d][\w&/'-]{0,30}(?: [\w&/'(-][\w&/')-]{0,30}){0,2})[*_\"]*+[ \t]*+[:=|]"
)
"""Three words at most: longer ones are sentences that a colon ends."""
_TOTAL = re.compile(r"\W*(?:overall|total|average|final)\b", re.IGNORECASE)
_FIELD = re.compile(
    r"\W*(?:(?:the|my|key|main)\s+)?(?:scores?|ratings?|grade|reason(?:ing|s)?|rationale"
    r"|justification|explanation|analysis|issues?|sections?|problems?|evidence|notes?|comments?"
    r"|feedback|examples?|strengths?|weakness(?:es)?|suggestions?|improvements?|areas|missing"
    r"|rules?|draft|judge?ment|assessment|evaluation|verdict|answer|response|output|result)\b",
    re.IGNORECASE,
)
"""Headings that stand inside what is said of a dimension."""
_BLANK_MARKS = " \t\r:*_#|\"'`{["


@dataclass(slots=True)
class _Passage:
    """A stretch of the reply that speaks of one dimension."""

    name: str
    """Empty under a heading that names no dimension."""
    start: int
    end: int = 0
    stated: StatedScore | None = None
    """The last score in it."""


def judgements_in_lines(
    text: str, *, labels: Labels, scale: Scale, alone: str | None
) -> dict[str, Judgement]:
    """The judgements that the lines of a text state; for each dimension the last with a score.

    `text` is a reply, or what is left of it without its JSON. `alone` is the dimension, if only one
    was asked for: its score needs no name.
    """
    reading = _Reading(labels, scale, alone)
    start = 0
    for line in text.split("\n"):
        if line.strip():
            reading.take_in(line, start)
        start += len(line) + 1
    reading.turn_to("", len(text))
    found = {p.name: _judgement(text, p) for p in reading.passages if p.name and p.stated}
    if alone and alone not in found and (stated := _whole_reply(text, scale)):
        whole = _Passage(alone, stated.start, len(text), stated)
        found[alone] = _judgement(text, whole)
    return found


class _Reading:
    """Goes through the lines and keeps the dimension that they speak of."""

    def __init__(self, labels: Labels, scale: Scale, alone: str | None) -> None:
        self.passages = [_Passage(alone or "", 0)]
        self._labels = labels
        self._scale = scale
        self._alone = alone is not None
        self._score_is_due = False
        self._column: int | None = None

    def turn_to(self, name: str, position: int) -> None:
        """What follows speaks of this dimension."""
        self.passages[-1].end = position
        self.passages.append(_Passage(name, position))

    def take_in(self, line: str, start: int) -> None:
        """One line, which begins there."""
        # 1. A row of a table.
        if line.lstrip().startswith("|"):
            self._row(line, start)
            return
        # 2. A number alone under `Score:`, or under a dimension's name.
        if self._score_is_due and (stated := _alone_in(line, self._scale)):
            self._state(stated, start)
        self._score_is_due = False
        # 3. Names of dimensions, with scores behind them or not.
        if not self._names(line, start) and self._is_foreign(line):
            self.turn_to("", start)
        # 4. `Score: 8`, of the dimension in mind.
        if self.passages[-1].name:
            self._score(line, start)

    def _state(self, stated: StatedScore, line_start: int) -> None:
        self.passages[-1].stated = stated.moved(line_start)

    def _row(self, line: str, start: int) -> None:
        titled = score_column(line)
        self._column = self._column if titled is None else titled
        found = score_in_row(line, labels=self._labels, scale=self._scale, column=self._column)
        if found:
            name, stated = found
            self.turn_to(name, start)
            self._state(stated, start)
            self.turn_to("", start + len(line))

    def _names(self, line: str, start: int) -> bool:
        """Whether the line names dimensions, as headings do or with scores."""
        opening = _OPENING.match(line)
        opens_at = opening.end() if opening else 0
        named = False
        for label in self._labels.pattern.finditer(line):
            opens = label.start() == opens_at
            before = line[max(label.start() - 12, 0) : label.start()]
            if not _BEHIND_NAME.match(line, label.end()):
                continue
            if not opens and not _BEFORE_NAME.search(before):
                continue
            stated = self._behind(line, label.end(), opens=opens)
            name = self._labels.find(label["name"])
            if name and (opens or stated):
                named = True
                self.turn_to(name, start + label.start())
                if stated:
                    self._state(stated, start)
                self._score_is_due = not line[label.end() :].strip(_BLANK_MARKS)
        return named

    def _behind(self, line: str, position: int, *, opens: bool) -> StatedScore | None:
        """The score behind a name: `: 8`, `(0-10): 8`, `(8/10): because`; `: good (8/10)`.

        The last only behind a name that opens the line, and as the one number of ten in it.
        """
        aside = _ASIDE.match(line, position)
        places = [aside.end(), position] if aside else [position]
        stated = (score_at(line, place, len(line), self._scale) for place in places)
        found = next((score for score in stated if score), None)
        if found is None and opens and not _DENIED.search(line):
            found = only_fraction_in(line, position, len(line), self._scale)
        return found

    def _score(self, line: str, start: int) -> None:
        """A score that the line states without a name; the last of several."""
        found = None
        for label in _SCORE.finditer(line):
            # Among several dimensions, a final score belongs to the whole.
            if (label["final"] or label["boxed"]) and not self._alone:
                continue
            # Of one alone, a total may be all there is, but does not stand for what it has.
            if label["total"] and (not self._alone or found or self.passages[-1].stated):
                continue
            found = score_at(line, label.end(), len(line), self._scale) or found
            self._score_is_due = not line[label.end() :].strip(_BLANK_MARKS)
        if found is None and (said := _I_GIVE.search(line)):
            end = min(said.end() + _I_GIVE_CHARS, len(line))
            if not _DENIED.search(line, 0, end):
                found = only_fraction_in(line, said.end(), end, self._scale)
        if found:
            self._state(found, start)

    def _is_foreign(self, line: str) -> bool:
        """Whether a line opens a total, or a dimension that the rubric does not have."""
        if _TOTAL.match(line):
            return not self._alone
        if line.lstrip().startswith("#"):
            return not _FIELD.match(line)
        heading = _HEADING.match(line)
        return heading is not None and not _FIELD.match(heading["title"])


def _alone_in(line: str, scale: Scale) -> StatedScore | None:
    """The score of a line with nothing else, and no full stop: `1.` is the mark of a list."""
    start = len(line) - len(line.lstrip(" \t*_>`-"))
    stated = score_at(line, start, len(line), scale)
    return stated if stated and not line[stated.behind :].strip(" \t\r*_`,") else None


def _whole_reply(text: str, scale: Scale) -> StatedScore | None:
    """The score of a reply that is hardly more: `8`, or `8/10` and then a reason."""
    start = len(text) - len(text.lstrip())
    stated = score_at(text, start, len(text), scale)
    if stated is None:
        return None
    said_more = text[stated.behind :].strip(" \t\r\n*_`.")
    return stated if not said_more or stated.behind > stated.end else None


def _judgement(text: str, passage: _Passage) -> Judgement:
    stated = passage.stated
    assert stated is not None
    # What stands near the score, if a passage is long.
    before = text[max(passage.start, stated.start - 4 * REASON_CHARS) : stated.start]
    behind = text[stated.behind : min(passage.end, stated.behind + 4 * REASON_CHARS)]
    return Judgement(
        score=stated.score,
        start=stated.start,
        end=stated.end,
        reason=_reason(f"{before} {behind}", passage.name),
    )


def _reason(said: str, name: str) -> str:
    """What is said of a dimension, without its name, the label of its score, and list marks."""
    plain = re.sub(r"[*#>|`{}\"\[\]()]|^\s*[-+]\s", " ", said, flags=re.MULTILINE)
    label = re.escape(name).replace("_", r"[\s_-]")
    plain = re.sub(
        rf"^\W*{label}\b|\b(?:score|reason(?:ing)?)\s*:", " ", plain, flags=re.IGNORECASE
    )
    return " ".join(plain.split()).strip(" -\u2013\u2014:;,/")[:REASON_CHARS]


_MOST_CELLS = 20


def score_column(row: str) -> int | None:
    """The column of scores, if this row is a table's head and names one."""
    titles = [row[start:end].strip(" \t*_\r").casefold() for start, end in _cells(row)]
    is_score = [re.match(r"(?:score|rating|grade)\b", title) is not None for title in titles]
    return is_score.index(True) if sum(is_score) == 1 else None


def score_in_row(
    row: str, *, labels: Labels, scale: Scale, column: int | None
) -> tuple[str, StatedScore] | None:
    """The dimension that a row is about and its score.

    The score stands in the column of scores; if that is unknown, in the only cell with a score and
    nothing else.
    """
    cells = _cells(row)
    # The first column may number them.
    names = (labels.find(row[start:end]) for start, end in cells[:2])
    name = next((name for name in names if name), None)
    if name is None:
        return None
    if column is not None:
        stated = score_at(row, *cells[column], scale) if column < len(cells) else None
        return (name, stated) if stated else None
    found = [stated for start, end in cells[1:] if (stated := score_at(row, start, end, scale))]
    whole = [one for one in found if re.match(r"[ \t*_]*(?:\||\r?\Z)", row[one.behind :])]
    return (name, whole[0]) if len(whole) == 1 else None


def _cells(row: str) -> list[tuple[int, int]]:
    bars = [bar.start() for bar in re.finditer(r"\|", row)][: _MOST_CELLS + 1]
    return [(bar + 1, end) for bar, end in zip(bars, [*bars[1:], len(row)], strict=True)]


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
    """Where it ends with what belongs to it: the `/10` of `8/10`."""

    def moved(self, chars: int) -> StatedScore:
        """The same in a text that has so many characters more before it."""
        return StatedScore(self.score, self.start + chars, self.end + chars, self.behind + chars)


def score_at(text: str, position: int, end: int, scale: Scale) -> StatedScore | None:
    """The score that is stated at this position, or behind filler such as `: **`."""
    filler = _FILLER.match(text, position, end)
    found = _STATED.match(text, filler.end() if filler else position, end)
    return _on_scale(found, scale) if found else None


def only_fraction_in(text: str, position: int, end: int, scale: Scale) -> StatedScore | None:
    """The only `8/10` of a stretch of text; None if there are two."""
    found = list(_FRACTION.finditer(text, position, end))
    return _on_scale(found[0], scale) if len(found) == 1 else None


def _on_scale(found: re.Match[str], scale: Scale) -> StatedScore | None:
    """None off the scale, and for `8/20` on a scale that ends at 10."""
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


_ALIASES = {"grounded": "groundedness", "groundedness": "grounded"}
"""Names that models mix up."""

_SUFFIX = "score|rating|grade|evaluation"


class Labels:
    """Finds the dimensions of a rubric by their names.

    It knows all dimensions, even unrequested ones: their scores must not be taken for another's.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = list(names)
        aliases = {_ALIASES[n]: n for n in known if n in _ALIASES and _ALIASES[n] not in known}
        self._by_key = {_key(name): name for name in known} | aliases
        # The longest first: `depth_of_field` is not `depth`.
        alternatives = "|".join(
            r"[\s_-]{1,3}".join(map(re.escape, key.split("_")))
            for key in sorted(self._by_key, key=len, reverse=True)
        )
        # Not inside a word: neither the `clear` of `unclear` nor the `depth` of `in-depth`.
        self.pattern = re.compile(
            rf"(?<![\w-])(?P<name>{alternatives})(?:[ \t_-]{{0,3}}(?:{_SUFFIX}))?(?![\w-])",
            re.IGNORECASE,
        )
        """A dimension's name in a text, as the group `name`."""

    def find(self, written: str) -> str | None:
        """The dimension that a key or a heading names: `1. Relevance score (0-10)`."""
        plain = re.sub(r"\([^()]*+\)|^\W*\d{1,2}[.)]\s", " ", written[:200])
        key = re.sub(rf"_(?:{_SUFFIX})$", "", _key(plain))
        return self._by_key.get(_key(plain)) or self._by_key.get(key)


def _key(written: str) -> str:
    return re.sub(r"[\W_]+", "_", written.casefold()).strip("_")
