"""Scores in a reply that is no JSON: `**Relevance**: 8/10 - because …`, tables, `Score: 7`.

Read line by line, with the dimension in mind that was named last. A number counts only where it is
stated as a score: right behind a dimension's name, behind `Score:`, or as the score of a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.rubric.judging.judgement import Judgement
from harness.rubric.judging.labels import Labels
from harness.rubric.judging.reply_schema import REASON_CHARS
from harness.rubric.judging.score_table import score_column, score_in_row
from harness.rubric.judging.stated_score import StatedScore, only_fraction_in, score_at
from harness.rubric.rubric import Scale

_OPENING = re.compile(
    r"(?:[\s>#*_|+\u2022\u00b7\u2190-\u2bff\ufe0f\U0001f300-\U0001faff\"'`{\[-]"
    r"|\d{1,2}[.)](?=[\s*]))*+"
    r"(?:(?:dimension|criterion|category|aspect)[ \t]*+\d{0,2}[ \t:*_\"'.-]*+)?",
    re.IGNORECASE,
)
"""What a line may have before the name of a dimension: marks of lists, ticks, stars."""
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
"""How far behind that a score may stand."""
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
    """Which; empty under a heading that is none of ours."""
    start: int
    end: int = 0
    stated: StatedScore | None = None
    """The last score in it."""


def judgements_in_lines(
    text: str, *, labels: Labels, scale: Scale, alone: str | None
) -> dict[str, Judgement]:
    """The judgements that the lines of a text state; of one dimension, the last with a score.

    Args:
        text: A reply, or what is left of it without its JSON.
        labels: Finds dimensions by name.
        scale: Where scores are.
        alone: The dimension that was asked for alone, whose score needs no name.
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
    """Goes through the lines, and keeps in mind what they speak of."""

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
        """A score that the line states without a name; the last, if there are several."""
        found = None
        for label in _SCORE.finditer(line):
            # Among several dimensions, a final score is that of the whole.
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
        """Whether a line opens something that is not ours: a total, a dimension of its own."""
        if _TOTAL.match(line):
            return not self._alone
        if line.lstrip().startswith("#"):
            return not _FIELD.match(line)
        heading = _HEADING.match(line)
        return heading is not None and not _FIELD.match(heading["title"])


def _alone_in(line: str, scale: Scale) -> StatedScore | None:
    """The score of a line that has nothing else, and no full stop: `1.` is the mark of a list."""
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
    """What is said of a dimension without its name, the label of its score, and list marks."""
    plain = re.sub(r"[*#>|`{}\"\[\]()]|^\s*[-+]\s", " ", said, flags=re.MULTILINE)
    label = re.escape(name).replace("_", r"[\s_-]")
    plain = re.sub(
        rf"^\W*{label}\b|\b(?:score|reason(?:ing)?)\s*:", " ", plain, flags=re.IGNORECASE
    )
    return " ".join(plain.split()).strip(" -\u2013\u2014:;,/")[:REASON_CHARS]
