import json

import jsonschema
import pytest

from harness.rubric import Dimension, Rubric
from harness.rubric.checks import Words
from harness.rubric.prompt import reply_schema, rule_keys, scores_of
from harness.rubric.rubric import Cap, Scale

CLEAR = Dimension(name="clear", judge="Is it clear?")
USEFUL = Dimension(
    name="useful",
    judge="Is it useful?",
    caps=(
        Cap(at_most=6, when="Two or more subtopics are missing!"),
        Cap(at_most=5, unless=Words(min=1)),
    ),
)
RUBRIC = Rubric(title="T", dimensions=(CLEAR, USEFUL))
SAID = {"reason": "No figures.", "issues": [{"section": "A", "problem": "No figures."}]}
GOOD = {
    "clear": {"reason": "", "issues": [], "score": 5.5},
    "useful": {**SAID, "two_or_more_subtopics_are_missing": True, "score": 7},
}


def rubric(scale: Scale, *dimensions: Dimension) -> Rubric:
    middle = (scale.min + scale.max) / 2
    return Rubric(
        title="T",
        dimensions=dimensions or (CLEAR,),
        scale=scale,
        pass_at=middle,
        focus_below=middle,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"clear": GOOD["clear"]}, id="a dimension left out"),
        pytest.param({**GOOD, "passed": True}, id="a verdict of its own"),
        pytest.param({**GOOD, "clear": {**GOOD["clear"], "score": 7.3}}, id="between two steps"),
        pytest.param({**GOOD, "clear": {**GOOD["clear"], "reason": "x" * 401}}, id="no end"),
        pytest.param({**GOOD, "useful": {**SAID, "score": 7}}, id="a rule left open"),
    ],
)
def test_a_reply_of_another_shape_does_not_match(wrong):
    schema = reply_schema(RUBRIC, RUBRIC.judged)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    assert validator.is_valid(GOOD)
    assert not validator.is_valid(wrong)


def test_alone_a_dimension_is_asked_for_without_its_name_and_the_score_comes_last():
    fields = list(reply_schema(RUBRIC, (USEFUL,))["properties"])
    other = Dimension(name="other", judge="Is it other?")

    assert fields == ["reason", "issues", "two_or_more_subtopics_are_missing", "score"]
    assert json.dumps(reply_schema(RUBRIC, (CLEAR,))) == json.dumps(reply_schema(RUBRIC, (other,)))


@pytest.mark.parametrize(
    ("scale", "scores"),
    [
        pytest.param(Scale(min=-1, max=1, step=1), (-1, 0, 1), id="below zero"),
        pytest.param(Scale(min=0, max=0.3, step=0.1), (0, 0.1, 0.2, 0.3), id="no noise of floats"),
    ],
)
def test_the_scores_that_can_be_given_are_the_steps_of_the_scale(scale, scores):
    assert scores_of(scale) == scores
    schema = reply_schema(rubric(scale), (CLEAR,))
    assert json.dumps(schema["properties"]["score"]) == json.dumps({"enum": list(scores)})


@pytest.mark.parametrize(
    ("scale", "is_enum"),
    [
        pytest.param(Scale(step=0.1), True, id="101 steps"),
        pytest.param(Scale(max=101, step=1), False, id="102 steps"),
    ],
)
def test_a_scale_of_very_many_steps_has_bounds_instead(scale, is_enum):
    score = reply_schema(rubric(scale), (CLEAR,))["properties"]["score"]

    assert ("enum" in score) is is_enum
    if not is_enum:
        assert score == {"type": "number", "minimum": scale.min, "maximum": scale.max}


def test_rules_are_named_after_what_they_say_and_never_alike():
    statements = ("It's short.", "Its short", "its SHORT!", "score", "…", "x" * 90)
    caps = tuple(Cap(at_most=5, when=statement) for statement in statements)
    dimension = Dimension(name="d", judge="?", caps=caps)

    assert list(rule_keys(dimension).values()) == list(statements)
    assert list(rule_keys(dimension)) == [
        "it_s_short",
        "its_short",
        "its_short_too",
        "score_too",
        "rule",
        "x" * 60,
    ]
