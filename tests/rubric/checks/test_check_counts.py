"""Counts on drafts short enough to count by hand."""

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.rubric import Finding
from harness.rubric.checks import Items, Sections, SectionWords, Words


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param(" - \n* \n", 0, id="only marks"),
        pytest.param("One two, three.", 3, id="a sentence"),
        pytest.param("# One\n\ntwo", 2, id="headings count"),
        pytest.param("don't, don\u2019t, state-of-the-art", 3, id="apostrophes and hyphens"),
        pytest.param("1,024 tokens, 3.14, 50 %, v2.0.1", 5, id="numbers are one word each"),
        pytest.param("and/or, e.g. `max_rounds`", 3, id="marks inside a word"),
        pytest.param("on\u2014and off", 3, id="a dash parts words"),
        pytest.param(
            "na\u00efve \u043c\u0438\u0440 \u0391\u03b8\u03ae\u03bd\u03b1", 3, id="other scripts"
        ),
        pytest.param("| a | b |\n|---|---|\n| 1 | 2 |\n", 4, id="cells of a table"),
        pytest.param("```python\nx = 1\n```\n", 3, id="code and its language"),
    ],
)
def test_words_are_counted_as_people_count_them(text, count):
    grade = Words(max=1000).grade(draft(text))
    short = Words(min=1000).grade(draft(text))

    assert grade.share == 1
    assert short.share == count / 1000
    assert found(short) == [(f"{count} words in all; at least 1000 are needed", None)]


@pytest.mark.parametrize(
    ("bounds", "share", "message"),
    [
        pytest.param({"min": 8}, 0.5, "4 words in all; at least 8 are needed", id="half of it"),
        pytest.param({"min": 4}, 1, None, id="as many as needed"),
        pytest.param({"max": 4}, 1, None, id="as many as allowed"),
        pytest.param({"max": 3}, 2 / 3, "4 words in all; at most 3 are allowed", id="one more"),
        pytest.param({"max": 2}, 0, "4 words in all; at most 2 are allowed", id="twice as many"),
        pytest.param({"max": 1}, 0, "4 words in all; at most 1 are allowed", id="far too many"),
        pytest.param({"min": 2, "max": 5}, 1, None, id="between"),
    ],
)
def test_a_count_falls_off_with_its_distance_from_the_range(bounds, share, message):
    grade = Words(**bounds).grade(draft("one two three four"))

    assert grade.share == pytest.approx(share)
    assert grade.findings == ((Finding(message),) if message else ())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("Only text.", 0, id="no headings"),
        pytest.param("Intro.\n\n# A\nx\n\nB\n---\ny\n", 2, id="both kinds of headings"),
        pytest.param("# A\n# A\n", 2, id="the same title twice, both empty"),
        pytest.param("# Title\n\n## A\nx\n\n## B\ny\n", 2, id="a title is not a section"),
        pytest.param("# A\nx\n\n## B\ny\n", 2, id="a heading with a text of its own is one"),
        pytest.param("# A\n\n```\n# not one\n```\n", 1, id="a comment in code is none"),
        pytest.param("# A\n\n- x\n  # not one\n\n> # nor this\n", 1, id="nor one in a list"),
    ],
)
def test_sections_are_headings_but_for_titles(text, count):
    assert Sections(min=10).grade(draft(text)).share == count / 10
    assert found(Sections(min=10).grade(draft(text))) == [
        (f"{count} sections; at least 10 are needed", None)
    ]


@pytest.mark.parametrize(
    ("text", "share", "findings"),
    [
        pytest.param("", 0, [("there is no text", None)], id="nothing"),
        pytest.param("one two three four", 1, [], id="without headings the draft is the section"),
        pytest.param(
            "one",
            0.25,
            [("1 words in this section; at least 4 are needed", 0)],
            id="too short, without headings",
        ),
        pytest.param(
            "Here you are.\n\n# A\none two three four\n", 1, [], id="an introduction is no section"
        ),
        pytest.param("# T\n\n## A\none two three four\n", 1, [], id="nor is a title"),
        pytest.param(
            "# A\n\n# B\none two three four\n",
            0.5,
            [("0 words in this section; at least 4 are needed", 0)],
            id="an empty section is one",
        ),
        pytest.param(
            "# A\none two\n\n# A\none two three four five six seven eight\n",
            0.5 * (0.5 + 0.4),
            [
                ("2 words in this section; at least 4 are needed", 0),
                ("8 words in this section; at most 5 are allowed", 1),
            ],
            id="two sections with one title",
        ),
    ],
)
def test_every_section_has_its_words(text, share, findings):
    grade = SectionWords(min=4, max=5).grade(draft(text))

    assert grade.share == pytest.approx(share)
    assert found(grade) == findings


