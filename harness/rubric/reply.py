"""Reads an evaluator's reply: one JSON value of the shape that was asked for, or labelled scores.

A score is taken only where the reply states it for its dimension, outside any quotation, on the
dimension's scale and no other that the reply names. Two different scores for a dimension count as
none, as does a score that may be a copy of the draft's own words: the evaluator is asked again.

JSON may have small slips, such as commas too many and single quotes. Broken JSON is not read, nor
anything behind it: a quotation mark too many turns words of a reason into keys. (json-repair mends
that too, and then invents: the 1 of a cut `"score": 1`, the last of two scores.) Nothing raises,
and reading takes linear time, since a reply may be a megabyte of braces.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.rubric import reply_numbers
from harness.rubric.draft import Draft, Finding
from harness.rubric.prompt import (
    MOST_ISSUES,
    PROBLEM_CHARS,
    REASON_CHARS,
    SECTION_CHARS,
    rule_keys,
    scores_of,
)
from harness.rubric.reply_json import Value, json_at
from harness.rubric.rubric import Dimension, Rubric, Scale
from harness.rubric.rule_answers import answers_in, answers_in_lines
from harness.rubric.scoring import Judgement
from harness.rubric.verdict import half_up
from harness.text.languages import NO_WIDTH

# A longer reply is not read: it ran on, and the judge is asked again.
_MOST_REPLY_CHARS = 100_000


def read_reply(
    text: str, rubric: Rubric, dimensions: Sequence[Dimension], *, draft: Draft, cut: bool = False
) -> dict[str, Judgement]:
    """The judgements in a reply, by dimension; missing and doubtful ones are left out.

    A reply on a single dimension need not name it. `cut` says whether the reply broke off.
    """
    if len(text) > _MOST_REPLY_CHARS:
        return {}
    if cut:  # the last number may not be whole
        text = text.rstrip("0123456789./ \t")
    # 1. What the reply states: in JSON, and behind labels outside of it.
    reader = _ReplyReader(rubric, dimensions)
    unquoted = _blanked(_with_widths(text), *_COPIES)
    # A fence around the whole reply is no quotation.
    quotations = _QUOTATIONS if _ONE_FENCE.fullmatch(unquoted) else (_CODE, *_QUOTATIONS)
    reader.read_json(unquoted)
    outside_json = _without(unquoted, reader.json_spans)
    lines = _blanked(_QUOTED_LABEL_OR_SCORE.sub(r" \2\4 ", outside_json), *quotations)
    reader.read_lines(lines)
    numbers = [(statement.number_start, statement.end) for statement in reader.statements]
    statements = reader.scored(_without(lines, numbers))
    # 2. What the draft states too, unless the reply has no words beside its statements.
    spans = [(statement.start, statement.end) for statement in reader.statements]
    copied: set[tuple[str, float]] = set()  # (dimension, score)
    answers = reader.answers
    if re.search(r"\w", _FENCE_MARK.sub("", _without(text, reader.json_spans + spans))):
        draft_reader = _ReplyReader(rubric, dimensions)
        data = _with_widths(f"{draft.text}\n{draft.evidence}")
        draft_reader.read_json(data)
        draft_reader.read_lines(_without(data, draft_reader.json_spans))
        # Only scores are compared, not their scales: a copy may be typed in another form.
        for claim in draft_reader.statements:
            scale = rubric.scale_of(claim.name)
            copied.add((claim.name, half_up(claim.judgement.score, scale.step, start=scale.min)))
        answers = answers - draft_reader.answers
    # 3. For each dimension, the one score on which all statements agree.
    judgements = {d.name: _agreed(statements, d.name) for d in dimensions}
    return {
        name: replace(judgement, rules=_unanimous(answers, name))
        for name, judgement in judgements.items()
        if judgement and (name, judgement.score) not in copied
    }


@dataclass(frozen=True, slots=True)
class _Statement:
    """A score that a reply states for a dimension, and where the reply states it."""

    name: str
    start: int
    number_start: int
    end: int
    judgement: Judgement
    scale_ends: Sequence[float] = ()
    """The highest score of the scale that is named with the number; empty if none is named."""
    is_total: bool = False
    is_doubtful: bool = False
    """Whether a sentence around the score, or words behind it, may deny it."""
    is_mention: bool = False
    """Whether it counts only against other scores of the dimension, never as a score."""

    @property
    def is_bare(self) -> bool:
        return not (self.scale_ends or self.is_mention)


def _agreed(statements: Sequence[_Statement], name: str) -> Judgement | None:
    """The judgement whose score all statements on the dimension have; None if in doubt."""
    mentions = [s for s in statements if s.name == name and s.is_mention]
    stated = [s for s in statements if s.name == name and not s.is_mention]
    # A total counts only where the reply has no score of the dimension itself.
    counted = [statement for statement in stated if not statement.is_total] or stated
    if not counted or any(statement.is_doubtful for statement in counted):
        return None
    scores = {statement.judgement.score for statement in (*counted, *mentions)}
    return counted[0].judgement if len(scores) == 1 else None


def _unanimous(answers: Iterable[tuple[str, str, bool]], name: str) -> dict[str, bool]:
    """A dimension's rules → whether they are true, without those that are answered both ways."""
    pairs = [(rule, answer) for dimension, rule, answer in answers if dimension == name]
    return {rule: answer for rule, answer in pairs if (rule, not answer) not in pairs}


