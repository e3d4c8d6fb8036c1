import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory.query_text import read_query


@pytest.mark.parametrize(
    ("text", "phrases", "titles"),
    [
        pytest.param("red otters", (), (), id="words"),
        pytest.param('a "red otter" swims', ("red otter",), (), id="phrase"),
        pytest.param('"red otter" "blue heron"', ("red otter", "blue heron"), (), id="two"),
        pytest.param('"red otter" "red otter"', ("red otter",), (), id="the same twice"),
        pytest.param("title:otter", (), ("otter",), id="title"),
        pytest.param('title:"red otter" swims', (), ("red otter",), id="phrase in a title"),
        pytest.param('a "red otter', (), (), id="quote without its end"),
        pytest.param('title:"red otter', (), (), id="title without its end"),
        pytest.param('6" by 4"', (" by 4",), (), id="inches look like quotes"),
        pytest.param("title: otter", (), (), id="a title's line"),
        pytest.param("subtitle:otter body:otter", (), (), id="other fields are mere text"),
        pytest.param('"one\ntwo"', (), (), id="quotes do not reach over lines"),
    ],
)
def test_what_a_text_asks_for(text, phrases, titles):
    asked = read_query(text)

    assert (asked.phrases, asked.titles) == (phrases, titles)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_all_words_count_whatever_the_signs_say(text):
    kept = read_query(text).words

    # Of `title:otter` the otter alone.
    assert [c for c in text if c.isalnum()] == [c for c in kept if c.isalnum()] or "title:" in (
        text.lower()
    )


def test_half_of_a_surrogate_pair_is_a_sign_like_others():
    assert read_query("otter \ud800 heron").words == "otter ? heron"


def test_a_flood_of_quotes_is_mere_text_from_the_seventeenth_on():
    asked = read_query(" ".join(f'"number {n}"' for n in range(50_000)))

    assert asked.phrases == tuple(f"number {n}" for n in range(16))
    assert '"number 49999"' in asked.words


def test_a_long_quotation_is_no_phrase():
    assert read_query(f'"{"otter " * 100}"').phrases == ()
