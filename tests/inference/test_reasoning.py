import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.inference.reasoning import ReasoningSplitter, split_unopened


def divided(*pieces):
    """What was thought and what was answered, of a reply in these pieces."""
    splitter = ReasoningSplitter()
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.rest()]
    return "".join(thought for thought, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        pytest.param("Three owls.", "", "Three owls.", id="an answer alone"),
        pytest.param("<think>I count.</think>Three.", "I count.", "Three.", id="thought first"),
        pytest.param(
            "\n<think>\nI count.\n</think>\n\nThree.", "\nI count.\n", "Three.", id="lines"
        ),
        pytest.param("<think>I count, and", "I count, and", "", id="never closed"),
        pytest.param("<think></think>Three.", "", "Three.", id="nothing thought"),
        pytest.param("<thin air", "", "<thin air", id="only the start of the tag"),
        pytest.param("<th", "", "<th", id="ended within the tag"),
        pytest.param("<think>a</thi", "a</thi", "", id="ended within the closing tag"),
        pytest.param("<think>a < b</think>c", "a < b", "c", id="a bracket in the thought"),
        pytest.param("Use <think> tags.", "", "Use <think> tags.", id="a tag spoken of"),
        pytest.param(
            "<think>a</think>b</think>c", "a", "b</think>c", id="a second closing tag is text"
        ),
        pytest.param("  \n", "", "  \n", id="blanks alone"),
        pytest.param("", "", "", id="nothing"),
    ],
)
def test_thinking_aloud_is_told_apart_however_it_is_cut(text, reasoning, answer):
    assert divided(text) == (reasoning, answer)
    assert divided(*text) == (reasoning, answer)


@given(st.text(alphabet="<>/think \na"), st.data())
def test_how_a_reply_was_cut_makes_no_difference(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert divided(*pieces) == divided(text)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        pytest.param(
            "I count.\n</think>\n\nThree.", "I count.\n", "Three.", id="opened in the prompt"
        ),
        pytest.param("I count.</think>", "I count.", "", id="no answer"),
        pytest.param("Three.", "", "Three.", id="no tag"),
        pytest.param("`</think>` ends it.", "", "`</think>` ends it.", id="spoken of"),
        pytest.param(
            "Write <think>a</think>\nfirst.",
            "",
            "Write <think>a</think>\nfirst.",
            id="a pair spoken of",
        ),
    ],
)
def test_a_closing_tag_alone_ends_what_the_prompt_has_opened(text, reasoning, answer):
    assert split_unopened(text) == (reasoning, answer)
