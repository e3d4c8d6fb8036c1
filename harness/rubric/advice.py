"""Advice on rubrics: what breaks no rule, and is hardly what its author means."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from harness.rubric.checks import Excludes, Regex
from harness.rubric.draft import phrase_pattern
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.verdict import half_up
from harness.rubric.written import Place, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something in a rubric that its author may not have meant."""

    path: Path | None
    """The file it stands in; None for a rubric that was made in code."""
    line: int | None
    """Its line there."""
    code: str
    """The same for programs, and as stable as an error's."""
    what: str
    """What is so, whether meant or not."""
    remedy: str
    """What would change that."""

    @property
    def message(self) -> str:
        """Both in one."""
        return f"{self.what}; {self.remedy}"


def advice_on(rubric: Rubric, written: Written | None = None) -> tuple[Advice, ...]:
    """What may not be meant, in the order of the lines.

    Args:
        rubric: What to look at.
        written: Where its values stand, as `read_rubric` says.
    """
    found = []
    for remark in (*remarks_on_scores(rubric), *remarks_on_judging(rubric)):
        where = _where(remark, written) if written else None
        found.append(
            Advice(
                path=where.path if where else None,
                line=where.line if where else None,
                code=remark.code,
                what=remark.what,
                remedy=remark.remedy,
            )
        )
    found += _on_cut_texts(written) if written else []
    return tuple(sorted(found, key=lambda advice: (str(advice.path), advice.line or 0)))


def _where(remark: Remark, written: Written) -> Written:
    """What its author would change: rather in the rubric's own file than in one it extends."""
    first, *others = (written.at(place) for place in (remark.place, remark.beside) if place)
    own = (one for one in (first, *others) if one.path == written.path and one is not written)
    return next(own, first)


def _on_cut_texts(written: Written) -> list[Advice]:
    """Texts that may go on behind their end: YAML takes ` #` for the beginning of a comment."""
    inner = (*written.fields.values(), *written.items)
    found = [advice for one in inner for advice in _on_cut_texts(one)]
    if written.cut:
        found.append(
            Advice(
                path=written.path,
                line=written.line,
                code="rubric.text-cut",
                what=f"the text ends before '{written.cut}', which counts as a comment",
                remedy="put the text in quotes, or a space behind the '#'",
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that its author may not have meant."""

    place: Place
    """Which value it is about."""
    code: str
    """The same for programs, and as stable as an error's."""
    what: str
    """What is so, whether meant or not."""
    remedy: str
    """What would change that."""
    beside: Place | None = None
    """Another value that it is as much about: its line is named where this one alone stands in
    the rubric's own file, and not in one that it extends."""


_COMPOSITE_STEP = 0.1
_MOST_COMPOSITES = 20_000
"""With weights such as 0.137 there are millions, and no gaps worth a word."""


def remarks_on_scores(rubric: Rubric) -> Iterator[Remark]:
    """What may not be meant about the numbers."""
    yield from _on_weights(rubric)
    yield from _on_defaults(rubric)
    yield from _on_threshold(rubric)
    yield from _on_focus(rubric)
    for index, dimension in enumerate(rubric.dimensions):
        yield from _on_floor(rubric, dimension, index)
        yield from _on_caps(rubric, dimension, index)


def _on_weights(rubric: Rubric) -> Iterator[Remark]:
    weights = [d.weight for d in rubric.dimensions]
    given = all("weight" in d.model_fields_set for d in rubric.dimensions)
    if given and len(set(weights)) == 1 and weights[0] != 1:
        yield Remark(
            place=("dimensions", 0, "weight"),
            code="rubric.weights-equal",
            what=f"every dimension has weight {weights[0]:g}, which is as if none had any",
            remedy="leave 'weight' out, or give more to what matters more",
        )
    for index, dimension in enumerate(rubric.dimensions):
        moves = (rubric.scale.max - rubric.scale.min) * dimension.weight / sum(weights)
        if moves < _COMPOSITE_STEP and dimension.floor is None:
            yield Remark(
                place=("dimensions", index, "weight"),
                code="rubric.weight-negligible",
                what=f"between its worst and its best score, dimension '{dimension.name}' moves "
                f"the composite by less than {_COMPOSITE_STEP:g}",
                remedy="give it more weight, or a floor, or leave it out",
            )


def _on_defaults(rubric: Rubric) -> Iterator[Remark]:
    """Thresholds of a scale to 10, on one to 100."""
    scale = rubric.scale
    for name, value, share in (
        ("pass_at", rubric.pass_at, 0.8),
        ("focus_below", rubric.focus_below, 0.7),
    ):
        if name not in rubric.model_fields_set and value < (scale.min + scale.max) / 2:
            usual = scale.min + share * (scale.max - scale.min)
            yield Remark(
                place=("scale",),
                code="rubric.default-off-center",
                what=f"{name}, unless given, is {value:g}, in the lower half of the scale "
                f"{scale.min:g} to {scale.max:g}",
                remedy=f"write {name}, such as {usual:g}",
            )


def _on_threshold(rubric: Rubric) -> Iterator[Remark]:
    scale, wanted = rubric.scale, rubric.pass_at
    floors = [d.floor for d in rubric.dimensions]
    if wanted == scale.min:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-at-minimum",
            what=f"every draft reaches {wanted:g}"
            + (", so the floors alone decide" if any(f is not None for f in floors) else ""),
            remedy="raise pass_at",
        )
    elif wanted == scale.max and rubric.judged:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-at-maximum",
            what=f"only a draft with the full score in every dimension reaches {wanted:g}, which "
            "models hardly give",
            remedy="lower pass_at; 9 of 10 is strict",
        )
    elif None not in floors and (least := _composite_of_floors(rubric)) >= wanted:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-under-floors",
            what=f"a draft with every dimension at its floor has {least:g}, so pass_at {wanted:g} "
            "decides nothing",
            remedy="raise pass_at, or lower the floors",
        )
    elif (reached := _next_composite(rubric)) is not None and reached > wanted:
        yield Remark(
            place=("pass_at",),
            code="rubric.threshold-between-scores",
            what=f"no composite lies between {wanted:g} and {reached:g}, so a draft passes from "
            f"{reached:g} on",
            remedy=f"write {reached:g}, or a smaller step",
        )


