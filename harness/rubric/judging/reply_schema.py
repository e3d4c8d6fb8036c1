"""The shape of an evaluator's reply, as a JSON Schema that servers can enforce."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from harness.inference import JsonSchema
from harness.rubric.rubric import Dimension, Rubric, Scale

REASON_CHARS = 400
"""Bounds, without which a small model may write on for ever. A reason is a sentence or two."""
MOST_ISSUES = 3
"""More would bury the first under the rest; every round finds its own."""
SECTION_CHARS = 80
PROBLEM_CHARS = 240
WHOLE_TEXT = "whole text"
"""What an evaluator names as the section of a problem that is in none."""

_MOST_STEPS = 101
"""0 to 10 in tenths. A grammar with more alternatives is slow."""
_KEY_CHARS = 60


def reply_schema(rubric: Rubric, dimensions: Sequence[Dimension]) -> JsonSchema:
    """The JSON Schema of a reply on these dimensions: by name, or of one alone its fields.

    So the calls that ask for one dimension each have one schema, unless rules tell them apart, and
    servers make a grammar of it once.
    """
    by_name = {d.name: _judgement_schema(rubric.scale, rule_keys(d)) for d in dimensions}
    return by_name[dimensions[0].name] if len(dimensions) == 1 else _object(by_name)


def rule_keys(dimension: Dimension) -> Mapping[str, str]:
    """The statements that the evaluator says true or false to, by their names in its reply.

    A name is made of the statement: a model that writes it down knows what it answers.
    """
    keys: dict[str, str] = {}
    for cap in dimension.caps:
        if cap.when is None:
            continue
        words = re.sub(r"[\W_]+", "_", cap.when.casefold()).strip("_")
        key = words[:_KEY_CHARS].rstrip("_") or "rule"
        # Never a name that is taken, by another rule or by the fields around it.
        while key in keys or key in {"reason", "issues", "score"}:
            key += "_too"
        keys[key] = cap.when
    return keys


def scores_of(scale: Scale) -> tuple[float, ...]:
    """The numbers of a scale, from the worst to the best; whole ones as integers."""
    low, high, step = (Fraction(str(n)) for n in (scale.min, scale.max, scale.step))
    steps = (low + number * step for number in range(int((high - low) / step) + 1))
    return tuple(int(score) if score.denominator == 1 else float(score) for score in steps)


def _judgement_schema(scale: Scale, rules: Mapping[str, str]) -> JsonSchema:
    """The reason stands before the score, which so follows from it."""
    issue = _object({"section": _text(SECTION_CHARS), "problem": _text(PROBLEM_CHARS)})
    return _object(
        {
            "reason": _text(REASON_CHARS),
            "issues": {"type": "array", "items": issue, "maxItems": MOST_ISSUES},
            **{key: {"type": "boolean"} for key in rules},
            "score": _score_schema(scale),
        }
    )


def _score_schema(scale: Scale) -> JsonSchema:
    """Every score by itself: llama.cpp's grammars leave the bounds of numbers out."""
    if (scale.max - scale.min) / scale.step >= _MOST_STEPS:
        return {"type": "number", "minimum": scale.min, "maximum": scale.max}
    return {"enum": list(scores_of(scale))}


def _text(most_chars: int) -> JsonSchema:
    return {"type": "string", "maxLength": most_chars}


def _object(properties: Mapping[str, JsonSchema]) -> JsonSchema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
