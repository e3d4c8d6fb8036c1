import asyncio
import base64
import socket
import ssl
import struct
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import httpx2
import pytest
from calls import REQUEST, ask, backend_at, cut_at, fail, phase
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
from manual_clock import ManualClock

from harness.errors import (
    ConfigurationInvalid,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, Endpoint, Message
from harness.inference.providers.http import Access
from harness.inference.providers.openai_wire import wire_embeddings
from harness.inference.providers.registry import connect

# For other.example, signed by itself, until 2126.
OWN_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBhjCCAS2gAwIBAgIUY+wBw6jNZPo6mKucAtUPGwiLAokwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNb3RoZXIuZXhhbXBsZTAgFw0yNjExMjgyMzEzMTFaGA8yMTI2
MTEwNDIzMTMxMVowGDEWMBQGA1UEAwwNb3RoZXIuZXhhbXBsZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABKKau/pMJeCcv+IQjNr7UvGIxhCYvW3XnJDDnon0uBxl
704JH3qB4zPfIWN1P9vPu3A7dO7oA9hAThmJVeFZ5oWjUzBRMB0GA1UdDgQWBBSs
s92Qcp7//e3kpqnJdbd2y1YXJzAfBgNVHSMEGDAWgBSss92Qcp7//e3kpqnJdbd2
y1YXJzAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCICujn19pzJJ7
H2nuTSfdQXCvCocsCPwSl4I55eBIiavFAiBwOCtXYqxkc4KkW/i85HzNqITZ9Szx
ozUYFFQXTPiLXA==
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgeCV/YsqIJiAH7GBr
qRmdcAN35gMZrCAuzfD+CWzcMHyhRANCAASimrv6TCXgnL/iEIza+1LxiMYQmL1t
15yQw56J9LgcZe9OCR96geMz3yFjdT/bz7twO3Tu6APYQE4ZiVXhWeaF
-----END PRIVATE KEY-----
"""
WHOLE = Reply(steps=llama_server_stream("Hel", "lo"))
TOKENS = llama_server_stream("Hel", "lo")[:3]
FINISHED = delta(finish_reason="stop")
VECTORS = [[1.0, 0.5], [3.0, 0.5]]
USAGE = chunk(choices=[], usage=usage())
BOOM = event({"error": {"code": 500, "message": "boom", "type": "server_error"}})


# --- what is sent ----------------------------------------------------------------------------


def test_a_plain_request_is_sent_as_it_is_and_nothing_more():
    _, server = ask(WHOLE)

    [asked] = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["content-type"] == "application/json"
    assert asked.body == {
        "model": "served-name",
        "messages": [{"role": "user", "content": "Grüße, 日本"}],
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


GO_ON = [{"role": "user", "content": "Go!"}, {"role": "assistant", "content": "I we"}]


@pytest.mark.parametrize(
    ("backend", "fields"),
    [
        ("llamacpp", {}),
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("sglang", {"continue_final_message": True}),
        ("openai", None),
    ],
)
def test_the_rest_of_a_reply_is_the_servers_to_go_on_with_or_is_asked_for_in_words(backend, fields):
    request = replace(
        REQUEST, messages=tuple(Message(m["role"], m["content"]) for m in GO_ON), goes_on=True
    )

    _, server = ask(WHOLE, request=request, backend=backend)

    body = server.asked[0].body
    assert body["messages"][:2] == GO_ON
    assert [m["role"] for m in body["messages"][2:]] == ([] if fields is not None else ["user"])
    assert {name: body[name] for name in body if name.split("_")[0] in {"continue", "add"}} == (
        fields or {}
    )


@pytest.mark.parametrize(("stated", "sent"), [(None, 1024), (7, 7)])
def test_a_server_that_would_take_a_few_tokens_for_no_room_is_told_one(stated, sent):
    request = replace(REQUEST, max_output_tokens=stated)

    _, server = ask(WHOLE, request=request, backend="triton-openai")

    assert server.asked[0].body["max_tokens"] == sent


def test_everything_that_was_asked_for_is_sent():
    score = {"properties": {"score": {"type": "integer"}}, "required": ["score"]}
    schema = {"type": "object", "additionalProperties": False, **score}
    messages = (Message("system", "Strict."), Message("user", "Judge."), Message("assistant", "…"))
    cutoffs = {"top_p": 0.9, "top_k": 40, "min_p": 0.05}
    settings = {"temperature": 0.7, **cutoffs, "frequency_penalty": 0.5, "seed": 0}
    request = ChatRequest(
        model="judge",
        messages=messages,
        role="evaluator",
        max_output_tokens=64,
        stop=("\n\n", "END"),
        reply_schema=schema,
        **settings,
    )

    _, server = ask(WHOLE, request=request)

    assert server.asked[0].body == settings | {
        "model": "served-name",
        "messages": [{"role": one.role, "content": one.content} for one in messages],
        "max_tokens": 64,
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
        pytest.param("sk-1\n", "Bearer sk-1", id="a key with the newline of its file"),
        pytest.param("", None, id="an empty key"),
    ],
)
def test_a_key_is_sent_when_there_is_one(api_key, sent):
    _, server = ask(WHOLE, api_key=api_key)

    assert server.asked[0].headers.get("authorization") == sent


@pytest.mark.parametrize("api_key", ["clé-1", "sk-1\nsk-2"])
def test_a_key_that_no_header_can_carry_is_refused_at_once_and_not_shown(api_key):
    with pytest.raises(ConfigurationInvalid) as caught:
        connect(Endpoint(tag="judge", url="http://127.0.0.1:9/v1"), Access(api_key=api_key))

    assert caught.value.code == "endpoint.key-not-sendable"
    assert "-1" not in str(caught.value)


def test_a_url_may_end_in_a_slash_and_no_proxy_stands_between_us_and_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    class Slashed(Loopback):
        @property
        def url(self):
            return f"{self.root}/v1/"

    _, server = ask(Slashed([WHOLE]))

    assert server.asked[0].path == "/v1/chat/completions"


# --- what comes back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "cached_tokens"),
    [
        pytest.param(llama_server_stream("Hel", "lo", cached_tokens=24), 24, id="24 cached"),
        pytest.param(vllm_stream("Hel", "lo"), None, id="vLLM, which does not say"),
        pytest.param(vllm_stream("Hel", "lo", cached_tokens=16), 16, id="vLLM with its flag"),
    ],
)
def test_a_reply_carries_text_usage_and_the_servers_name_for_the_model(stream, cached_tokens):
    completion, _ = ask(Reply(steps=stream))

    assert (completion.text, completion.reasoning) == ("Hello", "")
    assert (completion.finish_reason, completion.model_id) == ("stop", "served-name")
    assert (completion.usage.input_tokens, completion.usage.output_tokens) == (31, 3)
    assert completion.usage.cached_tokens == cached_tokens


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        ("stop", "stop eos eos_token stop_sequence end_turn STOP"),
        ("length", "length max_tokens model_length max_output_tokens"),
        ("content_filter", "content_filter refusal RECITATION PROHIBITED_CONTENT BLOCKLIST SPII"),
        ("tool_calls", "tool_calls tool_use tool_call tool_calling function_calls function_call"),
    ],
)
def test_a_finish_reason_is_one_of_four(meant, words):
    for word in words.split():
        completion, _ = ask(Reply(steps=llama_server_stream("Hello", finish_reason=word)))
        assert completion.finish_reason == meant, word


@pytest.mark.parametrize("word", ["abort", "words of next year"])
def test_a_generation_that_the_server_breaks_off_is_no_reply(word):
    fail(StreamCut, Reply(steps=llama_server_stream("Hel", finish_reason=word)))


ASIDE = "Close it with </think>\nand write on."
GREETING = llama_server_stream("Hello")
MENTIONS = """<think> opens it.|<think> and </think> are marks.|</think> closes it.|<think>
|<think>a</think>\n<answer>b</answer>|<reasoning>a</reasoning>\nb""".replace("\n|", "|").split("|")


@pytest.mark.parametrize(
    ("stream", "backend", "reasoning", "text"),
    [
        # vLLM's field; a closing tag in an answer that the server keeps apart, and one further on,
        # after a thought in tags; what comes after DONE.
        ((delta(reasoning="So "), delta(reasoning="4"), *vllm_stream("4")), "openai", "So 4", "4"),
        ((delta(reasoning_content="Which?"), *llama_server_stream(ASIDE)), "vllm", "Which?", ASIDE),
        (llama_server_stream("<think>Which?</think>", ASIDE), "openai", "Which?", ASIDE),
        ((*GREETING, delta(content="!"), BOOM), "openai", "", "Hello"),
        *(
            ((delta(reasoning="So"), *llama_server_stream(*mention)), "openai", "So", mention)
            for mention in MENTIONS
        ),
    ],
)
def test_what_is_said_is_told_apart_from_all_else(stream, backend, reasoning, text):
    heard = []
    request = replace(REQUEST, on_text=heard.append)

    completion, _ = ask(Reply(steps=stream), request=request, backend=backend)

    assert (completion.reasoning, completion.text) == (reasoning, text)
    assert "".join(heard) == text


SECOND = chunk(choices=[{"index": 1, "delta": {"content": "No"}, "finish_reason": "length"}])
"""A part of a reply that nobody asked for, and its end."""
TWO_OF_INDEX_0 = chunk(
    choices=[
        {"index": 0, "delta": {"content": text}, "finish_reason": None} for text in ("lo", "No")
    ]
)


@pytest.mark.parametrize("backend", ["llamacpp", "litellm"])
def test_a_mark_before_the_stream_and_a_second_reply_in_it_leave_the_reply_whole(backend):
    steps = (b"\xef\xbb\xbf" + TOKENS[1], SECOND, TWO_OF_INDEX_0, FINISHED, SECOND, USAGE, DONE)
    model_id = "openai/served-name" if backend == "litellm" else "served-name"

    completion, _ = ask(Reply(steps=steps), backend=backend, model_id=model_id, api_key="sk-1")

    assert (completion.text, completion.finish_reason) == ("Hello", "stop")


def both(*texts):
    return chunk(choices=[{"index": 0, "delta": {"content": text}} for text in texts])


def says(text, finish_reason=None, **more):
    return delta(role="assistant", content=text, finish_reason=finish_reason, **more)


STOP = delta(content="", finish_reason="stop")


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        pytest.param((both("Yes", "No"), both("!", "?"), STOP), "Yes!", id="in one chunk"),
        pytest.param((says("Yes"), says("!"), STOP), "Yes!", id="a role with every piece"),
        pytest.param((says("Yes", "stop"), says("!", "stop")), "Yes!", id="each piece ends"),
        pytest.param((says("", "stop", reasoning="H"), says("Yes!"), STOP), "Yes!", id="thoughts"),
        pytest.param((says("Yes"), says("!", "stop"), STOP, says("")), "Yes!", id="two ends"),
        pytest.param((says("Yes"), STOP, says("No"), STOP), None, id="one after another"),
        pytest.param(
            (says("Yes"), says("!", "length"), says("No"), STOP), None, id="after one cut short"
        ),
        pytest.param((both("Yes", "No"), says("!"), says("?"), STOP), None, id="apart later"),
    ],
)
def test_of_several_replies_with_one_index_the_first_is_told_or_none(steps, text):
    reply = Reply(steps=(*steps, USAGE, DONE))
    if text is None:
        assert fail(InferenceError, reply).code == "call.several-replies"
    else:
        assert ask(reply)[0].text == text


def test_who_listens_hears_a_thought_that_only_its_end_gives_away():
    heard = []
    stream = llama_server_stream("I count.\n", "</think>\n\n", "Three.")

    completion, _ = ask(Reply(steps=stream), request=replace(REQUEST, on_text=heard.append))

    assert (completion.reasoning, completion.text) == ("I count.\n", "Three.")
    assert "".join(heard) == "I count.\n</think>\n\nThree."


@pytest.mark.parametrize("size", [3, 64, 100_000], ids="chunks of {} bytes".format)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_reply_does_not_depend_on_how_its_bytes_were_cut(size, line_end):
    text = "Grüße ☃\u2028日本\u0085 “x” 🦫"
    ping = b": ping\n\n"
    stream = ping + ping.join(llama_server_stream(*text.split(" "), " ", text))

    completion, _ = ask(Reply(steps=cut_at(stream.replace(b"\n", line_end), size)))

    assert completion.text == text.replace(" ", "") + " " + text


# --- when ------------------------------------------------------------------------------------


class WatchedClock(ManualClock):
    """Lets a server wait until the client has looked at the time."""

    def __init__(self):
        super().__init__(start_ns=1_000_000_000)
        self.looks = asyncio.Semaphore(0)

    def __call__(self):
        self.looks.release()
        return super().__call__()


def test_phases_run_from_the_request_to_the_word_that_all_is_said():
    clock = WatchedClock()
    steps = (
        clock.looks.acquire,  # the request was made
        clock.looks.acquire,  # and sent
        lambda: clock.advance(ms=60),
        delta(role="assistant", content=""),  # not a token
        lambda: clock.advance(ms=40),
        delta(reasoning_content="Hm."),  # a thought is one, too
        clock.looks.acquire,
        lambda: clock.advance(ms=300),
        delta(content="lo"),
        clock.looks.acquire,
        lambda: clock.advance(ms=50),
        delta(finish_reason="stop"),
        chunk(choices=[], usage=usage(), timings=TIMINGS),
        DONE,
    )

    completion, _ = ask(Reply(steps=steps), clock=clock)

    assert (completion.sent_ns, completion.first_token_ns) == (1_000_000_000, 1_100_000_000)
    assert completion.phases == (
        phase("queue", 1000, 1070, "derived"),
        phase("prefill", 1070, 1100, "reported"),
        phase("decode", 1100, 1450, "measured"),
    )


# --- errors ----------------------------------------------------------------------------------

WAIT = ("Retry-After", "7")


@pytest.mark.parametrize(
    ("reply", "error", "facts"),
    [
        # With status 200, as SGLang answers streamed calls.
        (error_reply(200, {"message": "maximum context length is 9"}), ContextOverflow, {}),
        (
            Reply(status=308, headers=(("location", "https://elsewhere/v1/"),)),
            ServerError,
            {"status": 308},
        ),
        *(
            (
                Reply(headers=(("content-type", kind),), steps=(b"<h1>Sign in</h1>",)),
                ServerError,
                {},
            )
            for kind in ("text/html; charset=utf-8", "image/png")
        ),
    ],
)
def test_a_refusal_becomes_the_error_it_means_and_is_not_asked_for_again(reply, error, facts):
    caught = fail(error, reply)

    assert {name: getattr(caught, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        pytest.param(Reply(steps=(*TOKENS, BOOM)), ServerError, id="error, then close"),
        pytest.param(Reply(), StreamCut, id="nothing at all"),
        pytest.param(Reply(steps=(*TOKENS, USAGE, DONE)), StreamCut, id="no finish reason"),
        pytest.param(Reply(steps=(*TOKENS, FINISHED, DONE)), StreamCut, id="no usage"),
        pytest.param(Reply(steps=(*TOKENS, b"data: {not JSON}\n\n")), StreamCut, id="not JSON"),
        pytest.param(Reply(steps=(*TOKENS, event([1]))), ServerError, id="another shape"),
        pytest.param(Reply(steps=TOKENS, ending="reset"), StreamCut, id="reset in the middle"),
        pytest.param(
            Reply(status=500, steps=(b'{"error": ',), ending="reset"), StreamCut, id="in a refusal"
        ),
        pytest.param(
            Reply(headers=(("content-encoding", "gzip"),), steps=TOKENS), StreamCut, id="no gzip"
        ),
    ],
)
def test_a_part_of_a_reply_is_never_a_reply(reply, error):
    caught = fail(error, reply, backend="vllm")

    if reply.steps and BOOM in reply.steps:
        assert caught.status == 500


@pytest.mark.parametrize(
    ("is_tls", "code"), [(True, "call.certificate-refused"), (False, "call.no-tls")]
)
def test_a_server_that_is_there_and_cannot_be_trusted_is_not_said_to_be_away(
    tmp_path, is_tls, code
):
    (tmp_path / "own.pem").write_text(OWN_CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")

    async def refuse(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def call():
        tls = context if is_tls else None
        async with await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=tls) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(tag="a", url=f"https://127.0.0.1:{port}/v1", model_id="m")
            backend = connect(endpoint)
            try:
                await backend.chat(REQUEST)
            finally:
                await backend.aclose()

    with pytest.raises(EndpointUnreachable) as caught:
        asyncio.run(call())
    assert caught.value.code == code


def test_an_error_of_whoever_listens_stays_theirs():
    def listen(_text):
        raise httpx2.ConnectError("my own webhook is down")

    with pytest.raises(httpx2.ConnectError, match="my own webhook"):
        ask(WHOLE, request=replace(REQUEST, on_text=listen))


NOT_KNOWN = error_reply(422, {"detail": "stream_options: Extra inputs are not permitted"})


def test_usage_is_not_asked_of_a_server_that_refuses_to_be_asked():
    completion, server = ask(NOT_KNOWN, WHOLE)

    assert (completion.dropped, completion.attempts) == (("stream_options",), 2)
    assert ["stream_options" in asked.body for asked in server.asked] == [True, False]
    fail(ServerError, NOT_KNOWN, backend="vllm")  # which is known to count


def test_a_reply_goes_on_to_its_limit_where_the_server_can_do_that():
    refused = error_reply(400, {"error": {"message": "unknown field: ignore_eos"}})
    completion, server = ask(refused, WHOLE, request=replace(REQUEST, ignore_eos=True))

    assert [asked.body.get("ignore_eos") for asked in server.asked] == [True, None]
    assert completion.dropped == ("ignore_eos",)


def test_a_reply_ends_at_a_stop_text_that_its_server_does_not_take():
    refused = error_reply(400, {"error": {"message": "Unsupported parameter: 'stop'"}})
    heard = []
    request = replace(REQUEST, stop=("EN", "END"), on_text=heard.append)
    reply = Reply(steps=llama_server_stream("One E", "ND E", "N", "D two"))
    completion, server = ask(refused, reply, request=request)
    assert completion.text == "".join(heard) == "One "
    assert (completion.finish_reason, completion.dropped) == ("stop", ("stop",))
    assert ["stop" in asked.body for asked in server.asked] == [True, False]


@pytest.mark.parametrize("indexes", [(1, 0), (0, 0), (None, None)])
@pytest.mark.parametrize("is_text", [False, True])
def test_vectors_are_read_by_their_index_as_numbers_or_base64(indexes, is_text):
    texts = [base64.b64encode(struct.pack("<2f", *vector)).decode() for vector in VECTORS]
    pairs = zip(indexes, texts if is_text else VECTORS, strict=True)
    page = {"data": [{"index": index, "embedding": vector} for index, vector in pairs]}
    read = partial(wire_embeddings, [page], endpoint=Endpoint(tag="e", url="http://e"), count=2)
    if indexes == (0, 0):
        with pytest.raises(ServerError, match="one index"):
            read()
    else:
        assert read().vectors.tolist() == (VECTORS if indexes[0] is None else VECTORS[::-1])


def test_a_prompt_that_is_counted_without_its_cached_part_is_counted_whole():
    counts = usage(prompt_tokens=12, cache_read_input_tokens=30, cache_creation_input_tokens=3)
    completion, _ = ask(Reply(steps=(*TOKENS, FINISHED, chunk(choices=[], usage=counts), DONE)))
    assert (completion.usage.input_tokens, completion.usage.cached_tokens) == (45, 30)


def test_a_server_that_is_not_known_to_count_need_not():
    completion, _ = ask(Reply(steps=(*TOKENS, FINISHED, DONE)))

    assert (completion.text, completion.usage) == ("Hello", None)


@pytest.mark.parametrize(("listens", "sent"), [(True, 1), (False, 2)])
def test_a_field_refused_in_mid_reply_is_left_out_only_where_nobody_has_heard_a_part(listens, sent):
    refusal = {"error": {"code": 400, "message": "'temperature' is not supported", "type": "x"}}
    server = Loopback([Reply(steps=(*TOKENS, event(refusal))), WHOLE])
    heard = []

    with suppress(ServerError):
        ask(server, request=replace(REQUEST, on_text=heard.append if listens else None))

    assert len(server.asked) == sent
    assert "".join(heard) == ("Hello" if listens else "")


def test_an_address_where_nothing_answers_is_named():
    with socket.socket() as taken:
        # Bound, so that nobody else takes it, but not listening.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        for address in (url, "http://nowhere.invalid/v1"):
            with pytest.raises(EndpointUnreachable, match=f"{address}/chat/completions"):
                asyncio.run(connect(Endpoint(tag="judge", url=address)).chat(REQUEST))


# --- connections -----------------------------------------------------------------------------


def test_calls_one_after_another_share_a_connection_whatever_they_end_in():
    async def main():
        server = Loopback([WHOLE, error_reply(500, {"error": "boom"}), WHOLE])
        async with server, backend_at(server) as wire:
            first = await wire.chat(REQUEST)
            with pytest.raises(ServerError):
                await wire.chat(REQUEST)
            last = await wire.chat(REQUEST)
            assert server.connections == 1
            assert first.connecting_ns
            assert last.connecting_ns is None

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_connection_that_had_gone_stale_is_replaced_once(ending):
    completion, server = ask(WHOLE, Reply(head=False, ending=ending), WHOLE, calls=2)

    assert (completion.text, completion.attempts) == ("Hello", 2)
    assert [asked.connection for asked in server.asked] == [1, 1, 2]
    assert server.asked[1].body == server.asked[2].body


def test_a_stale_connection_is_replaced_once_and_no_more():
    server = Loopback([WHOLE, GONE_BEFORE_A_BYTE, GONE_BEFORE_A_BYTE, WHOLE])

    fail(StreamCut, server, calls=2)

    assert len(server.asked) == 3


def test_a_server_that_hangs_up_on_a_new_connection_is_not_asked_again():
    fail(StreamCut, GONE_BEFORE_A_BYTE, WHOLE)


def test_a_reply_that_broke_off_before_it_began_says_so_since_the_server_may_be_away():
    assert not fail(StreamCut, GONE_BEFORE_A_BYTE, WHOLE).has_begun
    assert fail(StreamCut, Reply(steps=TOKENS, ending="reset")).has_begun


def test_closing_cuts_off_a_call_that_is_under_way():
    async def main():
        async with (
            Loopback([Reply(steps=TOKENS, ending="hold")]) as server,
            backend_at(server) as wire,
        ):
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.holding.wait()
            await wire.aclose()
            with pytest.raises(StreamCut):
                await call
            assert len(server.asked) == 1

    asyncio.run(main())


def test_a_server_that_never_ends_its_stream_after_done_has_replied_all_the_same():
    endless = Reply(steps=llama_server_stream("Hello"), ending="hold")

    async def main():
        async with Loopback([endless]) as server, backend_at(server) as wire:
            assert (await wire.chat(REQUEST)).text == "Hello"
            await server.hung_up.wait()

    asyncio.run(main())


@pytest.mark.slow
def test_a_reply_that_was_whole_in_time_is_not_lost_to_what_follows_it():
    # What is left of the call's time goes by while its last piece is listened to.
    slow = replace(REQUEST, on_text=lambda _text: time.sleep(2.1))
    endless = Reply(steps=(b"".join(llama_server_stream("Hello")),), ending="hold")

    completion, _ = ask(endless, request=slow, timeout_s=2)

    assert completion.text == "Hello"