def _composite_of_floors(rubric: Rubric) -> float:
    total = sum(d.weight for d in rubric.dimensions)
    return half_up(
        sum((d.floor or 0) * d.weight for d in rubric.dimensions) / total, _COMPOSITE_STEP
    )


def _next_composite(rubric: Rubric) -> float | None:
    """The least composite from `pass_at` on; None where that cannot be told."""
    rounded = half_up(rubric.pass_at, _COMPOSITE_STEP)
    next_tenth = rounded if rounded >= rubric.pass_at else rounded + _COMPOSITE_STEP
    if rubric.judged or any(d.caps for d in rubric.dimensions):
        return half_up(next_tenth, _COMPOSITE_STEP)  # means of judgements leave no gaps
    composites = _composites(rubric)
    return min((c for c in composites if c >= rubric.pass_at), default=None)


def _composites(rubric: Rubric) -> set[float]:
    """All that checks can amount to; none when there are too many to say."""
    low, high, step = (
        Fraction(str(n)) for n in (rubric.scale.min, rubric.scale.max, rubric.scale.step)
    )
    scores = [low + n * step for n in range(int((high - low) / step) + 1)]
    sums = {Fraction(0)}
    for dimension in rubric.dimensions:
        weight = Fraction(str(dimension.weight))
        if len(sums) * len(scores) > 100 * _MOST_COMPOSITES:
            return set()
        sums = {so_far + weight * score for so_far in sums for score in scores}
        if len(sums) > _MOST_COMPOSITES:
            return set()
    total = sum(Fraction(str(d.weight)) for d in rubric.dimensions)
    return {half_up(float(one / total), _COMPOSITE_STEP) for one in sums}


def _on_focus(rubric: Rubric) -> Iterator[Remark]:
    focus = rubric.focus_below
    place = ("focus_below",) if "focus_below" in rubric.model_fields_set else ("pass_at",)
    floors = [d.floor for d in rubric.dimensions]
    if focus > rubric.pass_at:
        yield Remark(
            place=place,
            code="rubric.focus-above-threshold",
            what=f"focus_below {focus:g} is above pass_at {rubric.pass_at:g}: revisions also work "
            "on dimensions that are good enough to pass",
            remedy=f"set focus_below to {rubric.pass_at:g} or less",
            beside=("pass_at",),
        )
    elif focus == rubric.scale.min:
        yield Remark(
            place=place,
            code="rubric.focus-at-minimum",
            what=f"no score is below {focus:g}, so a revision always works on the two lowest "
            "dimensions",
            remedy="raise focus_below, usually to a little below pass_at",
        )
    elif place == ("focus_below",) and all(f is not None and focus <= f for f in floors):
        yield Remark(
            place=place,
            code="rubric.focus-under-floors",
            what=f"every dimension has a floor of {focus:g} or more, and what is under its floor "
            f"is revised anyway: focus_below {focus:g} changes nothing",
            remedy="raise focus_below above the floors, or leave it out",
        )


def _on_floor(rubric: Rubric, dimension: Dimension, index: int) -> Iterator[Remark]:
    floor, scale = dimension.floor, rubric.scale
    place = ("dimensions", index, "floor")
    if floor is None:
        return
    on_step = half_up(floor, scale.step, start=scale.min)
    if floor == scale.min:
        yield Remark(
            place=place,
            code="rubric.floor-at-minimum",
            what=f"no score is below {floor:g}, so this floor changes nothing",
            remedy="raise it",
        )
    elif dimension.judge and floor > rubric.pass_at:
        yield Remark(
            place=place,
            code="rubric.floor-above-threshold",
            what=f"the floor {floor:g} is above pass_at {rubric.pass_at:g}: a draft whose "
            f"dimensions all score {rubric.pass_at:g} has the composite, and fails for "
            f"'{dimension.name}'",
            remedy=f"lower it to {rubric.pass_at:g} or less",
        )
    elif dimension.checks and not dimension.caps and on_step != floor:
        reached = on_step if on_step > floor else on_step + scale.step
        yield Remark(
            place=place,
            code="rubric.floor-between-scores",
            what=f"scores go in steps of {scale.step:g}, so this floor is in effect {reached:g}",
            remedy=f"write {reached:g}",
        )


def _on_caps(rubric: Rubric, dimension: Dimension, index: int) -> Iterator[Remark]:
    for number, cap in enumerate(dimension.caps):
        place = ("dimensions", index, "caps", number, "at_most")
        if cap.at_most == rubric.scale.max:
            yield Remark(
                place=place,
                code="rubric.cap-at-maximum",
                what=f"no score is above {cap.at_most:g}, so this cap changes nothing",
                remedy="lower at_most",
            )
        elif dimension.floor is not None and cap.at_most < dimension.floor:
            yield Remark(
                place=place,
                code="rubric.cap-under-floor",
                what=f"the cap {cap.at_most:g} is under the floor {dimension.floor:g}: where it "
                "applies, the draft fails",
                remedy=f"raise it to {dimension.floor:g} or more, unless that is meant",
            )


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
