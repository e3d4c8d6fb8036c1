"""Providers as litellm speaks to them; what holds of every backend is in the contract's rows."""

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread

import httpx
import pytest
from calls import PATIENCE_S, ask, backend_at, cut_at, fail, streamed_or_whole
from loopback import (
    DONE,
    GONE_BEFORE_A_BYTE,
    Loopback,
    Reply,
    delta,
    error_reply,
    llama_server_stream,
    usage,
)
from servers.anthropic import FRESH, READ, WRITTEN, Anthropic
from servers.emulated import JSON_TEXT, TEXT, event
from servers.openai_api import OpenAIAPI

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ConfigurationInvalid,
    ContextOverflow,
    EndpointUnreachable,
    NotOffered,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, EmbedRequest, Endpoint, Message, as_messages
from harness.inference.providers.http import Access
from harness.inference.providers.litellm import LiteLLMBackend, import_litellm
from harness.inference.providers.litellm_http import make_careful

REQUEST = ChatRequest(model="judge", messages=(Message("user", "How many owls?"),))
HELLO = Reply(steps=llama_server_stream("Hello"))
TOKENS = llama_server_stream("Hel", "lo")[:3]
OPENAI, VLLM, TOGETHER = "openai/gpt-4o-mini", "hosted_vllm/served-name", "together_ai/served"
CLAUDE = "anthropic/claude-haiku-4-5"


def of(model_id, **fields):
    """Settings of an endpoint that litellm calls."""
    return {"backend": "litellm", "model_id": model_id, "api_key": "sk-secret", **fields}


class Provider(Loopback):
    """Anthropic's address is without `/v1`."""

    @property
    def url(self):
        return self.root


# --- what is sent, and what comes back -------------------------------------------------------


def test_everything_that_was_asked_for_is_sent():
    score = {"properties": {"score": {"type": "integer"}}, "required": ["score"]}
    schema = {"type": "object", "additionalProperties": False, **score}
    messages = (Message("system", "Be strict."), Message("user", "Judge."))
    cutoffs = {"top_p": 0.9, "top_k": 40, "min_p": 0.05}
    settings = {"temperature": 0.7, **cutoffs, "frequency_penalty": 0.5, "seed": 0}
    request = ChatRequest(
        model="judge",
        messages=messages,
        max_output_tokens=64,
        stop=("END",),
        reply_schema=schema,
        **settings,
    )

    _, server = ask(HELLO, request=request, **of("openai/served-name", api_key="sk-secret\n"))

    [asked] = server.asked
    assert (asked.path, asked.headers["authorization"]) == (
        "/v1/chat/completions",
        "Bearer sk-secret",
    )
    assert asked.body == settings | {
        "model": "served-name",
        "messages": [{"role": one.role, "content": one.content} for one in messages],
        "max_tokens": 64,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": True},
        },
    }


def whole(finish_reason):
    message = {"role": "assistant", "content": "half an ans"}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    said = {"id": "c1", "object": "chat.completion", "model": "served-name", "choices": [choice]}
    return error_reply(200, said | {"usage": usage()})


def test_a_cutoff_that_the_provider_has_by_its_own_name_goes_there():
    request = replace(REQUEST, temperature=0.7, top_p=0.9, top_k=40)

    _, server = ask(Anthropic(), request=request, **of(CLAUDE))

    body = server.asked[0].body
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 40)


@streamed_or_whole
@pytest.mark.parametrize("model_id", ["openai/served-name", VLLM])
@pytest.mark.parametrize("reason", ["abort", None])
def test_what_the_provider_broke_off_is_no_reply(model_id, reason, stream):
    halves = Reply(steps=llama_server_stream("half an ", "ans", finish_reason=reason))

    fail(StreamCut, halves if stream else whole(reason), **of(model_id, stream=stream))


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "application/octet-stream"])
def test_what_the_provider_broke_off_is_no_reply_by_any_name_of_its_kind(kind):
    half = replace(whole(None), headers=(("content-type", kind),))

    fail(StreamCut, half, **of("openai/served-name", stream=False))


