"""Advice on what the evaluator model is asked, and on settings that nothing comes of."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

from harness.rubric.checks import Excludes, Regex
from harness.rubric.files.remark import Remark
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.words import phrase_pattern

_ALIKE = 0.8
"""Ratio of common letters (difflib): `grounded` and `groundedness`, not `relevance` and
`reference`."""
_YES_OR_NO = re.compile(
    r"(?:is|are|was|were|does|do|did|can|could|has|have|had|will|would|should|may|must)\b", re.I
)
_QUOTES = "„“”«»"
_QUOTED = re.compile(rf"[{_QUOTES}]|[^{_QUOTES}]+[{_QUOTES}]$")
"""With one in front, or with one behind that nothing opens."""


def remarks_on_judging(rubric: Rubric) -> Iterator[Remark]:
    """What may not be meant about questions, anchors and ways of judging."""
    yield from _on_settings(rubric)
    yield from _on_names(rubric)
    yield from _on_phrases(rubric)
    for index, dimension in enumerate(rubric.dimensions):
        if dimension.judge is None:
            yield from _on_unread(dimension, index)
            yield from _on_quotes(dimension, index)
            yield from _on_patterns(dimension, index)
        else:
            yield from _on_anchors(rubric, dimension, index)
            yield from _on_sources(dimension, index)


def _on_settings(rubric: Rubric) -> Iterator[Remark]:
    given = rubric.model_fields_set
    if not rubric.judged:
        for name in sorted({"judge", "repeats", "repeat_within"} & given):
            yield Remark(
                place=(name,),
                code="rubric.judging-unused",
                what=f"no dimension is judged by a model, so '{name}' changes nothing",
                remedy="leave it out",
            )
        return
    if rubric.judge == "split" and len(rubric.judged) == 1:
        yield Remark(
            place=("judge",),
            code="rubric.nothing-to-split",
            what="one dimension is judged, so there is nothing to split",
            remedy="leave 'judge: split' out",
        )
    if rubric.repeats == 1 and "repeat_within" in given:
        yield Remark(
            place=("repeat_within",),
            code="rubric.repeat-within-unused",
            what="with 'repeats: 1' a draft is judged once, however near the threshold it is",
            remedy="leave 'repeat_within' out, or raise 'repeats'",
        )
    if all(d.needs_sources for d in rubric.dimensions):
        yield Remark(
            place=("dimensions",),
            code="rubric.all-need-sources",
            what="every dimension needs sources, so nothing can be said of a draft without any",
            remedy="add a dimension that needs none",
        )


def _on_names(rubric: Rubric) -> Iterator[Remark]:
    names = {d.name: index for index, d in enumerate(rubric.dimensions)}
    for one, other in itertools.combinations(names, 2):
        if difflib.SequenceMatcher(None, one, other).ratio() >= _ALIKE:
            yield Remark(
                place=("dimensions", names[other], "name"),
                code="rubric.names-alike",
                what=f"the names '{one}' and '{other}' are easily taken for each other",
                remedy="rename one of them",
            )


def _on_phrases(rubric: Rubric) -> Iterator[Remark]:
    """The evaluator says what anchors say, and a reviser what the evaluator says."""
    forbidden = {
        phrase
        for dimension in rubric.dimensions
        for check in dimension.checks
        if isinstance(check, Excludes)
        for phrase in check.phrases
    }
    for index, dimension in enumerate(rubric.dimensions):
        for score, anchor in dimension.anchors.items():
            for phrase in sorted(forbidden):
                if phrase_pattern(phrase).search(anchor):
                    yield Remark(
                        place=("dimensions", index, "anchors", f"{score:g}"),
                        code="rubric.anchor-says-forbidden",
                        what=f"this anchor says '{phrase}', which 'excludes' forbids: a "
                        "revision may take the words from it",
                        remedy="say it in other words",
                    )


def _on_unread(dimension: Dimension, index: int) -> Iterator[Remark]:
    for name, written in (("anchors", dimension.anchors), ("feedback", dimension.feedback)):
        if written:
            yield Remark(
                place=("dimensions", index, name),
                code="rubric.judging-field-unread",
                what=f"'{dimension.name}' is checked by code, so nobody reads its '{name}'",
                remedy="leave it out, or have the dimension judged",
            )


def _on_quotes(dimension: Dimension, index: int) -> Iterator[Remark]:
    """German, French or curly quotes round what is looked for: no draft has them there."""
    for number, check in enumerate(dimension.checks):
        for name in ("phrases", "titles"):
            for item, text in enumerate(getattr(check, name, ())):
                bare = text.strip(_QUOTES)
                if bare and _QUOTED.match(text):
                    yield Remark(
                        place=("dimensions", index, "checks", number, name, item),
                        code="rubric.quotes-sought",
                        what=f"the quotes of '{text}' are looked for with it: to YAML, only \" "
                        "and ' are quotes",
                        remedy=f'write "{bare}", unless that is meant',
                    )


def _on_patterns(dimension: Dimension, index: int) -> Iterator[Remark]:
    for number, check in enumerate(dimension.checks):
        if isinstance(check, Regex) and not check.meaning.strip():
            yield Remark(
                place=("dimensions", index, "checks", number),
                code="rubric.pattern-without-meaning",
                what="this pattern has no meaning in words, so whoever writes is told the pattern",
                remedy="add 'meaning', such as 'meaning: a year in brackets'",
            )


def _on_anchors(rubric: Rubric, dimension: Dimension, index: int) -> Iterator[Remark]:
    anchors, scale = dimension.anchors, rubric.scale
    place = ("dimensions", index, "anchors") if anchors else ("dimensions", index, "judge")
    middle = (scale.min + scale.max) / 2
    if not anchors:
        yield from _on_missing_anchors(dimension, index)
    elif len(anchors) == 1:
        yield Remark(
            place=place,
            code="rubric.one-anchor",
            what=f"'{dimension.name}' has one anchor, so nothing says what another score "
            "looks like",
            remedy="add anchors for a good, a middling and a poor text",
        )
    elif all(score > middle for score in anchors) or all(score < middle for score in anchors):
        end, other = ("upper", "poor") if min(anchors) > middle else ("lower", "good")
        yield Remark(
            place=place,
            code="rubric.anchors-one-sided",
            what=f"all anchors of '{dimension.name}' are in the {end} half of the scale",
            remedy=f"add one that says what a {other} text looks like",
        )
    if rubric.judge != "logprob":
        for score in anchors:
            steps = (score - scale.min) / scale.step
            if abs(steps - round(steps)) > 1e-9:
                yield Remark(
                    place=(*place, f"{score:g}"),
                    code="rubric.anchor-between-scores",
                    what=f"scores go in steps of {scale.step:g}, so the evaluator cannot give "
                    f"{score:g}",
                    remedy="move the anchor to a score that it can give",
                )


def _on_missing_anchors(dimension: Dimension, index: int) -> Iterator[Remark]:
    place = ("dimensions", index, "judge")
    question = re.split(r"(?<=[.!?])\s+", str(dimension.judge).strip())[-1]
    if question.endswith("?") and _YES_OR_NO.match(question):
        yield Remark(
            place=place,
            code="rubric.yes-or-no-question",
            what=f"'{dimension.name}' asks for a yes or no, and no anchor says what lies between",
            remedy="ask 'How well …', or add anchors: { 9: …, 6: …, 3: … }",
        )
    else:
        yield Remark(
            place=place,
            code="rubric.no-anchors",
            what=f"'{dimension.name}' has no anchors: small models then give nearly the same score "
            "to everything",
            remedy="say what a good, a middling and a poor text look like: { 9: …, 6: …, 3: … }",
        )


def _on_sources(dimension: Dimension, index: int) -> Iterator[Remark]:
    if dimension.name.startswith("grounded") and not dimension.needs_sources:
        yield Remark(
            place=("dimensions", index, "name"),
            code="rubric.sources-not-needed",
            what=f"'{dimension.name}' is also judged where there are no sources to judge it by",
            remedy="add 'needs_sources: true'",
        )
