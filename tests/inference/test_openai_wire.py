import asyncio
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import httpx
import pytest
from loopback import (
    DONE,
    GONE_BEFORE_A_BYTE,
    TIMINGS,
    Loopback,
    Reply,
    chunk,
    delta,
    error_reply,
    event,
    llama_server_stream,
    usage,
    vllm_stream,
)

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ConfigurationInvalid,
    ContextOverflow,
    EndpointUnreachable,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference import (
    ChatRequest,
    EmbedRequest,
    Endpoint,
    Message,
    OpenAIWire,
    Phase,
)
from harness.trace import ManualClock, monotonic

REQUEST = ChatRequest(model="judge", messages=(Message("user", "Grüße, 日本"),))
WHOLE = Reply(steps=llama_server_stream("Hel", "lo"))
PATIENCE_S = 10.0
"""For what happens at once or never."""


@asynccontextmanager
async def wire_to(*replies, api_key=None, clock=monotonic, **fields):
    """A wire, and the server it leads to."""
    async with Loopback(replies) as server:
        endpoint = Endpoint.model_validate(
            {"tag": "judge", "url": server.url, "model_id": "served-name", **fields}
        )
        wire = OpenAIWire(endpoint, api_key=api_key, clock=clock)
        try:
            yield wire, server
        finally:
            await wire.aclose()


def ask(*replies, request=REQUEST, **how):
    """One call: the completion, and the server with what it received."""

    async def main():
        async with wire_to(*replies, **how) as (wire, server):
            return await wire.chat(request), server

    return asyncio.run(main())


def ask_in_vain(*replies, error, match, **how):
    """One call that fails: the error, and the server."""

    async def main():
        async with wire_to(*replies, **how) as (wire, server):
            with pytest.raises(error, match=match) as caught:
                await wire.chat(REQUEST)
            assert type(caught.value) is error
            assert caught.value.endpoint == "judge"
            return caught.value, server

    return asyncio.run(main())


# --- what is sent ----------------------------------------------------------------------------


def test_a_plain_request_is_sent_as_it_is_and_nothing_more():
    _, server = ask(WHOLE)

    [received] = server.requests
    assert received.path == "/v1/chat/completions"
    assert received.headers["content-type"] == "application/json"
    assert received.body == {
        "model": "served-name",
        "messages": [{"role": "user", "content": "Grüße, 日本"}],
        "max_tokens": 512,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_everything_that_was_asked_for_is_sent():
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}}
    request = ChatRequest(
        model="judge",
        messages=(
            Message("system", "Be strict."),
            Message("user", "Judge."),
            Message("assistant", "Well…"),
        ),
        role="evaluator",
        max_output_tokens=64,
        temperature=0.7,
        frequency_penalty=0.5,
        seed=0,
        stop=("\n\n", "END"),
        reply_schema=schema,
    )

    _, server = ask(WHOLE, request=request)

    assert server.requests[0].body == {
        "model": "served-name",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": "Judge."},
            {"role": "assistant", "content": "Well…"},
        ],
        "max_tokens": 64,
        "temperature": 0.7,
        "frequency_penalty": 0.5,
        "seed": 0,
        "stop": ["\n\n", "END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": True},
        },
    }


@pytest.mark.parametrize(
    ("api_key", "sent"),
    [
        pytest.param("sk-1", "Bearer sk-1", id="a key"),
        pytest.param("sk-1\n", "Bearer sk-1", id="a key with the newline of its file"),
        pytest.param(None, None, id="no key"),
        pytest.param("", None, id="an empty key"),
    ],
)
def test_a_key_is_sent_when_there_is_one(api_key, sent):
    _, server = ask(WHOLE, api_key=api_key)

    assert server.requests[0].headers.get("authorization") == sent


