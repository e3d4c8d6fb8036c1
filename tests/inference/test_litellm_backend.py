import asyncio
import gc
import json
import socket
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
from loopback import (
    DONE,
    GONE_BEFORE_A_BYTE,
    Loopback,
    Reply,
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
from harness.inference import ChatRequest, Endpoint, Message, as_messages
from harness.inference.managed.litellm_backend import LiteLLMBackend

REQUEST = ChatRequest(model="managed", messages=as_messages("Grüße, 日本"))
TOKENS = llama_server_stream("Hel", "lo")[:3]
PATIENCE_S = 10.0


def backend_at(url, **fields):
    endpoint = Endpoint.model_validate(
        {
            "tag": "managed",
            "backend": "litellm",
            "model_id": "openai/served-name",
            "url": url,
            **fields,
        }
    )
    return LiteLLMBackend(endpoint, api_key="sk-secret")


def ask(*replies, request=REQUEST, **fields):
    """One call through litellm: the completion, and what the server received."""

    async def main():
        async with Loopback(replies) as server:
            backend = backend_at(server.url, **fields)
            try:
                return await backend.chat(request), server.requests
            finally:
                await backend.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("stream", "cached_tokens"),
    [
        pytest.param(llama_server_stream("Grü", "ße"), 0, id="llama-server, nothing cached"),
        pytest.param(llama_server_stream("Grü", "ße", cached_tokens=24), 24, id="24 cached"),
        pytest.param(vllm_stream("Grü", "ße"), None, id="vLLM, which does not say"),
    ],
)
def test_a_reply_carries_text_usage_and_the_cached_tokens_the_provider_told_of(
    stream, cached_tokens
):
    completion, [received] = ask(Reply(steps=stream))

    assert completion.text == "Grüße"
    assert completion.finish_reason == "stop"
    assert completion.usage.input_tokens == 31
    assert completion.usage.output_tokens == 3
    assert completion.usage.cached_tokens == cached_tokens
    assert completion.model_id == "served-name"
    assert received.headers["authorization"] == "Bearer sk-secret"


def test_everything_that_was_asked_for_is_sent():
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}}
    request = ChatRequest(
        model="managed",
        messages=(Message("system", "Be strict."), Message("user", "Judge.")),
        max_output_tokens=64,
        temperature=0.7,
        frequency_penalty=0.5,
        seed=0,
        stop=("END",),
        reply_schema=schema,
    )

    _, [received] = ask(Reply(steps=llama_server_stream("Hello")), request=request)

    assert received.path == "/v1/chat/completions"
    assert received.body == {
        "model": "served-name",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": "Judge."},
        ],
        "max_tokens": 64,
        "temperature": 0.7,
        "frequency_penalty": 0.5,
        "seed": 0,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": True},
        },
    }


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_the_finish_reason_is_the_providers(reason):
    completion, _ = ask(Reply(steps=llama_server_stream("Hello", finish_reason=reason)))

    assert completion.finish_reason == reason


def whole(finish_reason):
    message = {"role": "assistant", "content": "half an ans"}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    said = {"id": "c1", "object": "chat.completion", "model": "served-name", "choices": [choice]}
    return Reply(
        headers=(("content-type", "application/json"),),
        steps=(json.dumps({**said, "usage": usage()}).encode(),),
    )


BROKEN_OFF = ["abort", "error", "timeout", "cancelled", "insufficient_system_resource"]


@pytest.mark.parametrize("reason", BROKEN_OFF)
@pytest.mark.parametrize("model_id", ["openai/served-name", "hosted_vllm/served-name"])
def test_a_stream_that_the_provider_broke_off_is_no_reply(model_id, reason):
    stream = llama_server_stream("half an ", "ans", finish_reason=reason)

    with pytest.raises(StreamCut, match=f"^managed: .*{reason}"):
        ask(Reply(steps=stream), model_id=model_id)


@pytest.mark.parametrize("reason", BROKEN_OFF)
@pytest.mark.parametrize("model_id", ["openai/served-name", "hosted_vllm/served-name"])
def test_a_whole_reply_that_the_provider_broke_off_is_none(model_id, reason):
    with pytest.raises(StreamCut, match=f"broke the generation off .*'{reason}'"):
        ask(whole(reason), model_id=model_id, stream=False)


@pytest.mark.parametrize("model_id", ["openai/served-name", "hosted_vllm/served-name"])
def test_a_whole_reply_without_a_finish_reason_is_none(model_id):
    with pytest.raises(StreamCut, match="without a finish reason"):
        ask(whole(None), model_id=model_id, stream=False)