def test_a_reply_that_speaks_of_finish_reasons_is_a_reply():
    text = (
        'It said "finish_reason": "abort".\n\ndata: {"choices": [{"finish_reason": "error"}]}\n\n'
    )

    completion, _ = ask(Reply(steps=llama_server_stream(text)), **of(OPENAI))

    assert (completion.text, completion.finish_reason) == (text, "stop")


def test_reasoning_is_kept_apart_and_its_first_token_counts():
    thought, reads = asyncio.Event(), []

    def clock():
        reads.append(len(reads))
        if len(reads) == 2:
            thought.set()
        return reads[-1]

    # The server says nothing more until the clock has been read for the thought.
    thinking = (delta(role="assistant", content=None), delta(reasoning_content="Is it 4?"))
    reply = Reply(steps=(*thinking, thought.wait, *llama_server_stream("4")[1:]))

    completion, _ = ask(reply, clock=clock, **of(OPENAI))

    assert (completion.text, completion.reasoning) == ("4", "Is it 4?")
    assert (completion.sent_ns, completion.first_token_ns) == (0, 1)
    assert [p.name for p in completion.phases] == ["prefill", "decode"]
    assert completion.phases[-1].end_ns == 3  # when it was said to be over


@pytest.mark.parametrize(
    ("said", "finish_reason"),
    [("max_tokens", "length"), ("refusal", "content_filter"), ("stop_sequence", "stop")],
)
def test_why_claude_stopped_is_told_by_its_own_word(said, finish_reason):
    completion, _ = ask(Anthropic(stop_reason=said), **of(CLAUDE))

    assert (completion.text, completion.finish_reason) == ("".join(TEXT), finish_reason)


def test_a_turn_of_claudes_that_is_to_go_on_is_no_reply():
    fail(StreamCut, Anthropic(stop_reason="pause_turn"), **of(CLAUDE))


# --- usage and schemas -----------------------------------------------------------------------


@streamed_or_whole
def test_anthropics_cached_tokens_are_part_of_the_prompt(stream):
    completion, _ = ask(Anthropic(), **of(CLAUDE, stream=stream))

    assert completion.usage.input_tokens == FRESH + WRITTEN + READ
    assert (completion.usage.cached_tokens, completion.usage.output_tokens) == (READ, 7)
    assert completion.cost_usd > 0


SHARED = Message("user", "Rubric.\n\nDraft.\n\nJudge it.", shared_chars=(7, 15))
MARK = {"cache_control": {"type": "ephemeral"}}


def test_claude_is_told_where_the_parts_end_that_calls_share():
    request = replace(REQUEST, messages=(Message("system", "Be strict."), SHARED))

    _, server = ask(Anthropic(), request=request, **of(CLAUDE))

    body = server.asked[0].body
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Rubric.", **MARK},
                {"type": "text", "text": "\n\nDraft.", **MARK},
                {"type": "text", "text": "\n\nJudge it."},
            ],
        }
    ]
    assert "cache_control" not in str(body["system"])  # it stands before them


def test_claude_gets_the_marks_that_parts_of_a_message_have():
    parts = [{"type": "text", "text": "All.", **MARK}, {"type": "text", "text": "Which?"}]
    (message,) = as_messages({"role": "user", "content": parts})

    _, server = ask(Anthropic(), request=replace(REQUEST, messages=(message,)), **of(CLAUDE))

    assert server.asked[0].body["messages"][0]["content"] == parts


@pytest.mark.parametrize(
    ("model_id", "message"),
    [
        pytest.param(OPENAI, SHARED, id="a provider that caches of itself"),
        pytest.param(CLAUDE, Message("user", SHARED.content), id="nothing is shared"),
        pytest.param(CLAUDE, replace(SHARED, shared_chars=(26,)), id="all of it is shared"),
    ],
)
def test_otherwise_no_part_is_marked(model_id, message):
    assert len(SHARED.content) == 26
    server = Anthropic() if model_id == CLAUDE else OpenAIAPI()
    _, server = ask(server, request=replace(REQUEST, messages=(message,)), **of(model_id))

    assert "cache_control" not in str(server.asked[0].body)


