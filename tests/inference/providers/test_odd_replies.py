"""Whole replies in shapes that no document describes, as servers and proxies do send them.

The shapes are those of public reports; the texts are our own. Each is asked for once: a reply that
was paid for is not asked for again over a frame of its stream.
"""

import json

import pytest
from calls import REQUEST, ask, fail
from loopback import DONE, Reply, chunk, delta, usage
from servers.emulated import event
from servers.openai_dialects import DIALECTS

from harness.errors import ContextOverflow, RateLimited, ReplyInvalid, ServerError, StreamCut
from harness.inference import ChatRequest, Message, ToolSpec

HELLO = delta(role="assistant", content="Hello.")
STOP, COUNT = delta(finish_reason="stop"), chunk(choices=[], usage=usage())
REST = (STOP, COUNT, DONE)
ZEROS = usage(prompt_tokens=0, completion_tokens=0)
END = {"delta": {}, "finish_reason": "stop"}
MESSAGE = {"role": "assistant", "content": "Hello."}
WHOLE = {"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}], "usage": usage()}
WHOLE_JSON = json.dumps({"object": "chat.completion", "model": "served-name", **WHOLE}).encode()


def many_lines(*events):
    """The same events, their JSON indented and each line a field of its own."""
    return tuple(
        b"".join(b"data: " + line + b"\r\n" for line in indented.split(b"\n")) + b"\r\n"
        for indented in (json.dumps(json.loads(one[6:]), indent=1).encode() for one in events)
    )


def joined(*events):
    return b"".join(events)


FRAMES = {
    "a retry field alone": (b"retry: 3000\n\n", HELLO, *REST),
    "a ping with a name": (b'event: ping\ndata: {"type": "ping"}\n\n', HELLO, *REST),
    "a ping as text": (b"data: ping\n\n", HELLO, *REST),
    "a ping in brackets": (b"data: [HEARTBEAT]\n\n", HELLO, *REST),
    "a comment as data": (b"data: : OPENROUTER PROCESSING\n\n", HELLO, *REST),
    "empty data": (b"data:\n\n", HELLO, b"data: \n\n", *REST),
    "null": (HELLO, b"data: null\n\n", *REST),
    "an empty list": (b"data: []\n\n", HELLO, *REST),
    "an end mark in small letters": (HELLO, STOP, COUNT, b"data: [done]\n\n"),
    "an end mark in quotes": (HELLO, STOP, COUNT, b'data: "[DONE]"\n\n'),
    "an end mark without its field": (HELLO, STOP, COUNT, b"[DONE]\n\n"),
    "no end mark": (HELLO, STOP, COUNT),
    "no blank line at the end": (joined(HELLO, STOP, COUNT)[:-2],),
    "no blank lines": (joined(HELLO, *REST).replace(b"\n\n", b"\n"),),
    "CR alone": (joined(HELLO, *REST).replace(b"\n", b"\r"),),
    "a mark before it, and CRLF": (b"\xef\xbb\xbf" + joined(HELLO, *REST).replace(b"\n", b"\r\n"),),
    "an event of many lines": (*many_lines(HELLO, STOP, COUNT), DONE),
    "two objects in one event": (joined(HELLO, STOP).replace(b"\n\ndata", b"\ndata"), COUNT, DONE),
    "lines of JSON": (joined(HELLO, *REST).replace(b"data: ", b"").replace(b"\n\n", b"\n"),),
    "a whole reply as a stream": (WHOLE_JSON,),
    "a whole reply and an end mark": (WHOLE_JSON, b"\n\n", DONE),
    "a whole reply, indented": (json.dumps(WHOLE, indent=2).encode(),),
    "a whole reply in an event": (event(WHOLE), DONE),
    "choices that are null": (HELLO, STOP, chunk(choices=None, usage=usage()), DONE),
    "a delta that is null": (HELLO, chunk(choices=[{**END, "delta": None}]), COUNT),
    "an empty finish reason": (delta(content="Hel", finish_reason=""), delta(content="lo."), *REST),
    "usage in the first chunk": (chunk(choices=[], usage=usage()), HELLO, STOP, DONE),
    "zeros in the last usage": (HELLO, STOP, COUNT, chunk(choices=[], usage=ZEROS), DONE),
    "usage in each chunk": (
        chunk(choices=[{"delta": MESSAGE}], usage=usage(completion_tokens=1)),
        *(chunk(choices=[END], usage=usage()), DONE),
    ),
    "counts that are null": (
        *(HELLO, STOP),
        chunk(choices=[], usage=usage(prompt_tokens_details=None, completion_tokens_details=None)),
    ),
    "a model that is a number": (chunk(choices=[{"delta": MESSAGE}], model=7), *REST),
    "calls that are null": (delta(content="Hello.", tool_calls=None, function_call=None), *REST),
    "NaN": (HELLO.replace(b"}\n", b', "score": NaN}\n'), *REST),
    "a list of parts": (delta(content=[{"type": "text", "text": "Hello."}]), *REST),
    "a part alone": (delta(content={"type": "text", "text": "Hello."}), *REST),
    "a part of text": (delta(content=["Hello."]), *REST),
    "parts without text": (
        delta(content=[{"type": "reference", "reference_ids": [1]}, {"type": "image_url"}]),
        *(HELLO, *REST),
    ),
}
SOME = {"vllm", "llamacpp"}


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=() if name in SOME else pytest.mark.slow)
        for name in [*DIALECTS, "litellm"]
    ],
)
@pytest.mark.parametrize("steps", FRAMES.values(), ids=FRAMES)
def test_a_whole_reply_is_read_in_any_frame(steps, backend):
    if backend == "litellm" and b"tool_calls" in joined(*steps):
        pytest.skip("OpenAI's own client takes no null for calls")
    model_id = "openai/served-name" if backend == "litellm" else "served-name"

    completion, server = ask(Reply(steps=steps), backend=backend, model_id=model_id, api_key="sk-1")

    assert (completion.text, completion.reasoning) == ("Hello.", "")
    assert completion.finish_reason == "stop"
    assert (completion.usage.output_tokens, len(server.asked)) == (3, 1)


