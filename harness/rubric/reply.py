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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.rubric import reply_numbers
from harness.rubric.draft import Draft
from harness.rubric.reply_json_scores import JsonScores
from harness.rubric.reply_line_scores import LineScores
from harness.rubric.reply_statements import AskedDimensions, RuleAnswer, Statement
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.scoring import Judgement
from harness.rubric.verdict import half_up
from harness.text.languages import NO_WIDTH

# A longer reply is not read: it ran on, and the judge is asked again.
_MOST_REPLY_CHARS = 100_000

_COPIES = (
    # Data between its marks, which models copy from the prompt; up to the end if it is not closed.
    re.compile(
        r"<(task|target|source|draft|blockquote|quote)\b[^>\n]{0,40}>.*?(?:</\1[^>\n]{0,20}>?|\Z)"
        r"|<!--.*?(?:-->|\Z)",
        re.DOTALL | re.IGNORECASE,
    ),
    re.compile(r"^[ \t*+-]*>.*$", re.MULTILINE),
)
_CODE = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)
_ONE_FENCE = re.compile(r"\s*`{3,}\w*[ \t\r]*\n(?>(?:(?!```)[\s\S])*)```\s*")
_FENCE_MARK = re.compile(r"(?:```|~~~)\w*")
# The label or the score of a line such as `"clear": "8"`: their quotes make no quotation.
_QUOTED_LABEL_OR_SCORE = re.compile(
    r"([\"'`])([\w -]{1,60})\1(?=[ \t]*[:\uff1a=])|(?<=[:=][ ])([\"'])([\d./]{1,9})\3"
)
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
    asked = AskedDimensions(rubric, dimensions)
    # 1. What the reply states: in JSON, and behind labels outside of it.
    # `<target>8` is the element of a dimension of that name; the marks of our data have digits.
    own_tag = rf"<({'|'.join(asked.scales)})>(?=\s*[<*_\d])"
    text = re.sub(own_tag, r"<\1_score>", _with_widths(text), flags=re.IGNORECASE)
    stated = _stated_in(_blanked(text, *_COPIES), asked, is_reply=True)
    statements = _on_scale(stated, asked)
    answers = stated.answers
    # 2. What the draft states too: the reply may copy it, unless it has no words beside its scores.
    copied: set[tuple[str, float]] = set()  # (dimension, score)
    if re.search(r"\w", _FENCE_MARK.sub("", _without(text, [*stated.json_spans, *stated.spans]))):
        # A target that is a figure or a word alone may be as much as an honest score.
        targets = [target for target in draft.targets if len(target.split()) > 1]
        data = "\n".join((draft.text, draft.evidence, *targets))
        of_draft = _stated_in(_with_widths(data), asked)
        # The scale that the draft names beside a score does not count: who copies the score may
        # leave it out.
        copied = {(s.dimension, _rounded(s, asked)) for s in of_draft.statements}
        answers = answers - of_draft.answers
    # 3. For each dimension, the one score on which all statements agree.
    judgements = {}
    for dimension in dimensions:
        name = dimension.name
        statement = _agreed(statements, name)
        if statement and (name, statement.score) not in copied:
            judgements[name] = Judgement(
                score=statement.score,
                reason=statement.reason,
                issues=statement.issues,
                rules=_unanimous(answers, name),
            )
    return judgements


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """What a text states, in JSON and in its other words, which are `prose`."""

    statements: list[Statement]
    answers: set[RuleAnswer]
    json_spans: list[tuple[int, int]]
    prose: str

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(statement.start, statement.end) for statement in self.statements]


def _stated_in(text: str, asked: AskedDimensions, *, is_reply: bool = False) -> _Stated:
    """What a text states; of a reply, without its quotations and its code."""
    json_scores = JsonScores(asked)
    json_scores.read(text)
    prose = _without(text, json_scores.spans)
    if is_reply:
        # A fence around the whole reply is no quotation.
        code = () if _ONE_FENCE.fullmatch(text) else (_CODE,)
        prose = _blanked(_QUOTED_LABEL_OR_SCORE.sub(r" \2\4 ", prose), *code, *_QUOTATIONS)
    line_scores = LineScores(prose, asked)
    line_scores.read()
    return _Stated(
        statements=[*json_scores.statements, *line_scores.statements],
        answers=json_scores.answers,
        json_spans=json_scores.spans,
        prose=prose,
    )


def _on_scale(stated: _Stated, asked: AskedDimensions) -> list[Statement]:
    """The statements whose numbers are scores on the rubric's scales, rounded to its steps."""
    # The text without these numbers may name the scale of a bare one.
    rest = _without(stated.prose, stated.spans)
    named_ends, line_ends = reply_numbers.ends_named(rest), reply_numbers.ends_of_lines(rest)
    is_another_scale = _bare_scores_have_another_scale(stated.statements, asked)
    on_scale = []
    for statement in stated.statements:
        scale = asked.scales[statement.dimension]
        score = statement.score
        ends = statement.scale_ends
        if statement.is_bare:
            ends = reply_numbers.end_near(named_ends, statement.start, score)
            # What ends a line may also count sections, and so hides no scale that is named.
            ends = ends or reply_numbers.end_near(line_ends, statement.start, score)
        # On another scale, the same number is another score, which the others may correct.
        if (statement.is_bare and is_another_scale) or (ends and scale.max not in ends):
            if not statement.is_mention:
                on_scale.append(replace(statement, is_doubtful=True))
            continue
        is_between = scale.is_pass_fail and score not in (scale.min, scale.max)
        if scale.min <= score <= scale.max and not is_between:
            on_scale.append(replace(statement, score=_rounded(statement, asked)))
    return on_scale


def _rounded(statement: Statement, asked: AskedDimensions) -> float:
    scale = asked.scales[statement.dimension]
    return half_up(statement.score, scale.step, start=scale.min)


def _bare_scores_have_another_scale(
    statements: Sequence[Statement], asked: AskedDimensions
) -> bool:
    bare = [(s, asked.scales[s.dimension]) for s in statements if s.is_bare]
    # 80 is not a score of 10, so neither is the 7 beside it; 11 is a slip.
    if any(s.score > scale.max + 0.25 * abs(scale.max) for s, scale in bare):
        return True
    # 0.85 is not nearly 1 of 10, but scales of up to 2 have such fractions.
    coarse = [(s, scale) for s, scale in bare if scale.max > 2]
    are_fractions = all(0 <= s.score <= 1 for s, _ in coarse)
    return are_fractions and any(
        s.score < scale.min or s.score != _rounded(s, asked) for s, scale in coarse
    )


def _agreed(statements: Sequence[Statement], name: str) -> Statement | None:
    """The statement whose score all statements on the dimension have; None if in doubt."""
    mentions = [s for s in statements if s.dimension == name and s.is_mention]
    stated = [s for s in statements if s.dimension == name and not s.is_mention]
    # A total counts only where the reply has no score of the dimension itself.
    counted = [statement for statement in stated if not statement.is_total] or stated
    if not counted or any(statement.is_doubtful for statement in counted):
        return None
    scores = {statement.score for statement in (*counted, *mentions)}
    return counted[0] if len(scores) == 1 else None


def _unanimous(answers: Iterable[RuleAnswer], name: str) -> dict[str, bool]:
    """A dimension's rules → whether they are true, without those that are answered both ways."""
    pairs = [(rule, answer) for dimension, rule, answer in answers if dimension == name]
    return {rule: answer for rule, answer in pairs if (rule, not answer) not in pairs}


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
