"""Dimensions on scales of their own, and such as pass or fail."""

import json

import pytest
from pydantic import ValidationError
from rubric.judged import CLEAR, judge, rubric

from harness.errors import RubricInvalid
from harness.rubric import Dimension, Draft, load_rubric
from harness.rubric.checks import Words
from harness.rubric.prompt import ShownDraft, judge_messages, reply_schema
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Scale
from harness.wiggum.policy import Round, focus_of

FIVE = Dimension(name="five", judge="How good?", scale={"min": 1, "max": 5, "step": 1})
SAFE = Dimension(name="safe", judge="Is it safe?", scale="pass_fail", floor=1)
SHORT = Dimension(name="short", checks=(Words(max=8),), scale="pass_fail")


def replied(**scores):
    return json.dumps({name: {"reason": "", "score": score} for name, score in scores.items()})


def test_a_scale_of_two_scores_is_one_of_pass_and_fail_whatever_they_are():
    assert Scale(min=0.1, max=0.3, step=0.2).is_pass_fail
    assert not Scale(min=0.1, max=0.3, step=0.1).is_pass_fail
    assert Scale(min=0, max=1e-12).step == 5e-14


@pytest.mark.parametrize(
    ("given", "draft", "composite", "passed", "below"),
    [
        ((4, 1, 9), "Two words.", 9.1, True, ()),  # (7.5 + 10 + 3 * 9 + 10) / 6
        ((1, 1, 9), "Two words.", 7.8, False, ()),
        ((5, 0, 10), "Two words.", 8.3, False, ("safe",)),
        ((5, 1, 10), "One word more than the eight that fit here.", 8.3, True, ()),
    ],
)
def test_in_the_composite_a_score_counts_by_how_far_it_is_from_the_lowest(
    given, draft, composite, passed, below
):
    reply = replied(**dict(zip(("five", "safe", "clear"), given, strict=True)))
    text = Draft(text=draft, task="Write.")
    verdict, _ = judge([reply], FIVE, SAFE, CLEAR, SHORT, draft=text)

    assert (verdict.composite, verdict.passed, verdict.below_floor) == (composite, passed, below)
    assert verdict.vector["five"] == given[0]
    assert {one.name: one.points for one in verdict.scores}["safe"] == 10 * given[1]


def test_a_revision_works_on_what_is_low_on_the_scale_of_all():
    verdict, _ = judge([replied(five=4, safe=1, clear=6)], FIVE, SAFE, CLEAR)

    (only,) = focus_of(Round(number=1, draft="Two words.", verdict=verdict), 7)
    assert only.name == "clear"


def test_a_judge_is_told_the_scale_and_held_to_it():
    using = rubric(FIVE, SAFE, CLEAR)
    (_, asked) = judge_messages(using, using.judged, Draft(text="", task=""), shown=ShownDraft(""))
    schema = reply_schema(using, using.judged)["properties"]

    for part in (
        "Score it from 1 to 5 in steps of 1.",
        "Score it 1 (pass) or 0 (fail).",
        '"score": <a number from 1 to 5>',
        '"score": <1 for pass or 0 for fail>',
    ):
        assert part in asked.content
    assert schema["five"]["properties"]["score"] == {"enum": [1, 2, 3, 4, 5]}
    assert schema["safe"]["properties"]["score"] == {"enum": [0, 1]}


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ('{"five": {"score": 4}, "safe": {"score": true}}', {"five": 4, "safe": 1}),
        ('{"five": {"score": 7}, "safe": {"score": "fail"}}', {"safe": 0}),
        ('{"five": {"score": "4/5"}, "safe": {"score": 0.7}}', {"five": 4}),
        ("five: 4/5\nsafe: PASS - it is.", {"five": 4, "safe": 1}),
        ("## Five\nScore: 3\n## Safe\nScore: failed", {"five": 3, "safe": 0}),
        ("| five | 4 | no |\n| safe | yes | x |", {"five": 4, "safe": 1}),
        ("five: pass\nsafe: pass or fail", {}),
        ("five (4/5): yes.\nsafe: it does not pass", {"five": 4}),
    ],
)
def test_each_score_is_read_on_the_scale_of_its_dimension(text, scores):
    using = rubric(FIVE, SAFE)
    read = read_reply(text, using, using.judged, draft=Draft(text="", task=""))

    assert {name: judgement.score for name, judgement in read.items()} == scores


@pytest.mark.parametrize(
    ("scale", "pass_at", "focus_below", "repeat_within", "step"),
    [
        (Scale(), 8, 7, 0.5, 0.5),
        (Scale(min=0, max=1), 0.8, 0.7, 0.05, 0.05),
        (Scale(min=1, max=5), 4.2, 3.8, 0.2, 0.5),
        (Scale(max=100), 80, 70, 5, 0.5),
    ],
)
def test_what_is_left_out_follows_the_scale(scale, pass_at, focus_below, repeat_within, step):
    using = rubric(CLEAR, scale=scale)

    assert using.pass_at == pytest.approx(pass_at)
    assert using.focus_below == pytest.approx(focus_below)
    assert using.repeat_within == pytest.approx(repeat_within)
    assert scale.step == step


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"floor": 6}, "rubric.off-scale"),
        ({"anchors": {9: "Yes."}}, "rubric.off-scale"),
        ({"caps": [{"at_most": 0, "when": "It is short"}]}, "rubric.off-scale"),
    ],
)
def test_floor_anchors_and_caps_are_on_the_dimensions_scale(fields, code):
    one = Dimension(name="one", judge="?", scale={"min": 1, "max": 5, "step": 1}, **fields)

    with pytest.raises(ValidationError, match="outside the scale 1 to 5") as caught:
        rubric(one)
    assert [error["type"] for error in caught.value.errors()] == [code]


def test_an_inherited_floor_is_set_again_where_the_scale_changes(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "title: Base\ndimensions:\n- { name: a, judge: Rate it, floor: 1 }\n"
        "- { name: b, judge: Rate it }\n"
    )
    changed = "title: New\nextends: base\ndimensions:\n- name: {}\n  scale: pass_fail\n"
    path = tmp_path / "new.yaml"
    path.write_text(changed.format("a"))
    with pytest.raises(RubricInvalid) as caught:
        load_rubric(path)
    assert (caught.value.code, caught.value.line) == ("rubric.taken-from-another-scale", 2)
    path.write_text(changed.format("b"))

    assert load_rubric(path).scale_of("b") == Scale(min=0, max=1, step=1)
