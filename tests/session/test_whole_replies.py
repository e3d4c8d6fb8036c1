"""What a node, or a caller of `harness.chat`, gets of a reply that is not whole."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import get_args

import pytest
from clients import AT_ONCE, client_of
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import Loopback, Reply, delta
from scripted_judge import judge
from session_runs import BAD, GOOD, ONE_QUESTION, SOURCE, pipeline_of, refused, run, settings_of

from harness import Completion, NodeFailed, OnCut, ReplyCut, Run, ScriptedBackend, ToolCall
from harness.errors import ContextOverflow, HarnessError, ReplyFiltered
from harness.inference import ChatRequest, Message, ScriptedReply
from harness.inference.answer import answer
from harness.inference.completion import FinishReason
from harness.session.resume import run_spent
from harness.trace import Journal
from harness.trace.run_list import list_runs

ROLES = {"producer": "writer"}


class Ending(ScriptedBackend):
    """A model whose replies end for these reasons, and at the last one ever after."""

    def __init__(self, replies, *reasons):
        super().__init__(replies)
        self._reasons = reasons

    async def chat(self, request):
        completion = await super().chat(request)
        reason = self._reasons[min(len(self.requests), len(self._reasons)) - 1]
        return replace(completion, finish_reason=reason)


class Reciting(ScriptedBackend):
    """A model that knows one text, and goes on with it where a call's room had cut it."""

    def __init__(self, text):
        super().__init__(self._more)
        self._text = text

    def _more(self, request):
        begun = request.messages[-1].content if request.goes_on else ""
        assert self._text.startswith(begun)
        return self._text[len(begun) :][: request.max_output_tokens]

    async def chat(self, request):
        completion = await super().chat(request)
        whole = self._text.endswith(completion.text) and len(completion.text) < (
            request.max_output_tokens or len(self._text)
        )
        return replace(completion, finish_reason="stop" if whole else "length")


CODES = {
    "length": (ReplyCut, "call.reply-cut"),
    "content_filter": (ReplyFiltered, "call.reply-filtered"),
}
ANSWER = json.dumps({"answer": ["a b"]})


