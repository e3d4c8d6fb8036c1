"""Which replies state a score once, on the rubric's scale, and which leave a doubt."""

from __future__ import annotations

import json

import pytest
from rubric.judged import judge

from harness.errors import EvaluatorAbstained
from harness.rubric import Dimension, Draft, Rubric
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Cap, Scale

CLEAR, USEFUL = (Dimension(name=name, judge="Is it?") for name in ("clear", "useful"))
NUMBERS = Rubric(id="note", title="Note", dimensions=(CLEAR, USEFUL))
TO_FIVE = Scale(min=1, max=5, step=1)
FIVE = Rubric(
    id="five", title="Five", scale=TO_FIVE, pass_at=4, focus_below=3, dimensions=(CLEAR, USEFUL)
)
SAFE = Dimension(name="safe", judge="Is it?", scale=Scale(min=0, max=1, step=1))
WORDS = Rubric(id="safe", title="Safe", dimensions=(SAFE,))
NOTHING = Draft(text="", task="")


def scores(text: str, rubric: Rubric = NUMBERS) -> dict[str, float]:
    read = read_reply(text, rubric, rubric.judged, draft=NOTHING)
    return {name: judgement.score for name, judgement in read.items()}


# --- rules of caps

DATED = CLEAR.model_copy(update={"caps": (Cap(at_most=3, when="the draft names no date"),)})
RULE = "the_draft_names_no_date"
APPLIES = {
    "true": {RULE: True},
    "one": {RULE: 1},
    "a text of one": {RULE: "1"},
    "a word and why": {RULE: "true, it names none"},
    "yes and why": {RULE: "Yes - no date occurs."},
    "a value": {RULE: {"value": True}},
    "an answer with its reason": {RULE: {"answer": "yes", "reason": "None is there."}},
    "under rules": {"rules": {RULE: True}},
    "under caps": {"caps": {RULE: True}},
    "in its own words": {"the draft names no date": True},
    "with hyphens": {"the-draft-names-no-date": True},
    "in camelCase": {"theDraftNamesNoDate": True},
    "as a sentence": {"The draft names no date.": True},
}


@pytest.mark.parametrize("rules", APPLIES.values(), ids=APPLIES)
def test_a_rule_holds_the_score_down_however_its_answer_is_written(rules):
    verdict, requests = judge([json.dumps({"reason": "r", **rules, "score": 8})], DATED)

    assert (verdict.vector, len(requests)) == ({"clear": 3}, 1)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (f"clear: 8\n{RULE}: true", 3),
        ("clear: 8\nThe draft names no date: yes", 3),
        ("- **The draft names no date:** true\n- **clear:** 8", 3),
        (f"clear: 8\n{RULE} = false", 8),
        (f"clear: 8\n{RULE}: no, it names one", 8),
        (f'{{"clear": 8, "{RULE}": true}}', 3),
        (f'{{"clear": {{"score": 8}}, "rules": {{"{RULE}": true}}}}', 3),
        (json.dumps({"score": 8, RULE: 0}), 8),
        (json.dumps({"score": 8, RULE: "false: it names May"}), 8),
    ],
)
def test_an_answer_to_a_rule_is_read_in_lines_and_beside_the_score(text, score):
    verdict, requests = judge([text], DATED)

    assert (verdict.vector, len(requests)) == ({"clear": score}, 1)


OPEN = {
    "a line": "clear: 8",
    "no rule": '{"score": 8}',
    "null": json.dumps({"score": 8, RULE: None}),
    "unknown": json.dumps({"score": 8, RULE: "unknown"}),
    "another word": json.dumps({"score": 8, RULE: "triggered"}),
    "both words": json.dumps({"score": 8, RULE: "true or false"}),
    "yes and no": json.dumps({"score": 8, RULE: "yes and no"}),
    "both answers": json.dumps({"score": 8, RULE: True, "rules": {RULE: False}}),
    "two lines": f"clear: 8\n{RULE}: true\n{RULE}: false",
    "a number between": json.dumps({"score": 8, RULE: 0.5}),
}


@pytest.mark.parametrize("text", OPEN.values(), ids=OPEN)
def test_without_an_answer_to_a_rule_that_could_lower_it_there_is_no_score(text):
    with pytest.raises(EvaluatorAbstained, match="the draft names no date"):
        judge([text, text], DATED)
    answered = json.dumps({RULE: True, "score": 8})
    assert judge([text, answered], DATED)[0].vector == {"clear": 3}


def test_a_rule_that_could_not_lower_the_score_may_stay_open():
    assert judge(["clear: 3", "clear: 3"], DATED)[0].vector == {"clear": 3}
