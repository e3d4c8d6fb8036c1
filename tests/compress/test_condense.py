import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_documents import documents, headings, steady

from harness.compress import condense


@steady
@given(documents, st.integers(0, 300), st.integers(0, 60), documents)
def test_headings_stay_and_the_budget_holds_if_headings_and_marks_fit(
    document, budget, tail, focus
):
    result = condense(document, budget_chars=budget, focus=focus, keep_tail_chars=tail)

    least = condense(document, budget_chars=0, keep_tail_chars=0)
    assert headings(result.text) == headings(document)
    assert len(result.text) <= max(budget, least.after_chars)
    assert (result.before_chars, result.after_chars) == (len(document), len(result.text))
    assert result.compressed == (result.text != document)


@steady
@given(documents)
def test_a_document_within_its_budget_is_unchanged(document):
    result = condense(document, budget_chars=len(document))

    assert result.text == document
    assert not result.compressed


@pytest.mark.parametrize("budget", [4_000, 6_000])
def test_a_long_document_keeps_its_headings_its_end_and_its_budget(long_document, budget):
    result = condense(long_document, budget_chars=budget, focus="how to configure and run it")

    assert headings(result.text) == headings(long_document)
    assert result.compressed
    # Most of the budget is used: the next best part is rarely longer than a tenth of it.
    assert 0.9 * budget < result.after_chars <= budget
    assert result.text.endswith(long_document[-300:])
    assert result == condense(
        long_document, budget_chars=budget, focus="how to configure and run it"
    )


def test_sentences_are_whole_and_in_order_with_a_mark_for_what_is_missing():
    document = (
        "# Cats\n\nCats sleep a lot. They eat fish now and then. The weather was fine. "
        "Cats hunt mice. It rained.\n\nNothing to see in this one. Nor here.\n\nNor there.\n\n"
        "# Dogs\n\nDogs bark.\n"
    )

    result = condense(document, budget_chars=100, focus="cats hunt mice", keep_tail_chars=0)

    assert result.text == (
        "# Cats\n\nCats sleep a lot. […] Cats hunt mice. […]\n\n[…]\n\n# Dogs\n\nDogs bark.\n"
    )


def test_the_focus_decides_which_sentences_stay():
    document = "# A\n\n" + "".join(
        f"Sentence about {animal}. " for animal in ("ants", "bees", "cows")
    )

    for animal in ("ants", "bees", "cows"):
        text = condense(document, budget_chars=52, focus=animal, keep_tail_chars=0).text
        assert f"Sentence about {animal}." in text
        assert len(text) <= 52


def test_the_focus_is_followed_among_many_numbers_as_well():
    figures = [
        f"In run {n} the median was {n * 37 % 991} ms, the 99th percentile {n * 91 % 983}. "
        for n in range(60)
    ]
    wanted = "Cassettes wear out when their spring is wound against the ratchet. "
    document = "".join([*figures[:30], wanted, *figures[30:]])

    assert (
        wanted
        in condense(
            document, budget_chars=1_000, focus="Why does a ratchet wear out its spring?"
        ).text
    )
    assert wanted not in condense(document, budget_chars=1_000).text


@pytest.mark.parametrize(
    ("block", "mark"),
    [
        pytest.param(
            "```python\n" + "a = 1\n\n" * 6 + "```",
            "[python code left out, lines: 12]",
            id="python",
        ),
        pytest.param(
            "~~~\n" + "text\n" * 12 + "~~~", "[code left out, lines: 12]", id="no language"
        ),
        pytest.param("    a = 1\n    b = 2" * 3, "[code left out, lines: 4]", id="indented"),
        pytest.param(
            "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |", "[table left out, rows: 2]", id="table"
        ),
        pytest.param("> A quotation. Of two sentences.", "[…]", id="quote"),
        pytest.param("- An item. Of two sentences.", "[…]", id="item"),
    ],
)
def test_a_block_is_kept_whole_or_replaced_by_a_mark(block, mark):
    document = f"# A\n\n{block}\n\n# B\n\n{'Some text. ' * 20}\n"

    dropped = condense(document, budget_chars=60, keep_tail_chars=0).text
    assert dropped.startswith(f"# A\n\n{mark}\n\n# B\n")
    kept = condense(document, budget_chars=170, keep_tail_chars=0).text
    assert kept.startswith(f"# A\n\n{block}\n\n# B\n")
    assert len(kept) <= 170


def test_a_mark_is_a_paragraph_of_its_own():
    document = f"# A\n\n- ants\n- bees\n- {'cows ' * 20}\n- dogs\n"

    text = condense(document, budget_chars=60, focus="ants dogs", keep_tail_chars=0).text

    assert text == "# A\n\n- ants\n- bees\n\n[…]\n\n- dogs\n"


