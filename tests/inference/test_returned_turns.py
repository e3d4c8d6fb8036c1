"""Conversations that go back to a server: what it wants to see again, and the shapes it refuses."""

import asyncio
from dataclasses import replace

import pytest
from calls import REQUEST, backend_at
from clients import AT_ONCE, client_of
from loopback import Loopback, Reply, delta, vllm_stream

from harness.errors import ServerError
from harness.inference import ChatRequest, Message, ScriptedBackend, ToolCall, as_messages
from harness.inference.providers.openai_wire import wire_message, wire_messages
from harness.inference.providers.wire_reply import joined


def stream(*deltas):
    return Reply(steps=(*(delta(**fields) for fields in deltas), *vllm_stream()))


def a_call(arguments="{}", name="look", **more):
    return {
        "index": 0,
        "id": "f1",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }


SIGNED = {"google": {"thought_signature": "c2ln"}}
NUMBERED = [{"type": "reasoning.text", "index": 0, "text": "Fir"}]


@pytest.mark.parametrize(
    ("deltas", "sent"),
    [
        pytest.param(
            [{"tool_calls": [a_call(extra_content=SIGNED)]}],
            {"tool_calls": [{"extra_content": SIGNED}]},
            id="a signature beside a call",
        ),
        pytest.param(
            [{"content": "a", "extra_content": SIGNED}, {"content": "b"}],
            {"content": "ab", "extra_content": SIGNED},
            id="a signature beside a text",
        ),
        pytest.param(
            [{"reasoning_content": "First "}, {"reasoning_content": "look."}, {"content": "3"}],
            {"reasoning_content": "First look."},
            id="reasoning by the server's own name",
        ),
        pytest.param(
            [
                {"reasoning_details": NUMBERED},
                {"reasoning_details": [{**NUMBERED[0], "text": "st."}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "x"}]},
                {"content": "3", "annotations": [{"type": "url_citation"}]},
            ],
            {
                "annotations": [{"type": "url_citation"}],
                "reasoning_details": [
                    {**NUMBERED[0], "text": "First."},
                    {"type": "reasoning.encrypted", "index": 1, "data": "x"},
                ],
            },
            id="numbered pieces of reasoning, and annotations",
        ),
    ],
)
def test_what_a_server_sent_with_a_turn_goes_back_to_it_and_to_no_other(deltas, sent):
    answer = stream({"content": "3"})
    here, elsewhere = Loopback([stream(*deltas), answer]), Loopback([answer])

    async def main():
        async with here, elsewhere, backend_at(here) as backend, backend_at(elsewhere) as other:
            reply = await backend.chat(REQUEST)
            following = replace(REQUEST, messages=(*REQUEST.messages, reply.message))
            await backend.chat(following)
            await other.chat(following)

    asyncio.run(main())
    back, to_other = (one.asked[-1].body["messages"][1] for one in (here, elsewhere))
    for name, value in sent.items():
        if name == "tool_calls":
            assert back[name][0]["extra_content"] == SIGNED
            assert "extra_content" not in to_other[name][0]
        else:
            assert back[name] == value
            assert name == "content" or name not in to_other


def test_reasoning_that_a_server_demands_stands_in_every_turn_once_it_was_in_one():
    turns = (Message("assistant", "a", extra={"reasoning_content": "b"}), Message("assistant", "c"))

    assert [turn["reasoning_content"] for turn in wire_messages(turns, None)] == ["b", ""]


def test_pieces_of_signed_reasoning_are_joined_and_end_with_their_signature():
    pieces = [
        {"type": "thinking", "thinking": "Fir"},
        {"type": "thinking", "thinking": "st."},
        {"type": "thinking", "thinking": "", "signature": "s1"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "Then."},
    ]
    blocks = []
    for piece in pieces:
        blocks = joined(blocks, [piece])

    signed = {"type": "thinking", "thinking": "First.", "signature": "s1"}
    assert blocks == [signed, *pieces[3:]]


@pytest.mark.parametrize(
    ("name", "arguments", "sent"),
    [
        pytest.param("look", '{"a": 1}', ("look", '{"a": 1}'), id="as it was written"),
        pytest.param("look", '{"a": 1', ("look", "{}"), id="cut"),
        pytest.param("look", "{'a': 1}", ("look", "{}"), id="Python"),
        pytest.param("look", '["a"]', ("look", "{}"), id="a list"),
        pytest.param("look", '{"a": NaN}', ("look", "{}"), id="no number"),
        pytest.param("look", r'"{\"a\": 1}"', ("look", '{"a":1}'), id="encoded twice"),
        pytest.param("functions.look up", "{}", ("functions_look_up", "{}"), id="a strange name"),
        pytest.param("", "", ("unknown", "{}"), id="nothing"),
        pytest.param("l" * 70, "{}", ("l" * 64, "{}"), id="a long name"),
    ],
)
def test_a_broken_call_goes_back_in_a_form_that_templates_read(name, arguments, sent):
    message = Message("assistant", "", tool_calls=(ToolCall("f1", name, arguments),))

    assert [*wire_message(message)["tool_calls"][0]["function"].values()] == [*sent]


