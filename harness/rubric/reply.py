"""Reads an evaluator's reply: one JSON value of the shape that was asked for, or labelled scores.

A score is taken only where the reply states it for its dimension, on the scale, outside any
quotation. Two different scores, or one that may be a copy of the draft's own words, are none: the
evaluator is asked again. Totals and `passed` are ignored.

JSON may have small slips, such as commas too many and single quotes. Of broken JSON, and of all
behind it, nothing is read: a quotation mark too many turns words of a reason into keys.
(json-repair mends that too, and then invents: the 1 of a cut `"score": 1`, the last of two scores.)
Nothing raises, and reading takes linear time, since a reply may be a megabyte of braces.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.rubric.draft import Draft, Finding
from harness.rubric.prompt import MOST_ISSUES, PROBLEM_CHARS, REASON_CHARS, SECTION_CHARS, rule_keys
from harness.rubric.reply_json import Value, json_at
from harness.rubric.rubric import Dimension, Rubric, Scale
from harness.rubric.rule_answers import answers_in, answers_in_lines
from harness.rubric.scoring import Judgement
from harness.rubric.verdict import half_up
from harness.text.languages import NO_WIDTH

# Characters. Of a longer reply nothing is read: it ran on, and the judge is asked again.
_LONGEST = 100_000


def read_reply(
    text: str, rubric: Rubric, dimensions: Sequence[Dimension], *, draft: Draft, cut: bool = False
) -> dict[str, Judgement]:
    """The judgements in a reply, by dimension; missing and doubtful ones are left out.

    Of one dimension alone, the reply need not give the name. `cut` says whether it broke off.
    """
    if len(text) > _LONGEST:
        return {}
    if cut:  # its last number may not be whole
        text = text.rstrip("0123456789./ \t")
    # 1. What the reply states: in JSON, and behind labels outside of it.
    reader = _ReplyReader(rubric, dimensions)
    unquoted = _blanked(_with_widths(text), *_COPIES)
    # Of a reply that is one fence, the fence is no quotation.
    quotations = _QUOTATIONS if _ONE_FENCE.fullmatch(unquoted) else (_CODE, *_QUOTATIONS)
    reader.read_json(unquoted)
    reader.read_lines(_blanked(_without(unquoted, reader.objects), *quotations))
    # 2. What the draft states too, unless these statements are all of the reply.
    spans = [(statement.start, statement.end) for statement in reader.statements]
    copied: set[tuple[str, float]] = set()
    answers = reader.answers
    if re.search(r"\w", _FENCE_MARK.sub("", _without(text, reader.objects + spans))):
        claims = _ReplyReader(rubric, dimensions)
        data = _with_widths(f"{draft.text}\n{draft.evidence}")
        claims.read_json(data)
        claims.read_lines(_without(data, claims.objects))
        # By its score: a copy may be typed in another form.
        copied = {(claim.name, claim.judgement.score) for claim in claims.statements}
        answers = answers - claims.answers
    # 3. Of each dimension the one score on which all statements agree.
    judgements = {d.name: _agreed(reader.statements, d.name) for d in dimensions}
    return {
        name: replace(judgement, rules=_unanimous(answers, name))
        for name, judgement in judgements.items()
        if judgement and (name, judgement.score) not in copied
    }


@dataclass(frozen=True, slots=True)
class _Statement:
    """A score that a reply states for a dimension, and the stretch of the reply that does."""

    name: str
    start: int
    end: int
    judgement: Judgement
    is_total: bool = False
    is_doubtful: bool = False
    """Whether it stands within a sentence, which may speak of it."""
    is_mention: bool = False
    """Whether it states nothing by itself, and may only contradict."""


def _agreed(statements: Sequence[_Statement], name: str) -> Judgement | None:
    """The judgement of which all statements on a dimension have the score; None if in doubt."""
    every = [statement for statement in statements if statement.name == name]
    # Of one dimension alone, a total may be all there is, but does not stand for what it has.
    own = [statement for statement in every if not statement.is_mention]
    counted = [statement for statement in own if not statement.is_total] or own
    mentions = [statement for statement in every if statement.is_mention]
    is_agreed = bool(counted) and len({s.judgement.score for s in (*counted, *mentions)}) == 1
    is_doubtful = any(statement.is_doubtful for statement in counted)
    return counted[0].judgement if is_agreed and not is_doubtful else None


def _unanimous(answers: Iterable[tuple[str, str, bool]], name: str) -> dict[str, bool]:
    """Which of a dimension's rules are true and which false; without those answered both ways."""
    rules = [(rule, answer) for dimension, rule, answer in answers if dimension == name]
    return {rule: answer for rule, answer in rules if (rule, not answer) not in rules}


