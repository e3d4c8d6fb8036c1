"""What streams of text are taken apart into: events, thoughts, stop texts."""

import asyncio

import pytest
from calls import cut_at
from hypothesis import given
from hypothesis import strategies as st

from harness.inference.providers.http import event_data
from harness.inference.providers.llama_cpp_python import StopTexts
from harness.inference.reply_in_progress import ReasoningSplitter, split_unopened


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"], id="CRLF"),
        pytest.param(b"data:one\n\n", [b"one"], id="no space after the colon"),
        pytest.param(b": ping\n\ndata: one\n\n:\n\n", [b"one"], id="keep-alive comments"),
        pytest.param(b"event: x\nid: 7\nretry: 9\ndata: one\n\n", [b"one"], id="other fields"),
        pytest.param(b"data: one\n\ndata: [DONE]", [b"one", b"[DONE]"], id="no last newline"),
        pytest.param(
            "data: a\u2028b\u2029c\x85d\n\n".encode(),
            ["a\u2028b\u2029c\x85d".encode()],
            id="Unicode's own line ends are text",
        ),
        pytest.param(b"\xef\xbb\xbfdata: one\n\n", [b"one"], id="a byte-order mark"),
        pytest.param(b"\xef\xbb\xbfdata: one", [b"one"], id="a byte-order mark, one line"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1000], ids="chunks of {}".format)
def test_payloads_do_not_depend_on_how_the_stream_was_cut(stream, expected, size):
    async def arriving():
        for chunk in cut_at(stream, size):
            yield chunk

    async def main():
        return [data async for data in event_data(arriving())]

    assert asyncio.run(main()) == expected


def test_a_long_line_is_put_together_once():
    class Counted(bytes):
        """Bytes that count how many are copied when something is added to them."""

        copied = 0

        def __radd__(self, before):
            Counted.copied += len(before)
            return NotImplemented

    async def arriving():
        yield b"data: "
        for _ in range(1000):
            yield Counted(b"x" * 100)
        yield b"\n"

    async def main():
        return [len(data) async for data in event_data(arriving())]

    assert asyncio.run(main()) == [100_000]
    assert Counted.copied == 0


def divided(*pieces):
    """What was thought and what was answered, of a reply in these pieces."""
    splitter = ReasoningSplitter()
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.rest()]
    return "".join(thought for thought, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>I count.</think>Three.", "I count.", "Three."),
        ("\n<think>\nI count.\n</think>\n\nThree.", "\nI count.\n", "Three."),
        ("<think>I count, and", "I count, and", ""),
        ("<thin air", "", "<thin air"),
        ("<think>a</thi", "a</thi", ""),
        ("<think>a < b</think>c", "a < b", "c"),
        ("Use <think> tags.", "", "Use <think> tags."),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
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
        ("I count.\n</think>\n\nThree.", "I count.\n", "Three."),
        ("I count.</think>", "I count.", ""),
        ("Three.", "", "Three."),
        ("`</think>` ends it.", "", "`</think>` ends it."),
        ("Write <think>a</think>\nfirst.", "", "Write <think>a</think>\nfirst."),
    ],
)
def test_a_closing_tag_alone_ends_what_the_prompt_has_opened(text, reasoning, answer):
    assert split_unopened(text) == (reasoning, answer)


@pytest.mark.parametrize(
    ("stops", "pieces", "told", "found"),
    [
        pytest.param((), ["a", "b"], ["a", "b", ""], False, id="none"),
        pytest.param(("",), ["a"], ["a", ""], False, id="an empty one is none"),
        pytest.param(("END",), ["one EN", "D two"], ["one ", "", ""], True, id="in two pieces"),
        pytest.param(("END",), ["one EN", "TRY"], ["one ", "ENTRY", ""], False, id="only begun"),
        pytest.param(("END",), ["one EN"], ["one ", "EN"], False, id="begun as the reply ends"),
        pytest.param(("B", "A"), ["xAyB"], ["x", ""], True, id="the first in the text counts"),
        pytest.param(("aab",), ["aa", "ab"], ["", "a", ""], True, id="begun anew within itself"),
    ],
)
def test_a_stop_text_is_found_however_it_is_cut(stops, pieces, told, found):
    text = StopTexts(stops)

    assert [*(text.feed(piece) for piece in pieces), text.rest()] == told
    assert text.found is found
