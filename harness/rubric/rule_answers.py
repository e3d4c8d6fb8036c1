"""Reads from an evaluator's reply which rules of caps it calls true, and which false."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from harness.rubric.reply_json import Value

_RULE_HOLDERS = ("rules", "caps", "conditions", "answers", "flags", "checks")
_ANSWER_KEYS = ("value", "answer", "applies", "holds", "result")
_ANSWER = re.compile(
    r"[\s*_`]*+(?:(?P<true>true|yes|1)|false|no|0)(?![\w/|]|\.\d|[ \t]*+[/|])", re.IGNORECASE
)


def answers_in(
    objects: Iterable[Mapping[str, Value]], rules: Mapping[str, str]
) -> Iterator[tuple[str, bool]]:
    """(rule, answer) for each rule that a JSON object answers under its key or its words.

    `rules` are key → statement.
    """
    keys_by_words: dict[str, str] = {}
    for key, statement in rules.items():
        keys_by_words.setdefault(_joined(key), key)
        keys_by_words.setdefault(_joined(statement), key)
    for members in objects if rules else ():
        # `{"score": 8, "rules": {"it_is_short": true}}`
        nested = (members.get(holder) for holder in _RULE_HOLDERS)
        for answers in (members, *(value for value in nested if isinstance(value, dict))):
            for label, value in answers.items():
                answer = _answer(value)
                if _joined(label) in keys_by_words and answer is not None:
                    yield keys_by_words[_joined(label)], answer


def _answer(value: Value) -> bool | None:
    """Whether `true`, `1`, `yes, it names none` or `{"value": true}` agrees; None if in doubt."""
    if isinstance(value, dict):
        answers = {_answer(value[key]) for key in _ANSWER_KEYS if key in value}
        return answers.pop() if len(answers) == 1 else None
    word = _ANSWER.match(value) if isinstance(value, str) else None
    if word is None:
        return None
    is_true = bool(word["true"])
    # Not any `no`: `true, it names no date` is true.
    opposite = r"\bfalse\b|^\W*(?:or|and|but)\W+no\b" if is_true else r"\b(?:true|yes)\b"
    return None if re.search(opposite, word.string[word.end() :], re.IGNORECASE) else is_true


def _joined(label: str) -> str:
    """A label's letters and digits alone: `it_is_short`, `It is short.` and `itIsShort` are one."""
    return re.sub(r"[\W_]+", "", label.casefold())


def answers_in_lines(
    text: str, rule: str, statement: str
) -> Iterator[tuple[bool | None, tuple[int, int]]]:
    """(answer, span) for each line that answers a rule; the answer is None if it says both."""
    for line in _rule_pattern(rule, statement).finditer(text):
        answer_start = line.start("answer")
        word = _ANSWER.match(text, answer_start)
        end = word.end() if word else answer_start
        yield _answer(text[answer_start : line.end("answer")]), (line.start("rule"), end)


@cache
def _rule_pattern(rule: str, statement: str) -> re.Pattern[str]:
    """A rule and its answer, in a line or in a list within a line."""
    words = "|".join(
        r"(?:[^\w\n]|_){1,3}".join(map(re.escape, parts))
        for parts in (re.findall(r"[^\W_]+", statement), re.findall(r"[^\W_]+", rule))
    )
    return re.compile(
        rf"(?:^|[,;(|])[^\w\n]{{0,12}}(?P<rule>(?:{words})(?:[^\w\n]|_){{1,8}})"
        r"(?P<answer>(?:true|false|yes|no|[01])\b[^\n]{0,80})",
        re.MULTILINE | re.IGNORECASE,
    )