@streamed_or_whole
def test_what_a_cache_of_prompts_saved_is_told_by_the_price_list(stream):
    completion, _ = ask(Anthropic(), **of(CLAUDE, stream=stream))
    uncached, _ = ask(HELLO, **of("openai/gpt-4o-mini", stream=True))

    # A million tokens of Claude Haiku 4.5: 1 dollar, 1.25 to write, 0.1 to read.
    assert completion.cache_saved_usd == pytest.approx((0.9 * READ - 0.25 * WRITTEN) / 1e6)
    assert uncached.cache_saved_usd is None


@streamed_or_whole
@pytest.mark.parametrize(
    ("server", "model_id", "counted"),
    [
        pytest.param(OpenAIAPI, OPENAI, 4, id="the provider's count"),
        pytest.param(Anthropic, CLAUDE, None, id="not litellm's estimate"),
    ],
)
def test_reasoning_tokens_are_what_the_provider_counts(server, model_id, counted, stream):
    completion, _ = ask(server("thinking"), **of(model_id, stream=stream))

    assert completion.usage.reasoning_tokens == counted


@streamed_or_whole
@pytest.mark.parametrize("model_id", [OPENAI, TOGETHER])
def test_where_the_provider_does_not_count_there_is_no_usage(model_id, stream):
    completion, _ = ask(OpenAIAPI(counts_usage=False), **of(model_id, stream=stream))

    assert (completion.usage, completion.cost_usd) == (None, None)


@pytest.mark.parametrize(
    ("server", "model_id", "place", "stream"),
    [
        pytest.param(OpenAIAPI, OPENAI, "response_format", True, id="OpenAI"),
        pytest.param(Anthropic, CLAUDE, "output_format", False, id="Claude"),
        pytest.param(Anthropic, "anthropic/claude-3-haiku-20240307", "tools", True, id="older"),
        pytest.param(
            OpenAIAPI, "featherless_ai/f", None, True, id="a provider with no place for one"
        ),
    ],
)
def test_a_schema_goes_where_the_provider_enforces_it(server, model_id, place, stream):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    request = replace(REQUEST, reply_schema=schema)

    completion, server = ask(server(), request=request, **of(model_id, stream=stream))

    if place is None:
        assert completion.dropped == ("response_format",)
        assert "response_format" not in server.asked[0].body
    else:
        assert json.loads(completion.text) == json.loads("".join(JSON_TEXT))
        assert '"city"' in str(server.asked[0].body[place]).replace("'", '"')
        assert completion.dropped == ()


WHOLE_JSON = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "served-name",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
    ],
    "usage": usage(),
}


@pytest.mark.parametrize("kind", [(("content-type", "application/json"),), ()], ids=["json", ""])
@pytest.mark.parametrize("model_id", [OPENAI, VLLM, TOGETHER])
def test_a_whole_reply_in_place_of_a_stream_is_a_reply(model_id, kind):
    whole = Reply(headers=kind, steps=(json.dumps(WHOLE_JSON).encode(),))

    completion, server = ask(whole, **of(model_id))

    assert (completion.text, completion.usage.output_tokens) == ("Hello.", 3)
    assert (server.asked[0].body["stream"], len(server.asked)) == (True, 1)


