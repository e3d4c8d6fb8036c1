"""What streams of text are taken apart into: events, thoughts, stop texts."""

import asyncio
import json
import time
from itertools import product

import pytest
from calls import cut_at
from hypothesis import given
from hypothesis import strategies as st

from harness.inference.marks import MarkSplitter, calls_in, split_whole
from harness.inference.providers.json_stream import json_values
from harness.inference.providers.llama_cpp_python import StopTexts
from harness.inference.request import ToolSpec


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b"data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"], id="CRLF"),
        pytest.param(b"data: one\r\rdata: two\r\r", ["one", "two"], id="CR"),
        pytest.param(b"data:one\n\n", ["one"], id="no space after the colon"),
        pytest.param(b": ping\n\ndata: one\n\n:\n\n", ["one"], id="keep-alive comments"),
        pytest.param(b"event: x\nid: 7\nretry: 9\ndata: one\n\n", ["one"], id="other fields"),
        pytest.param(b"data: one\n\ndata: [DONE]", ["one", "[DONE]"], id="no last newline"),
        pytest.param(
            "data: a\u2028b\u2029c\x85d\n\n".encode(),
            ["a\u2028b\u2029c\x85d"],
            id="Unicode's own line ends are text",
        ),
        pytest.param(b"\xef\xbb\xbfdata: one\n\n", ["one"], id="a byte-order mark"),
        pytest.param(b"\xef\xbb\xbfdata: one", ["one"], id="a byte-order mark, one line"),
        pytest.param(b'data: {"a":\ndata: 1}\n\n', [{"a": 1}], id="an event of two lines"),
        pytest.param(b'data: {"a":1}\ndata: {"b":2}\n\n', [{"a": 1}, {"b": 2}], id="two in one"),
        pytest.param(b'{\n "a": 1\n}\n', [{"a": 1}], id="a document"),
        pytest.param(b'{"a":1}\n{"b":2}\n', [{"a": 1}, {"b": 2}], id="lines"),
        pytest.param(b'data: {"a":"\xff"}\n\n', [{"a": "\ufffd"}], id="a broken character"),
        pytest.param(b"error: 7\n\n", [{"error": 7}], id="a field of errors"),
        pytest.param(b"event: error\ndata: no\n\ndata: 1\n\n", [{"error": "no"}, 1], id="an error"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1000], ids="chunks of {}".format)
def test_what_a_body_says_does_not_depend_on_how_it_was_cut(stream, expected, size):
    async def arriving():
        for chunk in cut_at(stream, size):
            yield chunk

    async def main():
        return [said async for said in json_values(arriving())]

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
        return [len(data) async for data in json_values(arriving())]

    assert asyncio.run(main()) == [100_000]
    assert Counted.copied == 0


ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"


def divided(*pieces):
    """What was thought and what was answered, of a reply in these pieces."""
    splitter = MarkSplitter()
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
        ("<think>a</think>\n<think>b</think>c", "ab", "c"),
        ("[THINK]a[/THINK]b", "a", "b"),
        ("<thinking>a</thinking>\nb", "a", "b"),
        ("<reasoning>a</reasoning>b", "a", "b"),
        ("<thought>a</thought>b", "a", "b"),
        ("<|channel>thought\na<channel|>b", "a", "b"),
        ("<seed:think>a</seed:think>b", "a", "b"),
        ("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
        (f"{ANALYSIS}a<|end|>{FINAL}b<|return|>", "a", "b"),
        (f"<|start|>assistant{ANALYSIS}a<|end|>{FINAL}b", "a", "b"),
        ("b<|im_end|>\n", "", "b"),
        ("a <b", "", "a <b"),
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
        ("I count.</think>Three.", "I count.", "Three."),
        ("The tag </think> ends it.", "", "The tag </think> ends it."),
        ("```\n</think>\n```", "", "```\n</think>\n```"),
        ("I count.\n</mm:think>\nThree.", "I count.\n", "Three."),
        (f"I count.<|end|>{FINAL}Three.", "I count.", "Three."),
        ("analysisI count.assistantfinalThree.", "I count.", "Three."),
        ("analysis of three", "", "analysis of three"),
        (
            "Here is my thought process: I count. Here is my response: Three.",
            " I count. ",
            "Three.",
        ),
    ],
)
def test_a_closing_tag_alone_ends_what_the_prompt_has_opened(text, reasoning, answer):
    assert split_whole(text, has_reasoning=False, tools=()) == (reasoning, answer, "")
    assert split_whole(text, has_reasoning=True, tools=()) == ("", text, "")


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
    assert text.has_ended is found


