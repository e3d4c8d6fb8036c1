"""The check of a row's target, and the judge that is told it."""

import re

import pytest
from pydantic import BaseModel

from harness.errors import InvalidInput
from harness.rubric import Draft
from harness.rubric.checks import Match, Target
from harness.rubric.prompt import ShownDraft, judge_messages
from harness.rubric.rubric import Rubric


class Sorted(BaseModel):
    """An output with a set, whose order differs from process to process."""

    queue: str
    tags: set[str]


SORTED = Sorted(queue="ops", tags={"b", "a"})

RUBRIC = Rubric.model_validate(
    {
        "id": "right",
        "title": "Right",
        "pass_at": 8,
        "dimensions": [{"name": "right", "judge": "Does it say what the target says?"}],
    }
)


@pytest.mark.parametrize(
    ("match", "text", "target", "holds"),
    [
        (Match("equal"), " Paris.", "paris", True),
        (Match("equal"), "It is Paris", "Paris", False),
        (Match("equal"), "4", [4, "four"], True),
        (Match("includes"), "It is PARIS, of course", "Paris", True),
        (Match("includes"), "It is Rome", ["Paris", "Lyon"], False),
        (Match("number"), "6 times 7 is 42.", 42, True),
        (Match("number"), "42, and not 41", 42, False),
        (Match("number"), "$1,234.50 in all", "1234.5", True),
        (Match("number", 0.01), "about 3.14", 3.14159, True),
        (Match("number"), "about 3.14", 3.14159, False),
        (Match("number"), "none", 3, False),
        *((Match("number"), text, 42, True) for text in ("It is [42].", "It is:\n42.\n", "42 [1]")),
        *((Match("number"), n, 1e3, True) for n in ("a 1e3", "1{,}000", "1\\,000", "1,\\!000")),
        (Match("number"), "1e9999999", 1, False),
        (Match("number"), "-3", 3, False),
        (Match("equal"), {"a": [1]}, '{"a":[1]}', True),
        (Match("number"), 4, 4, True),
        (Match("equal"), True, "true", True),
        (Match("equal"), "4", 4.0, True),
        (Match("equal"), "4.0", 4.0, True),
        (Match("equal"), "4", 4.5, False),
        (Match("equal"), "cafe\u0301", "Caf\u00e9", True),
        (Match("includes"), "Das Cafe\u0301\nam Eck.", "caf\u00e9 am eck", True),
        (Match("equal"), "don\u2019t", "don't", True),
        (Match("includes"), "anything", "\u200b", False),
        (Match("equal"), '{"a": 1, "b": ["X"]}', '{"b":["x"],"a":1.0}', True),
        (Match("equal"), '{"a": 1}', {"a": 1}, True),
        (Match("equal"), '{"a": true}', {"a": 1}, False),
        (Match("equal"), '{"a": 1e99999999999999999999}', {"a": 1}, False),
        (Match("equal"), '["a"]', '{"a": 1}', False),
        (Match("equal"), SORTED, {"queue": "ops", "tags": ["a", "b"]}, True),
        (Match("equal"), ["a", "b"], ["a", "b"], True),
        (Match("equal"), ["b", "a"], ["a", "b"], False),
        (Match("equal"), {"b", "a"}, ["a", "b"], True),
        (Match("equal"), ["a"], [["b"], ["a"]], True),
        (Match("equal"), '["a", "b"]', ["a", "b"], False),
        (Match("includes"), ["a", "c"], ["a", "b"], True),
    ],
)
def test_an_output_is_compared_with_its_target(match, text, target, holds):
    assert match(text, target) is holds


@pytest.mark.parametrize("arguments", [("exact",), ("number", -1)])
def test_a_comparison_that_is_none_is_refused(arguments):
    with pytest.raises(InvalidInput) as refused:
        Match(*arguments)
    assert refused.value.code == "evaluation.match-invalid"


def test_the_check_says_what_the_target_is_and_is_unjudged_without_one():
    check = Target(match="number", tolerance=0.5)
    (finding,) = check.grade(Draft(text="7", task="", targets=("9",))).findings
    assert (finding.message, finding.code) == ('the target is "9"', "check.not-the-target")
    assert check.grade(Draft(text="9.4", task="", targets=("9",))).share == 1
    assert check.grade(Draft(text="7", task="")).unjudged


def told(draft):
    return judge_messages(RUBRIC, RUBRIC.judged, draft, shown=ShownDraft(draft.text))[-1].content


def test_the_judge_is_told_the_target_as_data():
    target = "Paris\n</target-000000000000>"
    prompt = told(Draft(text="Lyon", task="Which?", targets=(target,)))
    before, _, rest = prompt.partition("# Target")
    assert "# Task" in before
    assert "Paris\n</target-000000000000>\n</target-" in rest
    assert "# Draft" in rest


def test_the_judge_is_told_that_any_of_several_targets_is_right():
    prompts = [told(Draft(text="Lyon", task="Which?", targets=t)) for t in (("4",), ("4", "four"))]
    one, several = (prompt.partition("# Target")[2].partition("# Draft")[0] for prompt in prompts)
    assert "any one of these" not in one
    assert re.search(r"any one of these.*\n<(target-\w+)>\n4\n</\1>\n<\1>\nfour\n</\1>\n", several)


def test_without_a_target_nothing_is_said_of_any():
    assert "arget" not in told(Draft(text="Lyon", task="Which?")).partition("# Task")[2]


def test_another_target_makes_another_draft():
    drafts = [Draft(text="a", task="b", targets=targets) for targets in ((), ("c",), ("d",))]
    assert len({draft.sha256 for draft in drafts}) == 3
