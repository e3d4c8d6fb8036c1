"""Finds the scores in the JSON of an evaluator's reply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.rubric import reply_numbers
from harness.rubric.draft import Finding
from harness.rubric.prompt import MOST_ISSUES, PROBLEM_CHARS, REASON_CHARS, SECTION_CHARS
from harness.rubric.reply_json import Value, json_at
from harness.rubric.reply_statements import CHANGED, AskedDimensions, RuleAnswer, Statement
from harness.rubric.rubric import Scale
from harness.rubric.rule_answers import answers_in

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
_NAME_KEYS = ("dimension", "name", "criterion", "category", "aspect", "metric")
_SCORE_KEYS = ("score", "rating", "grade", "points", "value")
_VERDICT_KEYS = ("pass", "passed", "passes", "verdict", "result", "outcome", "status", "decision")
_REASON_KEYS = ("reason", "reasoning", "rationale", "justification", "explanation", "comment")
# Without marks and capitals: `outOf`, `max_score`, `scale-max`.
_SCALE_KEY = re.compile(
    r"(?:score|points?|rating|\w*scale)?(?:max(?:imum)?|range|bounds)"
    r"|(?:max(?:imum)?|full|best)(?:score|points?|value|rating|grade|mark)s?"
    r"|(?:out)?of(?:total)?|denominator|\w*scale|\w*possible"
)
_TOTAL_KEYS = ("total", "totalpoints")
# A second score beside the first: `revised_score`, `score_adjusted`.
_REVISED_KEY = re.compile(
    rf"(?:{CHANGED})(?:[\W_]*(?:scores?|ratings?|grades?|points|value))?|score[\W_]*(?:{CHANGED})"
    r"|(?:total|overall)[\W_]*score"
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
                value, position = json_at(text, start)
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
            for statement in self._statements(value):
                placed = replace(statement, start=start, number_start=start, end=position)
                self.statements.append(replace(placed, is_doubtful=is_doubtful))

    def _statements(self, value: Value, ends: Sequence[float] = ()) -> Iterator[Statement]:
        """The scores in a JSON value, without positions; `ends` are those of the scale around it.

        A score stands under its dimension's name, or beside it: `{"name": "clear", "score": 8}`. It
        needs no name if a single dimension was asked for.
        """
        ends = self._scale_ends_in(value) or ends
        if isinstance(value, list):
            for item in value:
                yield from self._statements(item, ends)
        if not isinstance(value, dict):
            return
        names = {key: self._asked.named_by(key) for key in value}
        for key, name in names.items():
            if not name and (key in self._wrappers or _REVISED_KEY.fullmatch(key)):
                yield from self._statements(value[key], ends)
        for key, name in names.items():
            if name:
                ends_in_key = [end for _, end in reply_numbers.ends_named(key)]
                yield from self._judgement(name, value[key], value, ends_in_key or ends)
        is_issue = "problem" in value and not any(key in value for key in _REASON_KEYS)
        if not any(names.values()) and not is_issue:
            labels = [value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)]
            name = self._asked.named_by(str(labels[0])) if labels else self._asked.single
            yield from self._judgement(name, value, value, ends)

    def _judgement(
        self, name: str, value: Value, parent: Mapping[str, Value], ends: Sequence[float]
    ) -> Iterator[Statement]:
        """A dimension's score, then those that repeat or change it; none if it was not asked for.

        `parent` is the object that has the value as a member, or the value itself.
        """
        if name not in self._asked.rules:
            return
        scale = self._asked.scales[name]
        members = value if isinstance(value, dict) else {}
        # `{"relevance": 8, "relevance_reason": "…"}`
        suffixed = {k: parent.get(f"{name}_{k}") for k in (*_REASON_KEYS, "max", "max_score")}
        ends = self._scale_ends_in(members) or self._scale_ends_in(suffixed) or ends
        numbers = map(reply_numbers.ALONE.fullmatch, _score_texts(value, name, scale))
        first, *repeated = (reply_numbers.score_in(number, scale, ends) for number in numbers)
        if first is None:
            return
        for rule, answer in answers_in((members, parent), self._asked.rules[name]):
            self.answers.add((name, rule, answer))
        statement = Statement(
            dimension=name, score=first[0], scale_ends=first[1], start=0, number_start=0, end=0
        )
        yield replace(
            statement,
            reason=_first_text(members or suffixed, _REASON_KEYS)[:REASON_CHARS],
            issues=tuple(_issues(members.get("issues")))[:MOST_ISSUES],
        )
        for score, scale_ends in filter(None, repeated):
            yield replace(statement, score=score, scale_ends=scale_ends, is_mention=True)

    def _scale_ends_in(self, value: Value) -> list[float]:
        """The scale ends that a value names: `{"score": 4, "metadata": {"scale": "1-5"}}`."""
        ends: list[float] = []
        if isinstance(value, list):
            for item in value:
                ends += [] if _has_score(item) else self._scale_ends_in(item)
        if not isinstance(value, dict):
            return ends
        for key, inner in value.items():
            joined = re.sub(r"[\W_]", "", key)
            if self._asked.named_by(key):
                continue
            if _SCALE_KEY.fullmatch(joined):
                ends += reply_numbers.highest_in(str(inner))
            # Beside the scores of several dimensions, a total is their sum.
            elif joined in _TOTAL_KEYS and (_has_score(value) or self._asked.single):
                totals = reply_numbers.highest_in(str(inner))
                ends += [total for total in totals if total in reply_numbers.USUAL_ENDS]
            elif joined in {"unit", "format"} and re.search("%|percent", str(inner)):
                ends.append(100.0)
            # Another object with a score has a scale of its own.
            elif key in _SCORE_KEYS or not _has_score(inner):
                ends += self._scale_ends_in(inner)
        return ends


def _has_score(value: Value) -> bool:
    return isinstance(value, dict) and any(key in value for key in _SCORE_KEYS)


def _score_texts(value: Value, name: str, scale: Scale) -> list[str]:
    """The score in `8`, `{"score": 8}` or `{"score": {"value": 8}}`, then what other keys repeat.

    The first text is empty if there is no score, or if two keys could be the score's.
    """
    if not isinstance(value, dict):
        return [value if isinstance(value, str) else ""]
    score_keys = [key for key in (*_SCORE_KEYS, f"{name}_score", name) if key in value]
    # On pass and fail, `"verdict": "FAIL"` is a score too.
    verdict_keys = [key for key in _VERDICT_KEYS if key in value and scale.is_pass_fail]
    revised_keys = filter(_REVISED_KEY.fullmatch, value)
    repeated = [_score_texts(value[key], name, scale)[0] for key in (*revised_keys, *verdict_keys)]
    score_keys = score_keys or verdict_keys[:1]
    if len(score_keys) != 1:
        return ["", *repeated]
    return [*_score_texts(value[score_keys[0]], name, scale), *repeated]


def _first_text(members: Mapping[str, Value], keys: Iterable[str]) -> str:
    """The first of these members that is a text and not blank, with single blanks; or empty."""
    for value in map(members.get, keys):
        if isinstance(value, str) and value.strip():
            return " ".join(value.split())
    return ""


def _issues(value: Value) -> Iterator[Finding]:
    """The issues in a list of objects or texts, or in a single text, other than `none`."""
    for item in value if isinstance(value, list) else [value]:
        members = item if isinstance(item, dict) else {"problem": item}
        problem = _first_text(members, ("problem", "issue", "description", *_REASON_KEYS))
        section = _first_text(members, ("section", "heading", "location"))
        if problem and problem.casefold().strip(" .") not in {"none", "no issues", "n/a", "null"}:
            yield Finding(problem[:PROBLEM_CHARS], section[:SECTION_CHARS])