@pytest.mark.parametrize("api_key", ["clé-1", "sk-1\nsk-2"])
def test_a_key_that_no_header_can_carry_is_refused_at_once_and_not_shown(api_key):
    endpoint = Endpoint(tag="judge", url="http://127.0.0.1:9/v1")

    with pytest.raises(ConfigurationInvalid, match="API key of endpoint 'judge'") as caught:
        OpenAIWire(endpoint, api_key=api_key)
    assert "-1" not in str(caught.value)


def test_a_url_may_end_in_a_slash():
    async def main():
        async with Loopback([WHOLE]) as server:
            wire = OpenAIWire(Endpoint(tag="judge", url=server.url + "/"))
            await wire.chat(REQUEST)
            await wire.aclose()
            assert server.requests[0].path == "/v1/chat/completions"

    asyncio.run(main())


def test_no_proxy_stands_between_us_and_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    completion, _ = ask(WHOLE)

    assert completion.text == "Hello"


# --- what comes back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "cached_tokens"),
    [
        pytest.param(llama_server_stream("Hel", "lo"), 0, id="llama-server, nothing cached"),
        pytest.param(llama_server_stream("Hel", "lo", cached_tokens=24), 24, id="24 cached"),
        pytest.param(vllm_stream("Hel", "lo"), None, id="vLLM, which does not say"),
        pytest.param(vllm_stream("Hel", "lo", cached_tokens=16), 16, id="vLLM with its flag"),
        pytest.param(
            vllm_stream("Hel", "lo", metrics={"queue_time_ms": 1.5}), None, id="vLLM with metrics"
        ),
    ],
)
def test_a_reply_carries_text_usage_and_the_servers_name_for_the_model(stream, cached_tokens):
    completion, _ = ask(Reply(steps=stream))

    assert completion.text == "Hello"
    assert completion.reasoning == ""
    assert completion.finish_reason == "stop"
    assert completion.usage.input_tokens == 31
    assert completion.usage.output_tokens == 3
    assert completion.usage.cached_tokens == cached_tokens
    assert completion.model_id == "served-name"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("eos", "stop"),
        ("eos_token", "stop"),
        ("stop_sequence", "stop"),
        ("end_turn", "stop"),
        ("STOP", "stop"),
        ("max_tokens", "length"),
        ("model_length", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_a_finish_reason_is_one_of_three(said, meant):
    completion, _ = ask(Reply(steps=llama_server_stream("Hello", finish_reason=said)))

    assert completion.finish_reason == meant


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart_from_the_answer(field):
    stream = (
        delta(role="assistant", content=None),
        delta(**{field: "Is it 4? "}),
        delta(**{field: "Yes."}),
        *vllm_stream("4")[1:],
    )

    completion, _ = ask(Reply(steps=stream))

    assert completion.text == "4"
    assert completion.reasoning == "Is it 4? Yes."


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("Close it with </think>\nand write on.", id="a closing tag"),
        pytest.param("<think> opens a thought.", id="an opening one"),
    ],
)
def test_a_tag_is_part_of_an_answer_that_the_server_keeps_apart(answer):
    heard = []
    stream = (delta(reasoning_content="Which tag?"), *llama_server_stream(answer))

    completion, _ = ask(
        Reply(steps=stream), request=replace(REQUEST, on_text=heard.append), backend="vllm"
    )

    assert completion.reasoning == "Which tag?"
    assert completion.text == "".join(heard) == answer


def test_a_tag_further_on_is_part_of_an_answer_after_a_thought_in_tags():
    answer = "Close it with </think>\nand write on."

    completion, _ = ask(Reply(steps=llama_server_stream("<think>Which?</think>", answer)))

    assert (completion.reasoning, completion.text) == ("Which?", answer)


def test_who_listens_hears_a_thought_that_only_its_end_gives_away():
    heard = []
    stream = llama_server_stream("I count.\n", "</think>\n\n", "Three.")

    completion, _ = ask(Reply(steps=stream), request=replace(REQUEST, on_text=heard.append))

    assert (completion.reasoning, completion.text) == ("I count.\n", "Three.")
    assert "".join(heard) == "I count.\n</think>\n\nThree."


