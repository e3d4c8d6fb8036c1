"""The evaluator's prompt, and the schema of its reply.

Task, sources and draft are data: they stand between markers that do not occur in them, and nothing
in them changes how code uses the scores.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.compress import condense, condense_toward
from harness.inference import Message
from harness.inference.request import JsonSchema
from harness.rubric.draft import Draft
from harness.rubric.rubric import Dimension, Rubric, Scale
from harness.rubric.templates import OF_JUDGING
from harness.rubric.verdict import Shortened

# Without bounds a small model may write on for ever. A reason is a sentence or two.
REASON_CHARS = 400
# More issues would bury the first; every round finds its own.
MOST_ISSUES = 3
SECTION_CHARS = 80
PROBLEM_CHARS = 240

# The scores from 0 to 10 in tenths. A grammar with more alternatives is slow.
_MOST_SCORES = 101
_RULE_KEY_CHARS = 60

FENCED = re.compile(
    r"<(task|target|source|draft)-[0-9a-f]{12}>.*?(?:</\1[^>\n]{0,20}>?|\Z)", re.DOTALL
)
"""Data between its marks, which models copy into their replies; up to the end if it is not
closed."""

# The length of an unreadable reply that is sent back.
_REPLY_SHOWN_CHARS = 2_000


def judge_messages(
    rubric: Rubric, dimensions: Sequence[Dimension], draft: Draft, *, shown: ShownDraft
) -> tuple[Message, ...]:
    """The conversation that asks for a judgement on some of a rubric's dimensions."""
    prompts = rubric.prompts
    # From what never changes to what changes with every call, so that a prefix cache serves all but
    # its end: instructions, rubric, task, sources, draft, and last the dimensions to judge.
    question = prompts.message("judge", **_judge_values(rubric, dimensions, draft, shown))
    return (Message("system", prompts.filled("judge_system")), question)


def _judge_values(
    rubric: Rubric, dimensions: Sequence[Dimension], draft: Draft, shown: ShownDraft
) -> dict[str, str | bool]:
    """The fields of the prompt `judge`, by name."""
    scale = rubric.scale
    mark = _mark(draft)
    sources = (
        _source_text(rubric, number, text, mark)
        # A source that was shortened to nothing is left out; the others keep their numbers.
        for number, text in enumerate(shown.sources, start=1)
        if text or not shown.sources_shortened
    )
    return {
        "title": rubric.title,
        "purpose": rubric.purpose,
        "lowest": f"{scale.min:g}",
        "highest": f"{scale.max:g}",
        "step": f"{scale.step:g}",
        # All that are judged, so that the calls of a draft differ only in their last lines.
        "dimensions": "\n\n".join(_dimension_text(rubric, d) for d in rubric.judged),
        "task": _fenced(draft.task, f"task-{mark}"),
        "target": _target_text(draft.targets, f"target-{mark}"),
        "sources": "\n\n".join(sources),
        "draft": _fenced(shown.text, f"draft-{mark}"),
        **_length_fields("draft", shown.shortened),
        **_length_fields("sources", shown.sources_shortened),
        **_question_fields(rubric, dimensions),
    }


def _target_text(targets: Sequence[str], mark: str) -> str:
    """What a right answer says; empty without a target."""
    fenced = [_fenced(target, mark) for target in targets]
    # Here and not in the template, which signed calibrations rest on: one target is shown as ever.
    several = ["any one of these, each of which is right by itself:"] if len(fenced) > 1 else []
    return "\n".join([*several, *fenced])


def _source_text(rubric: Rubric, number: int, text: str, mark: str) -> str:
    source = _fenced(text, f"source-{mark}")
    return rubric.prompts.filled("judge_source", number=str(number), source=source)


def repair_messages(
    rubric: Rubric, dimensions: Sequence[Dimension], *, asked: Sequence[Message], reply: str
) -> tuple[Message, ...]:
    """The conversation so far, then a request for only the scores that could not be read."""
    # The end of the reply is sent, because its scores are due there. Some chat templates reject an
    # empty turn, hence "(no answer)".
    excerpt = reply.strip()[-_REPLY_SHOWN_CHARS:] or "(no answer)"
    fields = _question_fields(rubric, dimensions, explained=False)
    question = rubric.prompts.filled("judge_repair", **fields)
    return (*asked, Message("assistant", excerpt), Message("user", question))


def prompt_sha256(rubric: Rubric, calls: Iterable[Sequence[Dimension]]) -> str:
    """Digest of everything the evaluator is told except task, sources and draft."""
    empty = Draft(text="", task="")
    texts = [
        message.content
        for dimensions in calls
        for message in judge_messages(rubric, dimensions, empty, shown=ShownDraft(""))
    ]
    # The templates too: parts of them depend on the draft, or on its sources.
    texts += [rubric.prompts.in_force[name] for name in OF_JUDGING]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def asked_of(rubric: Rubric, draft: Draft) -> tuple[Dimension, ...]:
    """The judged dimensions, without those that need sources if the draft has none."""
    return tuple(d for d in rubric.judged if draft.has_sources or not d.needs_sources)