_COPIES = (
    # Data between its marks, which models copy from the prompt; up to the end if it is not closed.
    re.compile(
        r"<(task|source|draft|blockquote|quote)\b[^>\n]{0,40}>.*?(?:</\1[^>\n]{0,20}>?|\Z)"
        r"|<!--.*?(?:-->|\Z)",
        re.DOTALL | re.IGNORECASE,
    ),
    re.compile(r"^[ \t*+-]*>.*$", re.MULTILINE),
)
_CODE = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)
_ONE_FENCE = re.compile(r"\s*`{3,}\w*\n(?>(?:(?!```)[\s\S])*)```\s*")
_FENCE_MARK = re.compile(r"(?:```|~~~)\w*")
_QUOTED_LABEL_OR_SCORE = re.compile(
    r"([\"'`])([\w -]{1,60})\1(?=[ \t]*[:\uff1a=])|(?<=[:=][ ])([\"'])([\d./]{1,9})\3"
)
"""The label and the score of a line such as `"clear": "8"`: their quotes make no quotation."""
_QUOTATIONS = (
    re.compile(r"(?<!\w)\"[^\"]{1,2000}\"(?!\w)"),
    re.compile(r"(?<!\w)'[^'\n]{1,400}'(?!\w)"),
    re.compile(r"`[^`\n]{1,400}`"),
    re.compile(
        "\u201c[^\u201d]{1,2000}\u201d|[\u201e\u201a][^\u201c\u2018\u201d]{1,2000}[\u201c\u2018\u201d]"
        "|\u00ab[^\u00bb]{1,2000}\u00bb|\u00bb[^\u00ab]{1,2000}\u00ab"
        "|[\u300c\u300e][^\u300d\u300f]{1,2000}[\u300d\u300f]|\u2018[^\u2019\n]{1,400}\u2019(?!\\w)"
    ),
)


def _with_widths(text: str) -> str:
    """The text with blanks in place of characters that have no width."""
    # Removed between a dash and a digit: a blank would turn the minus of -3 into a plain dash.
    text = re.sub(rf"([-\u2013\u2014])[{NO_WIDTH}]+(?=\.?\d)", r"\1", text)
    return re.sub(f"[{NO_WIDTH}]", " ", text)


