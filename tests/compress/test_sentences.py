import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_documents import documents, steady

from harness.compress import sentences_of
from harness.compress.sentences import sentence_pieces


@pytest.mark.parametrize(
    "sentences",
    [
        pytest.param(["One.", "Two!", "Three?", "Four?!", "Five"], id="stops"),
        pytest.param(["It costs 3.14 euros.", "Or 2.5."], id="decimals"),
        pytest.param(["Use a cache, e.g. Redis.", "It helps, i.e. Saves time."], id="e.g., i.e."),
        pytest.param(["Dr. Smith met Mrs. Jones et al. in May.", "They talked."], id="titles"),
        pytest.param(["J. R. Tolkien was in the U.S. Army.", "Not so."], id="initials"),
        pytest.param(["So did I.", "Then he left."], id="the word I"),
        pytest.param(["See Fig. 3 and Eq. 4, on pp. 5 to 7.", "No. 5 is alive."], id="numbered"),
        pytest.param(["They said no.", "Then they left."], id="no as a word"),
        pytest.param(["It was in 2019.", "Then came 2020."], id="year at the end"),
        pytest.param(["1. First things.", "Second things."], id="list number"),
        pytest.param(["Wait... what is it?", "Nothing...", "Good."], id="ellipsis"),
        pytest.param(["Well… yes.", "No…", "Yes."], id="one-character ellipsis"),
        pytest.param(['He said "Go."', "She went."], id="closing quote"),
        pytest.param(['"Why?" he asked.', "“Because.”", "«So.»"], id="question in quotes"),
        pytest.param(["(It is so.)", "[Here.]", "**Bold.**", "Next."], id="brackets, bold"),
        pytest.param(["It holds.[3]", "So does this.[^note]", "End."], id="references"),
        pytest.param(["Call it.", "`run` is the name."], id="code after a stop"),
        pytest.param(["It runs on Node.js and v1.2.3 of it.", "Fine."], id="dotted names"),
        pytest.param(["See example.com/a.b for more.", "It is there."], id="addresses"),
        pytest.param(["First line\nand second.", "Third\nline."], id="wrapped lines"),
        pytest.param(["It costs 5 etc. and more.", "Good."], id="lower case goes on"),
        pytest.param(["Ça va.", "Étienne dort."], id="accents"),
    ],
)
def test_a_text_is_cut_where_its_sentences_end(sentences):
    assert sentences_of(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [], id="empty"),
        pytest.param(" \n ", [], id="blank"),
        pytest.param(
            "A title\n\nsome text.\n\nmore", ["A title", "some text.", "more"], id="blank"
        ),
        pytest.param("A\r\n\r\nb\r\nc", ["A", "b\r\nc"], id="CRLF"),
        pytest.param("We need:\n- one\n- two", ["We need:", "- one", "- two"], id="items"),
        pytest.param("1. One\n2. Two", ["1. One", "2. Two"], id="numbered items"),
        pytest.param("text\n# Title", ["text", "# Title"], id="heading"),
        pytest.param("它很快。它也小！是吗？", ["它很快。", "它也小！", "是吗？"], id="Chinese"),  # noqa: RUF001
    ],
)
def test_blank_lines_items_and_other_scripts_end_sentences_too(text, expected):
    assert sentences_of(text) == expected


@steady
@given(st.one_of(documents, st.text(alphabet="aA1.!?…\"') \n\r。[]", max_size=40)))
def test_no_character_is_lost(text):
    pieces = sentence_pieces(text)

    assert "".join(pieces) == text
    assert sentences_of(text) == [piece.strip() for piece in pieces if piece.strip()]


def test_blank_lines_at_the_start_belong_to_the_first_sentence():
    assert sentence_pieces("\n\nOne. Two.") == ["\n\nOne. ", "Two."]


def test_a_long_text_without_spaces_is_no_trouble():
    assert sentences_of("a." * 100_000) == ["a." * 100_000]