def test_content_may_come_in_parts():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]

    completion, _ = ask(Reply(steps=(delta(content=parts), *llama_server_stream("!"))))

    assert completion.text == "Hello!"


@pytest.mark.parametrize("said", ["choices", "delta"])
def test_what_is_null_is_nothing(said):
    empty = {"choices": None} if said == "choices" else {"choices": [{"index": 0, "delta": None}]}

    completion, _ = ask(Reply(steps=(chunk(**empty), *llama_server_stream("Hello"))))

    assert completion.text == "Hello"


def test_a_reply_may_be_empty():
    completion, _ = ask(Reply(steps=llama_server_stream()))

    assert completion.text == ""
    assert completion.first_token_ns is None


@pytest.mark.parametrize("size", [1, 3, 64, 100_000], ids="chunks of {} bytes".format)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_reply_does_not_depend_on_how_its_bytes_were_cut(size, line_end):
    text = "Grüße ☃\u2028日本\u0085 “x” 🦫"
    ping = b": ping\n\n"
    stream = ping + ping.join(llama_server_stream(*text.split(" "), " ", *text))
    stream = stream.replace(b"\n", line_end)
    steps = tuple(stream[at : at + size] for at in range(0, len(stream), size))

    completion, _ = ask(Reply(steps=steps))

    assert completion.text == text.replace(" ", "") + " " + text


def test_details_beside_the_choices_do_not_disturb():
    stream = (
        chunk(choices=[], prompt_filter_results=[{"index": 0}]),
        delta(content="Hello", tool_calls=None, refusal=None),
        delta(finish_reason="stop", logprobs=None),
        chunk(choices=[], usage=usage(completion_tokens_details={"reasoning_tokens": 0})),
        DONE,
    )

    completion, _ = ask(Reply(steps=stream))

    assert completion.text == "Hello"
    assert completion.usage.cached_tokens is None


# --- when ------------------------------------------------------------------------------------


class WatchedClock(ManualClock):
    """Lets a server wait until the client has looked at the time."""

    def __init__(self):
        super().__init__(start_ns=1_000_000_000)
        self.looks = asyncio.Semaphore(0)

    def __call__(self):
        self.looks.release()
        return super().__call__()


def timed(*last_chunks):
    """A call whose first token comes after 100 ms and whose last after 400 ms."""
    clock = WatchedClock()
    steps = (
        clock.looks.acquire,  # the request was sent
        lambda: clock.advance(ms=60),
        delta(role="assistant", content=""),  # not a token
        lambda: clock.advance(ms=40),
        delta(content="Hel"),
        clock.looks.acquire,
        lambda: clock.advance(ms=300),
        delta(content="lo"),
        clock.looks.acquire,
        lambda: clock.advance(ms=50),
        delta(finish_reason="stop"),
        *last_chunks,
        DONE,
    )
    completion, _ = ask(Reply(steps=steps), clock=clock)
    return completion


def phase(name, start_ms, end_ms, source):
    return Phase(name=name, start_ns=start_ms * 1_000_000, end_ns=end_ms * 1_000_000, source=source)


@pytest.mark.parametrize(
    ("told", "before_the_first_token"),
    [
        pytest.param({}, [phase("prefill", 1000, 1100, "derived")], id="nothing"),
        pytest.param(
            {"timings": TIMINGS},
            [phase("queue", 1000, 1070, "derived"), phase("prefill", 1070, 1100, "reported")],
            id="llama-server's timings",
        ),
        pytest.param(
            {"metrics": {"queue_time_ms": 20.0, "time_to_first_token_ms": 90.0}},
            [phase("queue", 1000, 1020, "reported"), phase("prefill", 1020, 1100, "derived")],
            id="vLLM's metrics",
        ),
        pytest.param(
            {"metrics": None}, [phase("prefill", 1000, 1100, "derived")], id="vLLM without its flag"
        ),
    ],
)
def test_phases_run_from_the_request_to_the_word_that_all_is_said(told, before_the_first_token):
    completion = timed(chunk(choices=[], usage=usage(), **told))

    assert completion.sent_ns == 1_000_000_000
    assert completion.first_token_ns == 1_100_000_000
    assert completion.phases == (*before_the_first_token, phase("decode", 1100, 1450, "measured"))