def test_the_end_is_kept_from_a_word_on_if_its_sentence_is_long():
    document = "# A\n\n" + "word " * 100 + "and then it is cut o"

    text = condense(document, budget_chars=60, keep_tail_chars=20).text

    assert text == "# A\n\n[…] and then it is cut o"


def test_code_that_the_end_is_in_is_kept_from_a_line_on_behind_its_fence():
    document = "# A\n\n````py\n" + "x = 1\n" * 100 + "last = 2\nunfini"

    text = condense(document, budget_chars=60, keep_tail_chars=10).text

    assert text == "# A\n\n````py\n[…]\nlast = 2\nunfini"


def test_code_that_is_not_closed_has_its_lines_counted_too():
    document = "# A\n\n```\n" + "x = 1\n" * 20 + "unfinished"

    text = condense(document, budget_chars=50, keep_tail_chars=0).text

    assert text == "# A\n\n[code left out, lines: 21]\n\n"


def test_a_text_of_very_many_parts_takes_no_more_than_seconds():
    # Trying every part against the whole text would take hours here.
    assert condense("It is. " * 20_000, budget_chars=6_000).after_chars <= 6_000


def test_marks_never_make_a_document_longer():
    document = "# A\n\na\n\n# B\n\nb\n"

    result = condense(document, budget_chars=1, keep_tail_chars=0)

    assert result.text == document
    assert not result.compressed


@pytest.mark.parametrize(
    ("preferred", "plain"),
    [
        pytest.param("The mean delay was 31 days.", "The mean delay was long.", id="number"),
        pytest.param(
            'She said "it was never so" again.', "She said that it was never so.", id="quote"
        ),
        pytest.param(
            "> The mean delay was long.", "The mean delay was not long.", id="block quote"
        ),
    ],
)
def test_numbers_and_quotations_are_kept_ahead_of_plain_prose(preferred, plain):
    document = f"# A\n\n{plain}\n\n{preferred}\n\n# B\n\n{'Other words follow. ' * 20}\n"

    text = condense(document, budget_chars=80, keep_tail_chars=0).text

    assert preferred in text
    assert plain not in text


def test_what_was_said_already_makes_room_for_something_new():
    again = "Cats hunt mice at night. "
    document = f"# A\n\n{again * 5}\n\nA dog sleeps by the warm stove.\n\n{again * 5}\n"

    text = condense(document, budget_chars=110, focus="cats hunt mice", keep_tail_chars=0).text

    assert text.count(again.strip()) == 1
    assert "A dog sleeps by the warm stove." in text


def test_the_same_is_kept_in_every_process():
    # Sets of strings have another order in every process, unless it is fixed.
    code = (
        "from harness.compress import condense\n"
        "text = '# A\\n\\n' + ''.join(f'Word{n % 7} and{n % 5} {n % 3}. ' for n in range(500))\n"
        "print(condense(text, budget_chars=900, focus='word1 and2').text)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(outputs) == 1


@steady
@given(documents, st.integers(0, 300), st.integers(0, 300))
def test_a_cap_is_never_exceeded(document, budget, cap):
    result = condense(document, budget_chars=budget, cap_chars=cap, keep_tail_chars=20)

    assert result.after_chars <= cap
    assert result.compressed == (result.text != document)


def test_headings_over_the_cap_are_cut_in_the_middle_and_the_end_stays():
    document = "".join(f"## Heading number {n}\n\nText of {n}.\n\n" for n in range(1_000))

    result = condense(document, budget_chars=6_000, cap_chars=20_000)

    assert 19_900 < result.after_chars <= 20_000
    beginning, _, end = result.text.rpartition("\n\n[…]")
    assert 16_900 < len(beginning) <= 17_000
    assert beginning.startswith("## Heading number 0\n\n[…]\n\n## Heading number 1\n")
    assert document.endswith(end.strip() + "\n\n")
    assert len(end) > 2_900
    assert set(headings(result.text)) < set(headings(document))


def test_within_a_cap_the_headings_are_over_the_budget_rather_than_cut():
    document = "".join(f"## Heading number {n}\n\nText of section {n}.\n\n" for n in range(100))

    result = condense(document, budget_chars=1_000, cap_chars=20_000)

    assert headings(result.text) == headings(document)
    assert 1_000 < result.after_chars < len(document)


def test_code_that_the_end_of_a_cut_text_begins_in_has_its_fence_opened_again():
    many = "".join(f"# {n}\n" for n in range(2_000))
    code = "```py\n" + "value = 1\n" * 50 + "```\n\nThe end.\n"

    text = condense(many + code, budget_chars=500, cap_chars=1_000).text

    end = text.rpartition("[…]")[2]
    assert end.startswith("\n\n```py\nvalue = 1\n")
    assert end.endswith("\nvalue = 1\n```\n\nThe end.\n")
    assert len(text) <= 1_000
