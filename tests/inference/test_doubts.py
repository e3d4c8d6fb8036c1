"""What a server took no notice of is said, once for each endpoint, where a reply shows it."""

import asyncio
from dataclasses import replace

import pytest
from clients import client_of

from harness.inference import ChatRequest, Message, ScriptedBackend, ScriptedReply, ToolSpec, Usage
from harness.inference.completion import Completion

LONG = "The owl sat on the old wall. " * 400
CALL = '{"name": "look", "arguments": {}}'
TOOL = ToolSpec("look", "Looks up.", {"type": "object"})


def asked(text="Say hello.", **how):
    return ChatRequest(model="judge", messages=(Message("user", text),), **how)


def codes(request, *replies):
    notices = []
    client = replace(client_of(ScriptedBackend(replies), tag="judge"), warn=notices.append)

    async def main() -> list[Completion]:
        return [await client.chat(request) for _ in replies]

    asyncio.run(main())
    return [notice.code for notice in notices]


def read(tokens, text="Hello.", cached_tokens=None):
    usage = Usage(input_tokens=tokens, output_tokens=2, cached_tokens=cached_tokens)
    return ScriptedReply(text=text, usage=usage)


@pytest.mark.parametrize(
    ("request_", "reply", "code"),
    [
        pytest.param(asked(LONG), read(1500), "call.prompt-cut", id="cut"),
        pytest.param(asked("天气很好" * 5000), read(600), "call.prompt-cut", id="without blanks"),
        pytest.param(asked(LONG), read(2805), None, id="a token a word"),
        pytest.param(asked(LONG), read(1500, cached_tokens=1400), None, id="cached beside it"),
        pytest.param(asked("=" * 9000 + " " * 9000), read(90), None, id="rulers"),
        pytest.param(asked("x" * 10_000), read(28), None, id="a row of one letter"),
        pytest.param(asked("Hi " * 300), read(9), None, id="a short one"),
        pytest.param(asked(stop=("END",)), "One END two", "call.stop-ignored", id="stop"),
        pytest.param(asked(stop=("END",)), "One END\n", None, id="the stop itself"),
        pytest.param(
            asked(tools=(TOOL,), tool_choice="required"),
            "Hello.",
            "call.tool-choice-ignored",
            id="no call",
        ),
        pytest.param(asked(), "<|plan|>Hi.<|/plan|>Hello.", "call.marks-unknown", id="marks"),
        pytest.param(asked(), "<scratchpad>Hi</scratchpad>", "call.marks-unknown", id="a tag"),
        pytest.param(asked(tools=(TOOL,)), f"So: {CALL}", "call.marks-unknown", id="a call"),
        pytest.param(asked(tools=(TOOL,)), f"Write `{CALL}`.", None, id="a quoted call"),
        pytest.param(asked("Use <|plan|>."), "<|plan|>Hello.", None, id="wanted marks"),
        pytest.param(asked(), "Write `<|plan|>`.\n```\n<think>\n```", None, id="quoted marks"),
        pytest.param(asked(), "a <b> [NOTE] | c > d <| e", None, id="no marks"),
    ],
)
def test_what_a_reply_gives_away_is_said(request_, reply, code):
    assert codes(request_, reply, reply) == ([code] if code else [])


@pytest.mark.parametrize(
    ("models", "is_said"),
    [
        (["a", "a", "a"], []),
        (["a", "b", "a", "b"], ["call.model-changed"]),
        (["a", "", "a"], []),
        (["", "a", "a"], []),
        (["a", "", "b"], ["call.model-changed"]),
    ],
    ids=", ".join,
)
def test_a_server_that_changes_its_model_is_warned_of_once(models, is_said):
    notices = []

    class Changing(ScriptedBackend):
        async def chat(self, request):
            return replace(await super().chat(request), model_id=models[len(self.requests) - 1])

    client = replace(client_of(Changing(["Hi."] * 9), tag="judge"), warn=notices.append)

    async def main():
        for _ in models:
            await client.chat(asked())

    asyncio.run(main())
    assert [notice.code for notice in notices] == is_said
