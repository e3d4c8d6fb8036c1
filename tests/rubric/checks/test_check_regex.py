"""Patterns that must, or must not, match."""

import time

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.errors import EvaluationFailed
from harness.rubric.checks import Regex

YEAR = r"\(\d{4}\)"
TEXT = "# A (1999)\n\nSo (2001).\n\n# B\n\nNone.\n\n# C\n\nSo (2003), so (2004).\n"


@pytest.mark.parametrize(
    ("bounds", "share", "findings"),
    [
        pytest.param({}, 1, [], id="it must match"),
        pytest.param({"min": 4}, 1, [], id="as often as needed"),
        pytest.param(
            {"min": 8},
            0.5,
            [("4 of this: a year; at least 8 are needed", None)],
            id="too seldom",
        ),
        pytest.param({"max": 4}, 1, [], id="as often as allowed"),
        pytest.param(
            {"max": 3},
            2 / 3,
            [
                ('4 of this: a year; at most 3 are allowed; here: "(1999)", "(2001)"', 0),
                ('4 of this: a year; at most 3 are allowed; here: "(2003)", "(2004)"', 2),
            ],
            id="too often",
        ),
        pytest.param(
            {"max": 0},
            0,
            [
                ('remove "(1999)", "(2001)": there must be none of this: a year', 0),
                ('remove "(2003)", "(2004)": there must be none of this: a year', 2),
            ],
            id="it must not match",
        ),
    ],
)
def test_a_pattern_matches_as_often_as_it_should(bounds, share, findings):
    grade = Regex(pattern=YEAR, meaning="a year", **bounds).grade(draft(TEXT))

    assert grade.share == pytest.approx(share)
    assert found(grade) == findings


def test_matches_can_be_counted_section_by_section():
    grade = Regex(pattern=YEAR, meaning="a year", scope="section").grade(draft(TEXT))

    assert grade.share == pytest.approx(2 / 3)
    assert found(grade) == [("0 of this: a year; at least 1 are needed", 1)]


def test_a_draft_without_text_matches_nothing():
    assert Regex(pattern="a").grade(draft("")).share == 0
    assert Regex(pattern="a", max=0).grade(draft("")).share == 1
    assert found(Regex(pattern="a", scope="section").grade(draft(""))) == [
        ("there is no text", None)
    ]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        pytest.param("^So", True, id="the start of a line"),
        pytest.param(r"None\.$", True, id="the end of one"),
        pytest.param("none", False, id="another case"),
        pytest.param("(?i)none", True, id="any case, where the pattern says so"),
        pytest.param(r"None.*\n\n# C", False, id="nothing reaches over a heading"),
    ],
)
def test_patterns_are_those_of_python_line_by_line(pattern, matches):
    assert Regex(pattern=pattern).grade(draft(TEXT)).share == matches


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            {"pattern": "(a"},
            "not a regular expression: missing ), unterminated subpattern at character 1",
            id="an open bracket",
        ),
        pytest.param({"pattern": "a**"}, "multiple repeat at character 3", id="two repeats"),
        pytest.param({"pattern": ""}, "at least 1 character", id="nothing"),
        pytest.param({"pattern": "a", "min": 2, "max": 1}, "min 2 is above max 1", id="bounds"),
        pytest.param({"pattern": "a", "min": 0}, "with 'min: 0', give 'max' too", id="no bounds"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_with_its_place(parameters, message):
    with pytest.raises(ValidationError) as refused:
        Regex(**parameters)

    assert message in str(refused.value)


def test_a_search_that_would_never_end_is_broken_off():
    before = time.monotonic()

    with pytest.raises(EvaluationFailed, match=r"^the pattern \(a\+\)\+\$ .* give nothing back"):
        Regex(pattern="(a+)+$", timeout_s=0.5).grade(draft("a" * 40 + "b"))

    assert time.monotonic() - before < 5


def test_a_pattern_that_matches_everywhere_is_counted_up_to_a_limit():
    (finding,) = Regex(pattern="a", max=3).grade(draft("a" * 5_000)).findings

    assert finding.message.startswith("1000 of this: ")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        pytest.param({}, "In the whole text, the number of these is at least 1: ", id="at least"),
        pytest.param(
            {"max": 2, "scope": "section"},
            "In each section, the number of these is at most 2: ",
            id="at most",
        ),
        pytest.param({"max": 0}, "This occurs nowhere: ", id="never"),
    ],
)
def test_an_author_is_told_what_a_pattern_stands_for(parameters, said):
    assert Regex(pattern="a", meaning="The letter a.", **parameters).requirement == (
        f"{said}The letter a."
    )
    assert Regex(pattern="a", **parameters).requirement == f"{said}what matches a."
