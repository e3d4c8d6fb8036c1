"""Ollama's own protocol, and the official Python client as the reference caller."""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest
from calls import REQUEST, ask, backend_at, cut_at, fail, phase, streamed_or_whole
from loopback import Loopback, Reply, error_reply
from manual_clock import ManualClock
from servers.emulated import TEXT
from servers.ollama import DECODE_NS, OVERFLOW, OllamaServer

from harness.errors import CallTimeout, ContextOverflow, NotOffered, ServerError, StreamCut
from harness.inference import ChatRequest, EmbedRequest, Image, Message, ToolCall, ToolSpec

SCHEMA = {"type": "object", "properties": {"owls": {"type": "integer"}}}
OLLAMA = {"backend": "ollama", "model_id": "m:1b"}
MESSAGES = [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "Grüße 🦉"}]
ALL = ChatRequest(
    model="judge",
    messages=tuple(Message(**message) for message in MESSAGES),
    role="evaluator",
    max_output_tokens=64,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    frequency_penalty=0.5,
    seed=0,
    stop=("\n\n", "END"),
    reply_schema=SCHEMA,
)


def bytes_of(*chunks):
    """A server that answers one call with these bytes."""
    return Loopback([Reply(headers=(("content-type", "application/x-ndjson"),), steps=chunks)])


def line(text="", **more):
    message = {"role": "assistant", "content": text}
    part = {"model": "m:1b", "message": message, "done": False} | more
    return json.dumps(part, ensure_ascii=False).encode() + b"\n"


def last(**more):
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 29, "eval_count": 3}
    return line(**(ending | more))


# --- what is sent ----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["/", "/v1", "/v1/"])
def test_a_url_may_end_as_other_protocols_need_it(ending):
    class Elsewhere(OllamaServer):
        url = property(lambda self: self.root + ending)

    _, server = ask(Elsewhere(), **OLLAMA)

    assert server.asked[0].path == "/api/chat"


@pytest.mark.parametrize(
    ("written", "context_tokens", "kept"),
    [
        pytest.param({}, None, None, id="not written down"),
        pytest.param({"context_tokens": 8192, "keep_alive": "10m"}, 8192, "10m", id="written down"),
        pytest.param({"manage": True}, None, 1800.0, id="managed by a run that may be killed"),
    ],
)
def test_every_call_has_the_endpoints_context_and_keep_alive_or_none_has(
    written, context_tokens, kept
):
    # Another context would have the model loaded anew.
    async def main():
        async with OllamaServer() as server, backend_at(server, **written, **OLLAMA) as wire:
            await wire.chat(REQUEST)
            await wire.chat(replace(REQUEST, max_output_tokens=9, reply_schema=SCHEMA))
            await wire.embed(EmbedRequest(model="judge", texts=("a",)))
            bodies = [asked.body for asked in server.asked]
            return [(b.get("options", {}).get("num_ctx"), b.get("keep_alive")) for b in bodies]

    assert asyncio.run(main()) == [(context_tokens, kept)] * 3


def test_fields_that_are_to_be_dropped_are_not_sent_wherever_ollama_has_them():
    request = replace(REQUEST, temperature=0.7, seed=1)

    completion, server = ask(OllamaServer(), request=request, drop=["seed"], **OLLAMA)

    assert server.asked[0].body["options"] == {"temperature": 0.7}
    assert completion.dropped == ("seed",)


# --- what comes back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        pytest.param({"prompt_eval_cached_count": 24}, (29, 24, 3), id="since 0.33"),
        pytest.param({}, (29, None, 3), id="up to 0.33, which does not say"),
        pytest.param({"eval_count": None}, (29, None, 0), id="zero tokens, which Go leaves out"),
        pytest.param({"prompt_eval_count": None}, None, id="old builds, with the prompt cached"),
    ],
)
def test_what_is_not_counted_is_not_made_up(counts, usage):
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 29, "eval_count": 3}
    ending |= counts
    kept = {name: n for name, n in ending.items() if n is not None or name.endswith("cached_count")}

    told = ask(bytes_of(line("Hi"), line(**kept)), **OLLAMA)[0].usage

    assert usage == (told and (told.input_tokens, told.cached_tokens, told.output_tokens))


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\n\n"], ids=["LF", "CRLF", "blank lines"])
@pytest.mark.parametrize("size", [3, 1000])
def test_a_reply_does_not_depend_on_how_its_bytes_were_cut(size, line_end):
    text = "Grüße ☃\u2028日本\u0085 “x” 🦫"
    stream = b"".join((*(line(piece) for piece in (text, *text[:3])), last()))

    completion, _ = ask(bytes_of(*cut_at(stream.replace(b"\n", line_end), size)), **OLLAMA)

    assert completion.text == text + text[:3]


