"""What is said against a draft, as its reviser is told."""

import pytest

from harness.compress import sections_of
from harness.rubric import DimensionScore, Finding
from harness.wiggum.remarks import cited, listed, located, place_of

SECTIONS = sections_of("# Parts\n\nTwo.\n\n# Notes\n\nOld.\n\n# Notes\n\nLong.\n")


def score(source, *messages: str, section: int | None = 0, reason: str = "") -> DimensionScore:
    title = None if section is None else SECTIONS[section].title
    return DimensionScore(
        name=source,
        score=3,
        source=source,
        reason=reason,
        findings=tuple(Finding(message, title, section) for message in messages),
    )


def test_of_what_checks_find_in_a_section_the_first_is_told_and_of_evaluators_all():
    checked = score("checked", *(f"number {n} is not in the sources" for n in range(9)))
    judged = score("judged", *(f"fault {n}" for n in range(9)))

    told = located([checked, judged], SECTIONS)

    assert told == {
        0: (
            *(f"number {n} is not in the sources" for n in range(4)),
            *(f"fault {n}" for n in range(9)),
        )
    }


def test_what_is_said_twice_is_told_once():
    assert located([score("checked", "cut", "cut"), score("judged", "cut")], SECTIONS) == {
        0: ("cut",)
    }


def test_each_section_has_a_measure_of_its_own():
    checked = DimensionScore(
        name="form",
        score=3,
        source="checked",
        reason="",
        findings=tuple(
            Finding(f"fault {n}", SECTIONS[index].title, index)
            for index in (2, 0)
            for n in range(6)
        ),
    )

    told = located([checked], SECTIONS)

    assert list(told) == [0, 2]
    assert [len(messages) for messages in told.values()] == [4, 4]


@pytest.mark.parametrize(
    "focus",
    [
        pytest.param([score("judged", "cut", section=None)], id="of the whole"),
        pytest.param([score("judged", reason="dull")], id="no finding"),
        pytest.param([score("judged", "cut"), score("checked")], id="one without"),
    ],
)
def test_what_concerns_the_whole_is_at_no_section(focus):
    assert located(focus, SECTIONS) is None


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        pytest.param(Finding("cut", "Notes", 2), 2, id="as it says"),
        pytest.param(Finding("cut", None, 1), 1, id="by its number alone"),
        pytest.param(Finding("cut", "Parts", 2), 0, id="another has its title now"),
        pytest.param(Finding("cut", "Notes", 0), None, id="two have its title"),
        pytest.param(Finding("cut", "Gone", 1), None, id="none has its title"),
        pytest.param(Finding("cut", None, 9), None, id="a number beyond the end"),
        pytest.param(Finding("cut"), None, id="the whole"),
    ],
)
def test_a_finding_is_at_the_section_that_has_its_number_and_title(finding, place):
    assert place_of(finding, SECTIONS) == place


def test_everything_is_listed_with_the_reason_of_each_dimension():
    focus = [
        score("judged", "say more", reason="dull"),
        score("checked", "cut", reason="Parts: cut"),
        score("judged", section=None),
    ]

    assert listed(focus) == (
        "judged: dull",
        "judged (in 'Parts'): say more",
        "checked: Parts: cut",
        "judged: 3, which is too low",
    )


def test_the_sections_that_something_is_said_against_are_cited_in_order():
    focus = [score("judged", "cut", section=2), score("checked", "cut"), score("judged", "cut")]

    assert cited(focus, SECTIONS) == (0, 2)
