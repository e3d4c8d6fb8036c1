"""Reads an evaluator's reply: one JSON value of the shape that was asked for, or labelled scores.

A score is taken only where the reply states it for its dimension, outside any quotation, on the
dimension's scale and no other that the reply names. Two different scores, or one that may be a copy
of the draft's own words, are none: the evaluator is asked again. Totals are ignored.

JSON may have small slips, such as commas too many and single quotes. Of broken JSON, and of all
behind it, nothing is read: a quotation mark too many turns words of a reason into keys.
(json-repair mends that too, and then invents: the 1 of a cut `"score": 1`, the last of two scores.)
Nothing raises, and reading takes linear time, since a reply may be a megabyte of braces.
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
    lines = _blanked(_UNQUOTED.sub(r" \2\4 ", _without(unquoted, reader.objects)), *quotations)
    reader.read_lines(lines)
    numbers = [(statement.at, statement.end) for statement in reader.statements]
    statements = reader.scored(_without(lines, numbers))
    # 2. What the draft states too, unless these statements are all of the reply.
    spans = [(statement.start, statement.end) for statement in reader.statements]
    copied: set[tuple[str, float]] = set()
    answers = reader.answers
    if re.search(r"\w", _FENCE_MARK.sub("", _without(text, reader.objects + spans))):
        claims = _ReplyReader(rubric, dimensions)
        data = _with_widths(f"{draft.text}\n{draft.evidence}")
        claims.read_json(data)
        claims.read_lines(_without(data, claims.objects))
        # By its score, whatever its scale: a copy may be typed in another form.
        for claim in claims.statements:
            scale = rubric.scale_of(claim.name)
            copied.add((claim.name, half_up(claim.judgement.score, scale.step, start=scale.min)))
        answers = answers - claims.answers
    # 3. Of each dimension the one score on which all statements agree.
    judgements = {d.name: _agreed(statements, d.name) for d in dimensions}
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
    at: int
    """Where its number stands."""
    end: int
    judgement: Judgement
    ends: Sequence[float] = ()
    """Where the scale ends that stands with the number."""
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
    return counted[0].judgement if is_agreed and not any(s.is_doubtful for s in counted) else None


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
_UNQUOTED = re.compile(
    r"([\"'`])([\w -]{1,60})\1(?=[ \t]*[:\uff1a=])|(?<=[:=][ ])([\"'])([\d./]{1,9})\3"
)
"""Of a line such as `"clear": "8"`, neither is a quotation."""
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
        key = _key(re.sub(r"\([^()]*+\)|\[[^]]*+\]|^\W*\d{1,2}[.)]\s", " ", label[:200]))
        while key not in self._names and key != (bare := _AROUND_NAME.sub("", key, count=1)):
            key = bare
        return self._names.get(key, "")

    def scored(self, rest: str) -> list[_Statement]:
        """The statements whose numbers are scores on the rubric's scales, in its steps.

        A bare number goes by the scale that the rest of the text names before it, else behind it.
        """
        named, scored = reply_numbers.ends_named(rest), []
        # 7 beside 80 is not of 10; beside 11, a slip, it is. Nor is 0.85 nearly 1 of 10, but scales
        # of up to 2 have such fractions.
        bare = (s for s in self.statements if not (s.ends or s.is_mention))
        scales = [(s.judgement.score, self._scales[s.name]) for s in bare]
        coarse = [(score, scale) for score, scale in scales if scale.max > 2]
        is_other = any(score > 1.25 * scale.max for score, scale in scales) or (
            all(0 <= score <= 1 for score, _ in coarse)
            and any(score not in scores_of(scale) for score, scale in coarse)
        )
        for statement in self.statements:
            scale, score = self._scales[statement.name], statement.judgement.score
            ends, is_bare = statement.ends, not (statement.ends or statement.is_mention)
            if is_bare:
                ends = reply_numbers.end_near(named, statement.at, score)
            # By another scale, a score that is on ours too means something else.
            if (is_bare and is_other) or (ends and scale.max not in ends):
                continue
            is_between = scale.is_pass_fail and score not in (scale.min, scale.max)
            if scale.min <= score <= scale.max and not is_between:
                score = half_up(score, scale.step, start=scale.min)
                judgement = replace(statement.judgement, score=score)
                scored.append(replace(statement, judgement=judgement))
        return scored

    # --- JSON

    def read_json(self, text: str) -> None:
        """Takes in the JSON values of a text, up to the first that is broken."""
        position = inline = 0
        while opening := _JSON.search(text, position):
            start = opening.start()
            before = text[max(text.rfind("\n", 0, start) + 1, position) : start]
            is_inline = before.strip(" \t\r,;:=*_`").casefold() not in {"", *self._wrappers}
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
            self.statements += [
                replace(statement, start=start, at=start, end=position, is_doubtful=is_inline)
                for statement in self._judgements(value)
            ]

    def _judgements(self, value: Value, ends: Sequence[float] = ()) -> Iterator[_Statement]:
        """What a value says of dimensions; `ends` are those of the scales around it."""
        for item in value if isinstance(value, list) else ():
            yield from self._judgements(item, ends)
        if not isinstance(value, dict):
            return
        ends = self._ends_in(value) or ends
        places: list[tuple[str, Value, Sequence[float]]] = []
        for key, inner in value.items():
            if name := self._find(key):
                named = [end for _, end in reply_numbers.ends_named(key)]
                places.append((name, inner, named or ends))
            elif key in self._wrappers or _REVISED.fullmatch(key):
                yield from self._judgements(inner, ends)
        # `{"dimension": "relevance", "score": 8}`, or of one dimension alone, without its name.
        label = next((v for k in _NAME_KEYS if isinstance(v := value.get(k), str)), None)
        is_issue = "problem" in value and not any(key in value for key in _REASON_KEYS)
        if not places and not is_issue:
            places = [(self._alone if label is None else self._find(label), value, ends)]
        for name, inner, beside in places:
            if name in self._rules:
                yield from self._judged(name, inner, value, beside)

    def _judged(
        self, name: str, value: Value, beside: Mapping[str, Value], ends: Sequence[float]
    ) -> Iterator[_Statement]:
        scale, members = self._scales[name], value if isinstance(value, dict) else {}
        around = {k: beside.get(f"{name}_{k}") for k in (*_REASON_KEYS, "max", "max_score")}
        ends = self._ends_in(members) or self._ends_in(around) or ends
        numbers = map(reply_numbers.ALONE.fullmatch, _scores_in(value, name, scale))
        first, *again = (reply_numbers.score_in(number, scale, ends) for number in numbers)
        if first is None:
            return
        for rule, answer in answers_in((members, beside), self._rules[name]):
            self.answers.add((name, rule, answer))
        # `{"relevance": 8, "relevance_reason": "…"}`
        judgement = Judgement(
            score=first[0],
            reason=_first_text(members or around, _REASON_KEYS)[:REASON_CHARS],
            issues=tuple(_issues(members.get("issues")))[:MOST_ISSUES],
        )
        yield _Statement(name, 0, 0, 0, judgement, first[1])
        for score, end in filter(None, again):
            yield _Statement(name, 0, 0, 0, Judgement(score=score), end, is_mention=True)

    def _ends_in(self, members: Mapping[str, Value]) -> list[float]:
        """Where the scale ends, by an object that says so: `{"score": 4, "max_score": 5}`."""
        texts = (str(v) for k, v in members.items() if _MOST_KEY.fullmatch(k) and not self._find(k))
        numbers = (re.findall(r"\d+(?:\.\d+)?", text) for text in texts)
        return [max(map(float, of_scale)) for of_scale in numbers if of_scale]

    # --- labelled scores

    def read_lines(self, text: str) -> None:
        """Takes in the labelled scores of a text without its JSON and quotations."""
        text = self._without_rules(text)
        self._text, self._name, self._turns = text, self._alone, [0]
        before = len(self.statements)
        for line in re.finditer(r"[^\n]+", text):
            is_row = line[0].lstrip().startswith("|")
            (self._row if is_row else self._line)(line.start(), line.end())
        # The end of the text ends the last turn.
        self._turns.append(len(text))
        self.statements[before:] = map(self._explained, self.statements[before:])
        self._mentions(text, self.statements[before:])

    def _mentions(self, text: str, statements: Sequence[_Statement]) -> None:
        """Takes in other numbers of dimensions: whatever words surround them, they contradict."""
        mentions = [
            (self._find(label["name"]), number)
            for label in self._label.finditer(text)
            if label["name"] and (number := reply_numbers.MENTIONED.match(text, label.end()))
        ]
        for statement in statements:
            turn = self._turns[bisect_left(self._turns, statement.end)]
            end = min(turn, statement.end + reply_numbers.CORRECTED_CHARS)
            if number := reply_numbers.CORRECTED.search(text, statement.end, end):
                mentions.append((statement.name, number))
            scale, rest = self._scales[statement.name], text[statement.end : end].partition("\n")[0]
            if reply_numbers.is_taken_back(statement.judgement.score, scale, rest):
                self.statements.append(replace(statement, is_doubtful=True))
        for name, number in mentions:
            if name in self._rules:
                self._state(name, number, number.start(), is_mention=True)

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
        begins = self._label.match(self._text, first, end) or _ENTRY.match(self._text, first, end)
        marks = _BETWEEN.finditer(self._text, first, end)
        places = [
            m.end() for m in marks if begins or m[0].strip()[:1] not in set(",;|(-\u2013\u2014")
        ]
        is_listed = False
        for place in (first, *places):
            label = self._label.match(self._text, place, end)
            if not label:
                continue
            name = self._find(label["name"]) if label["name"] else self._name
            number = reply_numbers.STATED.match(self._text, label.end(), end)
            is_head = place == first and _HEADS.match(self._text, label.end(), end)
            if label["name"] and (number or is_head):
                self._turn_to(name, label.end())
            # Of `clear, useful: 7`, it is unknown whose it is.
            if number and not (is_listed and label["name"]):
                self._state(name, number, label.start(), is_total=bool(label["total"]))
            is_listed = bool(label["name"]) and not (number or is_head)
        # 3. A number that is all, or all below a name: `8`, or `8/10` and then a reason.
        number = reply_numbers.AT_FIRST.match(self._text, start, end)
        rest = number and not number["most"] and self._text[number.end() : end].strip(" \t\r*_`.")
        is_below = re.compile(r"[\s*_#:=-]{0,40}").fullmatch(self._text, self._turns[-1], start)
        if number and not rest and self._name and is_below:
            self._state(self._name, number, start)

    def _row(self, start: int, end: int) -> None:
        """A row of a table: the score stands alone in one cell."""
        cells = [cell.span() for cell in re.compile(r"[^|]+").finditer(self._text, start, end)]
        # Its name may stand behind a number, in the second column.
        name = next((n for cell in cells[:2] if (n := self._find(self._text[slice(*cell)]))), None)
        if name is not None:
            matches = (reply_numbers.ALONE.fullmatch(self._text, *cell) for cell in cells[1:])
            numbers = [m for m in matches if m and reply_numbers.score_in(m, self._scales[name])]
            if len(numbers) == 1:
                self._turn_to(name, numbers[0].start("number"))
                self._state(name, numbers[0], start)
            # What stands below a table is not about its last row.
            self._turn_to(self._alone, end)

    def _turn_to(self, name: str, position: int) -> None:
        self._name = name
        self._turns.append(position)

    def _state(self, name: str, number: re.Match[str], start: int, **kind: bool) -> None:
        # Among several dimensions, a total belongs to the whole.
        if name not in self._rules or (kind.get("is_total") and not self._alone):
            return
        if stated := reply_numbers.score_in(number, self._scales[name]):
            at, judgement = number.start("number"), Judgement(score=stated[0])
            statement = _Statement(name, start, at, number.end(), judgement, stated[1], **kind)
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
_MOST_KEY = re.compile(r"max_?(?:imum|score|points)?|(?:out_?)?of|range|\w*scale|\w*possible")
_NAME_KEYS = ("dimension", "name", "criterion", "category", "aspect", "metric")
# Keys that models put around their judgements. Under other keys stand examples, weights, anchors,
# which are not read.
_WRAPPERS = frozenset(
    {"scores", "ratings", "evaluation", "evaluations", "dimensions", "criteria", "criteria_scores"}
    | {"rubric", "result", "results", "verdict", "assessment", "properties", "arguments"}
    | {"json", "final_answer", "judgement", "judgements", "judgment", "judgments", "output"}
    | {"response", "answer", "reply"}
)
_JSON = re.compile(r"\{|\[\s*\{")
# JSON within a line may be a brace of prose, and each is read to its end.
_MOST_INLINE = 40


def _scores_in(value: Value, name: str, scale: Scale) -> list[str]:
    """Of `8`, `{"score": 8}`, `{"score": {"value": 8}}`, and behind it what other keys say again.

    The first is empty if two keys could be the score's.
    """
    if not isinstance(value, dict):
        return [value if isinstance(value, str) else ""]
    keys = [key for key in (*_SCORE_KEYS, f"{name}_score", name) if key in value]
    verdicts = [key for key in _VERDICT_KEYS if key in value and scale.is_pass_fail]
    revised = filter(_REVISED.fullmatch, value)
    again = [_scores_in(value[key], name, scale)[0] for key in (*revised, *verdicts)]
    keys = keys or verdicts[:1]
    return [*(_scores_in(value[keys[0]], name, scale) if len(keys) == 1 else [""]), *again]


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
    texts = (value for key in keys if isinstance(value := members.get(key), str))
    return next((" ".join(text.split()) for text in texts if text.strip()), "")


def _issues(value: Value) -> Iterator[Finding]:
    """The issues of a list of objects or texts, or of a text that does not say there are none."""
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
"""The same within a line."""
_ENTRY = re.compile(rf"[\w-]{{1,40}}[ \t]?[:=][ \t]?{reply_numbers.DIGITS}")
"""An entry of a list, on something that the rubric does not have."""
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
"""Headings that stand inside what is said of a dimension."""
_MARKUP = re.compile(
    r"[*#>|`{}\"\[\]()]|^\s*[-+]\s|\b(?:score|reason(?:ing)?)\s*:", re.IGNORECASE | re.MULTILINE
)
_HEADING = re.compile(r"(?P<title>[^\W\d][\w /&-]{0,40}?)[*_]*[ \t]*(?::|[*_]+[ \t\r]*$)")


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