def _dimension_text(rubric: Rubric, dimension: Dimension) -> str:
    anchors = sorted(dimension.anchors.items(), reverse=True)
    rules = rule_keys(dimension).items()
    return rubric.prompts.filled(
        "judge_dimension",
        name=dimension.name,
        question=(dimension.judge or "") + _scale_text(rubric, dimension),
        anchors="\n".join(f"- {score:g}: {text}" for score, text in anchors),
        feedback=dimension.feedback or "",
        rules="\n".join(f"- {key}: {statement}" for key, statement in rules),
    )


def _scale_text(rubric: Rubric, dimension: Dimension) -> str:
    """How to score the dimension; empty if it has the rubric's scale, which the prompt names."""
    scale = rubric.scale_of(dimension.name)
    if scale == rubric.scale:
        return ""
    if scale.is_pass_fail:
        return f"\nScore it {scale.max:g} (pass) or {scale.min:g} (fail)."
    return f"\nScore it from {scale.min:g} to {scale.max:g} in steps of {scale.step:g}."


def _length_fields(name: str, shortened: Shortened | None) -> dict[str, str]:
    """The fields with the length of a text before and after shortening; empty if it is whole."""
    before, after = f"{name}_chars", f"{name}_shown_chars"
    if shortened is None:
        return {before: "", after: ""}
    return {before: str(shortened.before_chars), after: str(shortened.after_chars)}


def _question_fields(
    rubric: Rubric, dimensions: Sequence[Dimension], *, explained: bool = True
) -> dict[str, str | bool]:
    """The fields that tell the evaluator what to judge, and the shape of its reply."""
    shapes = {d.name: _shape(rubric, d, explained=explained) for d in dimensions}
    shape = "{" + ",\n ".join(f'"{name}": {fields}' for name, fields in shapes.items()) + "}"
    if len(shapes) == 1:
        # A single dimension is shown by its fields alone, as in the schema.
        shape = shapes[dimensions[0].name]
    return {"asked": ", ".join(shapes), "part": len(shapes) < len(rubric.judged), "shape": shape}


def _shape(rubric: Rubric, dimension: Dimension, *, explained: bool) -> str:
    """One dimension's part of the reply, with placeholders in its fields."""
    scale = dimension.scale or rubric.scale
    number = f"a number from {scale.min:g} to {scale.max:g}"
    if scale.is_pass_fail:
        number = f"{scale.max:g} for pass or {scale.min:g} for fail"
    reasons = (
        '"reason": "<sentence>"',
        '"issues": [{"section": "<heading>", "problem": "<sentence>"}]',
    )
    rules = (f'"{key}": <true or false>' for key in rule_keys(dimension))
    return "{" + ", ".join([*(reasons if explained else ()), *rules, f'"score": <{number}>']) + "}"


def _fenced(text: str, mark: str) -> str:
    return f"<{mark}>\n{text}\n</{mark}>"


def _mark(draft: Draft) -> str:
    """A mark that does not occur in the data, so that no text can close its fence."""
    # Made of task and sources alone: it is the same in every round, so that a prefix cache serves
    # what a revision left alone.
    seeds = (f"{number} {draft.evidence}" for number in itertools.count())
    marks = (hashlib.sha256(s.encode("utf-8", "replace")).hexdigest()[:12] for s in seeds)
    data = "\n".join((draft.text, draft.evidence, *draft.targets))
    return next(mark for mark in marks if mark not in data)


# For draft and sources, however long the instructions are.
_LEAST_ROOM_CHARS = 2_000
# The share of that room that a long draft leaves to sources, if they need it.
_LEAST_SOURCES_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class ShownDraft:
    """A draft and its sources as the evaluator sees them."""

    text: str
    shortened: Shortened | None = None
    sources: tuple[str, ...] = ()
    """Each, with nothing in place of one that is left out."""
    sources_shortened: Shortened | None = None