def test_a_thought_is_a_token_too():
    clock = WatchedClock()
    steps = (
        clock.looks.acquire,
        lambda: clock.advance(ms=10),
        delta(reasoning_content="Hm."),
        clock.looks.acquire,
        lambda: clock.advance(ms=10),
        *llama_server_stream("4"),
    )

    completion, _ = ask(Reply(steps=steps), clock=clock)

    assert completion.first_token_ns == 1_010_000_000


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "error", "match"),
    [
        pytest.param(
            error_reply(401, {"error": "Unauthorized"}),
            AuthenticationFailed,
            "^judge: the server refused the credentials .*api_key_env",
            id="credentials",
        ),
        pytest.param(
            error_reply(404, {"error": {"message": "The model `x` does not exist."}}),
            ModelNotFound,
            "^judge: the server does not serve 'served-name' .*model_id",
            id="model",
        ),
        pytest.param(
            error_reply(400, {"error": {"message": "maximum context length is 2048 tokens"}}),
            ContextOverflow,
            "^judge: .*2048 tokens. Shorten the prompt",
            id="context",
        ),
        pytest.param(
            error_reply(429, {"error": {"message": "slow down"}}, ("Retry-After", "7")),
            RateLimited,
            r"^judge: the account is at its limit \(slow down\); wait",
            id="rate",
        ),
        pytest.param(
            error_reply(503, {"error": {"message": "Loading model"}}, ("Retry-After", "7")),
            Overloaded,
            r"^judge: the server is loading or full \(Loading model\)",
            id="load",
        ),
        pytest.param(
            error_reply(500, {"error": {"message": "boom"}}),
            ServerError,
            "^judge: HTTP 500: boom",
            id="server",
        ),
        pytest.param(
            error_reply(502, None, raw=b"<h1>Bad Gateway</h1>"),
            ServerError,
            "^judge: HTTP 502: .*Bad Gateway",
            id="gateway",
        ),
        pytest.param(
            error_reply(
                200,
                {"object": "error", "message": "longer than the maximum context length"},
            ),
            ContextOverflow,
            "^judge: longer than",
            id="an error with status 200, as SGLang answers streamed calls",
        ),
    ],
)
def test_a_refusal_becomes_the_error_it_means_and_names_the_endpoint(reply, error, match):
    caught, server = ask_in_vain(reply, error=error, match=match)

    assert len(server.requests) == 1
    if isinstance(caught, Overloaded):
        assert caught.retry_after_s == 7.0


TOKENS = llama_server_stream("Hel", "lo")[:3]
FINISHED = delta(finish_reason="stop")
USAGE = chunk(choices=[], usage=usage())
BOOM = event({"error": {"code": 500, "message": "boom", "type": "server_error"}})