def _blanked(text: str, *patterns: re.Pattern[str]) -> str:
    """The text with blanks in place of all matches, so that everything else keeps its position."""
    for pattern in patterns:
        text = pattern.sub(lambda copy: re.sub(r"[^\n]", " ", copy[0]), text)
    return text


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with blanks in place of these spans, which may overlap."""
    parts: list[str] = []
    position = 0
    for start, end in sorted(spans):
        parts += [text[position:start], re.sub(r"[^\n]", " ", text[max(start, position) : end])]
        position = max(end, position)
    return "".join([*parts, text[position:]])


class _ReplyReader:
    """Collects the scores and answers that a text states for the dimensions asked for."""

    def __init__(self, rubric: Rubric, dimensions: Sequence[Dimension]) -> None:
        self.statements: list[_Statement] = []
        self.json_spans: list[tuple[int, int]] = []
        """Where JSON stands, broken or not."""
        self.answers: set[tuple[str, str, bool]] = set()
        """(dimension, rule, whether the text calls the rule true)"""
        # All dimensions, also those not asked for: their scores must not be taken for another's.
        self._scales_by_name = {d.name: rubric.scale_of(d.name) for d in rubric.dimensions}
        self._names_by_key = {_key(name): name for name in self._scales_by_name}
        self._label = _label_pattern(self._names_by_key)
        # Only the dimensions asked for: a statement on another one is dropped.
        self._rules_by_name = {dimension.name: rule_keys(dimension) for dimension in dimensions}
        self._only_dimension = dimensions[0].name if len(dimensions) == 1 else ""
        self._wrappers = _WRAPPERS | {rubric.id.casefold(), rubric.title.casefold()}

    def _dimension_in(self, label: str) -> str:
        """The dimension that a key or a heading names: `1. Relevance score (0-10)`; or empty."""
        key = _key(re.sub(r"\([^()]*+\)|\[[^]]*+\]|^\W*\d{1,2}[.)]\s", " ", label[:200]))
        while key not in self._names_by_key:
            bare = _AROUND_NAME.sub("", key, count=1)
            if bare == key:
                return ""
            key = bare
        return self._names_by_key[key]

    def scored(self, rest: str) -> list[_Statement]:
        """The statements whose numbers are scores on the rubric's scales, rounded to its steps.

        `rest` is the text without these numbers, which may name the scale of a bare one.
        """
        scored = []
        named_ends = reply_numbers.ends_named(rest)
        is_another_scale = self._bare_scores_have_another_scale()
        for statement in self.statements:
            scale = self._scales_by_name[statement.name]
            score = statement.judgement.score
            ends = statement.scale_ends
            if statement.is_bare:
                ends = reply_numbers.end_near(named_ends, statement.number_start, score)
            # On another scale, the same number is another score.
            if (statement.is_bare and is_another_scale) or (ends and scale.max not in ends):
                continue
            is_between = scale.is_pass_fail and score not in (scale.min, scale.max)
            if scale.min <= score <= scale.max and not is_between:
                score = half_up(score, scale.step, start=scale.min)
                judgement = replace(statement.judgement, score=score)
                scored.append(replace(statement, judgement=judgement))
        return scored

    def _bare_scores_have_another_scale(self) -> bool:
        bare = [s for s in self.statements if s.is_bare]
        scores = [(s.judgement.score, self._scales_by_name[s.name]) for s in bare]
        # 80 is not a score of 10, so neither is the 7 beside it; 11 is a slip.
        if any(score > 1.25 * scale.max for score, scale in scores):
            return True
        # 0.85 is not nearly 1 of 10, but scales of up to 2 have such fractions.
        coarse = [(score, scale) for score, scale in scores if scale.max > 2]
        are_fractions = all(0 <= score <= 1 for score, _ in coarse)
        return are_fractions and any(score not in scores_of(scale) for score, scale in coarse)

    # --- JSON

    def read_json(self, text: str) -> None:
        """Takes in the JSON values of a text, up to the first that is broken."""
        position = 0
        inline_values = 0
        while opening := _JSON.search(text, position):
            start = opening.start()
            before = text[max(text.rfind("\n", 0, start) + 1, position) : start]
            is_inline = before.strip(" \t\r,;:=*_`").casefold() not in {"", *self._wrappers}
            inline_values += is_inline
            try:
                value, position = json_at(text, start)
            except ValueError:
                if not is_inline or inline_values > _MOST_INLINE:
                    # Nothing behind broken JSON is read, neither as JSON nor as lines.
                    self.json_spans.append((start, len(text)))
                    return
                position = opening.end()
                continue
            self.json_spans.append((start, position))
            self.statements += [
                replace(s, start=start, number_start=start, end=position, is_doubtful=is_inline)
                for s in self._judgements(value)
            ]

    def _judgements(self, value: Value, ends: Sequence[float] = ()) -> Iterator[_Statement]:
        """The scores in a JSON value; `ends` are the scale ends that the values around it name."""
        for item in value if isinstance(value, list) else ():
            yield from self._judgements(item, ends)
        if not isinstance(value, dict):
            return
        ends = self._ends_in(value) or ends
        # (dimension, the value that judges it, scale ends)
        places: list[tuple[str, Value, Sequence[float]]] = []
        for key, inner in value.items():
            if name := self._dimension_in(key):
                ends_in_key = [end for _, end in reply_numbers.ends_named(key)]
                places.append((name, inner, ends_in_key or ends))
            elif key in self._wrappers or _REVISED.fullmatch(key):
                yield from self._judgements(inner, ends)
        # `{"dimension": "relevance", "score": 8}`; a single dimension need not be named.
        labels = [value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)]
        is_issue = "problem" in value and not any(key in value for key in _REASON_KEYS)
        if not places and not is_issue:
            name = self._dimension_in(str(labels[0])) if labels else self._only_dimension
            places = [(name, value, ends)]
        for name, inner, inner_ends in places:
            if name in self._rules_by_name:
                yield from self._judged(name, inner, value, inner_ends)

    def _judged(
        self, name: str, value: Value, beside: Mapping[str, Value], ends: Sequence[float]
    ) -> Iterator[_Statement]:
        """The scores in a dimension's JSON value, without positions; `beside` holds the value."""
        scale = self._scales_by_name[name]
        members = value if isinstance(value, dict) else {}
        # `{"relevance": 8, "relevance_reason": "…"}`
        around = {k: beside.get(f"{name}_{k}") for k in (*_REASON_KEYS, "max", "max_score")}
        ends = self._ends_in(members) or self._ends_in(around) or ends
        numbers = map(reply_numbers.ALONE.fullmatch, _scores_in(value, name, scale))
        first, *repeated = (reply_numbers.score_in(number, scale, ends) for number in numbers)
        if first is None:
            return
        score, scale_ends = first
        for rule, answer in answers_in((members, beside), self._rules_by_name[name]):
            self.answers.add((name, rule, answer))
        judgement = Judgement(
            score=score,
            reason=_first_text(members or around, _REASON_KEYS)[:REASON_CHARS],
            issues=tuple(_issues(members.get("issues")))[:MOST_ISSUES],
        )
        yield _Statement(name, 0, 0, 0, judgement, scale_ends)
        for score, scale_ends in filter(None, repeated):
            yield _Statement(name, 0, 0, 0, Judgement(score=score), scale_ends, is_mention=True)

    def _ends_in(self, members: Mapping[str, Value]) -> list[float]:
        """The scale ends that an object names: `{"score": 4, "max_score": 5}`."""
        keys = [key for key in members if _MOST_KEY.fullmatch(key) and not self._dimension_in(key)]
        ranges = [re.findall(r"\d+(?:\.\d+)?", str(members[key])) for key in keys]
        return [max(map(float, numbers)) for numbers in ranges if numbers]

    # --- labelled scores

    def read_lines(self, text: str) -> None:
        """Takes in the labelled scores of a text without its JSON and quotations."""
        text = self._without_rules(text)
        self._text = text
        # The dimension that the text is about, and all positions where that changes.
        self._subject = self._only_dimension
        self._turns = [0]
        first_new = len(self.statements)
        for line in re.finditer(r"[^\n]+", text):
            is_row = line[0].lstrip().startswith("|")
            (self._row if is_row else self._line)(line.start(), line.end())
        # The end of the text ends the last turn.
        self._turns.append(len(text))
        self.statements[first_new:] = map(self._explained, self.statements[first_new:])
        self._read_mentions(text, self.statements[first_new:])

    def _read_mentions(self, text: str, statements: Sequence[_Statement]) -> None:
        """Takes in all other numbers that stand with dimensions, as they may contradict a score."""
        mentions = []
        for label in self._label.finditer(text):
            number = reply_numbers.MENTIONED.match(text, label.end())
            if label["name"] and number:
                mentions.append((self._dimension_in(label["name"]), number))
        for statement in statements:
            turn = self._turns[bisect_left(self._turns, statement.end)]
            end = min(turn, statement.end + reply_numbers.CORRECTED_CHARS)
            if number := reply_numbers.CORRECTED.search(text, statement.end, end):
                mentions.append((statement.name, number))
            scale = self._scales_by_name[statement.name]
            rest = text[statement.end : end].partition("\n")[0]
            if reply_numbers.is_taken_back(statement.judgement.score, scale, rest):
                self.statements.append(replace(statement, is_doubtful=True))
        for name, number in mentions:
            self._state(name, number, number.start(), is_mention=True)

    def _without_rules(self, text: str) -> str:
        """Takes in answers to rules, and blanks the rules: they may hold names and numbers."""
        for name, rules in self._rules_by_name.items():
            for rule, statement in rules.items():
                spans = []
                for answer, span in answers_in_lines(text, rule, statement):
                    spans.append(span)
                    if answer is not None:
                        self.answers.add((name, rule, answer))
                text = _without(text, spans)
        return text

    def _line(self, start: int, end: int) -> None:
        # 1. A heading that names no dimension of the rubric ends the text about the last one.
        opening = _OPENING.match(self._text, start, end)
        first = opening.end() if opening else start
        is_heading = "#" in self._text[start:first] or _HEADING.match(self._text, first, end)
        if is_heading and not _INSIDE.match(self._text, first, end):
            self._turn_to("", start)
        # 2. Labels, with scores behind them or not. In a line that opens with other words, a list
        #    of labels behind a comma or a dash may be what somebody else says.
        begins = self._label.match(self._text, first, end) or _ENTRY.match(self._text, first, end)
        marks = _BETWEEN.finditer(self._text, first, end)
        places = [
            mark.end()
            for mark in marks
            if begins or mark[0].strip()[:1] not in set(",;|(-\u2013\u2014")
        ]
        is_listed = False
        for place in (first, *places):
            label = self._label.match(self._text, place, end)
            if not label:
                continue
            name = self._dimension_in(label["name"]) if label["name"] else self._subject
            number = reply_numbers.STATED.match(self._text, label.end(), end)
            is_head = place == first and _HEADS.match(self._text, label.end(), end)
            if label["name"] and (number or is_head):
                self._turn_to(name, label.end())
            # In `clear, useful: 7`, it is unknown whose score the 7 is.
            if number and not (is_listed and label["name"]):
                self._state(name, number, label.start(), is_total=bool(label["total"]))
            is_listed = bool(label["name"]) and not (number or is_head)
        # 3. A number at the start, or right below a name: `8` alone, or `8/10` and then a reason.
        number = reply_numbers.AT_FIRST.match(self._text, start, end)
        rest = number and not number["most"] and self._text[number.end() : end].strip(" \t\r*_`.")
        is_below = re.compile(r"[\s*_#:=-]{0,40}").fullmatch(self._text, self._turns[-1], start)
        if number and not rest and self._subject and is_below:
            self._state(self._subject, number, start)

    def _row(self, start: int, end: int) -> None:
        """A row of a table: the score stands alone in one cell."""
        cells = [cell.span() for cell in re.compile(r"[^|]+").finditer(self._text, start, end)]
        # The second cell has the name if the first has the row's number.
        names = [self._dimension_in(self._text[slice(*cell)]) for cell in cells[:2]]
        if name := next(filter(None, names), ""):
            scale = self._scales_by_name[name]
            matches = (reply_numbers.ALONE.fullmatch(self._text, *cell) for cell in cells[1:])
            numbers = [match for match in matches if match and reply_numbers.score_in(match, scale)]
            if len(numbers) == 1:
                self._turn_to(name, numbers[0].start("number"))
                self._state(name, numbers[0], start)
            # Text below a table is not about its last row.
            self._turn_to(self._only_dimension, end)

    def _turn_to(self, name: str, position: int) -> None:
        self._subject = name
        self._turns.append(position)

    def _state(self, name: str, number: re.Match[str], start: int, **kind: bool) -> None:
        # Among several dimensions, a total belongs to the whole.
        if name not in self._rules_by_name or (kind.get("is_total") and not self._only_dimension):
            return
        if stated := reply_numbers.score_in(number, self._scales_by_name[name]):
            score, ends = stated
            span = (start, number.start("number"), number.end())
            self.statements.append(_Statement(name, *span, Judgement(score=score), ends, **kind))

    def _explained(self, statement: _Statement) -> _Statement:
        """The statement with its reason: the text around the score, between two turns."""
        start, end = statement.start, statement.end
        turn = bisect_right(self._turns, end - 1)
        # Four times as much as the reason may have, since markup and blanks are removed.
        before = self._text[max(self._turns[turn - 1], start - 4 * REASON_CHARS) : start]
        behind = self._text[end : min(self._turns[turn], end + 4 * REASON_CHARS)]
        reason = " ".join(_MARKUP.sub(" ", f"{before} {behind}").split())
        reason = reason.lstrip(" -\u2013\u2014:;,./").rstrip(" -\u2013\u2014:;,/")
        judgement = replace(statement.judgement, reason=reason[:REASON_CHARS])
        return replace(statement, judgement=judgement)


