"""Phrases that must, or must not, occur."""

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.rubric import Finding
from harness.rubric.checks import ContainsAll, ContainsAny, Excludes


@pytest.mark.parametrize(
    ("phrase", "text", "said"),
    [
        pytest.param("TODO", "A todo.", True, id="in any case"),
        pytest.param("TODO", "A mastodon.", False, id="not within a word"),
        pytest.param("AI", "They said so.", False, id="nor a short one"),
        pytest.param("as an AI", "... as an\nAI, I ...", True, id="across lines"),
        pytest.param("[insert", "[Insert name]", True, id="with a mark at its start"),
        pytest.param("Question:", "**Question:** why", True, id="with a mark at its end"),
        pytest.param("C++ (old)", "In C++ (old) it", True, id="not as a pattern"),
        pytest.param(
            "\u4e0d\u77e5\u9053",
            "\u6211\u4e0d\u77e5\u9053\u3002",
            True,
            id="where words are not parted",
        ),
        pytest.param("AI", "\u4eba\u5de5AI\u5f88\u597d", True, id="Latin within another script"),
        pytest.param("TODO", "```\n# TODO\n```", True, id="in code"),
    ],
)
def test_a_phrase_is_found_as_a_reader_would_find_it(phrase, text, said):
    grade = Excludes(phrases=(phrase,)).grade(draft(f"# A\n\n{text}\n\n# B\n\nFine.\n"))

    assert grade.share == (0.5 if said else 1)
    assert found(grade) == ([(f'remove "{phrase}"', 0)] if said else [])


def test_all_phrases_of_a_section_make_one_finding():
    grade = Excludes(phrases=("x", "y")).grade(draft("y and x"))

    assert found(grade) == [('remove "x", "y"', 0)]


def test_a_phrase_in_a_heading_concerns_the_whole_draft():
    grade = Excludes(phrases=("TODO",)).grade(draft("# A\n\nx\n\n# TODO: name\n\ny\n"))

    assert grade.share == 0.5
    assert grade.findings == (Finding('remove "TODO" from the heading "TODO: name"'),)


def test_a_draft_without_text_says_nothing_that_is_excluded():
    assert Excludes(phrases=("x",)).grade(draft("")).share == 1


def test_every_phrase_that_is_missing_is_asked_for():
    grade = ContainsAll(phrases=("cold start", "p99", "cost")).grade(
        draft("# Cold\nstart\n\nA cold\nstart costs. The P99 too.")
    )

    assert grade.share == pytest.approx(2 / 3)
    assert found(grade) == [('say "cost" where it belongs', None)]


def test_all_phrases_occur_wherever_they_stand():
    assert ContainsAll(phrases=("a", "b")).grade(draft("# B\n\nIt is a.")).findings == ()


@pytest.mark.parametrize(
    ("text", "share"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("It is.", 0, id="none"),
        pytest.param("# However\n\nIt is.", 1, id="one of them, in a heading"),
    ],
)
def test_one_of_several_phrases_is_enough(text, share):
    grade = ContainsAny(phrases=("however", "but")).grade(draft(text))

    assert grade.share == share
    assert found(grade) == ([] if share else [('say one of these: "however", "but"', None)])


@pytest.mark.parametrize("check", [ContainsAll, ContainsAny, Excludes])
@pytest.mark.parametrize("phrases", [(), ("",), ("a", " ")], ids=["none", "empty", "blank"])
def test_phrases_to_look_for_are_needed(check, phrases):
    with pytest.raises(ValidationError):
        check(phrases=phrases)