@pytest.mark.parametrize("kind", ["", "text/plain; charset=utf-8", "application/json"])
@pytest.mark.parametrize("steps", [(HELLO, *REST), (WHOLE_JSON,)], ids=["stream", "whole"])
def test_what_a_body_is_called_makes_no_difference(kind, steps):
    completion, _ = ask(Reply(headers=(("content-type", kind),) if kind else (), steps=steps))

    assert completion.text == "Hello."


USAGES = (
    chunk(choices=[{**END, "usage": usage()}]),
    chunk(choices=[END], x_groq={"usage": usage()}),
)


@pytest.mark.parametrize("ending", ["hold", "close", "reset"])
@pytest.mark.parametrize(
    "last", [STOP + COUNT, *USAGES], ids=["alone", "in the reply", "beside it"]
)
def test_a_reply_that_is_whole_need_not_end_well(ending, last):
    completion, _ = ask(Reply(steps=(HELLO, last), ending=ending), backend="vllm")

    assert (completion.text, completion.usage.output_tokens) == ("Hello.", 3)


def test_an_error_of_whoever_listens_to_the_last_piece_stays_theirs():
    def listen(_text):
        raise TimeoutError("my own clock")

    request = ChatRequest(model="judge", messages=REQUEST.messages, on_text=listen)
    last = chunk(choices=[{"delta": MESSAGE, "finish_reason": "stop"}], usage=usage())
    with pytest.raises(TimeoutError, match="my own"):
        ask(Reply(steps=(last, DONE)), request=request)


SUMMARY = {"type": "summary_text", "text": "Hm."}
THOUGHTS = {
    "Mistral's part": (delta(content=[{"type": "thinking", "thinking": [{"text": "Hm."}]}]),),
    "a part with a summary": (delta(content=[{"type": "reasoning", "summary": [SUMMARY]}]),),
    "reasoning in parts": (delta(reasoning_content=[{"type": "text", "text": "Hm."}]),),
    "details alone": (delta(reasoning_details=[{"type": "reasoning.text", "text": "Hm."}]),),
    "details beside it": (delta(reasoning="Hm.", reasoning_details=[{"text": "Hm."}]),),
    "Ollama's field": (delta(thinking="Hm."),),
    "again in the text": (delta(content="<think>\nHm.\n</think>", reasoning_content="Hm."),),
    "again, in pieces": (
        *(delta(content="<think>Hm", reasoning="Hm"), delta(content=".</think>", reasoning=".")),
    ),
    "again, by a prompt's mark": (delta(content="Hm.</think>\n\n", reasoning="Hm."),),
    "blank in the text": (delta(reasoning="Hm."), delta(content="<think>\n\n</think>\n\n")),
    "a mark alone in the text": (delta(reasoning="Hm."), delta(content="</think>\n\n")),
    "a second one in the text": (delta(reasoning="Hm"), delta(content="<think>.</think>\n\n")),
}