@pytest.mark.parametrize(
    ("reply", "error", "match"),
    [
        pytest.param(
            Reply(steps=(*TOKENS, BOOM)), ServerError, "HTTP 500: boom", id="error, then close"
        ),
        pytest.param(
            Reply(steps=(*TOKENS, BOOM, DONE)),
            ServerError,
            "HTTP 500: boom",
            id="error, then [DONE]",
        ),
        pytest.param(
            Reply(steps=(*TOKENS, event({"error": "boom"}), DONE)),
            ServerError,
            "sent an error for a reply: boom",
            id="error as a string",
        ),
        pytest.param(
            Reply(steps=(*TOKENS, FINISHED, USAGE)),
            StreamCut,
            r"without \[DONE\]",
            id="closed without [DONE]",
        ),
        pytest.param(Reply(steps=TOKENS), StreamCut, r"without \[DONE\]", id="tokens alone"),
        pytest.param(Reply(), StreamCut, r"without \[DONE\]", id="nothing at all"),
        pytest.param(
            Reply(steps=(*TOKENS, USAGE, DONE)),
            StreamCut,
            "without its finish reason",
            id="[DONE] without a finish reason",
        ),
        pytest.param(
            Reply(steps=(*TOKENS, FINISHED, DONE)),
            StreamCut,
            "without its usage",
            id="[DONE] without usage",
        ),
        pytest.param(
            Reply(steps=(*TOKENS, b"data: {not JSON}\n\n")),
            StreamCut,
            "holds what is not a part of one: b'{not JSON}'",
            id="not JSON",
        ),
        pytest.param(
            Reply(steps=(*TOKENS, event([1]))),
            ServerError,
            r"holds what is not a part of one: b'\[1\]'",
            id="JSON of another shape",
        ),
        pytest.param(
            Reply(steps=(delta(content=[{"type": "image_url"}]), *TOKENS)),
            ServerError,
            "holds what is not a part of one",
            id="content that is not text",
        ),
        pytest.param(
            Reply(steps=(*TOKENS, FINISHED, USAGE[:40])),
            StreamCut,
            "holds what is not a part of one",
            id="ended within a line",
        ),
        pytest.param(
            Reply(steps=TOKENS, ending="close"),
            StreamCut,
            "the reply was cut off: the connection broke",
            id="connection closed in the middle",
        ),
        pytest.param(
            Reply(steps=TOKENS, ending="reset"),
            StreamCut,
            "the reply was cut off: the connection broke",
            id="connection reset in the middle",
        ),
        pytest.param(
            Reply(ending="reset"), StreamCut, "the connection broke", id="reset after the headers"
        ),
        pytest.param(
            Reply(status=500, steps=(b'{"error": ',), ending="reset"),
            StreamCut,
            "the connection broke",
            id="reset within a refusal",
        ),
        pytest.param(
            Reply(
                headers=(("content-type", "text/event-stream"), ("content-encoding", "gzip")),
                steps=TOKENS,
            ),
            StreamCut,
            "the connection broke",
            id="not the encoding it claims to be",
        ),
    ],
)
def test_a_part_of_a_reply_is_never_a_reply(reply, error, match):
    _, server = ask_in_vain(reply, error=error, match=f"^judge: .*{match}", backend="vllm")

    assert len(server.requests) == 1


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "image/png"])
def test_a_page_is_no_reply_and_not_asked_for_again(content_type):
    page = Reply(headers=(("content-type", content_type),), steps=(b"<h1>Sign in</h1>",))

    caught, _ = ask_in_vain(
        page, error=ServerError, match=f"answers with {content_type}.*url right"
    )

    assert caught.status is None


@pytest.mark.parametrize("headers", [(), (("content-type", "text/plain; charset=utf-8"),)])
def test_a_stream_is_one_without_its_content_type_too(headers):
    completion, _ = ask(replace(WHOLE, headers=headers))

    assert completion.text == "Hello"


def test_a_redirect_names_where_it_leads():
    moved = Reply(status=308, headers=(("location", "https://elsewhere/v1/"),))

    caught, _ = ask_in_vain(
        moved, error=ServerError, match="HTTP 308: .* on to https://elsewhere/v1/; is the"
    )

    assert caught.status == 308


def test_an_error_of_whoever_listens_stays_theirs():
    def listen(_text):
        raise httpx.ConnectError("my own webhook is down")

    with pytest.raises(httpx.ConnectError, match="my own webhook"):
        ask(WHOLE, request=replace(REQUEST, on_text=listen))


