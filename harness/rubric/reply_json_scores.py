"""Finds the scores in the JSON of an evaluator's reply, and its answers to rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from harness.inference.json_text import respelled, text_in
from harness.rubric import reply_numbers
from harness.rubric.draft import Finding
from harness.rubric.prompt import MOST_ISSUES, PROBLEM_CHARS, REASON_CHARS, SECTION_CHARS
from harness.rubric.reply_statements import CHANGED, AskedDimensions, RuleAnswer, Statement, joined

Value = str | list["Value"] | dict[str, "Value"] | None
"""A list, an object, or a text; numbers, `true` and `null` are texts as well. None is the value of
a key that stands twice in its object."""

_JSON = re.compile(r"\{|\[\s*\{")
_MARKS = " \t\r,;:=*_`"
_QUOTATION_MARK = re.compile('["\u201c\u201e\u00ab\u300c\u300e]')
# What may stand before JSON in its line, as the evaluator's own words.
_ANNOUNCEMENT = re.compile(
    r"(?:(?:sure|certainly|of course|ok(?:ay)?)[,.!]? )?"
    r"(?:here(?:['\u2019]s| is| are) (?:my |the )?|my )(?:final |overall |requested )?"
    r"(?:json|verdict|evaluation|assessment|judge?ment|scores?|ratings?|result|response|answer)"
)
_END_OF_LINE = re.compile(rf"[{_MARKS}]*(?:\n|\Z)")
# JSON within a line may be a brace of prose. Each may be read to the end of the text, so that a
# reply of braces would take quadratic time.
_MOST_INLINE = 40

# Keys that models put around their judgements. Other keys hold examples, weights or anchors, which
# are not read.
_WRAPPERS = frozenset(
    {"scores", "ratings", "evaluation", "evaluations", "dimensions", "criteria", "criteria_scores"}
    | {"rubric", "result", "results", "verdict", "assessment", "properties", "arguments"}
    | {"json", "final_answer", "judgement", "judgements", "judgment", "judgments", "output"}
    | {"response", "answer", "reply"}
)
_RULE_HOLDERS = frozenset({"rules", "caps", "conditions", "answers", "flags", "checks"})
_NAME_KEYS = ("dimension", "name", "criterion", "category", "aspect", "metric")
_SCORE_KEYS = ("score", "rating", "grade", "points", "value")
# On pass and fail, `"verdict": "FAIL"` is a score too.
_VERDICT_KEYS = ("pass", "passed", "passes", "verdict", "result", "outcome", "status", "decision")
_REASON_KEYS = ("reason", "reasoning", "rationale", "justification", "explanation", "comment")
# A second score beside the first: `revised_score`, `score_adjusted`.
_REVISED_KEY = re.compile(
    rf"(?:{CHANGED})(?:[\W_]*(?:scores?|ratings?|grades?|points|value))?|score[\W_]*(?:{CHANGED})"
    r"|(?:total|overall)[\W_]*score"
)
# The end of a scale: `scoreOutOf`, `max_score`, `clear_max`, `bestRating`, `scale`.
_SCALE_KEY = re.compile(
    r"max(?:imum)?(?:possible)?(?:score|points?|value|rating|grade|mark)?s?$"
    r"|(?:full|best)(?:score|points?|value|rating|grade|mark)s?$"
    r"|(?:^|score|points?|rating|scale)(?:range|bounds)$"
    r"|(?:scale|possible|denominator)$|(?:^|out)of(?:total)?$"
)
# Any other unit may be one of the text: `3 modules`.
_PERCENT_UNIT = re.compile(rf"\w*units? (?:in )?{reply_numbers.PERCENT}\W?", re.IGNORECASE)
_TOTAL_KEYS = ("total", "totalpoints")
# An answer to a rule.
_ANSWER_KEYS = ("value", "answer", "applies", "holds", "result")
_ANSWER = re.compile(
    r"[\s*_`]*+(?:(?P<true>true|yes|1)|false|no|0)(?![\w/|]|\.\d|[ \t]*+[/|])", re.IGNORECASE
)


class JsonScores:
    """Collects the scores and answers to rules that the JSON of a text states."""

    def __init__(self, asked: AskedDimensions) -> None:
        self.statements: list[Statement] = []
        self.answers: set[RuleAnswer] = set()
        self.spans: list[tuple[int, int]] = []
        """Where JSON stands, broken or not."""
        self._asked = asked
        self._wrappers = _WRAPPERS | asked.rubric_names

    def read(self, text: str) -> None:
        """Takes in the JSON values of a text, up to the first that is broken."""
        position = 0
        inline_values = 0
        quotation = _QUOTATION_MARK.search(text)
        quotation_start = quotation.start() if quotation else len(text)
        while opening := _JSON.search(text, position):
            start = opening.start()
            line_start = max(text.rfind("\n", 0, start) + 1, position)
            before = text[line_start:start].strip(_MARKS).casefold()
            is_inline = bool(before) and before not in self._wrappers
            inline_values += is_inline
            try:
                value, position = _json_at(text, start)
            except ValueError:
                if not is_inline or inline_values > _MOST_INLINE:
                    # Nothing behind broken JSON is read, neither as JSON nor as lines.
                    self.spans.append((start, len(text)))
                    return
                position = opening.end()
                continue
            self.spans.append((start, position))
            # Behind a quotation mark, the words may be somebody else's.
            is_announced = start <= quotation_start and _ANNOUNCEMENT.fullmatch(before)
            is_doubtful = is_inline and not (is_announced and _END_OF_LINE.match(text, position))
            for statement in self._statements(value, "", ()):
                placed = replace(statement, start=start, end=position, is_doubtful=is_doubtful)
                self.statements.append(placed)

    def _statements(self, value: Value, name: str, ends: Sequence[float]) -> Iterator[Statement]:
        """The scores in a JSON value, without positions; takes in the answers beside them.

        `name` is what the value is about: a dimension, something else, or empty if nothing around
        it says so. `ends` are those of the scale around it.
        """
        if isinstance(value, list):
            ends = self._scale_ends_in(value) or ends
            for item in value:
                if isinstance(item, dict | list):
                    yield from self._statements(item, _name_within(item, name), ends)
        elif isinstance(value, dict):
            yield from self._statements_in(value, name, self._scale_ends_in(value) or ends)
        elif value is not None and name in self._asked.rules:
            number = reply_numbers.ALONE.fullmatch(value)
            if score := reply_numbers.score_in(number, self._asked.scales[name], ends):
                yield Statement(dimension=name, score=score[0], scale_ends=score[1])

    def _statements_in(
        self, members: Mapping[str, Value], name: str, ends: Sequence[float]
    ) -> Iterator[Statement]:
        """The scores in an object, under names of dimensions and under other keys.

        Those under other keys are of what the object is about: `name`, or what it says itself.
        """
        dimensions = {key: self._asked.named_by(key) for key in members}
        # A score beside those of dimensions is a total.
        subject = "" if any(dimensions.values()) else name or self._subject_of(members)
        for key, inner in members.items():
            self._take_answers(key, inner, subject)
            if dimensions[key]:
                scale_ends = reply_numbers.ends_in(key) or ends
                statements = self._statements(inner, dimensions[key], scale_ends)
            elif self._may_hold_scores(key, inner, subject):
                statements = self._statements(inner, _name_within(inner, subject), ends)
            else:
                continue
            for statement in statements:  # drawing them also takes in the answers to rules
                if key not in _RULE_HOLDERS:
                    yield self._explained(statement, members, is_own=statement.dimension == subject)

    def _subject_of(self, members: Mapping[str, Value]) -> str:
        """What `{"name": "clear", "score": 8}` is about."""
        if labels := _labels_of(members):
            return self._asked.named_by(labels[0]) or "something else"
        is_issue = "problem" in members and not any(key in members for key in _REASON_KEYS)
        return "an issue" if is_issue else self._asked.single

    def _may_hold_scores(self, key: str, value: Value, name: str) -> bool:
        """Whether a score under this key, or in the value there, is the evaluator's own."""
        if key in _SCORE_KEYS or _REVISED_KEY.fullmatch(key):
            return True
        if isinstance(value, str):
            scale = self._asked.scales.get(name)
            return key in _VERDICT_KEYS and scale is not None and scale.is_pass_fail
        return key in self._wrappers or key in _RULE_HOLDERS

    def _take_answers(self, key: str, value: Value, name: str) -> None:
        """Takes in the answer to a rule of this dimension, or of any if `name` is empty."""
        answer = _answer_in(value)
        for dimension, rule in self._asked.rules_by_words.get(joined(key), ()):
            if answer is not None and name in {dimension, ""}:
                self.answers.add((dimension, rule, answer))

    def _explained(
        self, statement: Statement, members: Mapping[str, Value], *, is_own: bool
    ) -> Statement:
        """The statement with the reason and the issues that stand beside it."""
        if statement.reason or statement.issues:
            return statement
        # `{"relevance": 8, "relevance_reason": "…"}`
        keys = _REASON_KEYS if is_own else [f"{statement.dimension}_{key}" for key in _REASON_KEYS]
        return replace(
            statement,
            reason=_first_text(members, keys)[:REASON_CHARS],
            issues=tuple(_issues(members.get("issues")))[:MOST_ISSUES] if is_own else (),
        )

    def _scale_ends_in(self, value: Value) -> list[float]:
        """The scale ends that a value names: `{"score": 4, "metadata": {"scale": "1-5"}}`."""
        ends: list[float] = []
        # An item of a list is a value without a key.
        items = [("", item) for item in value] if isinstance(value, list) else []
        for key, inner in value.items() if isinstance(value, dict) else items:
            if self._asked.named_by(key):
                continue
            if _SCALE_KEY.search(joined(key)) or _PERCENT_UNIT.fullmatch(f"{joined(key)} {inner}"):
                ends += reply_numbers.highest_in(str(inner))
            # Beside the scores of several dimensions, a total is their sum.
            elif joined(key) in _TOTAL_KEYS and (_has_score(value) or self._asked.single):
                totals = reply_numbers.highest_in(str(inner))
                ends += [total for total in totals if total in reply_numbers.USUAL_ENDS]
            # Another object with a score has a scale of its own.
            elif not _has_score(inner):
                ends += self._scale_ends_in(inner)
        return ends