# --- JSON ----------------------------------------------------------------------------------------

_SCORE_KEYS = ("score", "rating", "grade", "points", "value")
_REASON_KEYS = ("reason", "reasoning", "rationale", "justification", "explanation", "comment")
_MOST_KEY = re.compile(r"max_?(?:imum|score|points)?|(?:out_?)?of|range|\w*scale|\w*possible")
_NAME_KEYS = ("dimension", "name", "criterion", "category", "aspect", "metric")
# Keys that models put around their judgements. Other keys hold examples, weights or anchors, which
# are not read.
_WRAPPERS = frozenset(
    {"scores", "ratings", "evaluation", "evaluations", "dimensions", "criteria", "criteria_scores"}
    | {"rubric", "result", "results", "verdict", "assessment", "properties", "arguments"}
    | {"json", "final_answer", "judgement", "judgements", "judgment", "judgments", "output"}
    | {"response", "answer", "reply"}
)
_JSON = re.compile(r"\{|\[\s*\{")
# JSON within a line may be a brace of prose. Each may be read to the end of the text.
_MOST_INLINE = 40


def _scores_in(value: Value, name: str, scale: Scale) -> list[str]:
    """The score in `8`, `{"score": 8}` or `{"score": {"value": 8}}`, then what other keys repeat.

    The first text is empty if two keys could be the score's.
    """
    if not isinstance(value, dict):
        return [value if isinstance(value, str) else ""]
    keys = [key for key in (*_SCORE_KEYS, f"{name}_score", name) if key in value]
    verdicts = [key for key in _VERDICT_KEYS if key in value and scale.is_pass_fail]
    revised = filter(_REVISED.fullmatch, value)
    repeated = [_scores_in(value[key], name, scale)[0] for key in (*revised, *verdicts)]
    keys = keys or verdicts[:1]
    scores = _scores_in(value[keys[0]], name, scale) if len(keys) == 1 else [""]
    return [*scores, *repeated]