NOT_KNOWN = error_reply(
    422,
    {
        "detail": [
            {
                "type": "extra_forbidden",
                "loc": ["body", "stream_options"],
                "msg": "Extra inputs are not permitted",
            }
        ]
    },
)


def test_usage_is_not_asked_of_a_server_that_refuses_to_be_asked():
    completion, server = ask(NOT_KNOWN, WHOLE)

    assert completion.dropped == ("stream_options",)
    assert completion.attempts == 2
    assert ["stream_options" in r.body for r in server.requests] == [True, False]


def test_usage_is_asked_of_a_server_that_is_known_to_count():
    _, server = ask_in_vain(NOT_KNOWN, error=ServerError, match="stream_options", backend="vllm")

    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "vectors", [[[1.0, 2.0], [1.0]], [[1.0]]], ids=["of different lengths", "of one text"]
)
def test_vectors_that_do_not_go_together_are_an_error(vectors):
    rows = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]

    async def main():
        async with wire_to(error_reply(200, {"data": rows})) as (wire, _):
            with pytest.raises(ServerError, match=r"^judge: the server was asked for .*embeddings"):
                await wire.embed(EmbedRequest(model="judge", texts=("a", "b")))

    asyncio.run(main())


@pytest.mark.parametrize(("listens", "sent"), [(True, 1), (False, 2)])
def test_a_field_refused_in_mid_reply_is_left_out_only_where_nobody_has_heard_a_part(listens, sent):
    refusal = {"error": {"code": 400, "message": "'temperature' is not supported", "type": "x"}}
    broken = Reply(steps=(*TOKENS, event(refusal)))
    heard = []

    async def main():
        async with wire_to(broken, WHOLE) as (wire, server):
            with suppress(ServerError):
                await wire.chat(replace(REQUEST, on_text=heard.append if listens else None))
            return len(server.requests)

    assert asyncio.run(main()) == sent
    assert "".join(heard) == ("Hello" if listens else "")


def test_a_server_that_is_not_known_to_count_need_not():
    completion, _ = ask(Reply(steps=(*TOKENS, FINISHED, DONE)), backend="openai")

    assert completion.text == "Hello"
    assert completion.usage is None


def test_an_error_in_a_stream_has_the_status_it_names():
    caught, _ = ask_in_vain(Reply(steps=(*TOKENS, BOOM)), error=ServerError, match="boom")

    assert caught.status == 500


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(ending="hold"), id="headers alone"),
        pytest.param(Reply(head=False, ending="hold"), id="nothing"),
        pytest.param(Reply(steps=TOKENS, ending="hold"), id="part of a reply"),
        pytest.param(Reply(status=500, ending="hold"), id="part of a refusal"),
    ],
)
def test_a_call_ends_when_its_time_is_over_and_hangs_up(reply):
    async def main():
        async with wire_to(reply, timeout_s=0.1) as (wire, server):
            with pytest.raises(CallTimeout, match=r"^judge: .* within timeout_s = 0\.1 s"):
                await wire.chat(REQUEST)
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


def test_cancelling_a_call_hangs_up():
    async def main():
        async with wire_to(Reply(steps=TOKENS, ending="hold")) as (wire, server):
            async with asyncio.TaskGroup() as group:
                call = group.create_task(wire.chat(REQUEST))
                await server.holding.wait()
                call.cancel()
            assert call.cancelled()
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


def test_a_port_where_nothing_listens_is_named_with_what_to_check():
    with socket.socket() as taken:
        # Bound, so that nobody else takes it, but not listening.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EndpointUnreachable, match=f"{url}/chat/completions .*is the server"):
            asyncio.run(OpenAIWire(Endpoint(tag="judge", url=url)).chat(REQUEST))


def test_a_host_that_does_not_exist_is_named():
    url = "http://nowhere.invalid/v1"
    with pytest.raises(EndpointUnreachable, match=r"^judge: nothing answers at http://nowhere"):
        asyncio.run(OpenAIWire(Endpoint(tag="judge", url=url)).chat(REQUEST))