def test_the_last_line_may_lack_its_end_and_what_follows_is_not_part_of_the_reply():
    assert ask(bytes_of(line("Hi"), last().rstrip()), **OLLAMA)[0].text == "Hi"
    assert ask(bytes_of(line("Hi"), last() + line("!")), **OLLAMA)[0].text == "Hi"


# --- when ------------------------------------------------------------------------------------


@dataclass
class Slow(OllamaServer):
    """Takes a while before it says anything."""

    takes_ms: int = 120
    clock: ManualClock = field(default_factory=lambda: ManualClock(start_ns=1_000_000_000))

    async def respond(self, asked, answer):
        self.clock.advance(ms=self.takes_ms)
        await super().respond(asked, answer)


# Told are 25 ms for loading and 30 for the prompt: the rest was waiting.
BEFORE_THE_FIRST_TOKEN = (
    phase("queue", 1000, 1065, "derived"),
    phase("load", 1065, 1090, "reported"),
    phase("prefill", 1090, 1120, "reported"),
)


@pytest.mark.parametrize("scenario", ["reply", "thinking"])
def test_phases_of_a_stream_are_the_servers_word_before_the_first_token_and_measured_after(
    scenario,
):
    slow = Slow(scenario)
    request = replace(REQUEST, on_text=lambda _: slow.clock.advance(ms=50))

    completion, _ = ask(slow, request=request, clock=slow.clock, **OLLAMA)

    assert (completion.sent_ns, completion.first_token_ns) == (1_000_000_000, 1_120_000_000)
    decode = phase("decode", 1120, 1120 + 50 * len(TEXT), "measured")
    assert completion.phases == (*BEFORE_THE_FIRST_TOKEN, decode)
    if scenario == "reply":
        assert completion.itl.mean_ns == 50_000_000


def test_phases_of_a_reply_in_one_piece_are_all_the_servers_word():
    slow = Slow(takes_ms=120 + DECODE_NS // 1_000_000)

    completion, _ = ask(slow, clock=slow.clock, stream=False, **OLLAMA)

    decode = phase("decode", 1120, 1320, "reported")
    assert completion.phases == (*BEFORE_THE_FIRST_TOKEN, decode)
    assert (completion.first_token_ns, completion.itl) == (1_120_000_000, None)


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        pytest.param(400, "input length exceeds the context length", ContextOverflow, id="0.2x"),
        pytest.param(500, f"llama-server chat error: {OVERFLOW}", ContextOverflow, id="prefixed"),
        pytest.param(500, "{ is no JSON", ServerError, id="a brace"),
    ],
)
def test_what_ollama_says_in_other_versions_and_places_is_understood(status, said, error):
    fail(error, error_reply(status, {"error": said}), **OLLAMA)


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        pytest.param((), StreamCut, id="nothing at all"),
        pytest.param((b"<p>\n",), StreamCut, id="no JSON"),
        pytest.param((b"[1]\n",), ServerError, id="JSON, but no object"),
        pytest.param(
            (line("Hi"), last(done_reason=None, eval_count=None)), StreamCut, id="no reason"
        ),
        pytest.param((last(done_reason="unload"),), StreamCut, id="unload"),
        pytest.param(
            (line("Hi"), b'{"error":"the input length exceeds the context length"}\n'),
            ContextOverflow,
            id="an overflow in the middle",
        ),
    ],
)
def test_a_part_of_a_reply_is_never_a_reply(chunks, error):
    fail(error, bytes_of(*chunks), **OLLAMA)


# --- embeddings and counts -------------------------------------------------------------------