def test_a_reply_that_speaks_of_finish_reasons_is_a_reply():
    text = (
        'It said "finish_reason": "abort".\n\ndata: {"choices": [{"finish_reason": "error"}]}\n\n'
    )

    completion, _ = ask(Reply(steps=llama_server_stream(text)))

    assert (completion.text, completion.finish_reason) == (text, "stop")


def test_reasoning_is_kept_apart_and_its_first_token_counts():
    thought = asyncio.Event()

    async def main():
        steps = (
            delta(role="assistant", content=None),
            delta(reasoning_content="Is it 4?"),
            thought.wait,
            *llama_server_stream("4")[1:],
        )
        async with Loopback([Reply(steps=steps)]) as server:
            # The server says nothing more until the clock has been read for the thought.
            reads = []

            def clock():
                reads.append(len(reads))
                if len(reads) == 2:
                    thought.set()
                return reads[-1]

            endpoint = Endpoint(
                tag="managed", backend="litellm", model_id="openai/x", url=server.url
            )
            backend = LiteLLMBackend(endpoint, api_key="sk-secret", clock=clock)
            async with asyncio.timeout(PATIENCE_S):
                completion = await backend.chat(REQUEST)
            await backend.aclose()
            return completion

    completion = asyncio.run(main())
    assert (completion.text, completion.reasoning) == ("4", "Is it 4?")
    assert (completion.sent_ns, completion.first_token_ns) == (0, 1)
    assert [p.name for p in completion.phases] == ["prefill", "decode"]
    assert completion.phases[-1].end_ns == 3  # when it was said to be over


@pytest.mark.parametrize(
    ("reply", "error", "match"),
    [
        pytest.param(
            error_reply(401, {"error": {"message": "bad key", "code": "invalid_api_key"}}),
            AuthenticationFailed,
            r"credentials \(bad key\); set the endpoint's api_key_env",
            id="401",
        ),
        pytest.param(
            error_reply(403, {"error": {"message": "not yours"}}),
            AuthenticationFailed,
            "not yours",
            id="403",
        ),
        pytest.param(
            error_reply(404, {"error": {"message": "The model `x` does not exist."}}),
            ModelNotFound,
            "does not serve 'openai/served-name' .*model_id",
            id="404",
        ),
        pytest.param(
            error_reply(429, {"error": {"message": "slow down"}}, ("retry-after", "7")),
            RateLimited,
            "slow down",
            id="429",
        ),
        pytest.param(
            error_reply(500, {"error": {"message": "boom"}}), ServerError, "500: boom", id="500"
        ),
        pytest.param(
            error_reply(503, {"error": {"message": "Loading model"}}, ("retry-after", "7")),
            Overloaded,
            "Loading model",
            id="503",
        ),
        pytest.param(
            error_reply(
                400,
                {
                    "error": {
                        "message": "request exceeds the available context size",
                        "type": "exceed_context_size_error",
                        "n_prompt_tokens": 4001,
                        "n_ctx": 512,
                    }
                },
            ),
            ContextOverflow,
            "Shorten the prompt",
            id="context",
        ),
        pytest.param(
            GONE_BEFORE_A_BYTE,
            StreamCut,
            "the connection broke before it began",
            id="hung up",
        ),
        pytest.param(Reply(steps=TOKENS), StreamCut, "without a finish reason", id="no reason"),
        pytest.param(
            Reply(steps=(*TOKENS, DONE)), StreamCut, "without a finish reason", id="no reason, DONE"
        ),
        pytest.param(
            Reply(steps=TOKENS, ending="reset"), StreamCut, "was cut off", id="reset in the middle"
        ),
        pytest.param(
            Reply(steps=(*TOKENS, event({"error": {"message": "boom", "code": 500}}))),
            StreamCut,
            "was cut off.*boom",
            id="error in the stream",
        ),
    ],
)
def test_an_error_becomes_the_one_it_means_after_one_attempt(reply, error, match):
    async def main():
        async with Loopback([reply]) as server:
            backend = backend_at(server.url)
            with pytest.raises(error, match=f"^managed: .*{match}") as caught:
                await backend.chat(REQUEST)
            await backend.aclose()
            assert len(server.requests) == 1
            return caught.value

    caught = asyncio.run(main())
    assert type(caught) is error
    if isinstance(caught, Overloaded):
        assert caught.retry_after_s == 7.0
    if isinstance(caught, ContextOverflow):
        assert (caught.prompt_tokens, caught.context_tokens) == (4001, 512)