# OpenAI's Responses protocol, 2026-02: no field of ours, but litellm's prefix.
ITEM = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": '{"a":"Oslo"}', "annotations": []}],
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "model": "gpt-5-mini-2025-08-07",
    "output": [ITEM],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "temperature": 1.0,
    "top_p": 1.0,
    "usage": {
        "input_tokens": 31,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 34,
    },
}
PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
EVENTS = (
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
    {"type": "response.output_text.delta", **PLACE, "delta": '{"a":'},
    {"type": "response.output_text.delta", **PLACE, "delta": '"Oslo"}'},
    {"type": "response.output_text.done", **PLACE, "text": '{"a":"Oslo"}'},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {"type": "response.completed", "response": RESPONSE},
)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_model_of_openais_newer_protocol_is_reached_by_a_prefix(stream):
    steps = [event({"sequence_number": n, **one}) for n, one in enumerate(EVENTS)]
    played = Reply(steps=tuple(steps))
    if not stream:
        kind = ("content-type", "application/json")
        played = Reply(headers=(kind,), steps=(json.dumps(RESPONSE).encode(),))
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    request = replace(REQUEST, max_output_tokens=90, reasoning_effort="low", reply_schema=schema)

    completion, server = ask(
        played, request=request, **of("openai/responses/gpt-5-mini", stream=stream)
    )

    assert (completion.text, completion.finish_reason) == ('{"a":"Oslo"}', "stop")
    assert (completion.usage.input_tokens, completion.usage.output_tokens) == (31, 3)
    (asked,) = server.asked
    assert (asked.path, asked.body["model"]) == ("/v1/responses", "gpt-5-mini")
    assert (asked.body["max_output_tokens"], asked.body["reasoning"]["effort"]) == (90, "low")
    form = asked.body["text"]["format"]
    assert (form["type"], form["schema"], form["strict"]) == ("json_schema", schema, True)


# --- refused fields --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "settings", "dropped", "sent"),
    [
        pytest.param(
            Anthropic(refuses=("temperature",)),
            of(CLAUDE),
            ("temperature",),
            [True, False, False],
            id="refused by the model",
        ),
        pytest.param(
            OpenAIAPI(),
            of("openai/o3-mini"),
            ("temperature",),
            [False, False],
            id="known to litellm of the model",
        ),
        pytest.param(
            OpenAIAPI(refuses=("max_tokens", "temperature")),
            of(OPENAI),
            ("temperature",),
            [True, True, False, False],
            id="one after another, the first by another name",
        ),
    ],
)
def test_a_field_that_is_refused_is_left_out_from_then_on_and_named(
    server, settings, dropped, sent
):
    request = replace(REQUEST, max_output_tokens=512)
    completion, server = ask(server, request=request, calls=2, **settings)

    assert completion.dropped == dropped
    assert ["temperature" in asked.body for asked in server.asked] == sent
    assert completion.attempts == 1


def test_fields_that_litellm_refuses_for_a_provider_are_never_sent_and_named():
    request = replace(REQUEST, frequency_penalty=0.5, seed=7)

    completion, server = ask(Anthropic(), request=request, **of(CLAUDE))

    assert set(completion.dropped) == {"frequency_penalty", "seed"}
    assert len(server.asked) == 1


# --- errors ----------------------------------------------------------------------------------


def anthropic_error(status, kind, message, *headers):
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return CLAUDE, error_reply(status, error, *headers)


NO_ROOM = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
WAIT = ("retry-after", "7")


@pytest.mark.parametrize(
    ("refusal", "error", "facts"),
    [
        (anthropic_error(401, "authentication_error", "invalid"), AuthenticationFailed, {}),
        ((OPENAI, error_reply(502, None, raw=b"<h1>Bad</h1>")), ServerError, {"status": 502}),
        (anthropic_error(429, "rate_limit_error", "no", WAIT), RateLimited, {"retry_after_s": 7.0}),
        (
            anthropic_error(400, "invalid_request_error", NO_ROOM),
            ContextOverflow,
            {"prompt_tokens": 188240, "context_tokens": 200000},
        ),
        ((OPENAI, Reply(steps=(*TOKENS, DONE))), StreamCut, {}),
        ((OPENAI, Reply(steps=TOKENS, ending="reset")), StreamCut, {}),
        *(
            ((one, GONE_BEFORE_A_BYTE), StreamCut, {})
            for one in (OPENAI, VLLM, CLAUDE, "oobabooga/o")
        ),
    ],
)
def test_an_error_is_told_by_status_and_words_after_one_request(refusal, error, facts):
    model_id, reply = refusal
    server = (Provider if model_id == CLAUDE else Loopback)([reply, reply])

    caught = fail(error, server, **of(model_id))

    assert len(server.asked) == 1
    assert {name: getattr(caught, name) for name in facts} == facts


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    "model_id",
    [OPENAI, CLAUDE, VLLM, "gemini/g", "azure/a", "mistral/m", "oobabooga/o", "maritalk/m"],
)
def test_no_redirect_takes_a_key_or_a_prompt_to_another_host(model_id, streamed):
    """Some of them by a client of their own, which has no event loop."""

    async def run():
        async with Loopback([]) as other:
            location = other.url.replace("127.0.0.1", "localhost")
            moved = [error_reply(307, {}, ("location", location)) for _ in range(4)]
            async with (
                Provider(moved) as server,
                backend_at(server, stream=streamed, **of(model_id)) as backend,
            ):
                with pytest.raises((ServerError, StreamCut)):
                    await backend.chat(REQUEST)
            assert server.asked
            return other.asked

    assert asyncio.run(run()) == []