# --- connections -----------------------------------------------------------------------------


def test_calls_one_after_another_share_a_connection():
    async def main():
        async with wire_to(WHOLE, error_reply(500, {"error": "boom"}), WHOLE) as (wire, server):
            await wire.chat(REQUEST)
            with pytest.raises(ServerError):
                await wire.chat(REQUEST)
            await wire.chat(REQUEST)
            assert server.connections == 1

    asyncio.run(main())


def test_calls_side_by_side_have_a_connection_each():
    async def main():
        both = asyncio.Barrier(2)
        reply = Reply(steps=(both.wait, *llama_server_stream("Hello")))
        async with wire_to(reply, reply) as (wire, server):
            completions = await asyncio.gather(wire.chat(REQUEST), wire.chat(REQUEST))
            assert [c.text for c in completions] == ["Hello", "Hello"]
            assert server.connections == 2

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_connection_that_had_gone_stale_is_replaced_once(ending):
    async def main():
        gone = Reply(head=False, ending=ending)
        async with wire_to(WHOLE, gone, WHOLE) as (wire, server):
            await wire.chat(REQUEST)
            completion = await wire.chat(REQUEST)
            assert completion.text == "Hello"
            assert completion.attempts == 2
            assert [r.connection for r in server.requests] == [1, 1, 2]
            assert server.requests[1].body == server.requests[2].body

    asyncio.run(main())


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(head=False, ending="hold"), id="before a byte of the reply"),
        pytest.param(Reply(steps=TOKENS, ending="hold"), id="in the middle of it"),
    ],
)
def test_closing_cuts_off_a_call_that_is_under_way(reply):
    async def main():
        async with Loopback([reply]) as server:
            wire = OpenAIWire(Endpoint(tag="judge", url=server.url))
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.holding.wait()
            await wire.aclose()
            with pytest.raises(StreamCut, match=r"^judge: the reply was cut off"):
                await call
            assert len(server.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_server_that_hangs_up_on_a_new_connection_is_not_asked_again(ending):
    gone = Reply(head=False, ending=ending)

    _, server = ask_in_vain(
        gone, WHOLE, error=StreamCut, match="the connection broke before it began"
    )

    assert len(server.requests) == 1


def test_a_stale_connection_is_replaced_once_and_no_more():
    async def main():
        gone = GONE_BEFORE_A_BYTE
        async with wire_to(WHOLE, gone, gone, WHOLE) as (wire, server):
            assert (await wire.chat(REQUEST)).attempts == 1
            with pytest.raises(StreamCut, match="the connection broke before it began"):
                await wire.chat(REQUEST)
            assert len(server.requests) == 3

    asyncio.run(main())


def test_a_server_that_never_ends_its_stream_after_done_has_replied_all_the_same():
    async def main():
        endless = Reply(steps=llama_server_stream("Hello"), ending="hold")
        async with wire_to(endless, timeout_s=PATIENCE_S) as (wire, server):
            began = time.monotonic()
            assert (await wire.chat(REQUEST)).text == "Hello"
            assert time.monotonic() - began < 0.5
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


def test_a_reply_that_was_whole_in_time_is_not_lost_to_what_follows_it():
    # What is left of the call's time goes by while its last piece is listened to.
    slow = replace(REQUEST, on_text=lambda _text: time.sleep(0.6))
    endless = Reply(steps=(b"".join(llama_server_stream("Hello")),), ending="hold")

    completion, _ = ask(endless, request=slow, timeout_s=0.5)

    assert completion.text == "Hello"


def test_what_comes_after_done_is_not_part_of_the_reply():
    completion, _ = ask(Reply(steps=(*llama_server_stream("Hello"), delta(content="!"), BOOM)))

    assert completion.text == "Hello"