def _labels_of(members: Mapping[str, Value]) -> list[str]:
    return [label for key in _NAME_KEYS if isinstance(label := members.get(key), str)]


def _name_within(value: Value, name: str) -> str:
    """What a value within one about `name` is about; empty if it says so itself."""
    return "" if isinstance(value, dict) and _labels_of(value) else name


def _has_score(value: Value) -> bool:
    return isinstance(value, dict) and any(key in value for key in _SCORE_KEYS)


def _answer_in(value: Value) -> bool | None:
    """Whether `true`, `1`, `yes, it names none` or `{"value": true}` agrees; None if in doubt."""
    if isinstance(value, dict):
        answers = {_answer_in(value[key]) for key in _ANSWER_KEYS if key in value}
        return answers.pop() if len(answers) == 1 else None
    word = _ANSWER.match(value) if isinstance(value, str) else None
    if word is None:
        return None
    is_true = bool(word["true"])
    # `true or no` is in doubt, but not every `no` is: `true, it names no date` is true.
    opposite = r"\bfalse\b|^\W*(?:or|and|but)\W+no\b" if is_true else r"\b(?:true|yes)\b"
    rest = word.string[word.end() :]
    return None if re.search(opposite, rest, re.IGNORECASE) else is_true


def _first_text(members: Mapping[str, Value], keys: Iterable[str]) -> str:
    """The first of these members that is a text and not blank, with single blanks; or empty."""
    texts = (value for value in map(members.get, keys) if isinstance(value, str))
    return next(filter(None, (" ".join(text.split()) for text in texts)), "")


