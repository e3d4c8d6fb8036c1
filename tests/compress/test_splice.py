import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_documents import documents, steady

from harness.compress import sections_of, splice
from harness.errors import InvalidInput

DOCUMENT = "intro\n\n# One\n\nfirst\n\n## Two\nsecond\n\n\n# Three\n\nthird"


@steady
@given(documents)
def test_sections_spliced_back_unchanged_give_the_document(document):
    sections = sections_of(document)

    assert splice(document, {}) == document
    assert splice(document, {n: section.text for n, section in enumerate(sections)}) == document


@steady
@given(documents, documents, st.data())
def test_whatever_is_spliced_in_the_other_sections_stay_as_they_are(document, replacement, data):
    before = sections_of(document)
    assume(before and replacement.strip(" \t\r\n"))
    index = data.draw(st.integers(0, len(before) - 1))
    try:
        result = splice(document, {index: replacement})
    except InvalidInput as error:
        assume("has no text" not in str(error))
        raise

    after = sections_of(result)
    following = before[index + 1 :]
    assert after[:index] == before[:index]
    assert after[len(after) - len(following) :] == following
    if before[index].level:
        own = after[index]
        assert (own.level, own.title) == (before[index].level, before[index].title)


def test_several_sections_of_a_long_document_can_be_replaced_at_once(long_document):
    sections = sections_of(long_document)
    result = splice(long_document, {1: "New text.", len(sections) - 1: "Last text."})

    expected = [section.title for section in sections]
    assert [section.title for section in sections_of(result)] == expected
    assert "New text." in result
    assert result.startswith(sections[0].text)
    assert "".join(s.text for s in sections[2:-1]) in result


@pytest.mark.parametrize(
    ("index", "replacement", "expected"),
    [
        pytest.param(1, "new", "# One\n\nnew\n\n", id="only a body"),
        pytest.param(1, "# One\n\nnew\n\n\n\n", "# One\n\nnew\n\n", id="heading and blank lines"),
        pytest.param(1, "### ONE\nnew", "# One\n\nnew\n\n", id="same title, other level"),
        pytest.param(1, "One\n===\nnew", "# One\n\nnew\n\n", id="same title, underlined"),
        pytest.param(1, "# Other\nnew", "# One\n\nnew\n\n", id="renamed"),
        pytest.param(1, "## Sub\nnew", "# One\n\n## Sub\nnew\n\n", id="subsection first"),
        pytest.param(1, "a\n\n## Sub\nb", "# One\n\na\n\n## Sub\nb\n\n", id="subsection later"),
        pytest.param(2, "\n\n    code", "## Two\n    code\n\n\n", id="indented code"),
        pytest.param(0, "# Not its own\nnew", "# Not its own\nnew\n\n", id="preamble"),
        pytest.param(0, "#\nnew", "#\nnew\n\n", id="preamble, empty heading"),
        pytest.param(3, "# Three\nnew\n", "# Three\n\nnew", id="no line end at the end"),
        pytest.param(1, "```py\ncode", "# One\n\n```py\ncode\n```\n\n", id="open fence"),
        pytest.param(1, "~~~~\n```\n", "# One\n\n~~~~\n```\n~~~~\n\n", id="open fence of tildes"),
        pytest.param(3, "```\ncode\n", "# Three\n\n```\ncode\n```", id="open fence at the end"),
        pytest.param(1, "```\ncode\n```", "# One\n\n```\ncode\n```\n\n", id="closed fence"),
        pytest.param(
            1, "- ```\n  code", "# One\n\n- ```\n  code\n\n", id="fence ends with its list"
        ),
        pytest.param(1, "a <b\n\n<!-- c", "# One\n\na <b\n\n<!-- c\n\n<!-- -->\n\n", id="comment"),
    ],
)
def test_a_replacement_keeps_heading_and_end_of_its_section(index, replacement, expected):
    texts = [section.text for section in sections_of(DOCUMENT)]
    texts[index] = expected

    assert splice(DOCUMENT, {index: replacement}) == "".join(texts)


def test_an_underlined_heading_is_not_joined_to_a_new_paragraph_before_it():
    result = splice("# A\n***\nB\n===\n", {0: "new"})

    assert result == "# A\nnew\n\nB\n===\n"


def test_an_indented_heading_is_not_taken_in_by_a_new_list_before_it():
    result = splice("# A\ntext\n\n  # B\n", {0: "- new"})

    assert [section.title for section in sections_of(result)] == ["A", "B"]
    assert result.endswith("\n\n  # B\n")


def test_a_heading_without_line_end_gets_a_body():
    assert splice("# A", {0: "text"}) == "# A\n\ntext"


@pytest.mark.parametrize("replacement", ["", " \n", "# One\n", "## one"])
def test_a_replacement_that_would_empty_its_section_is_refused(replacement):
    with pytest.raises(InvalidInput, match=r"section 1 \('One'\) has no text; leave the section"):
        splice(DOCUMENT, {1: replacement})


def test_a_section_that_was_empty_may_stay_so():
    assert splice("# A\n\n# B\n\n", {0: "", 1: "# B"}) == "# A\n\n# B\n\n"


@pytest.mark.parametrize("index", [-1, 4])
def test_an_unknown_section_is_refused(index):
    with pytest.raises(InvalidInput, match=rf"no section {index}; the document has 4"):
        splice(DOCUMENT, {index: "text"})


def test_a_replacement_nested_beyond_the_parser_is_refused():
    with pytest.raises(InvalidInput, match="less deeply"):
        splice(DOCUMENT, {1: "- " * 150 + "x"})


@pytest.mark.parametrize(
    ("index", "text", "message"),
    [
        pytest.param(1, "no heading", "begins without a heading", id="no heading"),
        pytest.param(1, "", "begins without a heading", id="empty"),
        pytest.param(-1, "# New\n\ntext", "insert after section 0", id="before a text without one"),
        pytest.param(4, "# New\n\ntext", "no section 4", id="unknown"),
    ],
)
def test_an_insertion_that_cannot_be_a_section_is_refused(index, text, message):
    with pytest.raises(InvalidInput, match=message):
        splice(DOCUMENT, {}, insertions={index: [text]})