def test_fields_of_a_written_message_are_sent_and_missing_ones_are_none():
    given = {"role": "user", "content": "a", "name": "ann", "refusal": None}

    (message,) = as_messages(given)
    assert wire_message(message) == {"role": "user", "content": "a", "name": "ann"}


# --- templates that refuse -----------------------------------------------------------------------


def refusing(check, said, status=400):
    """A backend whose template refuses the roles that the check is true of."""

    def answer(request):
        roles = " ".join(message.role for message in request.conversation)
        return ServerError(said, endpoint="m", status=status) if check(roles) else "ok"

    return ScriptedBackend(answer)


def alternates(roles):
    """Mistral's rule: calls and their results do not count, and a system message may come first."""
    turns = [role for role in roles.removeprefix("system ").split() if role != "tool"]
    return all((role == "user") == (n % 2 == 0) for n, role in enumerate(turns))


NO_SYSTEM = (lambda roles: "system" in roles, "System role not supported")
ALTERNATE = (
    lambda roles: not alternates(roles),
    "Jinja Exception: After the optional system message, conversation roles must alternate",
    500,
)
OLD_MISTRAL = (
    lambda roles: "system" in roles or not alternates(roles),
    "Conversation roles must alternate user/assistant/user/assistant/...",
)
NO_PREFILL = (
    lambda roles: roles.endswith("assistant"),
    "This model does not support assistant message prefill. It must end with a user message.",
)


@pytest.mark.parametrize(
    ("refusal", "roles", "folded"),
    [
        pytest.param(NO_SYSTEM, "system user", "user", id="no system role"),
        pytest.param(NO_SYSTEM, "system", "user", id="a system message alone"),
        pytest.param(ALTERNATE, "system user user", "system user", id="two users"),
        pytest.param(ALTERNATE, "assistant user", "user assistant user", id="an assistant first"),
        pytest.param(ALTERNATE, "user tool user", "user tool", id="a user after a tool"),
        pytest.param(ALTERNATE, "user assistant assistant user", "user assistant user", id="twice"),
        pytest.param(OLD_MISTRAL, "system user", "user", id="no system role, in other words"),
        pytest.param(OLD_MISTRAL, "system user user", "user", id="both"),
        pytest.param(NO_PREFILL, "user assistant", "user assistant user", id="an assistant last"),
        pytest.param(NO_PREFILL, "user system assistant", "user assistant user", id="and a system"),
    ],
)
def test_a_refused_conversation_is_folded_and_the_next_one_at_once(refusal, roles, folded):
    backend = refusing(*refusal)
    turns = [
        Message(role, f"{n}.", answers="f1" if role == "tool" else None)
        for n, role in enumerate(roles.split())
    ]
    request, client = ChatRequest(model="m", messages=tuple(turns)), client_of(backend)

    assert [asyncio.run(client.chat(request)).text for _ in range(2)] == ["ok", "ok"]
    sent = backend.requests[-1].messages
    assert " ".join(message.role for message in sent) == folded
    text = " ".join(message.content for message in sent)
    assert all(turn.content in text for turn in turns)
    assert backend.requests[-2].messages == sent


def test_a_refusal_that_no_fold_helps_is_raised_and_folds_nothing_later():
    refuses = [True]
    backend = refusing(lambda _: refuses[0], "the last message is too odd")
    client = client_of(backend)
    request = ChatRequest(model="m", messages=(Message("system", "a"), Message("user", "b")))

    with pytest.raises(ServerError, match="too odd"):
        asyncio.run(client.chat(request))
    refuses[0] = False
    asyncio.run(client.chat(request))
    assert backend.requests[-1].messages == request.messages


def test_fields_that_a_server_refuses_to_see_again_are_left_out():
    turn = Message("assistant", "a", extra={"executed_tools": []})
    said = "'messages.1' : property 'executed_tools' is unsupported"

    def answer(request):
        is_refused = any(message.extra for message in request.messages)
        return ServerError(said, endpoint="m", status=400) if is_refused else "ok"

    request = ChatRequest(model="m", messages=(Message("user", "b"), turn, Message("user", "c")))
    assert asyncio.run(client_of(ScriptedBackend(answer)).chat(request)).text == "ok"


def test_an_error_that_only_has_the_letters_of_a_field_refuses_none():
    replies = iter([ServerError("cannot resolve the hostname", endpoint="m", status=500), "ok"])
    backend = ScriptedBackend(replies)
    turn = {"role": "user", "content": "b", "name": "ann"}
    request = ChatRequest(model="m", messages=as_messages(turn))
    assert asyncio.run(client_of(backend, retry=AT_ONCE).chat(request)).text == "ok"
    assert [asked.messages for asked in backend.requests] == [request.messages] * 2