def embed(server, *, texts=("", "a", "four"), **how):
    async def main():
        async with server, backend_at(server, **how, **OLLAMA) as wire:
            return await wire.embed(EmbedRequest(model="judge", texts=texts))

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("server", "error"),
    [
        pytest.param(OllamaServer("overflow"), ContextOverflow, id="too long"),
        pytest.param(OllamaServer("silent"), CallTimeout, id="silent"),
        pytest.param(
            Loopback([error_reply(501, {"error": "This server does not support embeddings."})]),
            NotOffered,
            id="a model that only chats",
        ),
        pytest.param(
            Loopback([error_reply(404, None, raw=b"404 page not found")]),
            NotOffered,
            id="before 0.3",
        ),
        pytest.param(bytes_of(b'{"embeddings":[[1.0]]}'), ServerError, id="one for two texts"),
    ],
)
def test_what_is_not_one_vector_per_text_is_an_error(server, error):
    silent = {"timeout_s": 0.1} if error is CallTimeout else {}

    with pytest.raises(error) as caught:
        embed(server, texts=("a", "b"), **silent)
    assert type(caught.value) is error


# --- as the official client does it ----------------------------------------------------------


def test_tools_and_images_are_sent_as_the_official_client_sends_them():
    ollama = pytest.importorskip("ollama", reason="Ollama's official client is not installed")
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "look", "description": "Looks."}}
    tool["function"]["parameters"] = city
    png = b"\x89PNG\r\n\x1a\n of an owl"
    call = ToolCall("call_1", "look", '{"city":"Oslo"}')
    messages = [
        {"role": "user", "content": "Where?", "images": [png]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": {"city": "Oslo"}}}],
        },
        {"role": "tool", "content": "There.", "tool_name": "look"},
    ]
    request = ChatRequest(
        model="judge",
        messages=(
            Message("user", "Where?", images=(Image.from_bytes(png),)),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", "There.", answers="call_1"),
        ),
        tools=(ToolSpec("look", "Looks.", city),),
    )

    async def main():
        async with (
            OllamaServer("reply") as server,
            backend_at(server, **OLLAMA) as wire,
            ollama.AsyncClient(host=server.root, trust_env=False) as client,
        ):
            await wire.chat(request)
            await client.chat(model="m:1b", messages=messages, tools=[tool])
        return server.asked

    ours, theirs = asyncio.run(main())
    assert ours.body["messages"][1].pop("content") == ""  # the client leaves it out
    assert ours.body["messages"] == theirs.body["messages"]
    assert ours.body["tools"] == theirs.body["tools"]


@streamed_or_whole
def test_a_chat_is_asked_for_and_read_as_the_official_client_does_it(stream):
    ollama = pytest.importorskip("ollama", reason="Ollama's official client is not installed")
    limits = {"num_predict": 64, "num_ctx": 8192, "stop": ["\n\n", "END"]}
    chat = {
        "model": "m:1b",
        "messages": MESSAGES,
        # The official client's options know `min_p` no more; the server's still do.
        "options": {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05}
        | {"frequency_penalty": 0.5, "seed": 0, **limits},
        "format": SCHEMA,
        "keep_alive": "24h" if stream else 300,
    }

    async def main():
        settings = {"context_tokens": 8192, "stream": stream, "keep_alive": chat["keep_alive"]}
        async with (
            OllamaServer("thinking") as server,
            backend_at(server, **settings, **OLLAMA) as wire,
            # A proxy from the environment must not stand between it and this machine.
            ollama.AsyncClient(host=server.root, trust_env=False) as client,
        ):
            completion = await wire.chat(ALL)
            if stream:
                parts = [part async for part in await client.chat(**chat, stream=True)]
            else:
                parts = [await client.chat(**chat)]
        return completion, parts, server.asked

    completion, parts, (ours, theirs) = asyncio.run(main())

    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    # It has no tools to offer either, and says so; it cannot forbid Ollama to cut a chat.
    assert theirs.body.pop("tools") == []
    assert ours.body == theirs.body | {"truncate": False, "shift": False}
    assert completion.text == "".join(part.message.content or "" for part in parts)
    assert completion.reasoning == "".join(part.message.thinking or "" for part in parts)
    assert completion.finish_reason == parts[-1].done_reason
    assert completion.usage.input_tokens == parts[-1].prompt_eval_count
    assert completion.usage.output_tokens == parts[-1].eval_count
