"""Reads an evaluator's reply: JSON, whole or broken, or else lines.

A score is taken only where the reply states it for its dimension, on the scale. It is never made
up, moved onto the scale, or taken from another dimension. Totals and `passed` are ignored.

Broken JSON is read too: in prose, in fences, with trailing commas, half of it missing. Nothing
raises, and reading takes linear time, since a reply may be a megabyte of braces.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.rubric.draft import Draft
from harness.rubric.prompt import (
    FENCED,
    MOST_ISSUES,
    PROBLEM_CHARS,
    REASON_CHARS,
    SECTION_CHARS,
    rule_keys,
)
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.scoring import Issue, Judgement
from harness.rubric.stated_scores import (
    Labels,
    StatedScore,
    judgements_in_lines,
    only_fraction_in,
    score_at,
)

_LONGEST = 100_000
"""Characters. Of a longer reply the end is read, where the scores are due."""

_SCORE_KEYS = ("score", "rating", "grade", "points", "value")
_REASON_KEYS = ("reason", "reasoning", "rationale", "justification", "explanation", "comment")
_PROBLEM_KEYS = ("problem", "issue")
_NAME_KEYS = ("dimension", "name", "criterion", "category", "aspect", "metric")
_WRAPPERS = frozenset(
    {"score", "scores", "rating", "ratings", "evaluation", "evaluations", "dimension", "dimensions"}
    | {"rubric", "criteria", "result", "results", "verdict", "assessment", "properties"}
    | {"judgement", "judgements", "judgment", "judgments", "output", "response", "answer", "reply"}
    | {"arguments", "parameters"}
)
"""Keys that models put around their judgements. Under other keys stand examples, weights, anchors,
which are not read."""


def read_reply(
    text: str,
    rubric: Rubric,
    dimensions: Sequence[Dimension],
    *,
    draft: Draft,
    cut: bool = False,
) -> dict[str, Judgement]:
    """The judgements in a reply, by dimension; missing ones are left out.

    Never raises. Of one dimension alone, the reply need not give the name. JSON in the draft, its
    task or its sources is a quotation and no judgement. `cut` says whether the reply broke off, so
    that its last number may not be whole.
    """
    if cut:
        text = text.rstrip("0123456789./ \t")
    skipped = max(len(text) - _LONGEST, 0)
    text = _without_copies(text[skipped:])
    wanted = {dimension.name: dimension for dimension in dimensions}
    reader = _Reader(text, rubric, wanted)
    nodes = list(nodes_in(text))
    quoted = _quoted(text, nodes, draft)
    for node in nodes:
        if _compact(text, node) not in quoted:
            reader.read(node)
    lines = judgements_in_lines(
        _without(text, nodes),
        labels=reader.labels,
        scale=rubric.scale,
        # What is left of JSON on another dimension must not be read as this one's.
        alone=None if reader.names_another else reader.alone,
    )
    found = lines | reader.found
    return {name: _moved(found[name], skipped) for name in wanted if name in found}


class _Reader:
    """Collects judgements from the JSON of a reply; for each dimension the last with a score."""

    def __init__(self, text: str, rubric: Rubric, wanted: Mapping[str, Dimension]) -> None:
        self.labels = Labels(dimension.name for dimension in rubric.dimensions)
        self.alone = next(iter(wanted)) if len(wanted) == 1 else None
        self.names_another = False
        """Whether the reply speaks of a dimension that was not asked for."""
        self.found: dict[str, Judgement] = {}
        self._text = text
        self._scale = rubric.scale
        self._wanted = wanted
        self._wrappers = _WRAPPERS | {rubric.id.casefold(), rubric.title.casefold()}

    def read(self, node: Node) -> None:
        """Takes in what a node says of dimensions."""
        for item in node.items:
            if isinstance(item, Node):
                self.read(item)
        members = _members(node)
        named = False
        for key, value in node.members:
            name = self.labels.find(key)
            if name is not None:
                named = True
                self._take(name, value, beside=members)
            elif isinstance(value, Node) and key.strip().casefold() in self._wrappers:
                self.read(value)
        # `{"dimension": "relevance", "score": 8}`, or of one dimension alone, without its name.
        label = next((v.text for k in _NAME_KEYS if isinstance(v := members.get(k), Leaf)), None)
        name = self.labels.find(label) if label is not None else self.alone
        if name is not None and not named and not _is_issue(members):
            self._take(name, node, beside={})

    def _take(self, name: str, value: Value, *, beside: Mapping[str, Value]) -> None:
        if name not in self._wanted:
            self.names_another = True
            return
        if isinstance(value, Node):
            members = _members(value)
            inner = members.get("properties")
            if isinstance(inner, Node) and "score" not in members:
                members = _members(inner)
            stated = self._score_among(members, name)
        else:
            stated = self._score_of(value)
            members = {key: said for key in _REASON_KEYS if (said := beside.get(f"{name}_{key}"))}
        if stated is None:
            return
        self.found[name] = Judgement(
            score=stated.score,
            start=stated.start,
            end=stated.end,
            reason=_first_text(members, _REASON_KEYS)[:REASON_CHARS],
            issues=tuple(_issues(members.get("issues")))[:MOST_ISSUES],
            rules=_answers(members, rule_keys(self._wanted[name])),
        )

    def _score_among(self, members: Mapping[str, Value], name: str) -> StatedScore | None:
        keys = (*_SCORE_KEYS, f"{name}_score", f"{name} score", name)
        values = (members[key] for key in keys if key in members)
        stated = (self._score_of(value) for value in values)
        return next((score for score in stated if score is not None), None)

    def _score_of(self, value: Value) -> StatedScore | None:
        """Of `8`, `"8/10"`, `"8 - because …"`, `"Good (8/10)"`, `{"value": 8}`; not of `true`."""
        if isinstance(value, Node):
            inner = _members(value).get("value")
            return self._score_of(inner) if isinstance(inner, Leaf) else None
        place = (value.start, value.end, self._scale)
        return score_at(self._text, *place) or only_fraction_in(self._text, *place)


def _without_copies(text: str) -> str:
    """The text with blanks in place of what it copied of task, sources and draft.

    A draft may hold a judgement of itself.
    """
    return FENCED.sub(lambda copy: "\n" + " " * (len(copy[0]) - 2) + "\n", text)


def _quoted(text: str, nodes: Sequence[Node], draft: Draft) -> set[str]:
    if not nodes:
        return set()
    # Models change the layout of what they quote.
    data = "".join(f"{draft.text}\n{draft.evidence}".split())
    return {said for said in {_compact(text, node) for node in nodes} if said in data}


def _compact(text: str, node: Node) -> str:
    return "".join(text[node.start : node.end].split())


def _is_issue(members: Mapping[str, Value]) -> bool:
    """Whether it is an issue outside its list, because the JSON around it is broken."""
    return any(key in members for key in _PROBLEM_KEYS) and not any(
        key in members for key in _REASON_KEYS
    )


def _members(node: Node) -> dict[str, Value]:
    """By key in lower case; of two alike, the last."""
    return {key.strip().casefold(): value for key, value in node.members}


def _first_text(members: Mapping[str, Value], keys: Collection[str]) -> str:
    texts = (value.unescaped for key in keys if isinstance(value := members.get(key), Leaf))
    return next((" ".join(text.split()) for text in texts if text.strip()), "")


def _issues(value: Value | None) -> Iterator[Issue]:
    """The issues of a list of objects or texts, or of a text that does not say there are none."""
    values = value.items if isinstance(value, Node) else [value] if value else []
    for item in values:
        if isinstance(item, Leaf):
            problem, section = " ".join(item.unescaped.split()), ""
        else:
            members = _members(item)
            problem = _first_text(members, (*_PROBLEM_KEYS, "description", *_REASON_KEYS))
            section = _first_text(members, ("section", "heading", "location"))
        if problem and problem.casefold().strip(" .") not in {"none", "no issues", "n/a", "null"}:
            yield Issue(problem[:PROBLEM_CHARS], section[:SECTION_CHARS])


def _answers(members: Mapping[str, Value], keys: Mapping[str, str]) -> dict[str, bool]:
    """Which rules are true and which false; those without an answer are left out."""
    meant = {"true": True, "yes": True, "false": False, "no": False}
    said = {key: members.get(key) for key in keys}
    return {
        key: meant[word]
        for key, value in said.items()
        if isinstance(value, Leaf) and (word := value.text.strip().casefold()) in meant
    }


def _without(text: str, nodes: Sequence[Node]) -> str:
    """The text with blanks in place of its objects, everything else where it was."""
    kept, position = [], 0
    for node in nodes:
        # `[8]` is no list that says something.
        if node.members or any(isinstance(item, Node) for item in node.items):
            blank = "\n" + " " * (node.end - node.start - 2) + "\n"
            kept += [text[position : node.start], blank]
            position = node.end
    return "".join([*kept, text[position:]])


def _moved(judgement: Judgement, chars: int) -> Judgement:
    return replace(judgement, start=judgement.start + chars, end=judgement.end + chars)


_MOST_NESTED = 24
_MOST_RETRIES = 40
"""Braces in prose may open nothing, and reading starts again behind them. Without this limit, a
text of open quotes would be read to its end from each of them."""

_LONGEST_TEXT = 20_000
"""Characters. What is open for longer is no string."""

# Possessive where white space is skipped: to give it back a character at a time takes squared time.
_BLANK = re.compile(r"\s*+(?://[^\n]*+\n\s*+)*+")
_OPEN = re.compile(r"[{\[]")
_QUOTED_KEY = re.compile(r"[\"'\u201c]([^{}\n]{0,100}?)[\"'\u201d](?=\s*+:)")
_BARE_KEY = re.compile(r"[^\W\d][\w .-]{0,80}")
_COLON = re.compile(r"\s*+[:=]\s*+")
# Up to what ends a value that is not quoted: `8`, `true`, and also `8/10`, not `8 // a "comment"`.
_BARE_VALUE = re.compile(r"[^\s,{}\[\]\"](?:[^,{}\[\]\"\n/]|/(?!/))*+")
_CLOSING = {'"': '"', "'": "'", "\u201c": "\u201d"}
# A quote ends its string where JSON goes on behind it; else the model forgot to escape it.
_TEXT_ENDS = re.compile(
    r"\s*+(?:[}\]]|\Z|,\s*+(?:[\"'\u201c{\[}\]]|\Z|-?\d|(?:true|false|null)\b|[^\W\d]\w{0,80}+\s*+:))"
    # The comma may be missing, where the next line is a key.
    r"|[ \t]*+\r?\n\s*+[\"'\u201c]\w[\w .-]{0,80}+[\"'\u201d]\s*+:"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text, a number, `true` or `null`, as it is written, without quotes."""

    text: str
    start: int
    """Where it begins in the whole text."""
    end: int

    @property
    def unescaped(self) -> str:
        """For people to read."""
        return _unescaped(self.text)


