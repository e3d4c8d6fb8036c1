"""Shortening a document, all of it or around some of its sections."""

import os
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_documents import documents, headings

from harness.compress import condense, sections_of
from harness.compress.markdown import blocks_of


def condensed(document, budget, **options):
    """No part of the end is kept for its own sake, unless that is asked for."""
    return condense(document, budget_chars=budget, **{"keep_tail_chars": 0} | options)


# --- whatever the document ---------------------------------------------------------------------


@given(documents, st.integers(0, 300), st.integers(0, 60), documents)
def test_headings_stay_and_the_budget_holds_if_headings_and_marks_fit(
    document, budget, tail, focus
):
    result = condense(document, budget_chars=budget, focus=focus, keep_tail_chars=tail)

    least = condense(document, budget_chars=0, keep_tail_chars=0)
    assert headings(result) == headings(document)
    assert len(result) <= max(budget, len(least))
    assert condense(document, budget_chars=len(document)) == document


@given(documents, st.integers(0, 300), st.integers(0, 300))
def test_a_cap_is_never_exceeded(document, budget, cap):
    result = condense(document, budget_chars=budget, cap_chars=cap, keep_tail_chars=20)

    assert len(result) <= cap


@pytest.mark.parametrize("budget", [4_000, 6_000])
def test_a_long_document_keeps_its_headings_its_end_and_its_budget(long_document, budget):
    result = condense(long_document, budget_chars=budget, focus="how to configure and run it")

    assert headings(result) == headings(long_document)
    # Most of the budget is used: the next best part is rarely longer than a tenth of it.
    assert 0.9 * budget < len(result) <= budget
    assert result.endswith(long_document[-300:])


def test_a_text_of_very_many_parts_takes_no_more_than_seconds():
    # Trying every part against the whole text would take hours here.
    assert len(condense("It is. " * 5_000, budget_chars=6_000)) <= 6_000