def _issues(value: Value) -> Iterator[Finding]:
    """The issues in a list of objects or texts, or in a single text, other than `none`."""
    for item in value if isinstance(value, list) else [value]:
        members = item if isinstance(item, dict) else {"problem": item}
        problem = _first_text(members, ("problem", "issue", "description", *_REASON_KEYS))
        section = _first_text(members, ("section", "heading", "location"))
        if problem and problem.casefold().strip(" .") not in {"none", "no issues", "n/a", "null"}:
            yield Finding(problem[:PROBLEM_CHARS], section[:SECTION_CHARS])


def _json_at(text: str, position: int) -> tuple[Value, int]:
    """The value that begins at a position, and where it ends.

    Raises:
        ValueError: It is broken.
    """
    pieces, end = respelled(text, position, _leaf)
    # Commas are set anew: there may be too many or too few. One in a value's place is a mistake.
    kept = [piece for last, piece in pairwise(["", *pieces]) if piece != "," or last == ":"]
    strict = "".join(
        f"{piece}," if piece not in "[{:" and after not in "]}:" else piece
        for piece, after in zip(kept, [*kept[1:], "]"], strict=True)
    )
    return json.loads(strict, object_pairs_hook=_members), end


def _members(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    members: dict[str, Value] = {}
    for name, value in pairs:
        key = name.strip().casefold()
        # Which of two values is meant is unknown.
        members[key] = None if key in members else value
    return members


def _leaf(token: re.Match[str]) -> str:
    if token["bare"]:
        return json.dumps(token["bare"].rstrip())
    try:
        text = text_in(token)
    except ValueError:
        text = re.sub(r"\\(.)", r"\1", token["text"][1:-1], flags=re.DOTALL)
    # Half a pair of surrogates is no text.
    return json.dumps(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
