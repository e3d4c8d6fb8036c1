"""The evaluator's reply, read with patience: JSON well made or not, and failing that, lines.

A score is taken only where the reply states it for its dimension, on the scale; it is never made
up, never moved onto the scale, and never another's. Totals, and a `passed`, are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.rubric.draft import Draft
from harness.rubric.judging.judgement import Issue, Judgement
from harness.rubric.judging.labels import Labels
from harness.rubric.judging.loose_json import Leaf, Node, Value, nodes_in
from harness.rubric.judging.prompt import FENCED
from harness.rubric.judging.reply_schema import (
    MOST_ISSUES,
    PROBLEM_CHARS,
    REASON_CHARS,
    SECTION_CHARS,
    rule_keys,
)
from harness.rubric.judging.score_lines import judgements_in_lines
from harness.rubric.judging.stated_score import StatedScore, only_fraction_in, score_at
from harness.rubric.rubric import Dimension, Rubric

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
"""Keys that models put around their judgements. What stands under any other is not read: an
example, the weights, the anchors."""


def read_reply(
    text: str,
    rubric: Rubric,
    dimensions: Sequence[Dimension],
    *,
    draft: Draft,
    cut: bool = False,
) -> dict[str, Judgement]:
    """The judgements that a reply has, by dimension; those that it has not are missing.

    Args:
        text: What the model said. Whatever it is, nothing is raised.
        rubric: Its dimensions and scale.
        dimensions: Those that were asked for; of one alone, the reply need not give the name.
        draft: What is judged. JSON that stands in it, in its task or in its sources is quoted from
            there, and no judgement.
        cut: Whether the reply broke off, so that its last number may not be whole.
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
    """Collects judgements from the JSON of a reply: of one dimension, the last that has a score."""

    def __init__(self, text: str, rubric: Rubric, wanted: Mapping[str, Dimension]) -> None:
        self.labels = Labels(dimension.name for dimension in rubric.dimensions)
        self.alone = next(iter(wanted)) if len(wanted) == 1 else None
        self.names_another = False
        """Whether it speaks of a dimension that was not asked for."""
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
    """The text with blanks in the place of what it copied of the task, the sources or the draft.

    A draft may hold a judgement of itself.
    """
    return FENCED.sub(lambda copy: "\n" + " " * (len(copy[0]) - 2) + "\n", text)


def _quoted(text: str, nodes: Sequence[Node], draft: Draft) -> set[str]:
    """The JSON of a reply that it has from the draft, or from what that draws on."""
    if not nodes:
        return set()
    # Models lay out anew what they quote.
    data = "".join(f"{draft.text}\n{draft.evidence}".split())
    return {said for said in {_compact(text, node) for node in nodes} if said in data}


def _compact(text: str, node: Node) -> str:
    return "".join(text[node.start : node.end].split())


def _is_issue(members: Mapping[str, Value]) -> bool:
    """Whether it is one that stands outside its list, since the JSON around it broke."""
    return any(key in members for key in _PROBLEM_KEYS) and not any(
        key in members for key in _REASON_KEYS
    )


def _members(node: Node) -> dict[str, Value]:
    """By key, no matter its case; of two alike, the last."""
    return {key.strip().casefold(): value for key, value in node.members}


def _first_text(members: Mapping[str, Value], keys: Collection[str]) -> str:
    texts = (value.unescaped for key in keys if isinstance(value := members.get(key), Leaf))
    return next((" ".join(text.split()) for text in texts if text.strip()), "")


def _issues(value: Value | None) -> Iterator[Issue]:
    """Of a list of objects or of texts; a text alone is one, unless it says that there is none."""
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
    """What is true and what is false, of what was answered at all."""
    meant = {"true": True, "yes": True, "false": False, "no": False}
    said = {key: members.get(key) for key in keys}
    return {
        key: meant[word]
        for key, value in said.items()
        if isinstance(value, Leaf) and (word := value.text.strip().casefold()) in meant
    }


def _without(text: str, nodes: Sequence[Node]) -> str:
    """The text with blanks in the place of its objects, everything else where it was."""
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
