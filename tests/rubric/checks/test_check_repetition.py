"""Sentences that say what was said before."""

import pytest
from check_drafts import draft
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.rubric.checks import NoRepetition
from harness.rubric.words import numbers, terms, value


@pytest.mark.parametrize(
    ("text", "share", "repeated"),
    [
        pytest.param("", 1, [], id="nothing"),
        pytest.param("It is so here. It was not so.", 1, [], id="different"),
        pytest.param("It is so here. IT IS SO, HERE!", 0.5, [0], id="the same in capitals"),
        pytest.param("# A\n\nIt is so.\n\n# A\n\nIt is so.\n", 0.5, [1], id="in two sections"),
        pytest.param("It doesn't run. It doesn\u2019t run.", 0.5, [0], id="another apostrophe"),
        pytest.param("Caf\u00e9s are open. Cafe\u0301s are open.", 0.5, [0], id="another code"),
        pytest.param("We run it now. Run it now we.", 0.5, [0], id="another order"),
        pytest.param("We run it at 8. We run it at 9.", 1, [], id="other numbers"),
        pytest.param("We run 1,000 of it. We run 1000 of it.", 0.5, [0], id="the same number"),
        pytest.param("1. Run the tests.\n2. Run the tests.\n", 0.5, [0], id="items of a list"),
        pytest.param("- Not known.\n- Not known.\n", 1, [], id="two words"),
        pytest.param("```\na b c\n```\n\n```\na b c\n```\n", 1, [], id="code"),
        pytest.param("| a b c |\n|---|\n| a b c |\n| a b c |\n", 1, [], id="a table"),
    ],
)
def test_nothing_is_said_twice(text, share, repeated):
    grade = NoRepetition().grade(draft(text))

    assert grade.share == share
    assert [finding.section_index for finding in grade.findings] == repeated
    assert all("this was said before: " in finding.message for finding in grade.findings)


@pytest.mark.parametrize(
    ("similarity", "share"),
    [
        pytest.param(0.75, 0.5, id="at the limit"),
        pytest.param(0.76, 1, id="below it"),
    ],
)
def test_sentences_repeat_each_other_from_a_share_of_common_words_on(similarity, share):
    # Three words of four in all.
    grade = NoRepetition(similarity=similarity).grade(draft("It is here. It is here now."))

    assert grade.share == share


def repeated_one_by_one(check: NoRepetition, graded) -> list[int]:
    """Which sentences repeat an earlier one, by comparing each with all before it."""
    seen, repeated = [], []
    for place, (_, _, sentence) in enumerate(graded.sentences):
        said = {term for term in terms(sentence) if not term.isdecimal()}
        values = {value(number) for number in numbers(sentence)}
        if len(said) > 2 and any(
            values == before and len(said & other) / len(said | other or {""}) >= check.similarity
            for other, before in seen
        ):
            repeated.append(place)
        seen.append((said, values))
    return repeated


sentence = st.lists(st.sampled_from("abcdefgh123"), min_size=1, max_size=9).map(" ".join)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    text=st.lists(sentence, max_size=20).map("\n\n".join),
    similarity=st.floats(min_value=0.01, max_value=1) | st.sampled_from([0.5, 0.6, 0.75, 0.8, 1]),
)
def test_few_comparisons_find_what_all_of_them_would(text, similarity):
    check, graded = NoRepetition(similarity=similarity), draft(text)

    grade = check.grade(graded)

    assert len(grade.findings) == len(repeated_one_by_one(check, graded))


@pytest.mark.parametrize("similarity", [0, 1.1])
def test_a_similarity_is_a_share_above_0(similarity):
    with pytest.raises(ValidationError):
        NoRepetition(similarity=similarity)