def anthropic_stream(stop_reason):
    def said(kind, **fields):
        return f"event: {kind}\n".encode() + event({"type": kind, **fields})

    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1},
    }
    text = {"type": "text_delta", "text": "Hello"}
    return (
        said("message_start", message=message),
        said("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        said("content_block_delta", index=0, delta=text),
        said("content_block_stop", index=0),
        said("message_delta", delta={"stop_reason": stop_reason}, usage={"output_tokens": 3}),
        said("message_stop"),
    )


@pytest.mark.parametrize(
    ("said", "finish_reason"),
    [
        pytest.param("model_context_window_exceeded", "length", id="no room left"),
        pytest.param("refusal", "content_filter", id="a refusal"),
        pytest.param("stop_sequence", "stop", id="a stop text"),
    ],
)
def test_why_claude_stopped_is_told_by_its_own_word(said, finish_reason):
    completion, _ = ask(Reply(steps=anthropic_stream(said)), model_id="anthropic/claude-haiku-4-5")

    assert completion.finish_reason == finish_reason


def test_a_turn_of_claudes_that_is_to_go_on_is_no_reply():
    with pytest.raises(StreamCut, match="'pause_turn'"):
        ask(Reply(steps=anthropic_stream("pause_turn")), model_id="anthropic/claude-haiku-4-5")


def test_a_provider_with_a_wire_of_its_own_is_no_different():
    completion, _ = ask(
        Reply(steps=anthropic_stream("max_tokens")), model_id="anthropic/claude-haiku-4-5"
    )

    assert completion.text == "Hello"
    assert completion.finish_reason == "length"
    assert completion.usage.input_tokens == 15
    assert completion.usage.output_tokens == 3
    assert completion.usage.cached_tokens == 5


def test_nothing_stays_open_that_would_complain_when_the_process_ends():
    async def main():
        refusal = error_reply(529, {"type": "error", "error": {"message": "Overloaded"}})
        async with Loopback([refusal, refusal]) as server:
            for _ in range(2):
                backend = backend_at(server.url, model_id="anthropic/claude-haiku-4-5")
                with pytest.raises(Overloaded):
                    await backend.chat(REQUEST)
                await backend.aclose()
        gc.collect()
        sessions = [each for each in gc.get_objects() if type(each).__name__ == "ClientSession"]
        assert [session for session in sessions if not session.closed] == []

    asyncio.run(main())


def test_a_port_where_nothing_listens_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EndpointUnreachable, match=f"nothing answers at {url}"):
            asyncio.run(backend_at(url).chat(REQUEST))


@pytest.mark.parametrize("model_id", ["openai/x", "anthropic/claude-haiku-4-5", "gemini/x"])
def test_a_missing_key_is_not_taken_for_a_failing_server(model_id, monkeypatch):
    for provider in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{provider}_API_KEY", raising=False)
    backend = LiteLLMBackend(Endpoint(tag="managed", backend="litellm", model_id=model_id))

    with pytest.raises(AuthenticationFailed, match="api_key_env"):
        asyncio.run(backend.chat(REQUEST))


def test_a_model_without_a_provider_is_told_what_to_write():
    backend = LiteLLMBackend(Endpoint(tag="managed", backend="litellm", model_id="no-prefix"))

    with pytest.raises(ServerError, match=r"(?s)LLM Provider NOT provided.*model=no-prefix"):
        asyncio.run(backend.chat(REQUEST))


def test_a_call_ends_when_its_time_is_over_and_hangs_up():
    async def main():
        async with Loopback([Reply(steps=TOKENS, ending="hold")]) as server:
            backend = backend_at(server.url, timeout_s=0.2)
            with pytest.raises(CallTimeout, match=r"timeout_s = 0\.2 s"):
                await backend.chat(REQUEST)
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()
            await backend.aclose()

    asyncio.run(main())


def test_cancelling_a_call_hangs_up():
    async def main():
        async with Loopback([Reply(steps=TOKENS, ending="hold")]) as server:
            backend = backend_at(server.url)
            async with asyncio.TaskGroup() as group:
                call = group.create_task(backend.chat(REQUEST))
                await server.holding.wait()
                call.cancel()
            assert call.cancelled()
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()
            await backend.aclose()

    asyncio.run(main())