MODULE_CLIENTS = ("module_level_client", "module_level_aclient")


@streamed_or_whole
def test_a_client_that_litellm_made_for_the_program_is_not_used(stream, monkeypatch):
    """It would follow a redirect, as litellm's clients do."""
    litellm = import_litellm()
    handlers = litellm.llms.custom_httpx.http_handler

    async def run():
        async with Loopback([]) as other:
            moved = [error_reply(307, {}, ("location", other.url)) for _ in range(2)]
            how = of(CLAUDE, stream=stream)
            async with Provider(moved) as server, backend_at(server, **how) as backend:
                with pytest.raises(ServerError):
                    await backend.chat(REQUEST)
                for handler in litellm.in_memory_llm_clients_cache.cache_dict.values():
                    if isinstance(handler, handlers.AsyncHTTPHandler):
                        follows = httpx.AsyncClient(follow_redirects=True)
                        monkeypatch.setattr(handler, "_client", follows)
                # As when the program has called litellm before harness does.
                monkeypatch.setattr(litellm, "aclient_session", None)
                for name in ("in_memory_llm_clients_cache", *MODULE_CLIENTS):
                    monkeypatch.setattr(litellm, name, getattr(litellm, name))
                for kind in (handlers.HTTPHandler, handlers.AsyncHTTPHandler):
                    monkeypatch.setattr(kind, "create_client", kind.create_client)
                make_careful(litellm)
                with pytest.raises(ServerError):
                    await backend.chat(REQUEST)
            assert len(server.asked) == 2
            return other.asked

    assert asyncio.run(run()) == []


def unconnected(model_id, api_key=None, **fields):
    endpoint = Endpoint(tag="judge", backend="litellm", model_id=model_id, **fields)
    return LiteLLMBackend(endpoint, Access(api_key=api_key))


@pytest.mark.parametrize("model_id", ["openai/x", CLAUDE])
def test_a_missing_key_is_not_taken_for_a_failing_server(model_id, monkeypatch):
    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{provider}_API_KEY", raising=False)

    with pytest.raises(AuthenticationFailed):
        asyncio.run(unconnected(model_id).chat(REQUEST))


def test_a_model_without_a_provider_is_told_what_to_write():
    with pytest.raises(ServerError, match=r"(?s)LLM Provider NOT provided.*model=no-prefix"):
        asyncio.run(unconnected("no-prefix").chat(REQUEST))


def test_a_key_that_no_header_can_hold_is_refused_without_telling_it():
    with pytest.raises(ConfigurationInvalid) as caught:
        unconnected("anthropic/x", "sk-secr\net")

    assert caught.value.code == "endpoint.key-not-sendable"
    assert "sk-secr" not in str(caught.value)


def test_a_port_where_nothing_listens_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EndpointUnreachable, match=url):
            asyncio.run(unconnected(OPENAI, "sk-secret", url=url).chat(REQUEST))


@pytest.mark.slow
@pytest.mark.parametrize("model_id", [OPENAI, CLAUDE])
def test_connecting_has_a_limit_of_its_own(model_id):
    with socket.socket() as full, socket.socket() as waiting, socket.socket() as another:
        # A queue of connections with no room left: the kernel answers no further one.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (waiting, another):
            one.settimeout(0)
            one.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        backend = unconnected(model_id, "sk-secret", url=url, connect_timeout_s=0.3)
        with pytest.raises(CallTimeout) as caught:
            asyncio.run(backend.chat(REQUEST))

    assert caught.value.limit == "connect_timeout_s"