@pytest.mark.parametrize("steps", THOUGHTS.values(), ids=THOUGHTS)
def test_reasoning_in_parts_is_reasoning(steps):
    completion, _ = ask(Reply(steps=(*steps, HELLO, *REST)))

    assert (completion.text, completion.reasoning) == ("Hello.", "Hm.")


@pytest.mark.parametrize("backend", ["vllm", "litellm"])
def test_a_cut_reply_stays_cut(backend):
    steps = (HELLO, delta(finish_reason="length"), *REST)
    completion, _ = ask(Reply(steps=steps), backend=backend, model_id="openai/m", api_key="sk-1")

    assert completion.finish_reason == "length"


def test_a_refusal_is_no_answer():
    completion, _ = ask(Reply(steps=(delta(refusal="I cannot."), *REST)))

    assert (completion.text, completion.finish_reason) == ("I cannot.", "content_filter")


def test_a_letter_in_two_halves_is_one():
    whole = chunk(choices=[{"delta": {"content": "?"}}])
    halves = [whole.replace(b"?", half) for half in (rb"\ud83e", rb"\udd89")]

    completion, _ = ask(Reply(steps=(*halves, *REST)))

    assert completion.text == "🦉"


REFUSED = {"message": "Failed to call a function.", "code": "tool_use_failed"}
QUOTA = {"code": 429, "message": "the quota is spent", "status": "RESOURCE_EXHAUSTED"}
TOO_LONG = {"message": "prompt is too long"}
LIMIT = {"choices": None, "base_resp": {"status_code": 1002}}  # MiniMax's
ERRORS = {
    "in a list": (RateLimited, json.dumps([{"error": QUOTA}]).encode()),
    "beside empty choices": (RateLimited, event({"choices": [], "error": QUOTA}), DONE),
    "of a choice": (RateLimited, chunk(choices=[{"finish_reason": "error", "error": QUOTA}]), DONE),
    "bare in a stream": (RateLimited, json.dumps(QUOTA).encode()),
    "an event's name alone": (ContextOverflow, HELLO, b"event: error\n" + event(TOO_LONG)),
    "an event of text": (ServerError, HELLO, b"event: error\ndata: gone\n\n", DONE),
    "text": (StreamCut, HELLO, b"data: Internal Server Error\n\n"),
    "a type beside it": (RateLimited, HELLO, event({"type": "error", **QUOTA}), DONE),
    "another key": (ContextOverflow, HELLO, event({"error_message": TOO_LONG["message"]}), DONE),
    "msg": (ContextOverflow, HELLO, event({"msg": TOO_LONG["message"]}), DONE),
    "a detail": (ServerError, HELLO, event({"detail": "the worker died"}), DONE),
    "a list": (ServerError, event({"success": False, "errors": [{"message": "gone"}]}), DONE),
    "a code of its own": (RateLimited, HELLO, event(LIMIT), DONE),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_any_shape_is_that_error(name):
    error, *steps = ERRORS[name]
    fail(error, Reply(steps=tuple(steps)))


# --- Ollama ------------------------------------------------------------------------------------


def line(**more):
    said = {"model": "m", "message": MESSAGE, "done": False, **more}
    return json.dumps(said).encode() + b"\n"


END = {"done": True, "done_reason": "stop", "prompt_eval_count": 31, "eval_count": 3}
NOTHING = {"message": {"role": "assistant", "content": ""}}
LAST = line(**END, **NOTHING)
LINES = {
    "blank lines, CRLF, a mark": (
        b"\xef\xbb\xbf" + (line() + b"\n" + LAST).replace(b"\n", b"\r\n"),
    ),
    "as events": (b"data: " + line() + b"\ndata: " + LAST + b"\ndata: [DONE]\n\n",),
    "pings": (b": ping\n", line(), b"\nping\n\n", LAST),
    "indented": (json.dumps(json.loads(line(**END)), indent=1).encode(),),
    "calls that are null": (line(message={**MESSAGE, "tool_calls": None}), LAST),
    "no message at the end": (line(), line(**END, message=None)),
    "no reason at the end": (line(), line(**{**END, "done_reason": None}, **NOTHING)),
    "a list of parts": (line(message={"content": [{"type": "text", "text": "Hello."}]}), LAST),
}


@pytest.mark.parametrize("steps", LINES.values(), ids=LINES)
def test_a_whole_reply_of_ollama_is_read_in_any_frame(steps):
    completion, server = ask(Reply(steps=steps), backend="ollama")

    assert (completion.text, completion.finish_reason) == ("Hello.", "stop")
    assert (completion.usage.output_tokens, len(server.asked)) == (3, 1)


# --- marks -------------------------------------------------------------------------------------

LOOK = ToolSpec(
    "look",
    "Looks up.",
    {"type": "object", "properties": {"item": {"type": "string"}, "n": {"type": "integer"}}},
)
LOOKING = ChatRequest(model="judge", messages=REQUEST.messages, tools=(LOOK,))


def wide(text):
    """DeepSeek's bar is one of the wide letters."""
    return text.replace("|", "\uff5c")


CALLED = '{"name": "look", "arguments": {"item": "7", "n": 3}}'
CALLS = {
    "Hermes": f"<tool_call>\n{CALLED}\n</tool_call>",
    "Hermes, its kind beside": f'<tool_call>\n{CALLED[:-1]}, "function": "look"}}\n</tool_call>',
    "Hermes, unclosed": f"<tool_call>\n{CALLED}",
    "Hermes, a fence's word": f"<tool_call>json{CALLED}",
    "Qwen3-Coder": "<think>\nHm.\n</think>\n\n<tool_call>\n<function=look>\n<parameter=item>\n7\n"
    "</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
    "a word before": f"I will look.\n\n<tool_call>\n{CALLED}\n</tool_call>",
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.look <|constrain|>json<|message|>{"item":"7","n":3}<|call|>',
    "harmony, the recipient first": "<|start|>assistant to=functions.look<|channel|>commentary json"
    '<|message|>{"item":"7","n":3}<|call|>',
    "pythonic": '[look(item="7", n=3)]',
    "LFM2": '<|tool_call_start|>[look(item="7", n=3)]<|tool_call_end|>',
    "Mistral": '[TOOL_CALLS]look[ARGS]{"item": "7", "n": 3}',
    "Mistral, older": f"[TOOL_CALLS] [{CALLED}]",
    "DeepSeek V3": wide(
        "<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>look\n```json\n"
        '{"item":"7","n":3}\n```<|tool▁call▁end|><|tool▁calls▁end|>'
    ),
    "DeepSeek V3.2": wide(
        '<|DSML|function_calls>\n<|DSML|invoke name="look">\n<|DSML|parameter name="item" '
        'string="true">7</|DSML|parameter>\n<|DSML|parameter name="n" string="false">3'
        "</|DSML|parameter>\n</|DSML|invoke>\n</|DSML|function_calls>"
    ),
    "GLM": "<tool_call>look\n<arg_key>item</arg_key>\n<arg_value>7</arg_value>\n<arg_key>n"
    "</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "MiniMax M3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="look">]<]minimax[>[<item>7'
    "]<]minimax[>[</item>]<]minimax[>[<n>3]<]minimax[>[</n>]<]minimax[>[</invoke>",
    "Kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
    '<|tool_call_argument_begin|>{"item": "7", "n": 3}<|tool_call_end|>',
    "Gemma 4": '<|tool_call>call:look{item:<|"|>7<|"|>,n:3}<tool_call|>',
    "Llama 3": '<|python_tag|>{"name": "look", "parameters": {"item": "7", "n": 3}}',
    "Llama 3, without a mark": '{"name": "look", "parameters": {"item": "7", "n": 3}}',
    "a fence": f"```json\n{CALLED}\n```",
    "Llama 3.1": '<function=look>{"item": "7", "n": 3}</function>',
    "Gemma 3": '```tool_code\nlook(item="7", n=3)\n```',
    "Glaive": f"<function_call>{CALLED}</function_call>",
    "Phi-4": f"functools[{CALLED}]",
    "Command A": '<|START_ACTION|>[{"tool_name": "look", "parameters": {"item": "7", "n": 3}}]',
    "Olmo": '<function_calls>\nlook(item="7", n=3)\n</function_calls>',
    "Nemotron": f"<TOOLCALL>[{CALLED}]</TOOLCALL>",
    "LongCat": f"<longcat_tool_call>{CALLED}</longcat_tool_call>",
    "Grok": '<xai:function_call name="look">\n<parameter name="item">7</parameter>\n'
    '<parameter name="n">3</parameter></xai:function_call>',
    "harmony without marks": 'commentary to=functions.look json{"item": "7", "n": 3}',
    "a list in an object": f'{{"tool_calls": [{{"type": "function", "function": {CALLED}}}]}}',
    "the word of the prompt": f"I will look.\n<tools>\n{CALLED}\n</tools>",
    "oMLX": 'I will look.\n\n[Calling tool: look({"item": "7", "n": 3})]',
    "a sentence and JSON": f"I will look. {CALLED}",
}


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_a_call_that_the_server_left_in_the_text_is_a_call(text):
    completion, _ = ask(Reply(steps=(delta(content=text), *REST)), request=LOOKING)

    (call,) = completion.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"item": "7", "n": 3})
    assert completion.finish_reason == "tool_calls"
    assert completion.text in {"", "I will look."}