def shown(rubric: Rubric, draft: Draft) -> ShownDraft:
    """The draft and its sources, without what says least if they are too long together."""
    # One limit for the whole prompt: a long draft is shortened first, then the sources, to the
    # parts that the draft relies on. Checks see both whole.
    limits = rubric.shorten
    sources = draft.sources
    whole_chars = min(_LEAST_ROOM_CHARS, limits.evaluate_over, limits.cap or math.inf)
    if len(draft.text) <= whole_chars and not sources:
        return ShownDraft(draft.text)
    # 1. The room beside the instructions, and the part of it that sources need.
    room_chars = max(limits.payload_chars - _instructions_chars(rubric, draft), _LEAST_ROOM_CHARS)
    frame_chars = len("\n\n" + _source_text(rubric, len(sources), "-", _mark(draft)))
    framed_chars = sum(len(source) + frame_chars for source in sources)
    sources_chars = min(framed_chars, round(_LEAST_SOURCES_SHARE * room_chars))
    # 2. The draft.
    focus = "\n".join((draft.task, *(d.judge for d in rubric.judged if d.judge)))
    most_chars = min(room_chars - sources_chars, limits.cap or room_chars)
    text = condense(
        draft.text, budget_chars=limits.evaluate_over, cap_chars=most_chars, focus=focus
    )
    # 3. The sources, in what the draft leaves.
    shown_sources = condense_toward(
        sources,
        # What the task asks for is shown too: a draft may have missed it.
        draft=f"{text}\n\n{draft.task}",
        budget_chars=max(room_chars - len(text), sources_chars),
        focus=focus,
        frame_chars=frame_chars,
    )
    before_chars = sum(map(len, sources))
    after_chars = sum(map(len, shown_sources))
    shortened = Shortened(before_chars=len(draft.text), after_chars=len(text))
    sources_shortened = Shortened(before_chars=before_chars, after_chars=after_chars)
    return ShownDraft(
        text,
        shortened if text != draft.text else None,
        shown_sources,
        sources_shortened if after_chars < before_chars else None,
    )


def _instructions_chars(rubric: Rubric, draft: Draft) -> int:
    """The most characters that a prompt can have beside the draft and its sources."""
    # The notes of shortening as long as they can get: no length has more digits.
    longest = max(len(draft.text), len(draft.evidence))
    note = Shortened(before_chars=longest, after_chars=longest)
    values = _judge_values(rubric, rubric.judged, draft, ShownDraft("", note, ("-",), note))
    prompts = rubric.prompts
    return len(prompts.filled("judge", **values) + prompts.filled("judge_system"))


def reply_schema(
    rubric: Rubric, dimensions: Sequence[Dimension], *, explained: bool = True
) -> JsonSchema:
    """The JSON Schema of a reply on these dimensions, with reasons and issues if `explained`.

    A judgement stands under its dimension's name; a single one is the whole reply.
    """
    by_name = {
        d.name: _judgement_schema(d.scale or rubric.scale, rule_keys(d), explained=explained)
        for d in dimensions
    }
    # Without its name, calls that ask for one dimension each share a schema, unless rules differ,
    # and servers compile its grammar once.
    return by_name[dimensions[0].name] if len(dimensions) == 1 else _object(by_name)


def rule_keys(dimension: Dimension) -> Mapping[str, str]:
    """The statements that the evaluator calls true or false, by their keys in its reply."""
    keys: dict[str, str] = {}
    for cap in dimension.caps:
        if cap.when is None:
            continue
        # Made of the statement, so that a model that writes the key knows what it answers.
        words = re.sub(r"[\W_]+", "_", cap.when.casefold()).strip("_")
        key = words[:_RULE_KEY_CHARS].rstrip("_") or "rule"
        # Never a key that another rule or field has.
        while key in keys or key in {"reason", "issues", "score"}:
            key += "_too"
        keys[key] = cap.when
    return keys


def scores_of(scale: Scale) -> tuple[float, ...]:
    """The scores of a scale, from the worst to the best; whole ones as integers."""
    # As fractions of what was written: in floats, three steps of 0.1 are not 0.3.
    low, high, step = (Fraction(str(n)) for n in (scale.min, scale.max, scale.step))
    scores = (low + number * step for number in range(int((high - low) / step) + 1))
    return tuple(int(score) if score.denominator == 1 else float(score) for score in scores)


def _judgement_schema(scale: Scale, rules: Mapping[str, str], *, explained: bool) -> JsonSchema:
    score: JsonSchema = {"type": "number", "minimum": scale.min, "maximum": scale.max}
    if (scale.max - scale.min) / scale.step < _MOST_SCORES:
        # Every score by itself: some servers' grammars ignore the bounds of numbers.
        score = {"enum": list(scores_of(scale))}
    # The reason stands before the score, so that the score follows from it.
    issue = _object({"section": _text(SECTION_CHARS), "problem": _text(PROBLEM_CHARS)})
    reasons = {
        "reason": _text(REASON_CHARS),
        "issues": {"type": "array", "items": issue, "maxItems": MOST_ISSUES},
    }
    answers = {key: {"type": "boolean"} for key in rules}
    return _object({**(reasons if explained else {}), **answers, "score": score})


def _text(most_chars: int) -> JsonSchema:
    return {"type": "string", "maxLength": most_chars}


def _object(properties: Mapping[str, JsonSchema]) -> JsonSchema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