_SUFFIX = "score|rating|grade|evaluation"
_CHANGED = (
    "revised|final|adjusted|corrected|updated|initial|original|new|after_\\w+"
    "|corrections?|revisions?|updates?"
)
_REVISED = re.compile(
    rf"(?:{_CHANGED})(?:[\W_]*(?:scores?|ratings?|grades?|points|value))?|score[\W_]*(?:{_CHANGED})"
)
"""Keys of a second score beside the first."""
_AROUND_NAME = re.compile(rf"^(?:{_SUFFIX}|{_CHANGED})_?(?=.)|(?<=.)_?(?:{_SUFFIX}|{_CHANGED})$")
_VERDICT_KEYS = ("pass", "passed", "passes", "verdict", "result", "outcome", "status", "decision")


def _first_text(members: Mapping[str, Value], keys: Iterable[str]) -> str:
    """The first of these members that is a text and not blank, with single blanks; or empty."""
    texts = (" ".join(value.split()) for value in map(members.get, keys) if isinstance(value, str))
    return next(filter(None, texts), "")


def _issues(value: Value) -> Iterator[Finding]:
    """The issues in a list of objects or texts, or in a single text, other than `none`."""
    for item in value if isinstance(value, list) else [value]:
        members = item if isinstance(item, dict) else {"problem": item}
        problem = _first_text(members, ("problem", "issue", "description", *_REASON_KEYS))
        section = _first_text(members, ("section", "heading", "location"))
        if problem and problem.casefold().strip(" .") not in {"none", "no issues", "n/a", "null"}:
            yield Finding(problem[:PROBLEM_CHARS], section[:SECTION_CHARS])


