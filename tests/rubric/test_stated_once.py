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
        (f'{{"clear": 8, "{RULE}": true}}', 3),
        (f'{{"clear": {{"score": 8}}, "rules": {{"{RULE}": true}}}}', 3),
        (json.dumps({"score": 8, RULE: 0}), 8),
        (json.dumps({"score": 8, RULE: "false: it names May"}), 8),
    ],
)
def test_an_answer_to_a_rule_is_read_beside_the_score(text, score):
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
    "in a line": f"clear: 8\n{RULE}: true",
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


# --- a second score

TWO = "clear: 4\nuseful: 8\n"
PAIR = '{"clear": {"score": 4}, "useful": {"score": 8}}\n'
CORRECTED = [
    *(
        TWO + line
        for line in (
            "Correction: clear: 7",
            "On reflection, clear: 7",
            "Sorry, clear: 7",
            "Revised: clear 7",
            "**Revised clear:** 7",
            "Final clear: 7",
            "Adjusted clear score: 7",
            "Actually, clear is 7.",
            "Neu bewertet: clear: 7",
            "I raise clear to 7",
            # Not among those that were reported.
            "After a second look I would put clear at 7.",
            "So clear goes from 4 to 7.",
            "Update \u2192 clear = 7/10",
            "EDIT: clear now 7",
            "\u66f4\u6b63: clear: 7",
            "Clear deserves a 7.",
            "The score for clear should have been 7.",
        )
    ),
    *(
        f"useful: 8\n{line}"
        for line in (
            "clear: 4, no, 7",
            "clear: 4, revised to 7",
            "clear: 4 (should be 7)",
            "clear: 7. Make that 4.",
            "Initial thoughts: clear 7.\n\nclear: 4",
            "clear: 9, minus 2 for a missing date",
            "clear: 4, sorry, 7",
            "clear: 4 \u2192 7",
            "clear: 4. Correction: 7.",
            "clear: 4; on reflection 7",
            "clear: 9 minus 2",
            "clear: 4 (corrected to 7)",
            "clear: 4 - actually 7",
        )
    ),
    *(
        PAIR + line
        for line in (
            "Correction: clear: 7",
            "clear should be 7",
            "I now think clear is 7.",
            "Sorry, I meant clear: 7",
        )
    ),
    '{"clear": {"score": 4, "revised_score": 7}, "useful": 8}',
    '{"clear": {"score": 7, "final_score": 4}, "useful": 8}',
    '{"clear": 4, "useful": 8, "revised": {"clear": 7}}',
    '{"clear": {"score": 4, "finalScore": 7}, "useful": 8}',
    '{"clear": {"score": 4, "adjusted": 7}, "useful": 8}',
    '{"clear": {"score": 4, "score_after_correction": 7}, "useful": 8}',
    '{"scores": {"clear": 4, "useful": 8}, "final_scores": {"clear": 7, "useful": 8}}',
]


@pytest.mark.parametrize("text", CORRECTED)
def test_of_a_score_and_its_correction_neither_counts(text):
    assert scores(text) == {"useful": 8}


@pytest.mark.parametrize(
    "text",
    [
        TWO + "So clear is 4.",
        TWO + "Clear would need 2 examples more.",
        TWO + "To be clear: 2 parts are missing.",
        TWO + 'It says "clear: 10".',
        "clear: 4, revised to 4\nuseful: 8",
        "clear: 4. No 7 parts are alike.\nuseful: 8",
        '{"clear": {"score": 4, "final_score": 4}, "useful": 8}',
        "clear: 4 - the date should be 7 May.\nuseful: 8",
    ],
)
def test_the_same_score_again_and_other_numbers_are_no_correction(text):
    assert scores(text) == {"clear": 4, "useful": 8}


# --- pass and fail

UNDECIDED = [
    "safe: pass (fails on names)",
    "safe: yes but no",
    "safe: yes, it fails",
    "safe: pass, though it names Anna, so it fails",
    "safe: pass, though the second sentence does not pass",
    "safe: fail. Correction: pass",
    "safe: no, but it passes",
    "safe: pass. Actually, fail.",
    "safe: PASS / FAIL",
    "safe: true - but false for the last line",
    "safe: fail\nCorrection: safe: pass",
    "safe: no. Sorry, yes.",
    '{"safe": {"passed": false, "score": 1}}',
    '{"safe": {"score": "PASS", "verdict": "FAIL"}}',
    '{"safe": {"pass": true, "verdict": "fail"}}',
    '{"safe": {"score": 1, "final_score": 0}}',
]


@pytest.mark.parametrize("text", UNDECIDED)
def test_of_pass_and_fail_in_one_answer_neither_counts(text):
    assert scores(text, WORDS) == {}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"safe": {"passed": true, "score": 1}}', 1),
        ('{"safe": {"score": 1, "verdict": "No name occurs."}}', 1),
        ("safe: pass, no name occurs", 1),
        ("safe: pass - it does not fail anywhere", 1),
        ("safe: fail. To pass, leave out Anna.", 0),
        ("safe: fail, it does not pass", 0),
        ("safe: no, it names Anna", 0),
    ],
)
def test_a_clear_pass_or_fail_counts(text, score):
    assert scores(text, WORDS) == {"safe": score}