def test_the_last_to_close_closes_the_connections_that_litellm_would_keep():
    async def main():
        async with Loopback([Reply(steps=vllm_stream("Hello"))] * 4) as server:
            first, second = (
                backend_at(server.url, model_id="hosted_vllm/served-name") for _ in range(2)
            )
            await first.chat(REQUEST)
            await second.chat(REQUEST)
            await first.aclose()
            await second.chat(REQUEST)
            assert (server.connections, server.open_connections) == (1, 1)
            await second.aclose()
            async with asyncio.timeout(PATIENCE_S):
                await server.deserted.wait()
            # Whoever calls again, after closing, opens another.
            await first.chat(REQUEST)
            assert server.connections == 2
            await first.aclose()

    asyncio.run(main())


def test_closing_one_backend_cuts_no_call_of_another():
    async def main():
        other_closed = asyncio.Event()
        stream = llama_server_stream("a", "b")
        halting = Reply(steps=(*stream[:2], other_closed.wait, *stream[2:]))
        begun = asyncio.Event()
        async with Loopback([halting]) as slow, Loopback([Reply(steps=stream)]) as fast:
            first, second = backend_at(slow.url), backend_at(fast.url)
            call = asyncio.create_task(first.chat(replace(REQUEST, on_text=lambda _: begun.set())))
            async with asyncio.timeout(PATIENCE_S):
                await begun.wait()
                await second.chat(REQUEST)
                await second.aclose()
                other_closed.set()
                assert (await call).text == "ab"
            await first.aclose()

    asyncio.run(main())


def test_a_backend_that_was_let_go_unclosed_keeps_no_connection_open_for_others():
    async def main():
        async with Loopback([Reply(steps=llama_server_stream("Hello"))] * 2) as server:
            first, second = backend_at(server.url), backend_at(server.url)
            await first.chat(REQUEST)
            await second.chat(REQUEST)
            del first
            gc.collect()
            await second.aclose()
            async with asyncio.timeout(PATIENCE_S):
                await server.deserted.wait()

    asyncio.run(main())


def test_users_see_none_of_its_warnings():
    # As a program would have them: all shown, and those of our own calls among them.
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        ask(Reply(steps=llama_server_stream("Hello", cached_tokens=24)))
    assert shown == []


OFFLINE = """
import asyncio, logging, sys

contacts = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
calls = []
sys.addaudithook(lambda name, args: calls.append((name, args)) if name in contacts else None)

import harness.inference
slow = {"litellm", "openai", "xllamacpp"} & set(sys.modules)
assert not slow, slow

from harness.errors import EndpointUnreachable, ServerError
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.managed.litellm_backend import LiteLLMBackend

backend = LiteLLMBackend(Endpoint(tag="managed", backend="litellm", model_id="no-prefix"))
assert "litellm" not in sys.modules
try:
    # litellm finds out by itself that there is no such provider.
    asyncio.run(backend.chat(ChatRequest(model="managed", messages=as_messages("Write."))))
except ServerError:
    assert "litellm" in sys.modules
else:
    raise AssertionError("a model without a provider was accepted")
assert not calls, calls

# Of some providers it would like to know more: here is one, at an address where nobody is.
backend = LiteLLMBackend(
    Endpoint(tag="m", backend="litellm", model_id="anthropic/claude-haiku-4-5", url=sys.argv[1]),
    api_key="sk-secret",
)
schema = {"type": "object", "properties": {"a": {"type": "string"}}}
try:
    asyncio.run(backend.chat(ChatRequest(
        model="m", messages=as_messages("Write."), reply_schema=schema
    )))
except EndpointUnreachable:
    away = [call for call in calls if "127.0.0.1" not in str(call[1])]
    assert calls and not away, away
assert logging.getLogger().handlers == []
"""


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


def test_a_key_that_was_read_from_a_file_may_end_in_a_newline():
    async def main():
        async with Loopback([Reply(steps=llama_server_stream("Hello"))]) as server:
            endpoint = Endpoint(
                tag="managed", backend="litellm", model_id="openai/x", url=server.url
            )
            backend = LiteLLMBackend(endpoint, api_key="sk-secret\n")
            await backend.chat(REQUEST)
            await backend.aclose()
            return server.requests

    [received] = asyncio.run(main())
    assert received.headers["authorization"] == "Bearer sk-secret"


def test_a_key_that_no_header_can_hold_is_refused_without_telling_it():
    endpoint = Endpoint(tag="managed", backend="litellm", model_id="anthropic/x")

    with pytest.raises(ConfigurationInvalid, match="the API key of endpoint 'managed'") as caught:
        LiteLLMBackend(endpoint, api_key="sk-secr\net")

    assert "sk-secr" not in str(caught.value)
