"""Headings: those that must be there, their order, their levels."""

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.rubric.checks import Headings

ORDER = 'the order is "Aim", "Method", "Result"'


@pytest.mark.parametrize(
    ("text", "share", "messages"),
    [
        pytest.param("# Aim\n# Method\n# Result\n", 1, [], id="all"),
        pytest.param(
            "# T\n## Aim\n## X\n## Method\n### Y\n## Result\n", 1, [], id="others between"
        ),
        pytest.param("# 1. AIM\n# 2.1 *Method*:\n# Result!\n", 1, [], id="numbers and markup"),
        pytest.param("Aim\n===\n\nMethod\n---\n\n# Result #\n", 1, [], id="every kind of heading"),
        pytest.param(
            "# Aim\n# Result\n",
            2 / 3,
            ['add the heading "Method", which is missing'],
            id="one missing",
        ),
        pytest.param(
            "# Method\n# Result\n# Aim\n",
            2 / 3,
            [f'move the heading "Aim": {ORDER}'],
            id="one out of place",
        ),
        pytest.param(
            "# Result\n# Aim\n",
            1 / 3,
            ['add the heading "Method", which is missing', f'move the heading "Result": {ORDER}'],
            id="both",
        ),
        pytest.param(
            "```\n# Aim\n```\n\n# Method\n\n# Results\n",
            1 / 3,
            [
                'add the heading "Aim", which is missing',
                'add the heading "Result", which is missing',
            ],
            id="in code, or nearly",
        ),
        pytest.param(
            "",
            0,
            [
                f'add the heading "{title}", which is missing'
                for title in ("Aim", "Method", "Result")
            ],
            id="nothing",
        ),
    ],
)
def test_required_headings_are_there_and_in_order(text, share, messages):
    grade = Headings(titles=("Aim", "Method", "Result")).grade(draft(text))

    assert grade.share == pytest.approx(share)
    assert sorted(found(grade)) == [(message, None) for message in sorted(messages)]


def test_a_title_that_begins_with_a_number_keeps_it_apart_from_the_others():
    grade = Headings(titles=("2026 Plan", "5 Whys")).grade(draft("# 2026 Plan\n\n# 5 whys\n"))

    assert grade.share == 1


@pytest.mark.parametrize(
    ("text", "share", "messages"),
    [
        pytest.param("", 1, [], id="nothing"),
        pytest.param("### A\n", 1, [], id="the first may have any level"),
        pytest.param("# A\n## B\n### C\n# D\n## E\n", 1, [], id="down by one, up by any"),
        pytest.param(
            "# A\n### B\n## C\n",
            0.5,
            ['the heading "B" has level 3 and follows one of level 1; make it level 2'],
            id="one skipped",
        ),
    ],
)
def test_levels_are_not_skipped(text, share, messages):
    grade = Headings(stepwise=True).grade(draft(text))

    assert grade.share == share
    assert found(grade) == [(message, None) for message in messages]


def test_titles_and_levels_count_alike():
    grade = Headings(titles=("A", "X"), stepwise=True).grade(draft("# A\n### B\n"))

    assert grade.share == pytest.approx((0.5 + 0) / 2)
    assert len(grade.findings) == 2


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="nothing asked for"),
        pytest.param({"titles": ("A", "a")}, id="one title twice"),
        pytest.param({"titles": ("1. A", "2. A")}, id="but for the number"),
        pytest.param({"titles": ("***",)}, id="only marks"),
        pytest.param({"titles": ("",)}, id="an empty title"),
    ],
)
def test_headings_that_make_no_sense_are_refused(parameters):
    with pytest.raises(ValidationError):
        Headings(**parameters)


def test_the_author_is_told_both():
    said = Headings(titles=("A", "B"), stepwise=True).requirement

    assert said == (
        "There are these headings, in this order: A, B. "
        "No heading is more than one level deeper than the one before it."
    )