_COPIES = (
    # Data between its marks, which models copy; up to the end if it is not closed.
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
    """The text with blanks in place of signs that no reader sees."""
    # Not behind a dash: with a blank behind it, the minus of -3 would be one that opens a score.
    text = re.sub(rf"([-\u2013\u2014])[{NO_WIDTH}]+(?=\.?\d)", r"\1", text)
    return re.sub(f"[{NO_WIDTH}]", " ", text)


def _blanked(text: str, *patterns: re.Pattern[str]) -> str:
    """The text with blanks in place of what matches, everything else where it was."""
    for pattern in patterns:
        text = pattern.sub(lambda copy: re.sub(r"[^\n]", " ", copy[0]), text)
    return text


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts, position = [], 0
    for start, end in sorted(spans):
        parts += [text[position:start], re.sub(r"[^\n]", " ", text[max(start, position) : end])]
        position = max(end, position)
    return "".join([*parts, text[position:]])


class _ReplyReader:
    """Collects what a text states of the dimensions that were asked for."""

    def __init__(self, rubric: Rubric, dimensions: Sequence[Dimension]) -> None:
        self.statements: list[_Statement] = []
        self.objects: list[tuple[int, int]] = []
        """Where JSON stands, broken or not."""
        self.answers: set[tuple[str, str, bool]] = set()
        """By dimension and rule, whether the text calls the rule true."""
        # Of unrequested ones too: their scores must not be taken for another's.
        self._scales = {d.name: rubric.scale_of(d.name) for d in rubric.dimensions}
        self._names = {_key(name): name for name in self._scales}
        self._label = _label_pattern(self._names)
        self._rules = {dimension.name: rule_keys(dimension) for dimension in dimensions}
        self._alone = dimensions[0].name if len(dimensions) == 1 else ""
        self._wrappers = _WRAPPERS | {rubric.id.casefold(), rubric.title.casefold()}

    def _find(self, label: str) -> str:
        """The dimension that a key or a heading names: `1. Relevance score (0-10)`; or empty."""
        key = _key(re.sub(r"\([^()]*+\)|^\W*\d{1,2}[.)]\s", " ", label[:200]))
        return self._names.get(key) or self._names.get(re.sub(rf"_(?:{_SUFFIX})$", "", key), "")

    # --- JSON

    def read_json(self, text: str) -> None:
        """Takes in the JSON values of a text, up to the first that is broken."""
        position = inline = 0
        while opening := _JSON.search(text, position):
            start = opening.start()
            is_inline = bool(text[text.rfind("\n", 0, start) + 1 : start].strip())
            inline += is_inline
            try:
                value, position = json_at(text, start)
            except ValueError:
                if not is_inline or inline > _MOST_INLINE:
                    # Broken: of what stands behind it, nothing is read, as JSON or as lines.
                    self.objects.append((start, len(text)))
                    return
                position = opening.end()
                continue
            self.objects.append((start, position))
            for name, judgement in self._judgements(value):
                statement = _Statement(name, start, position, judgement, is_doubtful=is_inline)
                self.statements.append(statement)

    def _judgements(
        self, value: Value, limits: Sequence[float] = ()
    ) -> Iterator[tuple[str, Judgement]]:
        """What a value says of dimensions; `limits` are the ends of the scales around it."""
        for item in value if isinstance(value, list) else ():
            yield from self._judgements(item, limits)
        if not isinstance(value, dict):
            return
        limits = self._limits_of(value) or limits
        names = {key: self._find(key) for key in value}
        places: list[tuple[str, Value]] = []
        for key, inner in value.items():
            if names[key]:
                places.append((names[key], inner))
            elif key in self._wrappers or _REVISED.fullmatch(key):
                yield from self._judgements(inner, limits)
        # `{"dimension": "relevance", "score": 8}`, or of one dimension alone, without its name.
        label = next((v for k in _NAME_KEYS if isinstance(v := value.get(k), str)), None)
        is_issue = "problem" in value and not any(key in value for key in _REASON_KEYS)
        if not places and not is_issue:
            places = [(self._alone if label is None else self._find(label), value)]
        for name, inner in places:
            if judgement := self._judgement(name, inner, value, limits):
                yield name, judgement

    def _judgement(
        self, name: str, value: Value, beside: Mapping[str, Value], limits: Sequence[float]
    ) -> Judgement | None:
        number = _ALONE.fullmatch(_score_in(value, name))
        if name not in self._rules or number is None:
            return None
        members = value if isinstance(value, dict) else {}
        limits = self._limits_of(members) or limits
        score = _on_scale(number, self._scales[name], limits)
        if score is None:
            return None
        for rule, answer in answers_in((members, beside), self._rules[name]):
            self.answers.add((name, rule, answer))
        # `{"relevance": 8, "relevance_reason": "…"}`
        if not members:
            members = {k: beside[f"{name}_{k}"] for k in _REASON_KEYS if f"{name}_{k}" in beside}
        if any(
            other != score
            for text in _second_scores(members, self._scales[name])
            if (again := _ALONE.fullmatch(text))
            and (other := _on_scale(again, self._scales[name], limits)) is not None
        ):
            return None
        return Judgement(
            score=score,
            reason=_first_text(members, _REASON_KEYS)[:REASON_CHARS],
            issues=tuple(_issues(members.get("issues")))[:MOST_ISSUES],
        )

    def _limits_of(self, members: Mapping[str, Value]) -> list[float]:
        """Where the scale ends, by an object that says so: `{"score": 4, "max_score": 5}`."""
        scale = members.get("scale")
        values = [members.get(key) for key in _MOST_KEYS if not self._find(key)]
        values += [scale.get("max")] if isinstance(scale, dict) else []
        texts = (value for value in values if isinstance(value, str))
        return [number for text in texts if (number := _highest_in(text))]

    # --- labelled scores

    def read_lines(self, text: str) -> None:
        """Takes in the labelled scores of a text without its JSON and quotations."""
        text = self._without_rules(text)
        self._text, self._name, self._turns = text, self._alone, [0]
        ends = (limit[limit.lastgroup or 0].casefold() for limit in _LIMIT.finditer(text))
        self._limits = [n for end in ends if (n := _POINTS.get(end) or _highest_in(end))]
        before = len(self.statements)
        for line in re.finditer(r"[^\n]+", text):
            is_row = line[0].lstrip().startswith("|")
            (self._row if is_row else self._line)(line.start(), line.end())
        # Hardly more than a number: `8`, or `8/10` and then a reason.
        number = _AT_FIRST.match(text) if self._alone else None
        is_it = number and (number["most"] or not text[number.end() :].strip(" \t\r\n*_`."))
        if number and is_it and before == len(self.statements):
            self._state(self._alone, number, number.start())
        # The end of the text ends the last turn.
        self._turns.append(len(text))
        self.statements[before:] = map(self._explained, self.statements[before:])
        self._mentions(text, self.statements[before:])

    def _mentions(self, text: str, statements: Sequence[_Statement]) -> None:
        """Takes in other numbers of dimensions: whatever words surround them, they contradict."""
        mentions = [
            (self._find(label["name"]), number)
            for label in self._label.finditer(text)
            if label["name"] and (number := _MENTIONED.match(text, label.end()))
        ]
        for statement in statements:
            turn = self._turns[bisect_left(self._turns, statement.end)]
            end = min(turn, statement.end + _CORRECTED_CHARS)
            if number := _CORRECTED.search(text, statement.end, end):
                mentions.append((statement.name, number))
            if self._is_undecided(statement, text[statement.end : end].partition("\n")[0]):
                self.statements.append(replace(statement, is_doubtful=True))
        for name, number in mentions:
            score = _on_scale(number, self._scales[name], []) if name in self._rules else None
            if score is not None:
                judgement = Judgement(score=score)
                start, end = number.span()
                self.statements.append(_Statement(name, start, end, judgement, is_mention=True))

    def _is_undecided(self, statement: _Statement, rest: str) -> bool:
        """Whether words behind a score take it back: `9, minus 2`, `pass (fails on names)`."""
        scale = self._scales[statement.name]
        if not scale.is_pass_fail:
            return bool(_REDUCED.match(rest))
        is_pass = statement.judgement.score == scale.max
        if is_pass and _NOT_PASSED.search(rest):
            return True
        rest = _CONDITION.sub(" ", rest)
        return bool((_DENIED if is_pass else _GRANTED).search(rest))

    def _without_rules(self, text: str) -> str:
        """Takes in what lines say of rules, whose words may hold names and numbers."""
        for name, rules in self._rules.items():
            for rule, statement in rules.items():
                spans = []
                for answer, span in answers_in_lines(text, rule, statement):
                    spans.append(span)
                    if answer is not None:
                        self.answers.add((name, rule, answer))
                text = _without(text, spans)
        return text

    def _line(self, start: int, end: int) -> None:
        # 1. A total, or a dimension that the rubric does not have.
        opening = _OPENING.match(self._text, start, end)
        first = opening.end() if opening else start
        is_heading = "#" in self._text[start:first] or _HEADING.match(self._text, first, end)
        if is_heading and not _INSIDE.match(self._text, first, end):
            self._turn_to("", start)
        # 2. Labels, with scores behind them or not. Behind other words, a list of them may be what
        #    somebody else says.
        begins = self._label.match(self._text, first, end)
        marks = _BETWEEN.finditer(self._text, first, end)
        places = [
            m.end() for m in marks if begins or m[0].strip()[:1] not in set(",;|(-\u2013\u2014")
        ]
        for place in (first, *places):
            label = self._label.match(self._text, place, end)
            if not label:
                continue
            name = self._find(label["name"]) if label["name"] else self._name
            if limit := _LIMIT_BESIDE.match(self._text, label.end(), end):
                self._limits = [float(limit["most"])]
            number = _STATED.match(self._text, label.end(), end)
            # `The depth of 3 metres`, where `The depth is 3` states a score.
            is_phrase = place == first and opening and opening["article"] and label["name"]
            if number and is_phrase and not number["most"]:
                states = _STATES.search(self._text, label.end(), number.start("number"))
                number = number if states else None
            is_head = place == first and _HEADS.match(self._text, label.end(), end)
            if label["name"] and (number or is_head):
                self._turn_to(name, label.end())
            if number:
                self._state(name, number, label.start(), is_total=bool(label["total"]))

    def _row(self, start: int, end: int) -> None:
        """A row of a table: the score stands alone in one cell."""
        cells = [cell.span() for cell in re.compile(r"[^|]+").finditer(self._text, start, end)]
        # Its name may stand behind a number, in the second column.
        name = next((n for cell in cells[:2] if (n := self._find(self._text[slice(*cell)]))), None)
        if name is not None:
            matches = (_ALONE.fullmatch(self._text, *cell) for cell in cells[1:])
            has_words = self._scales[name].is_pass_fail
            numbers = [m for m in matches if m and (has_words or m["number"][-1].isdigit())]
            if len(numbers) == 1:
                if limit := _LIMIT_BESIDE.search(self._text, start, numbers[0].start()):
                    self._limits = [float(limit["most"])]
                self._turn_to(name, numbers[0].start("number"))
                self._state(name, numbers[0], start)
            # What stands below a table is not about its last row.
            self._turn_to(self._alone, end)

    def _turn_to(self, name: str, position: int) -> None:
        self._name = name
        self._turns.append(position)

    def _state(
        self, name: str, number: re.Match[str], start: int, *, is_total: bool = False
    ) -> None:
        # A number of ten says itself where its scale ends.
        limits = [] if number["most"] else self._limits
        score = _on_scale(number, self._scales[name], limits) if name in self._rules else None
        # Among several dimensions, a total belongs to the whole.
        if score is not None and (self._alone or not is_total):
            judgement = Judgement(score=score)
            statement = _Statement(name, start, number.end(), judgement, is_total=is_total)
            self.statements.append(statement)

    def _explained(self, statement: _Statement) -> _Statement:
        """With its reason: what stands around the score, between two labels of dimensions."""
        start, end = statement.start, statement.end
        turn = bisect_right(self._turns, end - 1)
        # Four times what is kept: markup and blanks go first.
        before = self._text[max(self._turns[turn - 1], start - 4 * REASON_CHARS) : start]
        behind = self._text[end : min(self._turns[turn], end + 4 * REASON_CHARS)]
        reason = " ".join(_MARKUP.sub(" ", f"{before} {behind}").split())
        reason = reason.lstrip(" -\u2013\u2014:;,./").rstrip(" -\u2013\u2014:;,/")
        judgement = replace(statement.judgement, reason=reason[:REASON_CHARS])
        return replace(statement, judgement=judgement)


# --- JSON ----------------------------------------------------------------------------------------

_SCORE_KEYS = ("score", "rating", "grade", "points", "value")
_REASON_KEYS = ("reason", "reasoning", "rationale", "justification", "explanation", "comment")
_PROBLEM_KEYS = ("problem", "issue")
_MOST_KEYS = ("max_score", "max", "maximum", "out_of", "scale")
_NAME_KEYS = ("dimension", "name", "criterion", "category", "aspect", "metric")
# Keys that models put around their judgements. Under other keys stand examples, weights, anchors,
# which are not read.
_WRAPPERS = frozenset(
    {"scores", "ratings", "evaluation", "evaluations", "dimensions", "criteria", "criteria_scores"}
    | {"rubric", "result", "results", "verdict", "assessment", "properties", "arguments"}
    | {"judgement", "judgements", "judgment", "judgments", "output", "response", "answer", "reply"}
)
_JSON = re.compile(r"\{|\[\s*\{")
# JSON within a line may be a brace of prose, and each is read to its end.
_MOST_INLINE = 40


def _score_in(value: Value, name: str) -> str:
    """Of `8`, `{"score": 8}`, `{"score": {"value": 8}}`; empty if two keys could be the score's."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else ""
    keys = [key for key in (*_SCORE_KEYS, f"{name}_score", name) if key in value]
    return _score_in(value[keys[0]], name) if len(keys) == 1 else ""


_REVISED = re.compile(
    r"(?:revised|final|adjusted|corrected|updated|initial|original)"
    r"(?:[\W_]*(?:scores?|ratings?|grades?|points|value))?"
    r"|score[\W_]*(?:revised|final|adjusted|corrected|after\w*)"
)
"""Keys of a second score beside the first."""
_VERDICT_KEYS = ("pass", "passed", "passes", "verdict")


def _second_scores(members: Mapping[str, Value], scale: Scale) -> list[str]:
    """What other keys of a dimension say of its score; of pass and fail, a verdict too."""
    return [
        value
        for key, value in members.items()
        if isinstance(value, str)
        and (_REVISED.fullmatch(key) or (scale.is_pass_fail and key in _VERDICT_KEYS))
    ]


def _first_text(members: Mapping[str, Value], keys: Iterable[str]) -> str:
    texts = (value for key in keys if isinstance(value := members.get(key), str))
    return next((" ".join(text.split()) for text in texts if text.strip()), "")


def _issues(value: Value) -> Iterator[Finding]:
    """The issues of a list of objects or texts, or of a text that does not say there are none."""
    for item in value if isinstance(value, list) else [value]:
        members = item if isinstance(item, dict) else {"problem": item}
        problem = _first_text(members, (*_PROBLEM_KEYS, "description", *_REASON_KEYS))
        section = _first_text(members, ("section", "heading", "location"))
        if problem and problem.casefold().strip(" .") not in {"none", "no issues", "n/a", "null"}:
            yield Finding(problem[:PROBLEM_CHARS], section[:SECTION_CHARS])


# `8` and `8/10`, not the 8 of `8 sections`, `7-8`, `8,5` or `80`: behind it stands an end, a mark
# that ends something, or a reason.
_DIGITS = r"-?(?:\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})"
_PASS, _FAIL = (
    {"pass", "passed", "passes", "yes", "true"},
    {"fail", "failed", "fails", "no", "false"},
)
_PLAIN = rf"(?P<number>{_DIGITS}|(?:{'|'.join(sorted(_PASS | _FAIL, reverse=True))})\b)"
"""A score; words are scores of pass and fail alone."""
_OF = (
    r"[*_ \t]{0,6}(?:/|\bout[ ]of\b|\bof\b)[*_ \t]{0,6}"
    r"(?P<most>\d{1,6}(?:\.\d{1,6})?)(?![\w%]|[.,]\d)"
)
# Not the beginning of a list: `1. Intro`, and the anchors `9: Yes. 3: No.`
_NO_LIST = r"(?!1[.)][ \t]+\w)(?!\d{1,3}:[^\n]{1,300}?[ \t(;]\d{1,3}:[ \t])"
_BECAUSE = r"because|since|due|as|but|although|though|given|points?|reason(?:ing)?(?=[ \t*]*:)"
_END = (
    r"(?=[ \t]*+(?:\Z|[\r\n;)\]}<`!(\u2026\u5206\uff08\uff0c\u3002]|[*_]+(?![*_ \t]*/)"
    # Ticks, crosses, lights: neither stars, which may be four of five, nor arrows or signs of sums.
    r"|[\u2705\u2713\u2714\u2717\u2718\u26a0\u274c\U0001f44d\U0001f44e\U0001f534\U0001f7e0-\U0001f7e2]"
    r"|\|(?!\w)|[.,:](?!\d)|[-\u2013\u2014](?![ \t]*{range})|(?:{words})\b))"
)
# A number of ten is a score too in `8/10 for style and …`, in `8/10 It is clear.`, and in
# `8/10 - 2 parts are missing`, where `8/10 - 9` is a range.
_END_OF_FRACTION = _END.replace(
    "{words}", f"{_BECAUSE}|and|for|in|on|with|here|overall|(?-i:[A-Z])\\w*"
).replace("{range}", r"\d[\d.]*+[ \t]*+(?:/|out\b|[^ \t\w]|\Z)")
_END_OF_NUMBER = _END.replace("{words}", _BECAUSE).replace("{range}", r"\d")
_BEHIND = rf"(?!\.?\d)(?:{_OF}{_END_OF_FRACTION}|(?P<percent>%)?{_END_OF_NUMBER})"


_AT_FIRST = re.compile(rf"[\s*_`-]*+{_NO_LIST}{_PLAIN}{_BEHIND}", re.IGNORECASE)
_ALONE = re.compile(rf"[\s*_]*+{_PLAIN}(?:{_OF}|(?P<percent>[ ]?%))?[\s*_]*+\.?\s*", re.IGNORECASE)

_ASIDE = r"[ \t*_]*+\((?![*_ \t]*\d[\d.]*[*_ \t]*/)[^()\n]{0,60}+\)"
_FILLER = (
    r"(?>(?:[ \t:\uff1a=|>*_({\[]|[-\u2013\u2014](?=[ \t])"
    r"|\b(?:scored?|rated|is|of|a|an|at)\b){0,40})"
)
# A score behind a label: `: 8`, `(0-10): 8`, `(8/10): because`. A dash before a digit would be a
# minus.
_STATED = re.compile(rf"(?:{_ASIDE}{_FILLER}|{_FILLER}){_NO_LIST}{_PLAIN}{_BEHIND}", re.IGNORECASE)
_MENTIONED = re.compile(
    r"(?>(?:[ \t:\uff1a=|>*_({\[\u2192]|[-\u2013\u2014](?=[ \t])|\bfrom[ \t]\d{1,3}[ \t]to\b"
    r"|\b(?:scored?|rated|is|of|an?|at|to|now|should|must|ought|have|been|be|becomes?|deserves?"
    rf"|gets?|goes|up|down|raised|lowered|revised|corrected|changed)\b){{0,40}}){_NO_LIST}{_PLAIN}{_BEHIND}",
    re.IGNORECASE,
)
"""A number that a sentence binds to a name."""
_CORRECTED_CHARS = 200
_CORRECTED = re.compile(
    r"(?:[,.;:(\n]|[ \t][-\u2013\u2014])[ \t*_]{0,4}"
    r"(?:no|sorry|actually|rather|wait|correct(?:ion|ed)|revis(?:ed|ion)|adjusted|raised|lowered"
    r"|changed|should (?:be|have been)|make (?:that|it)|on reflection|or rather|better)\b"
    rf"[ \t,:*_]{{0,4}}(?:(?:to|a|an|at|is|now)\b[ \t]{{0,3}})?{_PLAIN}{_BEHIND}",
    re.IGNORECASE,
)
"""A correction behind a score, without a name."""
_REDUCED = re.compile(r"[ \t,;(-]{0,4}(?:minus|plus|less)\b[ \t]{0,3}\d", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:to|would|could|might|can|may|(?:does|do|did|will|has) not)[ \t]+(?:pass|fail)\w*",
    re.IGNORECASE,
)
"""What is wished or denied: neither of the words is said."""
_NOT_PASSED = re.compile(r"\bnot[ \t]+pass\b", re.IGNORECASE)
_DENIED = re.compile(
    r"\b(?:fail(?:s|ed)?|false)\b|\bbut no\b[ \t]*(?:[.,;!)]|\Z)|[,.;(][ \t]*no[ \t]*(?:[.;!)]|\Z)",
    re.IGNORECASE,
)
_GRANTED = re.compile(r"\b(?:pass(?:es|ed)?|true)\b|\byes\b[ \t]*(?:[.,;!)]|\Z)", re.IGNORECASE)
_STATES = re.compile(r"\bis\b|[:\uff1a=]")
_OPENING = re.compile(
    r"(?>(?:[\s<#*_|+\u2022\u00b7\u2190-\u2bff\ufe0f\U0001f300-\U0001faff{\[-]"
    r"|\d{1,2}[.)](?=[\s*]))*)"
    r"(?:(?:dimension|criterion|category|aspect)[ \t]*+\d{0,2}[ \t:*_.-]*+"
    r"|(?P<article>the|my)[ \t])?",
    re.IGNORECASE,
)
"""What may stand before a label at the start of a line: list marks, ticks, stars."""
_BETWEEN = re.compile(
    r"(?:[.!?,;|(]|[ \t][-\u2013\u2014]|\bscores?:)[ \t*_(]*(?=\w)|(?=\\boxed|\[result)",
    re.IGNORECASE,
)
"""The same within a line."""
_SCORE = (
    r"(?:(?:my|the|your)[ \t]+)?(?P<total>(?:(?:final|overall|total)[ \t]+){0,2})"
    r"(?:scores?|rating|grade)\b|\\boxed(?=\{)|\[result\]"
)
_INSIDE = re.compile(
    rf"(?:{_SCORE}|reason|rationale|justif|expla|analy|issue|section|problem|eviden|note|comment"
    r"|feedback|example|strength|weak|suggest|improve|area|missing|rule|draft|judge?ment|assess"
    r"|evaluation|verdict|answer|response|output|result|how)",
    re.IGNORECASE,
)
"""Headings that stand inside what is said of a dimension."""
_MARKUP = re.compile(
    r"[*#>|`{}\"\[\]()]|^\s*[-+]\s|\b(?:score|reason(?:ing)?)\s*:", re.IGNORECASE | re.MULTILINE
)
_HEADING = re.compile(r"(?P<title>[^\W\d][\w /&-]{0,40}?)[*_]*[ \t]*(?::|[*_]+[ \t\r]*$)")


_RANGE = (
    r"(?:[01][ ]?(?:[-\u2013\u2014]|to)[ ]?|out of )(?P<most>\d{1,4}(?:\.\d+)?)(?![\d%]|[.,]\d)"
)
_LIMIT = re.compile(
    rf"\b(?:scale|scores?|ratings?|range)\b[^\n\d]{{0,12}}{_RANGE}"
    r"|\u6ee1\u5206[ ]?(?P<full>\d{1,4})|\b(?P<points>\w{1,7})[- ]point\b[^\n]{0,12}\bscale",
    re.IGNORECASE,
)
"""The end of a scale, where a reply says which it goes by: `a scale of 1 to 5`, `a five-point
scale`, `\u6ee1\u52065\u5206`."""
# The same behind a label: `(1-5)`, which elsewhere may be a range of anything.
_LIMIT_BESIDE = re.compile(rf"[ \t*_]*+\({_RANGE}", re.IGNORECASE)
_POINTS = {"three": 3.0, "four": 4.0, "five": 5.0, "six": 6.0, "seven": 7.0, "ten": 10.0}


def _highest_in(text: str) -> float | None:
    """Of `10`, `1-10` and `0 to 10, where 10 is best`."""
    return max(map(float, re.findall(r"\d+(?:\.\d+)?", text)), default=None)


def _on_scale(number: re.Match[str], scale: Scale, limits: Iterable[float]) -> float | None:
    """None off the scale, for `8/20` on a scale that ends at 10, and `80%` but from 0 to 100.

    Of pass and fail, there is nothing between. `limits` say where the scale of the reply ends.
    """
    ends = set(limits)
    word = number["number"].casefold()
    # By another scale, a score that is on ours too means something else.
    if ends and scale.max not in ends:
        return None
    if word in (*_PASS, *_FAIL):
        return scale.at(float(word in _PASS)) if scale.is_pass_fail else None
    value = float(word)
    if scale.is_pass_fail and value not in (scale.min, scale.max):
        return None
    maximum = 100.0 if number["percent"] else float(number["most"] or scale.max)
    is_share = number["percent"] and scale.min
    if is_share or not scale.min <= value <= scale.max or not math.isclose(maximum, scale.max):
        return None
    return half_up(value, scale.step, start=scale.min)


_SUFFIX = "score|rating|grade|evaluation"
_HEADS = re.compile(r"[ \t]*+(?:[:\uff1a=|(\[*_\])}\u2013\u2014-]|\r?\Z)")
"""Behind a name that opens what is said of its dimension."""


def _label_pattern(keys: Iterable[str]) -> re.Pattern[str]:
    """A dimension's name, or a word for its score."""
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