@pytest.mark.slow
def test_the_same_is_kept_in_every_process():
    # Sets of strings have another order in every process, unless it is fixed.
    code = (
        "from harness.compress import condense\n"
        "text = '# A\\n\\n' + ''.join(f'Word{n % 7} and{n % 5} {n % 3}. ' for n in range(500))\n"
        "print(condense(text, budget_chars=900, focus='word1 and2'))"
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


# --- what stays --------------------------------------------------------------------------------

CATS = (
    "# Cats\n\nCats sleep a lot. They eat fish now and then. The weather was fine. "
    "Cats hunt mice. It rained.\n\nNothing to see in this one. Nor here.\n\nNor there.\n\n"
    "# Dogs\n\nDogs bark.\n"
)
ITEMS = f"# A\n\n- ants\n- bees\n- {'cows ' * 20}\n- dogs\n"
WORDS = f"# A\n\n{'word ' * 100}and then it is cut o"
CUT_OFF = "# A\n\n````py\n" + "x = 1\n" * 100 + "last = 2\nunfini"
SHORT = "# A\n\na\n\n# B\n\nb\n"
RESULTS = {
    "whole sentences in order, with a mark for what is missing": (
        CATS, 100, {"focus": "cats hunt mice"},
        "# Cats\n\n[…] They eat fish now and then. […] Cats hunt mice. […]\n\n# Dogs\n\n[…]\n\n",
    ),
    "a mark is a paragraph of its own": (
        ITEMS, 60, {"focus": "ants dogs"}, "# A\n\n- ants\n- bees\n\n[…]\n\n- dogs\n",
    ),
    "the end from a word on, if its sentence is long": (
        WORDS, 60, {"keep_tail_chars": 20}, "# A\n\n[…] and then it is cut o",
    ),
    "code that the end is in from a line on, behind its fence": (
        CUT_OFF, 60, {"keep_tail_chars": 10}, "# A\n\n````py\n[…]\nlast = 2\nunfini",
    ),
    "marks never make it longer": (SHORT, 1, {}, SHORT),
}  # fmt: skip


@pytest.mark.parametrize(("document", "budget", "options", "text"), RESULTS.values(), ids=RESULTS)
def test_what_is_left_out_leaves_a_mark(document, budget, options, text):
    assert condensed(document, budget, **options) == text


BLOCKS = {
    "python": "```python\n" + "a = 1\n\n" * 20 + "```",
    "table": "| a | b |\n|---|---|" + "\n| 1 | 2 |" * 15,
    "quote": "> A quotation. Of two sentences, and " + "more " * 25 + "words.",
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_block_is_kept_whole_or_replaced_by_a_mark(block):
    document = f"# A\n\n{block}\n\n# B\n\n{'Some text. ' * 20}\n"

    assert condensed(document, 120).startswith("# A\n\n[…]\n\n# B\n")
    kept = condensed(document, 300)
    assert kept.startswith(f"# A\n\n{block}\n\n# B\n")
    assert len(kept) <= 300


def test_the_focus_is_followed_among_many_numbers_as_well():
    figures = [
        f"In run {n} the median was {n * 37 % 991} ms, the 99th percentile {n * 91 % 983}. "
        for n in range(60)
    ]
    wanted = "In each run the median was of those that wear out the spring by the ratchet. "
    others = [
        "Marzipan sprouts whiskers behind gondolas full of drowsy chandlers. ",
        "Bishops juggle turnips while hedgehogs applaud from velvet balconies. ",
        "Lighthouses borrow umbrellas whenever geese rehearse slow tangos. ",
    ]
    document = "".join([*figures[:30], *others, wanted, *figures[30:]])

    assert wanted in condensed(document, 500, focus="Why does a ratchet wear out its spring?")
    assert wanted not in condensed(document, 500)


def test_the_focus_is_followed_in_a_script_without_blanks():
    wanted = "望远镜看到了一百二十亿年前的星系。"
    others = ["水獭生活在河流附近吃鱼。", "面包在温暖的地方发酵。", "国会否决了这项法案。"]
    days = [f"这里说明第{n}天的天气和道路的情况。" for n in range(60)]
    document = "".join([*days[:30], *others, wanted, *days[30:]])

    assert wanted in condensed(document, 50, focus="哪个望远镜看到了星系?")
    assert wanted not in condensed(document, 50)


PREFERRED = {
    "number": ("The mean delay was 31 days.", "The mean delay was long."),
    "quote": ('She said "it was never so" again.', "She said that it was never so."),
    "block quote": ("> The mean delay was long.", "The mean delay was not long."),
}


@pytest.mark.parametrize(("preferred", "plain"), PREFERRED.values(), ids=PREFERRED)
def test_numbers_and_quotations_are_kept_ahead_of_plain_prose(preferred, plain):
    document = f"# A\n\n{plain}\n\n{preferred}\n\n# B\n\n{'Other words follow. ' * 20}\n"

    text = condensed(document, 80)
    assert preferred in text
    assert plain not in text


def test_what_was_said_already_makes_room_for_something_new():
    again = "Cats hunt mice at night. "
    document = f"# A\n\n{again * 5}\n\nA dog sleeps by the warm stove.\n\n{again * 5}\n"

    text = condensed(document, 110, focus="cats hunt mice")
    assert text.count(again.strip()) == 1
    assert "A dog sleeps by the warm stove." in text


# --- over the cap ------------------------------------------------------------------------------


def test_headings_over_the_cap_are_cut_in_the_middle_and_the_end_stays():
    document = "".join(f"## Heading number {n}\n\nText of {n}.\n\n" for n in range(1_000))

    result = condense(document, budget_chars=6_000, cap_chars=20_000)

    assert 19_900 < len(result) <= 20_000
    beginning, _, end = result.rpartition("\n\n[…]\n\n")
    assert beginning.startswith("## Heading number 0\n\n[…]\n\n## Heading number 1\n")
    assert document.endswith(end)
    assert len(end) > 2_900
    # Within the cap they are over the budget rather than cut.
    whole = condense(document, budget_chars=6_000, cap_chars=100_000)
    assert headings(whole) == headings(document)
    assert 6_000 < len(whole) < len(document)


# --- around sections ---------------------------------------------------------------------------

ANIMALS = (
    "# Cats\n\nCats sleep a lot. The weather was fine that year, too.\n\n"
    "# Dogs\n\nDogs bark.  \nTwice.\n\n"
    "# Birds\n\nBirds sing in the morning. It rained quite hard.\n"
)


def check_around(document, named, budget, **options):
    """What holds of any document, whichever sections are named."""
    before = sections_of(document)
    result = condensed(document, budget, sections=named, **options)
    least = condensed(document, 0, sections=named)
    code = [
        {block.text.rstrip() for block in blocks_of(text) if block.kind == "code"}
        for text in (result, document)
    ]

    after = sections_of(result)
    assert [after[index] for index in named] == [before[index] for index in named]
    assert headings(result) == headings(document)
    assert len(result) <= max(budget, len(least))
    assert code[0] <= code[1]


@given(documents, st.integers(0, 300), st.data(), documents)
def test_named_sections_are_byte_for_byte_and_the_others_keep_their_headings(
    document, budget, data, focus
):
    count = len(sections_of(document))
    assume(count)
    named = data.draw(st.sets(st.integers(0, count - 1)))
    check_around(document, named, budget, focus=focus)


def test_a_long_document_is_within_its_budget_around_any_of_its_sections(long_document):
    count = len(sections_of(long_document))
    for index in range(0, count, 1 + count // 6):
        check_around(long_document, {index}, 4_000)


AROUND_DOGS = {
    "named sections stay whole even over the budget": (
        10, "", "# Cats\n\n[…]\n\n# Dogs\n\nDogs bark.  \nTwice.\n\n# Birds\n\n[…]\n\n",
    ),
    "the others keep what the focus is about": (
        115, "birds in the morning",
        ("# Cats\n\n[…]\n\n# Dogs\n\nDogs bark.  \nTwice.\n\n# Birds\n\nBirds sing in the "
        "morning. […]\n\n"),
    ),
    "all of it within the budget": (len(ANIMALS), "", ANIMALS),
}  # fmt: skip


@pytest.mark.parametrize(("budget", "focus", "text"), AROUND_DOGS.values(), ids=AROUND_DOGS)
def test_what_is_around_a_section_is_shortened(budget, focus, text):
    result = condensed(ANIMALS, budget, sections=[1], focus=focus)

    assert result == text