@pytest.mark.parametrize("embeds", [False, True], ids=["a chat", "an embedding"])
def test_a_call_that_still_waits_for_litellm_ends_in_time(embeds):
    held = threading.Event()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
        busy = loop.run_in_executor(None, held.wait)  # so that nothing can be imported
        embed = EmbedRequest(model="judge", texts=("an owl",))
        try:
            settings = of(OPENAI, timeout_s=0.05, first_token_timeout_s=0.01)
            async with Loopback([]) as server, backend_at(server, **settings) as backend:
                async with asyncio.timeout(5):
                    await (backend.embed(embed) if embeds else backend.chat(REQUEST))
        finally:
            held.set()
            await busy

    with pytest.raises(CallTimeout) as caught:
        asyncio.run(main())
    assert caught.value.limit == "timeout_s"


# --- what is not chat ------------------------------------------------------------------------


def test_texts_become_vectors_and_unequal_ones_are_the_providers_fault():
    def row(index, *vector):
        return {"object": "embedding", "index": index, "embedding": vector}

    body = {"object": "list", "model": "m", "data": [row(0, 1.0, 2.0), row(1, 1.0)]}
    request = EmbedRequest(model="judge", texts=("a", "bbb"))

    async def embed(server):
        async with server, backend_at(server, **of("hosted_vllm/embedder")) as backend:
            return await backend.embed(request)

    embeddings = asyncio.run(embed(OpenAIAPI()))
    assert embeddings.vectors.tolist() == [[1.0, 0.5], [3.0, 0.5]]
    assert (embeddings.input_tokens, embeddings.model_id) == (6, "served-name")
    with pytest.raises(ServerError):
        asyncio.run(embed(Loopback([error_reply(200, body)])))


def test_anthropic_offers_no_embeddings():
    async def main():
        async with Anthropic() as server, backend_at(server, **of(CLAUDE)) as backend:
            with pytest.raises(NotOffered):
                await backend.embed(EmbedRequest(model="judge", texts=("a",)))
            assert server.asked == []

    asyncio.run(main())


# --- connections and streams -----------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 100_000])
@pytest.mark.parametrize("model_id", [OPENAI, VLLM])
def test_no_character_of_a_reply_ends_a_line_of_the_stream(size, model_id):
    text = "Grüße ☃\u2028日本\u0085 “x” 🦫\u2029\u00c2\u200b"
    stream = b"".join(llama_server_stream(text, text))

    completion, _ = ask(Reply(steps=cut_at(stream, size)), **of(model_id))

    assert completion.text == text + text


def test_a_hundred_equal_pieces_are_a_reply_like_any_other():
    completion, _ = ask(Reply(steps=llama_server_stream(*["---"] * 101)), **of(OPENAI))

    assert completion.text == "---" * 101


def test_a_server_that_never_ends_its_stream_after_done_has_replied_all_the_same():
    completion, server = ask(Reply(steps=HELLO.steps, ending="hold"), **of(OPENAI))

    assert completion.text == "Hello"
    assert server.hung_up.is_set()


@pytest.mark.parametrize(
    ("server", "model_id"),
    [(Loopback([HELLO] * 3), OPENAI), (Loopback([HELLO] * 3), VLLM), (Anthropic(), CLAUDE)],
    ids=["openai", "hosted_vllm", "anthropic"],
)
def test_calls_one_after_another_keep_one_connection_open_that_closing_closes(server, model_id):
    async def main():
        async with server:
            async with backend_at(server, **of(model_id)) as backend:
                for _ in range(3):
                    await backend.chat(REQUEST)
                    assert server.open_connections == 1
                assert server.connections == 1
            async with asyncio.timeout(PATIENCE_S):
                await server.deserted.wait()

    asyncio.run(main())


def test_a_request_that_is_sent_again_is_counted():
    """Its connection had been kept open, and the server closed it."""
    server = Loopback([HELLO, GONE_BEFORE_A_BYTE, HELLO])

    completion, _ = ask(server, calls=2, **of(OPENAI))

    assert (completion.text, completion.attempts, len(server.asked)) == ("Hello", 2, 3)


