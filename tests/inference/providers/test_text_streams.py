"""What streams of text are taken apart into: events, thoughts, stop texts."""

import asyncio
import json
import time

import pytest
from calls import cut_at
from hypothesis import given
from hypothesis import strategies as st

from harness.inference.marks import MarkSplitter, calls_in, split_whole
from harness.inference.providers.json_stream import json_values
from harness.inference.reply_in_progress import StopTexts
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
        ("<tool_use>b</tool_use>", "", "<tool_use>b</tool_use>"),
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
    assert split_whole(text, reasoning="", tools=()) == (reasoning, answer, "")
    assert split_whole(text, reasoning="Hm.", tools=()) == ("", text, "")


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

    assert [*(text.feed(piece) for piece in pieces), text.held_back] == told
    assert text.has_ended is found


TOOLS = [ToolSpec(tool, "", {"properties": {"b": {"type": "string"}}}) for tool in ("cat", "look")]
WORDS = """<parameter=a>;<{}>;<arg_key>;</parameter>;<function=;<invoke</;commentary ;éa_b;a
;<tool_call>f<arg_key>k</arg_key><arg_value>;look{{a:;{{"a":1}};\\";';<|"|>;[look(b=1)];<a:"""


@pytest.mark.parametrize("head", ["<function=look>", "[TOOL_CALLS]", "<tool_call>", "[look(", "{"])
@pytest.mark.parametrize("words", WORDS.split(";"))
def test_words_and_tags_without_end_take_no_time(head, words):
    text = head + "".join(words.format(number) for number in range(20_000))
    began = time.perf_counter()
    calls_in(text, TOOLS)
    split_whole(text, reasoning="", tools=TOOLS)
    assert time.perf_counter() - began < 2


def in_each_form(text):
    """A call with this text as an argument, as models write it."""
    dsml = '<\uff5cDSML\uff5cparameter name="{}">{}</\uff5cDSML\uff5cparameter>'
    for argument, call in (
        ("<parameter={}>\n{}\n</parameter>", "<tool_call>\n<function=look>\n{}\n</function>"),
        ("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>", "<tool_call>look\n{}"),
        ('<parameter name="{}">{}</parameter>', '<invoke name="look">\n{}\n</invoke>'),
        (dsml, '<invoke name="look">\n{}\n</invoke>'),
        ("<{0}>{1}</{0}>", '<tool_call><invoke name="look">{}</invoke>'),
    ):
        arguments = argument.format("a", "notes/cat") + "\n" + argument.format("b", text)
        yield call.format(arguments) + "\n</tool_call>\n<tool_response>\nA cat.\n</tool_response>"
    whole = json.dumps({"a": "notes/cat", "b": text})
    yield f'<|tool_call>call:look{{a:<|"|>notes/cat<|"|>,b:<|"|>{text}<|"|>}}<tool_call|>'
    yield f"<function=look>{whole}</function>"
    yield f"[TOOL_CALLS]look[ARGS]{whole}"
    yield f'<tool_call>\n{{"name": "look", "arguments": {whole}}}\n</tool_call>'
    yield f'<tool_call>{{"name": "look", {whole[1:]}</tool_call>'
    yield f"<|tool_call_start|>[look(a='notes/cat', b={text!r})]<|tool_call_end|>"


TEXTS = r"""{"path": "x"};{"name": "cat", "arguments": {"path": "x"}};cat {"path": "x"}
;<b>1</b>;<p>x</p>;a\n\n;007;true;;a "b", c: {d: 1};[cat(path='x')];```py\n1\n```;</function>
;<tool_call>look</tool_call>;a </tool_call> b;a </parameter> b;a </arg_value>\nb
;<arg_key>c</arg_key>;<parameter=c>1</parameter> e;a <function=look> b;<invoke name="look">
;<function=cat>\n<parameter=path>\nx\n</parameter>\n</function>"""


@pytest.mark.parametrize("text", TEXTS.replace("\n", "").replace("\\n", "\n").split(";"))
def test_what_stands_in_an_argument_is_its_text(text):
    for call in in_each_form(text):
        (read,) = calls_in(call, TOOLS)
        assert read[0] == "look"
        assert json.loads(read[1]) == {"a": "notes/cat", "b": text}, call


BROKEN = """<parameter=b>tea</parameter><parameter=b>x</parameter></function>;tea</function>
;<parameter=a>1<parameter=b>2</parameter></function>;{"b": "te</function>
;<parameter=b>1</parameter></function> </parameter></function>;{"b": "a" b {"name": "cat"}}"""


@pytest.mark.parametrize("text", BROKEN.replace("\n", "").split(";"))
def test_an_argument_is_neither_lost_nor_cut(text):
    call = f"<function=look>{text}"
    assert calls_in(call, TOOLS) == [("look", call)]
    unended = "<function=look><parameter=b>tea</function></tool_call>"
    assert calls_in(unended, TOOLS) == [("look", '{"b": "tea"}')]