# --- labels ---------------------------------------------------------------------------------------

_OPENING = re.compile(
    r"(?>(?:[\s<#*_|+\u2022\u00b7\u2190-\u2bff\ufe0f\U0001f300-\U0001faff{\[-]"
    r"|\(?(?:\d{1,2}|[a-z])[.)](?=[\s*]))*)"
    r"(?:(?:dimension|criterion|category|aspect|metric|name)[ \t]*+\d{0,2}[ \t:*_.-]*+"
    r"|(?:score|rating)[ \t](?:for|of|on)[ \t]|(?:the|my)[ \t])?",
    re.IGNORECASE,
)
"""What may stand before a label at the start of a line: list marks, ticks, stars."""
_BETWEEN = re.compile(
    r"(?:[.!?,;|(<]|[ \t][-\u2013\u2014]|\bscores?:)[ \t*_(]*(?=\w)|(?=\\boxed|\[result)",
    re.IGNORECASE,
)
"""What may stand before a label within a line."""
_ENTRY = re.compile(rf"[\w-]{{1,40}}[ \t]?[:=][ \t]?{reply_numbers.DIGITS}")
"""An entry of a list with a score, on something that the rubric does not have."""
_SCORE = (
    r"(?:(?:my|the|your)[ \t]+)?(?P<total>(?:(?:final|overall|total)[ \t]+){0,2})"
    r"(?:scores?|rating|grade|verdict)\b|\\boxed(?=\{)|\[result\]"
)
_INSIDE = re.compile(
    rf"(?:{_SCORE}|reason|rationale|justif|expla|analy|issue|section|problem|eviden|note|comment"
    r"|feedback|example|strength|weak|suggest|improve|area|missing|rule|draft|judge?ment|assess"
    r"|edit|update|correct|revis|evaluation|verdict|answer|response|output|result|how)",
    re.IGNORECASE,
)
"""Headings within the text about a dimension, which do not end it."""
_MARKUP = re.compile(
    r"[*#>|`{}\"\[\]()]|^\s*[-+]\s|\b(?:score|reason(?:ing)?)\s*:", re.IGNORECASE | re.MULTILINE
)
_HEADING = re.compile(r"(?P<title>[^\W\d][\w /&-]{0,40}?)[*_]*[ \t]*(?::|[*_]+[ \t\r]*$)")
_HEADS = re.compile(r"[ \t]*+(?:[:\uff1a=|(\[*_\])}\u2013\u2014-]|\r?\Z)")
"""What stands behind a name that opens the text about its dimension."""


def _label_pattern(keys: Iterable[str]) -> re.Pattern[str]:
    """Matches the name of one of these dimensions, or a word for a score."""
    # The longest first: `depth_of_field` is not `depth`.
    alternatives = "|".join(
        r"[\s_-]{1,3}".join(map(re.escape, key.split("_")))
        for key in sorted(keys, key=len, reverse=True)
    )
    name = rf"(?:{alternatives})(?:[ \t_-]{{0,3}}(?:{_SUFFIX}))?"
    return re.compile(
        rf"(?<![\w-])(?:(?P<name>{name})|(?P<score>{_SCORE}))(?![\w-])", re.IGNORECASE
    )


def _key(label: str) -> str:
    return re.sub(r"[\W_]+", "_", label.casefold()).strip("_")