def test_no_cookie_is_kept_for_the_calls_of_others():
    cookie = ("content-type", "text/event-stream"), ("set-cookie", "session=1; Path=/")
    reply = Reply(headers=cookie, steps=HELLO.steps)

    _, server = ask(Loopback([reply, reply]), calls=2, **of(OPENAI))

    assert ["cookie" in asked.headers for asked in server.asked] == [False, False]


def test_a_handler_that_litellm_closes_leaves_the_client_of_later_calls():
    litellm = import_litellm()

    async def main():
        async with Anthropic() as server, backend_at(server, **of(CLAUDE)) as backend:
            await backend.chat(REQUEST)
            await litellm.close_litellm_async_clients()
            return await backend.chat(REQUEST)

    assert asyncio.run(main()).text == "".join(TEXT)


def test_closing_one_endpoint_leaves_the_connections_of_another():
    async def main():
        server = Loopback([HELLO] * 3)
        async with server, backend_at(server, **of(VLLM)) as second:
            async with backend_at(server, **of(VLLM)) as first:
                await first.chat(REQUEST)
                await second.chat(REQUEST)
            await second.chat(REQUEST)
            assert (server.connections, server.open_connections) == (2, 1)

    asyncio.run(main())


@pytest.mark.slow
def test_nothing_stays_open_that_would_complain_when_the_process_ends():
    with warnings.catch_warnings():  # of what other tests left
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    refusal = anthropic_error(529, "overloaded_error", "Overloaded")[1]
    for _ in range(2):
        fail(Overloaded, Provider([refusal]), **of(CLAUDE))

    gc.collect()
    sessions = [each for each in gc.get_objects() if type(each).__name__ == "ClientSession"]
    assert [session for session in sessions if not session.closed] == []


@contextmanager
def in_a_thread(server):
    """A server that outlives an event loop of its client, and keeps its connections."""
    ready, over = Event(), Event()

    async def serve():
        async with server:
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield server.url
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_one_event_loop_after_another_may_call_the_same_provider():
    async def call(url):
        backend = unconnected(CLAUDE, "sk-secret", url=url, stream=False)
        completion = await backend.chat(REQUEST)
        await backend.aclose()
        return completion.text

    with in_a_thread(Anthropic()) as url:
        assert [asyncio.run(call(url)) for _ in range(2)] == ["".join(TEXT)] * 2


# --- the library -----------------------------------------------------------------------------


def test_users_see_none_of_its_warnings():
    # As a program would have them: all shown, and those of our own calls among them.
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        completion, _ = ask(Reply(steps=llama_server_stream(*TEXT)), **of(OPENAI))
    assert completion.text == "".join(TEXT)
    assert shown == []


OFFLINE = """
import asyncio, logging, sys

contacts = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
calls = []
sys.addaudithook(lambda name, args: calls.append((name, args)) if name in contacts else None)

from harness.errors import EndpointUnreachable
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.providers.http import Access
from harness.inference.providers.litellm import LiteLLMBackend, import_litellm
from harness.inference.providers.litellm_http import make_careful

# Of some providers litellm would like to know more: here is one, where nobody is.
backend = LiteLLMBackend(
    Endpoint(tag="m", backend="litellm", model_id="anthropic/claude-haiku-4-5", url=sys.argv[1]),
    Access(api_key="sk-secret"),
)
slow = {"litellm", "openai", "xllamacpp"} & set(sys.modules)
assert not slow, slow
messages, schema = as_messages("Write."), {"type": "object", "properties": {}}
try:
    asyncio.run(backend.chat(ChatRequest(model="m", messages=messages, reply_schema=schema)))
except EndpointUnreachable:
    away = [call for call in calls if "127.0.0.1" not in str(call[1])]
    assert calls and not away, away
assert logging.getLogger().handlers == []
"""


@pytest.mark.slow
def test_litellm_is_imported_at_the_first_call_without_network_or_noise():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        # A process of its own: here its modules are loaded.
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", OFFLINE, nobody],
            env={},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