SEVEN, EIGHT = '{"item":"7","n":3}', '{"item":"8","n":4}'


def piece(index=0, id_=None, name=None, arguments=None):
    """A delta with a piece of a call; fields that are None are left out, but for the index."""
    named = {"name": name, "arguments": arguments}
    function = {field: value for field, value in named.items() if value is not None}
    fields = {} if id_ is None else {"id": id_}
    return delta(tool_calls=[{"index": index, **fields, "function": function}])


HEAD = piece(0, "a", "look", SEVEN[:6])
PIECES = {
    "the second call is numbered 0 at first, then 1": (
        *(piece(0, "a", "look", SEVEN), piece(0, "b", "look", EIGHT[:9])),
        piece(1, arguments=EIGHT[9:]),
    ),
    "the pieces are counted": (
        piece(0, "a", "look", ""),
        *(piece(1, arguments=SEVEN[:6]), piece(2, arguments=SEVEN[6:])),
    ),
    "without numbers": (
        *(piece(None, "a", "look", SEVEN[:6]), piece(None, arguments=SEVEN[6:])),
        *(piece(None, "b", "look", EIGHT[:4]), piece(None, arguments=EIGHT[4:])),
    ),
    "by id alone, in turn": (
        *(HEAD, piece(0, "b", "look", EIGHT[:6])),
        *(piece(0, "a", arguments=SEVEN[6:]), piece(0, "b", arguments=EIGHT[6:])),
    ),
    "by number alone, in turn": (
        *(HEAD, piece(1, "b", "look", EIGHT[:6])),
        *(piece(0, arguments=SEVEN[6:]), piece(1, arguments=EIGHT[6:])),
    ),
    "an id for each piece": (HEAD, piece(0, "a2", arguments=SEVEN[6:])),
    "empty ids and names": (HEAD, piece(0, "", "", SEVEN[6:])),
    "the same id twice": (piece(0, "a", "look", SEVEN), piece(1, "a", "look", EIGHT)),
    "the same id twice, unnumbered": tuple(piece(None, "a", "look", s) for s in (SEVEN, EIGHT)),
    "the same id twice, in turn": (
        *(HEAD, piece(1, "a", "look", EIGHT[:6])),
        *(piece(0, "a", arguments=SEVEN[6:]), piece(1, "a", arguments=EIGHT[6:])),
    ),
    "an id for the second alone": (piece(0, "", "look", SEVEN), piece(0, "b", "look", EIGHT)),
    "the arguments again": (piece(0, "a", "look", ""), *[piece(0, arguments=SEVEN)] * 2),
    "the call again": (piece(0, "a", "look", SEVEN), piece(0, "a", "look", SEVEN)),
    "all so far in each": (HEAD, piece(0, "a", "look", SEVEN[:12]), piece(0, "a", "look", SEVEN)),
    "an empty object at first": (piece(0, "a", "look", "{}"), piece(0, arguments=SEVEN)),
    "an object": (piece(0, "a", "look", {"item": "7", "n": 3}),),
    "the name after the id": (piece(0, "a"), piece(0, name="look"), piece(0, arguments=SEVEN)),
    "numbers as text": (piece("0", "a", "look", SEVEN[:6]), piece("0", arguments=SEVEN[6:])),
    "a name with its namespace": (piece(0, "a", "functions.look", SEVEN),),
    "a name with blanks": (piece(0, "a", " look\n", SEVEN),),
    "a name with a channel": (piece(0, "a", "look<|channel|>commentary", SEVEN),),
    "a name with a number": (piece(0, "a", "functions.look:0", SEVEN),),
    "a name in pieces": (piece(0, None, "lo", ""), piece(0, None, "ok", SEVEN)),
    "a name in pieces by id": (piece(0, "a", "lo"), piece(0, "a", "ok"), piece(0, "a", "", SEVEN)),
    "the older form": (
        delta(function_call={"name": "look", "arguments": SEVEN[:6]}),
        delta(function_call={"arguments": SEVEN[6:]}),
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_calls_make_the_calls_that_were_meant(name):
    completion, _ = ask(Reply(steps=(*PIECES[name], *REST)), request=LOOKING)

    calls = completion.tool_calls
    right = [SEVEN, EIGHT] if b'"b"' in joined(*PIECES[name]) or "twice" in name else [SEVEN]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("look", json.loads(arguments)) for arguments in right
    ]
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "look", "arguments": {"item": "te',
        "<|tool_call_start|>[look(item={[7]: 3})]",
        "<|tool_call_start|>[look(item=7if)]",
    ],
)
def test_a_call_that_cannot_be_read_is_no_answer(text):
    completion, _ = ask(Reply(steps=(delta(content=text), *REST)), request=LOOKING)

    (call,) = completion.tool_calls
    assert (completion.text, call.name, call.arguments) == ("", "look", text)