@settings(max_examples=settings().max_examples // 10)
@given(
    cases=st.lists(
        st.tuples(
            st.sampled_from(get_args(FinishReason)),
            st.sampled_from([str, list[str], Completion, None]),
            st.sampled_from(get_args(OnCut)),
            st.sampled_from(["", " \n", ANSWER, ANSWER[:-4], "two words"]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_no_cut_text_comes_out_as_whole(tmp_path_factory, cases):
    """Over the finish reasons, the types asked for, and what was said to become of it."""

    class Writer(ScriptedBackend):
        async def chat(self, request):
            if request.goes_on:
                # There is no more of it, and it is not done either.
                return replace(await super().chat(request), text="", finish_reason="length")
            reason, *_, text = cases[int(request.messages[0].content.split()[0])]
            return replace(await super().chat(request), text=text, finish_reason=reason)

    async def said(run: Run) -> list[str]:
        given = []
        for number, (_, returns, on_cut, _) in enumerate(cases):
            more = {} if returns is None else {"returns": returns}
            try:
                await run.chat("producer", str(number), on_cut=on_cut, **more)
                given.append("")
            except HarnessError as error:
                given.append(error.code)
        return given

    given = settings_of(tmp_path_factory.mktemp("run"), roles=ROLES)
    writer = Writer(lambda _: "")
    codes = run(pipeline_of(said), given, backends={"writer": writer}).result
    for (reason, _, on_cut, text), code in zip(cases, codes, strict=True):
        if reason not in CODES:
            cut = None if text.strip() else "reply.empty"
        else:
            cut = None if on_cut == "keep" else CODES[reason][1]
        assert cut is None or code == cut
        assert cut is not None or code in {"", "call.reply-invalid"}


def test_a_text_without_blanks_is_gone_on_with_from_its_last_letter():
    text = "春\n" + "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    request = asked(max_output_tokens=200)
    assert asyncio.run(answer(Reciting(text).chat, request, on_cut="continue")).text == text


def test_a_rest_that_is_empty_is_not_asked_for_in_the_models_own_words():
    writer = Ending(["It was a", "", "Sorry!"], "length", "stop")
    with pytest.raises(ReplyCut) as caught:
        asyncio.run(answer(client_of(writer, retry=AT_ONCE).chat, asked(), on_cut="continue"))
    assert (caught.value.text, len(writer.requests)) == ("It was a", 2)


@settings(max_examples=settings().max_examples // 2)
@given(
    words=st.lists(st.text("ab ü\n", min_size=1, max_size=6), min_size=1, max_size=12),
    room=st.integers(1, 40),
)
def test_a_reply_that_is_gone_on_with_is_the_whole_text_or_an_error(words, room):
    text = "x" + " ".join(words)
    request = ChatRequest(model="m", messages=(Message("user", "?"),), max_output_tokens=room)
    writer = Reciting(text)
    try:
        found = asyncio.run(answer(writer.chat, request, on_cut="continue"))
    except ReplyCut as error:
        found = error
    is_whole = found.finish_reason == "stop"
    assert is_whole == isinstance(found, Completion)
    assert found.text == text if is_whole else text.startswith(found.text)
    assert len(writer.requests) <= 5
    assert found.usage.input_tokens == sum(
        len(m.content.split()) for asked in writer.requests for m in asked.messages
    )


@pytest.mark.parametrize(("reason", "error"), [(r, e) for r, (e, _) in CODES.items()])
def test_the_error_carries_what_there_was(reason, error):
    writer = Ending(["It was a"], reason)
    with pytest.raises(error) as caught:
        asyncio.run(answer(writer.chat, asked(), on_cut="error"))
    assert caught.value.text == "It was a"
    assert caught.value.finish_reason == reason
    assert caught.value.usage.output_tokens == len(caught.value.text.split())


def asked(**fields):
    return ChatRequest(model="m", messages=(Message("user", "?"),), **fields)


def test_a_rest_that_the_filter_ends_or_the_context_has_no_room_for_is_not_whole():
    filtered = Ending(["It was a", "dark"], "length", "content_filter")
    with pytest.raises(ReplyFiltered) as caught:
        asyncio.run(answer(filtered.chat, asked(), on_cut="continue"))
    assert caught.value.text == "It was dark"

    full = Ending(["It was a", ContextOverflow("full", endpoint="m")], "length")
    with pytest.raises(ReplyCut) as caught:
        asyncio.run(answer(full.chat, asked(), on_cut="continue"))
    assert caught.value.text == "It was a"
    assert isinstance(caught.value.__context__, ContextOverflow)


def test_json_is_gone_on_with_from_its_last_letter_and_without_its_grammar():
    writer = Ending(['{"answer": [', '"a"]}'], "length", "stop")
    found = asyncio.run(
        answer(writer.chat, asked(reply_schema={"type": "object"}), on_cut="continue")
    )
    assert found.text == '{"answer": ["a"]}'
    assert [one.reply_schema for one in writer.requests] == [{"type": "object"}, None]


def test_a_reply_without_an_end_is_an_error_that_says_how_often_more_was_asked_for():
    endless = Ending(["and so on "] * 9, *["length"] * 9)
    with pytest.raises(ReplyCut, match="also after 4 calls for the rest"):
        asyncio.run(answer(endless.chat, asked(), on_cut="continue"))


CALL = (ToolCall("a", "look", '{"at": "ow'),)


@pytest.mark.parametrize(
    ("cut", "tools"),
    [
        pytest.param(ScriptedReply(text="I look.", tool_calls=CALL), "native", id="a call"),
        pytest.param(ScriptedReply(text='{"next":{"ca'), "typed", id="what may become one"),
    ],
)
@pytest.mark.parametrize("on_cut", ["error", "continue"])
def test_a_cut_call_of_a_tool_is_never_gone_on_with(cut, tools, on_cut):
    class Offered(Ending):
        async def chat(self, request):
            return replace(await super().chat(request), tools=tools)

    writer = Offered([cut], "length")
    with pytest.raises(ReplyCut):
        asyncio.run(answer(writer.chat, asked(), on_cut=on_cut))
    assert len(writer.requests) == 1


@pytest.mark.parametrize(("tools", "why"), [("native", "calling a"), (None, "none was offered")])
def test_a_reply_that_is_cut_while_it_calls_a_tool_says_so(tools, why):
    class Offered(Ending):
        async def chat(self, request):
            return replace(await super().chat(request), tools=tools)

    writer = Offered([ScriptedReply(tool_calls=CALL)], "length")
    with pytest.raises(ReplyCut, match=why):
        asyncio.run(answer(writer.chat, asked()))


def test_a_cut_text_may_end_in_a_call_and_calls_alone_are_a_answer():
    writer = Ending(["I will", ScriptedReply(tool_calls=CALL)], "length", "tool_calls")
    found = asyncio.run(answer(writer.chat, asked(), on_cut="continue"))
    assert (found.tool_calls, found.finish_reason) == (CALL, "tool_calls")

    caller = Ending([ScriptedReply(tool_calls=CALL)], "tool_calls")
    assert asyncio.run(answer(caller.chat, asked(), on_cut="error")).tool_calls == CALL


def test_what_is_to_become_of_a_cut_reply_is_one_of_three():
    with refused("request.on-cut-unknown"):
        asyncio.run(answer(ScriptedBackend([]).chat, asked(), on_cut="Keep"))


def test_all_that_is_known_of_a_call_is_one_word_away_in_a_node(tmp_path):
    async def said(run: Run) -> list:
        found = await run.chat("producer", "?", returns=Completion, on_cut="keep")
        return [type(found).__name__, found.text, found.finish_reason, found.usage.output_tokens]

    writer = Ending([" two words "], "length")
    given = settings_of(tmp_path, roles=ROLES)
    result = run(pipeline_of(said), given, backends={"writer": writer})
    assert result.result == ["Completion", " two words ", "length", 2]


# --- in a revise loop ------------------------------------------------------------------------


def looping(tmp_path, *replies, reasons, **more):
    """A loop whose judge likes every draft, and the writer that it had."""
    rubric = tmp_path / "one.yaml"
    rubric.write_text(ONE_QUESTION)

    async def loop(run: Run) -> list:
        found = await run.wiggum("Why?", rubric=str(rubric), sources=[SOURCE], **more)
        return [found.passed, found.text, [one.cut for one in found.rounds]]

    writer = Ending(list(replies), *reasons)
    backends = {"writer": writer, "judge": judge(10)}
    given = settings_of(tmp_path, roles={**ROLES, "evaluator": "judge"})
    result = run(pipeline_of(loop), given, backends=backends)
    return result.result, writer


def test_a_cut_draft_never_passes_whatever_its_score(tmp_path):
    only, _ = looping(tmp_path, GOOD, reasons=["length"], max_rounds=1)
    assert only == [False, GOOD, [True]]

    revised, writer = looping(
        tmp_path, f"# A\n\n{GOOD}", GOOD, reasons=["length", "stop"], max_output_tokens=120
    )
    assert revised == [True, GOOD, [True, False]]
    # Not by section: it has no end that could be put back.
    assert "It breaks off" in writer.requests[1].messages[-1].content
    assert [one.max_output_tokens for one in writer.requests] == [120, 120]


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        pytest.param(f"{GOOD} And th", [True, GOOD, [True, False]], id="to a whole sentence"),
        pytest.param("And th", [False, BAD, [True, True]], id="to nothing"),
    ],
)
def test_a_cut_revision_passes_when_it_could_be_trimmed(tmp_path, reply, found):
    assert looping(tmp_path, BAD, reply, reasons=["length"], max_rounds=2)[0] == found


@pytest.mark.parametrize("reasons", [["content_filter"], ["length", "content_filter"]])
def test_a_filtered_draft_is_no_draft(tmp_path, reasons):
    replies = [BAD, GOOD]
    if len(reasons) == 1:
        with refused("call.reply-filtered"):
            looping(tmp_path, *replies, reasons=reasons)
    else:
        assert looping(tmp_path, *replies, reasons=reasons)[0] == [False, BAD, [True]]


# --- replies that do not end in time ------------------------------------------------------------


@pytest.mark.parametrize("returns", [None, list[str]])
def test_a_reply_that_goes_on_for_too_long_says_how_to_limit_it_and_its_tokens_count(
    tmp_path, returns
):
    pieces = ["[", *('"more and more", ' for _ in range(6))]
    endless = Reply(steps=tuple(delta(content=piece) for piece in pieces), ending="hold")

    async def written(run: Run) -> str:
        return repr(await run.chat("producer", "List them.", returns=returns))

    async def main():
        async with Loopback([endless]) as server:
            # The server of this protocol is sent the schema untested.
            endpoint = {"url": server.url, "backend": "openai", "timeout_s": 0.3}
            endpoint |= {"model_id": "small", "retry": {"max_attempts": 1}}
            settings = settings_of(
                tmp_path, endpoints={"writer": endpoint}, roles={"producer": "writer"}
            )
            with pytest.raises(NodeFailed) as caught:
                await pipeline_of(written).run_async({}, settings=settings)
            return caught.value

    failed = asyncio.run(main())
    message = str(failed.__cause__)
    assert "no whole reply within timeout_s = 0.3 s; about 7 tokens of it came" in message
    assert "max_output_tokens" in message
    assert failed.result.spent.output_tokens == 7
    (line,) = list_runs(tmp_path / "traces")
    assert line.output_tokens == 7
    assert run_spent(Journal(failed.result.files.journal)).output_tokens == 7