def test_a_draft_without_text_is_not_too_long():
    assert SectionWords(max=5).grade(draft("")).share == 1


LISTS = "1. one\n2. two\n\n- a\n- b\n- c\n"


@pytest.mark.parametrize(
    ("kind", "text", "count"),
    [
        pytest.param("any", "", 0, id="nothing"),
        pytest.param("any", LISTS, 5, id="of any kind"),
        pytest.param("numbered", LISTS, 2, id="enumerated"),
        pytest.param("bullets", LISTS, 3, id="bullets"),
        pytest.param("bullets", "* a\n\n+ b\n\n- c\n", 3, id="whatever the bullet"),
        pytest.param("numbered", "3) a\n4) b\n", 2, id="brackets"),
        pytest.param("numbered", "1. a\n\n   more of it\n\n2. b\n", 2, id="items with paragraphs"),
        pytest.param("numbered", "1. a\n   - x\n   - y\n2. b\n", 2, id="items inside do not count"),
        pytest.param("any", "```\n- a\n1. b\n```\n", 0, id="nor do dashes in code"),
        pytest.param("any", "> - a\n", 0, id="nor quoted ones"),
        pytest.param("any", "a\n\n---\n\n5 - 3 is 2\n", 0, id="nor rules and sums"),
        pytest.param("numbered", "1. a\n\nSo.\n\n2. b\n", 2, id="with text between"),
    ],
)
def test_items_of_lists_are_counted(kind, text, count):
    grade = Items(kind=kind, min=10).grade(draft(text))

    assert grade.share == count / 10
    (finding,) = grade.findings
    assert finding.message.startswith(f"{count} ")
    assert finding.message.endswith("; at least 10 are needed")


def test_a_list_that_one_section_alone_has_is_mended_there():
    grade = Items(min=3).grade(draft("# A\n\nText.\n\n# B\n\n- a\n- b\n"))

    assert grade.share == pytest.approx(2 / 3)
    assert grade.findings == (Finding("2 list items in all; at least 3 are needed", "B", 1),)


def test_items_of_several_sections_concern_the_whole_draft():
    grade = Items(max=2, kind="bullets").grade(draft("# A\n\n- a\n\n# B\n\n- b\n- c\n"))

    assert found(grade) == [("3 bullet points in all; at most 2 are allowed", None)]


def test_items_can_be_counted_section_by_section():
    text = "Intro.\n\n# T\n\n## A\n\n- a\n- b\n\n## B\n\n- a\n\n## C\n\nNone.\n"

    grade = Items(min=2, scope="section").grade(draft(text))

    assert grade.share == pytest.approx((1 + 0.5 + 0) / 3)
    assert found(grade) == [
        ("1 list items in this section; at least 2 are needed", 3),
        ("0 list items in this section; at least 2 are needed", 4),
    ]


def test_a_draft_without_text_has_no_items_in_any_section():
    assert found(Items(min=2, scope="section").grade(draft(""))) == [("there is no text", None)]
    assert Items(max=2, scope="section").grade(draft("")).share == 1


@pytest.mark.parametrize(
    ("check", "requirement"),
    [
        pytest.param(Words(min=3), "The whole text has at least 3 words.", id="no max"),
        pytest.param(Words(max=3), "The whole text has at most 3 words.", id="no min"),
        pytest.param(Words(min=2, max=3), "The whole text has 2 to 3 words.", id="both"),
        pytest.param(
            Items(min=5, max=5, kind="numbered"),
            "The whole text has 5 numbered list items.",
            id="exactly",
        ),
        pytest.param(
            Items(max=4, scope="section"), "Each section has at most 4 list items.", id="each"
        ),
    ],
)
def test_a_range_is_said_in_words(check, requirement):
    assert check.requirement == requirement


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="no bound"),
        pytest.param({"min": -1}, id="fewer than none"),
        pytest.param({"max": 0}, id="at most none"),
        pytest.param({"min": 3, "max": 2}, id="min above max"),
    ],
)
@pytest.mark.parametrize("check", [Words, Sections, SectionWords, Items])
def test_bounds_that_make_no_sense_are_refused(check, parameters):
    with pytest.raises(ValidationError):
        check(**parameters)