@pytest.mark.parametrize("backend", ["openai", "litellm"])
@pytest.mark.parametrize("text", [CALLS["Llama 3.1"], "It is 7."], ids=["a call", "prose"])
def test_a_call_that_its_server_refused_is_read_from_the_refusal(text, backend):
    reply = Reply(
        status=400, steps=(json.dumps({"error": REFUSED | {"failed_generation": text}}).encode(),)
    )
    how = {"request": LOOKING, "backend": backend, "model_id": "openai/m", "api_key": "sk-1"}
    if text == "It is 7.":
        assert fail(ReplyInvalid, reply, **how).text == text
    else:
        assert [call.name for call in ask(reply, **how)[0].tool_calls] == ["look"]


SPEAKS_OF_IT = r"""A call looks like this:\n\nCALL;A call looks like this:\n\n<tools>CALL</tools>
;Write:\n```\n<tool_call>\nCALL\n</tool_call>\n```\nor `[look()]`.;Send:\n```json\nCALL\n```
;```json\nCALL\n```\nThat was it.;Send it. CALL is all.;CALL is what a model writes.;[1] has CALL
;The robot wrote "CALL" and smiled.;I looked. {"name": "look", "arguments": {"place": "7"}}
;[Calling tool: look] was all, to=functions.look was not.;It is. {"name": "find", "input": {}}"""


@pytest.mark.parametrize("text", SPEAKS_OF_IT.replace("\n", "").split(";"))
def test_a_call_that_an_answer_only_speaks_of_stays_in_it(text):
    text = text.replace("CALL", CALLED).replace("\\n", "\n")
    completion, _ = ask(Reply(steps=(delta(content=text), *REST)), request=LOOKING)

    assert (completion.text, completion.tool_calls) == (text, ())


def test_an_end_mark_is_neither_heard_nor_answered():
    heard = []
    request = ChatRequest(model="judge", messages=(Message("user", "Hi"),), on_text=heard.append)

    completion, _ = ask(
        Reply(steps=(HELLO, delta(content="<|im_"), delta(content="end|>\n"), *REST)),
        request=request,
    )

    assert completion.text == "".join(heard) == "Hello."
