import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_documents import documents, steady

from harness.compress import Excerpt, passages_of, sections_of
from harness.errors import InvalidInput


def without_blanks(text):
    return text.translate(str.maketrans("", "", " \t\r\n"))


@steady
@given(documents, st.integers(1, 80))
def test_the_passages_are_the_bodies_of_the_document_and_no_longer_than_asked(document, max_chars):
    texts = [passage.text for passage in passages_of(document, max_chars=max_chars)]

    body = "".join(section.body for section in sections_of(document))
    assert without_blanks("".join(texts)) == without_blanks(body)
    assert all(0 < len(text) <= max_chars for text in texts)


def test_every_line_of_a_long_document_is_in_one_passage(long_document):
    # No single block of these documents is cut at this length.
    passages = passages_of(long_document, max_chars=20_000)

    in_passages = [line for p in passages for line in p.text.split("\n") if line.strip()]
    body = "\n".join(section.body for section in sections_of(long_document))
    assert [line.rstrip() for line in in_passages] == [
        line.rstrip() for line in body.split("\n") if line.strip()
    ]


def test_a_passage_is_titled_with_the_headings_above_it():
    document = "intro\n# Guide\na\n## Install\nb\n#### Windows\nc\n## Use\n# Other\nd\n#\ne\n"

    assert passages_of(document) == (
        Excerpt(title="", text="intro"),
        Excerpt(title="Guide", text="a"),
        Excerpt(title="Guide > Install", text="b"),
        Excerpt(title="Guide > Install > Windows", text="c"),
        Excerpt(title="Other", text="d"),
        Excerpt(title="", text="e"),
    )


def test_paragraphs_are_packed_as_long_as_they_fit():
    texts = [p.text for p in passages_of("aaaa\n\nbbbb\n\ncccc\n\n    dd\n", max_chars=10)]

    assert texts == ["aaaa\n\nbbbb", "cccc", "    dd"]


def test_a_longer_paragraph_is_cut_at_sentence_ends_and_a_longer_sentence_between_words():
    text = "One\nshort. Two\nshort. Three is a longer one. Averylongword."

    assert [p.text for p in passages_of(text, max_chars=12)] == [
        "One\nshort.",
        "Two\nshort.",
        "Three is a",
        "longer one.",
        "Averylongwor",
        "d.",
    ]


def test_code_stays_whole_unless_it_is_longer_than_a_passage():
    code = "```py\nx = 1\n\ny = 2\n```"

    whole = [p.text for p in passages_of(f"Some text.\n\n{code}\n\nMore.", max_chars=len(code))]
    assert whole == ["Some text.", code, "More."]
    cut = [p.text for p in passages_of(code, max_chars=12)]
    assert cut == ["```py\nx = 1", "y = 2\n```"]


def test_a_passage_needs_room_for_a_character():
    with pytest.raises(InvalidInput, match="max_chars is 0"):
        passages_of("text", max_chars=0)