def test_a_long_word_in_a_call_takes_no_time():
    word = "a" * 200_000
    assert calls_in(f"<tool_call>{word}", ()) == [(word, "{}")]
    assert calls_in(f'[TOOL_CALLS]{word}{{"n":1}}', ()) == [(word, '{"n": 1}')]


def test_a_fence_of_json_is_no_name_of_a_tool():
    call = '{"name": "look", "arguments": {"n": 1}}'
    assert calls_in(f"<tool_call>json{call}", ()) == [("look", '{"n": 1}')]


@pytest.mark.parametrize("tags", ["<parameter=a>", "<a>", "<arg_key>", "<{}>", "<x parameter={}>"])
def test_tags_that_are_never_closed_take_no_time(tags):
    text = "<function=look>" + "".join(tags.format(f"t{number}") for number in range(40_000))
    began = time.perf_counter()
    assert calls_in(f"{text}</function>", ()) == [("look", "{}")]
    for unended in ("<function=", "<invoke name=", "<function=look><parameter=", "<function=f></"):
        calls_in(unended + "a" * 100_000, ())
    calls_in("<tool_call>f<arg_key>k</arg_key><arg_value>" * 20_000, ())
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("words", ["commentary ", "éa_b"])
def test_words_without_end_take_no_time(words):
    text = "[TOOL_CALLS]" + words * 20_000
    began = time.perf_counter()
    assert calls_in(text, ()) == [("unreadable", text)]
    assert time.perf_counter() - began < 2


def test_tags_within_an_argument_belong_to_its_text():
    text = '<invoke name="look"><parameter name="page"><b>1</b></parameter></invoke>'
    assert calls_in(text, ()) == [("look", '{"page": "<b>1</b>"}')]
    text = '<invoke name="look"><page><b>1</b></page><n>2</n></invoke>'
    assert calls_in(text, ()) == [("look", '{"page": "<b>1</b>", "n": 2}')]


@pytest.mark.parametrize(
    "call",
    [
        "<function=look>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        "look\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    ],
    ids=["Qwen", "GLM"],
)
def test_tags_behind_a_call_are_none_of_its_arguments(call):
    behind = "\n<tool_response>\nA cat.\n</tool_response>"
    assert calls_in(f"<tool_call>{call}{behind}", ()) == [("look", '{"n": 1}')]


FORMS = {
    "Qwen": "<function=write>\n<parameter=page>{}</parameter>\n</function>",
    "GLM": "write\n<arg_key>page</arg_key>\n<arg_value>{}</arg_value>",
}
PAGES = ["<tool_call>look</tool_call>", "a <function=look> b", '<invoke name="look">']
PAGES += ['look {"n": 1}', '[{"name": "look", "arguments": {}}]']


@pytest.mark.parametrize(
    ("form", "page"),
    [*product(FORMS, PAGES), ("GLM", "<function=look><parameter=n>1</parameter></function>")],
)
def test_a_call_within_an_argument_belongs_to_its_text(form, page):
    tool = ToolSpec("write", "", {"properties": {"page": {"type": "string"}}})
    text = f"<tool_call>{FORMS[form].format(page)}\n</tool_call>"
    assert calls_in(text, [tool]) == [("write", json.dumps({"page": page}))]