@dataclass(slots=True)
class Node:
    """An object or a list, as far as it could be read."""

    start: int
    end: int = 0
    members: list[tuple[str, Value]] = field(default_factory=list)
    """Of an object: keys may occur twice."""
    items: list[Value] = field(default_factory=list)


Value = Leaf | Node


def nodes_in(text: str) -> Iterator[Node]:
    """The objects and lists of a text that are not empty, in order, not overlapping."""
    position, retries = 0, 0
    while opening := _OPEN.search(text, position):
        reader = _JsonReader(text)
        node = reader.node(opening.start(), depth=0)
        node.end = reader.position
        if node.members or node.items:
            yield node
        elif not reader.whole and retries < _MOST_RETRIES:
            retries += 1
            reader.position = opening.end()
        position = max(reader.position, opening.end())


class _JsonReader:
    """Reads one value as far as it can."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0
        self.whole = True
        """Whether all that was opened has been closed."""

    def node(self, start: int, *, depth: int) -> Node:
        node = Node(start)
        closing = "}" if self._text[start] == "{" else "]"
        self.position = start + 1
        if depth == _MOST_NESTED:
            self.whole = False
        while self.whole:
            self._skip_blank()
            if self._text.startswith(closing, self.position):
                self.position += 1
                break
            if self._text.startswith(",", self.position):
                self.position += 1
            elif closing == "}":
                self._member(node, depth)
            else:
                self._item(node, depth)
        node.end = self.position
        return node

    def _member(self, node: Node, depth: int) -> None:
        key = self._matched(_QUOTED_KEY) or self._matched(_BARE_KEY)
        colon = _COLON.match(self._text, self.position)
        if key is None or colon is None:
            self.whole = False
            return
        self.position = colon.end()
        value = self._value(depth)
        if value is not None:
            node.members.append((key.unescaped.strip("\"'\u201c\u201d"), value))

    def _item(self, node: Node, depth: int) -> None:
        value = self._value(depth)
        if value is not None:
            node.items.append(value)

    def _value(self, depth: int) -> Value | None:
        self._skip_blank()
        if _OPEN.match(self._text, self.position):
            return self.node(self.position, depth=depth + 1)
        value = self._quoted() or self._matched(_BARE_VALUE)
        # What the end of the text cuts may have been longer: `1` of `10`.
        if value is None or self.position >= len(self._text):
            self.whole = False
            return None
        return value

    def _quoted(self) -> Leaf | None:
        closing = _CLOSING.get(self._text[self.position : self.position + 1])
        if closing is None:
            return None
        start = self.position + 1
        limit = min(start + _LONGEST_TEXT, len(self._text))
        end = self._text.find(closing, start, limit)
        while end != -1:
            if not self._is_escaped(end) and _TEXT_ENDS.match(self._text, end + 1):
                self.position = end + 1
                return Leaf(self._text[start:end], start, end)
            end = self._text.find(closing, end + 1, limit)
        self.position = limit
        return None

    def _is_escaped(self, position: int) -> bool:
        before = position
        while self._text[before - 1] == "\\":
            before -= 1
        return (position - before) % 2 == 1

    def _matched(self, pattern: re.Pattern[str]) -> Leaf | None:
        found = pattern.match(self._text, self.position)
        if found is None:
            return None
        self.position = found.end()
        text = found[0].rstrip()
        return Leaf(text, found.start(), found.start() + len(text))

    def _skip_blank(self) -> None:
        blank = _BLANK.match(self._text, self.position)
        self.position = blank.end() if blank else self.position


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "", "b": "", "f": ""}


def _unescaped(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return _SHORT.get(found[2], found[2])

    if "\\" not in text:
        return text
    # Half a pair of surrogates is no text.
    text = _ESCAPE.sub(meant, text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
