import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_documents import documents, headings, steady

from harness.compress import condense_around, sections_of
from harness.compress.blocks import blocks_of
from harness.errors import InvalidInput


def code_in(markdown):
    return [block.text.rstrip() for block in blocks_of(markdown) if block.kind == "code"]


@steady
@given(documents, st.integers(0, 300), st.data(), documents)
def test_named_sections_are_byte_for_byte_and_the_others_keep_their_headings(
    document, budget, data, focus
):
    before = sections_of(document)
    assume(before)
    named = data.draw(st.sets(st.integers(0, len(before) - 1)))

    result = condense_around(document, sections=named, budget_chars=budget, focus=focus)

    after = sections_of(result.text)
    assert [after[index] for index in named] == [before[index] for index in named]
    assert headings(result.text) == headings(document)
    least = condense_around(document, sections=named, budget_chars=0)
    assert result.after_chars <= max(budget, least.after_chars)
    assert set(code_in(result.text)) <= set(code_in(document))


@pytest.mark.parametrize("budget", [3_000, 5_000])
def test_a_long_document_is_within_its_budget_around_any_of_its_sections(long_document, budget):
    before = sections_of(long_document)
    least = condense_around(long_document, sections=(), budget_chars=0)
    for index, section in list(enumerate(before))[:: 1 + len(before) // 6]:
        result = condense_around(long_document, sections={index}, budget_chars=budget)

        assert sections_of(result.text)[index] == section
        assert headings(result.text) == headings(long_document)
        assert set(code_in(result.text)) <= set(code_in(long_document))
        assert result.after_chars <= max(budget, least.after_chars + len(section.text))


DOCUMENT = (
    "# Cats\n\nCats sleep a lot. The weather was fine that year, too.\n\n"
    "# Dogs\n\nDogs bark.  \nTwice.\n\n"
    "# Birds\n\nBirds sing in the morning. It rained quite hard.\n"
)


def test_sections_stay_whole_even_over_the_budget():
    result = condense_around(DOCUMENT, sections=[1], budget_chars=10)

    assert result.text == ("# Cats\n\n[…]\n\n# Dogs\n\nDogs bark.  \nTwice.\n\n# Birds\n\n[…]\n\n")
    assert result.compressed


def test_the_others_keep_what_the_focus_is_about_if_there_is_room():
    result = condense_around(DOCUMENT, sections=[1], budget_chars=115, focus="birds in the morning")

    assert "# Cats\n\n[…]\n\n# Dogs" in result.text
    assert result.text.endswith("# Birds\n\nBirds sing in the morning. […]\n\n")
    assert result.after_chars <= 115


def test_a_document_within_the_budget_is_as_it_was():
    result = condense_around(DOCUMENT, sections=[], budget_chars=len(DOCUMENT))

    assert (result.text, result.compressed) == (DOCUMENT, False)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_unknown_section_is_refused(index):
    with pytest.raises(InvalidInput, match=rf"no section {index}; the document has 3"):
        condense_around(DOCUMENT, sections=[index], budget_chars=10)
