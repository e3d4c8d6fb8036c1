"""Finds the scores that stand behind the names of dimensions in lines, headings and tables."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import replace

from harness.rubric import reply_numbers
from harness.rubric.prompt import REASON_CHARS
from harness.rubric.reply_statements import SCORE_LABEL, AskedDimensions, Statement

# What may stand before a label at the start of a line: list marks, ticks, stars.
_OPENING = re.compile(
    r"(?i)(?>(?:(?!\[result\])[\s<#*_|+\u2022\u00b7\u2190-\u2bff\ufe0f\U0001f300-\U0001faff{\[-]"
    r"|\(?(?:\d{1,2}|[a-z])[.)](?=[\s*]))*)"
    r"(?:(?:dimension|criterion|category|aspect|metric|name)[ \t]*+\d{0,2}[ \t:*_.-]*+"
    r"|on a scale (?:of|from) [01] ?(?:to|[-\u2013]) ?\d{1,3}[,:][ \t*]++"
    r"|(?:score|rating)[ \t](?:for|of|on)[ \t]|(?:the|my)[ \t])?"
)
# What may stand before a label within a line.
_BETWEEN = re.compile(
    r"(?i)(?:[.!?,;|(<]|[ \t][-\u2013\u2014]|\bscores?:)[ \t*_(]{0,40}+(?=\w)|(?=\\boxed|\[result)"
)
_LIST_MARKS = (",", ";", "|", "(", "-", "\u2013", "\u2014")
# An entry of a list with a score, on something that the rubric does not have.
_ENTRY = re.compile(rf"[\w-]{{1,40}}[ \t]?[:=][ \t]?{reply_numbers.DIGITS}")
_HEADING = re.compile(r"[^\W\d][\w /&-]{0,40}?[*_]*[ \t]*(?::|[*_]+[ \t\r]*$)")
# Headings within the text about a dimension, which do not end it.
_INNER_HEADING = re.compile(
    rf"(?i)(?:{SCORE_LABEL}|reason|rationale|justif|expla|analy|issue|section|problem|eviden|note"
    r"|comment|feedback|example|strength|weak|suggest|improve|area|missing|rule|draft|judge?ment"
    r"|assess|edit|update|correct|revis|evaluation|verdict|answer|response|output|result|how)"
)
# What stands behind a name that opens the text about its dimension.
_BEHIND_NAME = re.compile(r"[ \t]*+(?:[:\uff1a=|(\[*_\])}\u2013\u2014-]|\r?\Z)")
# What belongs to a score behind it, up to the end of the sentence or to a name.
_CLAUSE = re.compile(
    r"(?:(?![.!?][ ][^\W\d]|[ ][-\u2013\u2014]+[ ]|(?<![\w-])[\w-]{1,40}[ ]?[:=])[^\n]){0,200}"
)
# The number is what the score should be, what it would take to get it, or how far it changed.
_NO_STATEMENT = re.compile(
    r"(?i)\b(?:should|must|ought|have|be|up|down)\b|\bto[ \t]+(?:get|become)|"
    r"\b(?:goes|raised|lowered|changed)\b(?![ \t]+(?:from[ \t]+\d{1,3}[ \t]+)?to\b)"
)
_MARKS_ONLY = re.compile(r"[\s*_#:=-]{0,40}")
# What is no part of a reason.
_MARKUP = re.compile(
    r"</?[a-z]\w*>|<(?=\s*(?:</|\Z))|[*#>|`{}\"\[\]()]|^\s*[-+]\s|\b(?:score|reason(?:ing)?)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
# `<clear>`, which opens the text about a dimension, and its end.
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-z][\w-]*+)>", re.IGNORECASE)
# The ends of elements before an arrow that changes the score in them.
_REVISED_ENDS = re.compile(
    rf"(?i)(?:\s{{0,8}}</[a-z][\w-]*+>[ \t]*+){{1,4}}(?={reply_numbers.REVISION})"
)


class LineScores:
    """Collects the scores that a text without JSON and quotations states for dimensions."""

    def __init__(self, text: str, asked: AskedDimensions) -> None:
        self.statements: list[Statement] = []
        self._asked = asked
        text = _REVISED_ENDS.sub(lambda ends: " " * len(ends[0]), text)
        self._text = _TAG.sub(self._heading, text)
        # The dimension that the line being read is about, and every position where that changes.
        self._subject = asked.single
        self._subject_changes = [0]

    def read(self) -> None:
        """Takes in labelled scores with their reasons, then what speaks against them."""
        for line in re.finditer(r"[^\n]+", self._text):
            if line[0].lstrip().startswith("|"):
                self._read_row(*line.span())
            else:
                self._read_line(*line.span())
        self._subject_changes.append(len(self._text))
        labelled = self.statements
        self.statements = [self._with_reason(statement) for statement in labelled]
        self._read_mentions()
        for statement in labelled:
            self._read_correction(statement)

    def _heading(self, tag: re.Match[str]) -> str:
        """A heading for a tag that names a dimension, as long as `<clear>`; others as they are."""
        if not self._asked.named_by(tag["name"]):
            return tag[0]
        # Among several dimensions, what stands behind the end of one is about none.
        mark = " " if self._asked.single else "#"
        return f"\n{mark:{len(tag[0]) - 2}}\n" if tag["end"] else f"\n{tag['name']}:"

    def _read_line(self, start: int, end: int) -> None:
        opening = _OPENING.match(self._text, start, end)
        first = opening.end() if opening else start
        # A heading that names no dimension of the rubric ends the text about the last one.
        is_heading = "#" in self._text[start:first] or _HEADING.match(self._text, first, end)
        is_score = reply_numbers.ALONE.fullmatch(self._text, start, end)  # `**PASS**`
        if is_heading and not is_score and not _INNER_HEADING.match(self._text, first, end):
            self._change_subject("", start)
        self._read_labels(start, first, end)
        self._read_leading_number(start, end)

    def _read_labels(self, start: int, first: int, end: int) -> None:
        """Takes in the labels of a line, the `first` behind list marks, with scores or without."""
        text = self._text
        find_label = self._asked.label.match
        opens_with_label = find_label(text, first, end) or _ENTRY.match(text, first, end)
        # In a line that opens with other words, a list of labels behind a comma or a dash may be
        # what somebody else says.
        label_starts = [first] + [
            mark.end()
            for mark in _BETWEEN.finditer(text, first, end)
            if opens_with_label or not mark[0].strip().startswith(_LIST_MARKS)
        ]
        follows_open_name = False  # a name without a score behind it
        for label_start in label_starts:
            label = find_label(text, label_start, end)
            if not label:
                continue
            is_name = bool(label["name"])
            name = self._asked.named_by(label["name"]) if is_name else self._subject
            number = reply_numbers.STATED.match(text, label.end(), end)
            behind = _BEHIND_NAME.match(text, label.end(), end)
            opens_text = label_start == first and behind is not None
            if is_name and (number or opens_text):
                # The text about the last dimension ends before the name and its list marks.
                self._change_subject("", start if label_start == first else label_start)
                self._change_subject(name, label.end())
            # In `clear, useful: 7`, it is unknown whose score the 7 is.
            is_unclear = is_name and follows_open_name
            if number and not is_unclear and not _NO_STATEMENT.search(number["between"]):
                self._state(name, number, label.start(), is_total=bool(label["total"]))
            follows_open_name = is_name and not (number or opens_text)

    def _read_leading_number(self, start: int, end: int) -> None:
        """Takes in a score that begins a line right below a name: `8`, or `8/10` and a reason."""
        number = reply_numbers.AT_FIRST.match(self._text, start, end)
        if not number or not self._subject:
            return
        # Words behind a number without a scale may say what it counts, but not behind an arrow.
        rest = self._text[number.end() : end].strip(" \t\r*_`.]")
        is_count = rest and not number["scale_end"] and not re.match(reply_numbers.ARROW, rest)
        is_below_name = _MARKS_ONLY.fullmatch(self._text, self._subject_changes[-1], start)
        if is_below_name and not is_count:
            self._state(self._subject, number, start)

    def _read_row(self, start: int, end: int) -> None:
        """Takes in a row of a table, whose score stands alone in one cell."""
        cells = [cell.span() for cell in re.compile(r"[^|]+").finditer(self._text, start, end)]
        # The second cell has the name if the first has the row's number.
        named = [cell for cell in cells[:2] if self._asked.named_by(self._text[slice(*cell)])]
        name = self._asked.named_by(self._text[slice(*named[0])]) if named else ""
        if not name:
            return
        scale = self._asked.scales[name]
        matches = (reply_numbers.ALONE.fullmatch(self._text, *cell) for cell in cells[1:])
        numbers = [match for match in matches if match and reply_numbers.score_in(match, scale)]
        if len(numbers) == 1:
            self._change_subject(name, numbers[0].start("number"))
            self._state(name, numbers[0], named[0][0])
        # Text below a table is not about its last row.
        self._change_subject(self._asked.single, end)

    def _change_subject(self, name: str, position: int) -> None:
        """From this position on, the text is about another dimension, or about none if empty."""
        self._subject = name
        self._subject_changes.append(position)

    def _with_reason(self, statement: Statement) -> Statement:
        """The statement with the text around its score, as far as that is about its dimension."""
        start, end, changes = statement.start, statement.end, self._subject_changes
        change = bisect_right(changes, end - 1)
        # Four times as much as the reason may have, since markup and blanks are removed.
        reason_start = max(changes[change - 1], start - 4 * REASON_CHARS)
        reason_end = min(changes[change], end + 4 * REASON_CHARS)
        behind = _MARKUP.sub(" ", self._text[end:reason_end])
        # Of a single dimension, the text before its name says why if none behind it does.
        if self._asked.single and bisect_left(changes, start) == 1 and not re.search(r"\w", behind):
            reason_start = max(0, start - 4 * REASON_CHARS)
        reason = " ".join(f"{_MARKUP.sub(' ', self._text[reason_start:start])} {behind}".split())
        reason = reason.lstrip(" -\u2013\u2014:;,./").rstrip(" -\u2013\u2014:;,/")
        return replace(statement, reason=reason[:REASON_CHARS])

    def _read_mentions(self) -> None:
        """Takes in all other numbers that stand with names, as they may contradict a score."""
        for label in self._asked.label.finditer(self._text):
            number = reply_numbers.STATED.match(self._text, label.end())
            if label["name"] and number:
                name = self._asked.named_by(label["name"])
                self._state(name, number, number.start(), is_mention=True)

    def _read_correction(self, statement: Statement) -> None:
        """Takes in what the words behind a score say against it."""
        next_change = bisect_left(self._subject_changes, statement.end)
        end = min(self._subject_changes[next_change], statement.end + reply_numbers.CORRECTED_CHARS)
        if number := reply_numbers.CORRECTED.search(self._text, statement.end, end):
            self._state(statement.dimension, number, number.start(), is_mention=True)
        rest_of_line = self._text[statement.end : end].partition("\n")[0]
        scale = self._asked.scales[statement.dimension]
        if reply_numbers.is_taken_back(statement.score, scale, rest_of_line):
            self.statements.append(replace(statement, is_doubtful=True))

    def _state(
        self,
        name: str,
        number: re.Match[str],
        start: int,
        *,
        is_total: bool = False,
        is_mention: bool = False,
    ) -> None:
        """Takes in a number as the score of a dimension, unless it was not asked for."""
        # Among several dimensions, a total belongs to the whole.
        if name not in self._asked.rules or (is_total and not self._asked.single):
            return
        score_and_ends = reply_numbers.score_in(number, self._asked.scales[name])
        if score_and_ends is None:
            return
        score, ends = score_and_ends
        suffix = not number["slash"] and reply_numbers.SUFFIX.match(number.string, number.end())
        if not ends and not is_mention:
            ends = self._ends_beside(number, start, score)
        self.statements.append(
            Statement(
                dimension=name,
                score=score,
                scale_ends=ends,
                start=start,
                end=number.end(),
                is_total=is_total,
                is_doubtful=bool(suffix),
                is_mention=is_mention,
            )
        )

    def _ends_beside(self, number: re.Match[str], start: int, score: float) -> list[float]:
        """The ends of a scale that stand beside a score: `(1-5): 4`, `4, where 5 is best`."""
        rest = _CLAUSE.match(self._text, number.end())
        aside = self._text[start : number.start("number")]
        ends = reply_numbers.ends_beside(aside, rest[0] if rest else "")
        # Numbers behind the first may count something: `4 (max. 5), 10 examples`.
        return [end for end in ends if end > score][:1]
