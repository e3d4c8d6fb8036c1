"""Providers as litellm speaks to them: their own servers' words, emulated."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from loopback import Loopback, error_reply
from servers.anthropic import FRESH, READ, WRITTEN, Anthropic
from servers.emulated import JSON_TEXT, TEXT, THOUGHT
from servers.openai_api import OpenAIAPI

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ContextOverflow,
    ModelNotFound,
    NotOffered,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.managed.litellm_backend import LiteLLMBackend
from harness.inference.request import CountRequest, EmbedRequest

REQUEST = ChatRequest(model="managed", messages=as_messages("How many owls?"))
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "owls": {"type": "integer"}},
    "required": ["city", "owls"],
    "additionalProperties": False,
}
PATIENCE_S = 10.0
OPENAI = (OpenAIAPI, "openai/gpt-4o-mini")
TOGETHER = (OpenAIAPI, "together_ai/served")
ANTHROPIC = (Anthropic, "anthropic/claude-haiku-4-5")

each_provider = pytest.mark.parametrize(
    "provider", [OPENAI, TOGETHER, ANTHROPIC], ids=lambda provider: provider[1].split("/")[0]
)
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@asynccontextmanager
async def backend_of(server, model_id, **fields):
    url = server.root if isinstance(server, Anthropic) else server.url
    endpoint = Endpoint.model_validate(
        {"tag": "managed", "backend": "litellm", "model_id": model_id, "url": url, **fields}
    )
    backend = LiteLLMBackend(endpoint, api_key="sk-secret")
    try:
        yield backend
    finally:
        await backend.aclose()


def ask(provider, scenario="reply", *, calls=1, request=REQUEST, like=None, **fields):
    """The last of some calls one after another, and the server with what it was asked."""

    async def main():
        kind, model_id = provider
        async with (
            kind(scenario, **(like or {})) as server,
            backend_of(server, model_id, **fields) as backend,
        ):
            for _ in range(calls):
                completion = await backend.chat(request)
            return completion, server

    return asyncio.run(main())


# --- replies ---------------------------------------------------------------------------------


@each_provider
@streamed_or_not
def test_a_reply_comes_whole_to_the_letter(provider, stream):
    heard = []

    completion, server = ask(
        provider, request=replace(REQUEST, on_text=heard.append), stream=stream
    )

    assert completion.text == "".join(TEXT)
    assert "".join(heard) == "".join(TEXT)
    assert completion.finish_reason == "stop"
    assert completion.dropped == ()
    assert bool(server.asked[0].body.get("stream")) is stream
    assert (completion.itl is not None) is stream
    assert (completion.first_token_ns is not None) is stream


@each_provider
@streamed_or_not
def test_what_is_thought_is_kept_apart_from_what_is_said(provider, stream):
    heard = []
    request = replace(REQUEST, on_text=heard.append)

    completion, _ = ask(provider, "thinking", request=request, stream=stream)

    assert completion.reasoning == "".join(THOUGHT)
    assert completion.text == "".join(heard) == "".join(TEXT)


@each_provider
@streamed_or_not
def test_the_token_limit_is_told_from_the_end(provider, stream):
    completion, _ = ask(provider, "length", stream=stream)

    assert completion.finish_reason == "length"


@each_provider
def test_a_reply_may_be_empty(provider):
    completion, _ = ask(provider, "empty")

    assert (completion.text, completion.first_token_ns) == ("", None)


@streamed_or_not
def test_log_probabilities_come_with_their_alternatives(stream):
    request = replace(REQUEST, top_logprobs=2)

    completion, _ = ask(OPENAI, request=request, stream=stream)

    assert "".join(one.token for one in completion.logprobs) == "".join(TEXT)
    assert {one.logprob for one in completion.logprobs} == {-0.25}
    assert completion.logprobs[0].top[1] == ("?", -0.25)


# --- usage -----------------------------------------------------------------------------------


@streamed_or_not
def test_anthropics_cached_tokens_are_part_of_the_prompt(stream):
    completion, _ = ask(ANTHROPIC, stream=stream)

    assert completion.usage.input_tokens == FRESH + WRITTEN + READ
    assert completion.usage.cached_tokens == READ
    assert completion.usage.output_tokens == 7
    assert completion.cost_usd > 0


@streamed_or_not
def test_reasoning_tokens_are_the_providers_count(stream):
    completion, _ = ask(OPENAI, "thinking", stream=stream)

    assert completion.usage.reasoning_tokens == 4


@streamed_or_not
def test_reasoning_tokens_that_litellm_estimates_are_not_given_out_for_counted(stream):
    completion, _ = ask(ANTHROPIC, "thinking", stream=stream)

    assert completion.usage.reasoning_tokens is None


@streamed_or_not
@pytest.mark.parametrize("provider", [OPENAI, TOGETHER], ids=["openai", "together_ai"])
def test_where_the_provider_does_not_count_there_is_no_usage(provider, stream):
    completion, _ = ask(provider, like={"counts_usage": False}, stream=stream)

    assert completion.usage is None
    assert completion.cost_usd is None


# --- schemas ---------------------------------------------------------------------------------


@streamed_or_not
@pytest.mark.parametrize(
    ("provider", "place"),
    [
        pytest.param(OPENAI, "response_format", id="OpenAI"),
        pytest.param(TOGETHER, "response_format", id="Together"),
        pytest.param(ANTHROPIC, "output_format", id="Anthropic"),
        pytest.param((Anthropic, "anthropic/claude-3-haiku-20240307"), "tools", id="older Claude"),
    ],
)
def test_a_schema_goes_where_the_provider_enforces_it_and_the_reply_is_text(
    provider, place, stream
):
    request = replace(REQUEST, reply_schema=SCHEMA)

    completion, server = ask(provider, request=request, stream=stream)

    assert json.loads(completion.text) == json.loads("".join(JSON_TEXT))
    assert '"owls"' in str(server.asked[0].body[place]).replace("'", '"')
    assert completion.dropped == ()


def test_a_schema_that_a_provider_has_no_place_for_is_left_out_and_named():
    request = replace(REQUEST, reply_schema=SCHEMA)

    completion, server = ask((OpenAIAPI, "zai/served"), request=request)

    assert completion.text == "".join(TEXT)
    assert completion.dropped == ("response_format",)
    assert "response_format" not in server.asked[0].body


# --- refused fields --------------------------------------------------------------------------


def test_a_field_that_a_model_refuses_is_left_out_from_then_on_and_named():
    completion, server = ask(ANTHROPIC, like={"refuses": ("temperature",)}, calls=2)

    assert completion.text == "".join(TEXT)
    assert completion.dropped == ("temperature",)
    assert ["temperature" in asked.body for asked in server.asked] == [True, False, False]


def test_the_call_that_finds_a_refusal_out_is_two_requests_and_says_so():
    completion, server = ask(ANTHROPIC, like={"refuses": ("temperature",)})

    assert completion.attempts == len(server.asked) == 2


def test_a_field_that_litellm_refuses_for_a_provider_is_never_sent_and_named():
    request = replace(REQUEST, frequency_penalty=0.5, seed=7)

    completion, server = ask(ANTHROPIC, request=request)

    assert set(completion.dropped) == {"frequency_penalty", "seed"}
    assert len(server.asked) == 1


def test_a_model_that_litellm_knows_to_have_one_temperature_only_has_it_left_out():
    completion, server = ask((OpenAIAPI, "openai/o3-mini"))

    assert completion.dropped == ("temperature",)
    [asked] = server.asked
    assert "temperature" not in asked.body
    assert asked.body["max_completion_tokens"] == 512


def test_a_provider_that_refuses_to_be_asked_for_usage_is_not_asked():
    completion, server = ask(
        (OpenAIAPI, "hosted_vllm/served"),
        like={"refuses": ("stream_options",), "counts_usage": False},
        calls=2,
    )

    assert completion.dropped == ("stream_options",)
    assert completion.usage is None
    assert ["stream_options" in asked.body for asked in server.asked] == [True, False, False]


def test_what_the_endpoint_says_to_drop_is_not_even_tried():
    completion, server = ask(ANTHROPIC, like={"refuses": ("temperature",)}, drop=("temperature",))

    assert completion.dropped == ("temperature",)
    assert len(server.asked) == 1


def test_a_field_that_goes_by_another_name_is_not_dropped():
    refusing = {"refuses": ("max_tokens", "temperature")}

    completion, server = ask(OPENAI, like=refusing)

    assert completion.dropped == ("temperature",)
    assert [asked.body.get("max_completion_tokens") for asked in server.asked] == [None, 512, 512]


# --- errors ----------------------------------------------------------------------------------


@each_provider
@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("overflow", ContextOverflow),
        ("unknown model", ModelNotFound),
        ("overload", Overloaded),
        ("cut stream", StreamCut),
        ("unended stream", StreamCut),
        ("late error", StreamCut),
        ("garbage", StreamCut),
    ],
)
def test_what_goes_wrong_has_its_own_error_after_one_request(provider, scenario, error):
    async def main():
        kind, model_id = provider
        async with kind(scenario) as server, backend_of(server, model_id) as backend:
            with pytest.raises(error, match=r"^managed: ") as caught:
                await backend.chat(REQUEST)
            assert len(server.asked) == 1
            return caught.value

    caught = asyncio.run(main())
    assert type(caught) is error
    if isinstance(caught, ContextOverflow):
        assert (caught.prompt_tokens, caught.context_tokens) in {(208310, 200000), (9001, 8192)}


@each_provider
@pytest.mark.parametrize(
    ("scenario", "error"),
    [("overflow", ContextOverflow), ("overload", Overloaded), ("garbage", ServerError)],
)
def test_what_goes_wrong_without_a_stream_has_its_own_error_too(provider, scenario, error):
    with pytest.raises(error, match=r"^managed: ") as caught:
        ask(provider, scenario, stream=False)

    assert type(caught.value) is error


def openai_error(message, *, kind="invalid_request_error", code=None):
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic_error(kind, message):
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


@pytest.mark.parametrize(
    ("model_id", "reply", "error", "match"),
    [
        pytest.param(
            "anthropic/claude-haiku-4-5",
            error_reply(401, anthropic_error("authentication_error", "invalid x-api-key")),
            AuthenticationFailed,
            r"invalid x-api-key.*api_key_env",
            id="Anthropic, a wrong key",
        ),
        pytest.param(
            "anthropic/claude-haiku-4-5",
            error_reply(402, anthropic_error("billing_error", "Your credit balance is too low")),
            ServerError,
            r"402: Your credit balance is too low",
            id="Anthropic, no credit",
        ),
        pytest.param(
            "anthropic/claude-haiku-4-5",
            error_reply(413, anthropic_error("request_too_large", "Request exceeds 32 MB")),
            ServerError,
            "413: Request exceeds 32 MB",
            id="Anthropic, too many bytes",
        ),
        pytest.param(
            "anthropic/claude-haiku-4-5",
            error_reply(
                429,
                anthropic_error("rate_limit_error", "This request would exceed your rate limit"),
                ("retry-after", "7"),
            ),
            RateLimited,
            "exceed your rate limit",
            id="Anthropic, rate limit",
        ),
        pytest.param(
            "anthropic/claude-haiku-4-5",
            error_reply(
                400,
                anthropic_error(
                    "invalid_request_error",
                    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, "
                    "decrease input length or `max_tokens` and try again",
                ),
            ),
            ContextOverflow,
            "exceed context limit",
            id="Anthropic, no room for the reply",
        ),
        pytest.param(
            "together_ai/served",
            error_reply(402, openai_error("You have reached your spending limit")),
            ServerError,
            "402: You have reached your spending limit",
            id="Together, spending limit",
        ),
        pytest.param(
            "together_ai/served",
            error_reply(
                403, openai_error("Input token count + max_tokens exceed the model's context")
            ),
            ContextOverflow,
            "exceed the model's context",
            id="Together, no room for the reply",
        ),
        pytest.param(
            "openai/gpt-4o-mini",
            error_reply(
                429,
                openai_error("You exceeded your current quota", code="insufficient_quota"),
                ("retry-after", "7"),
            ),
            RateLimited,
            "exceeded your current quota",
            id="OpenAI, quota",
        ),
        pytest.param(
            "openai/gpt-4o-mini",
            error_reply(502, None, raw=b"<h1>Bad Gateway</h1>"),
            ServerError,
            r"502.*Bad Gateway",
            id="a gateway",
        ),
    ],
)
def test_a_refusal_is_told_by_status_and_words_after_one_request(model_id, reply, error, match):
    async def main():
        async with Loopback([reply]) as server:
            url = server.url if "anthropic" not in model_id else server.url.removesuffix("/v1")
            endpoint = Endpoint(tag="managed", backend="litellm", model_id=model_id, url=url)
            backend = LiteLLMBackend(endpoint, api_key="sk-secret")
            with pytest.raises(error, match=f"^managed: .*{match}") as caught:
                await backend.chat(REQUEST)
            await backend.aclose()
            assert len(server.requests) == 1
            return caught.value

    caught = asyncio.run(main())
    assert type(caught) is error
    if isinstance(caught, RateLimited):
        assert caught.retry_after_s == 7.0
    if isinstance(caught, ServerError):
        assert caught.status == reply.status
    if isinstance(caught, ContextOverflow) and "188240" in str(caught):
        assert (caught.prompt_tokens, caught.context_tokens) == (188240, 200000)


# --- limits ----------------------------------------------------------------------------------


@each_provider
@pytest.mark.parametrize(
    ("scenario", "limit"),
    [
        ("silent", "first_token_timeout_s"),
        ("stalled", "between_tokens_timeout_s"),
        ("endless", "timeout_s"),
    ],
)
def test_a_limit_that_is_over_names_itself_and_hangs_up(provider, scenario, limit):
    async def main():
        kind, model_id = provider
        async with (
            kind(scenario) as server,
            backend_of(server, model_id, **{limit: 0.3}) as backend,
        ):
            with pytest.raises(CallTimeout, match=rf"{limit} = 0\.3 s") as caught:
                await backend.chat(REQUEST)
            assert caught.value.limit == limit
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


@each_provider
def test_cancelling_a_call_hangs_up(provider):
    async def main():
        kind, model_id = provider
        begun = asyncio.Event()
        request = replace(REQUEST, on_text=lambda _: begun.set())
        async with kind("stalled") as server, backend_of(server, model_id) as backend:
            call = asyncio.create_task(backend.chat(request))
            async with asyncio.timeout(PATIENCE_S):
                await begun.wait()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await server.hung_up.wait()

    asyncio.run(main())


@each_provider
def test_a_listener_that_fails_ends_the_call_and_hangs_up(provider):
    def fail(text):
        raise ZeroDivisionError

    async def main():
        kind, model_id = provider
        request = replace(REQUEST, on_text=fail)
        async with kind("stalled") as server, backend_of(server, model_id) as backend:
            with pytest.raises(ZeroDivisionError):
                await backend.chat(request)
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


@each_provider
def test_connecting_has_a_limit_of_its_own(provider):
    with socket.socket() as full, socket.socket() as waiting, socket.socket() as another:
        # A queue of connections with no room left: the kernel answers no further one.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (waiting, another):
            one.settimeout(0)
            one.connect_ex(full.getsockname())

        async def main():
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            endpoint = Endpoint(
                tag="managed",
                backend="litellm",
                model_id=provider[1],
                url=url,
                connect_timeout_s=0.3,
            )
            backend = LiteLLMBackend(endpoint, api_key="sk-secret")
            with pytest.raises(CallTimeout, match=r"connect_timeout_s = 0\.3 s") as caught:
                await backend.chat(REQUEST)
            await backend.aclose()
            assert caught.value.limit == "connect_timeout_s"

        asyncio.run(main())


# --- what is not chat ------------------------------------------------------------------------


@pytest.mark.parametrize("model_id", ["openai/text-embedding-3-small", "hosted_vllm/embedder"])
def test_texts_become_vectors_in_their_order(model_id):
    async def main():
        async with OpenAIAPI() as server, backend_of(server, model_id) as backend:
            return await backend.embed(EmbedRequest(model="managed", texts=("a", "bbb")))

    embeddings = asyncio.run(main())
    assert embeddings.vectors.dtype == np.float32
    assert embeddings.vectors.tolist() == [[1.0, 0.5], [3.0, 0.5]]
    assert embeddings.input_tokens == 6
    assert embeddings.model_id.endswith(model_id.split("/")[1])


def test_vectors_of_different_lengths_are_the_providers_fault():
    def row(index, *vector):
        return {"object": "embedding", "index": index, "embedding": vector}

    body = {"object": "list", "model": "m", "data": [row(0, 1.0, 2.0), row(1, 1.0)]}

    async def main():
        async with (
            Loopback([error_reply(200, body)]) as server,
            backend_of(server, "hosted_vllm/embedder") as backend,
        ):
            await backend.embed(EmbedRequest(model="managed", texts=("a", "b")))

    with pytest.raises(ServerError, match=r"^managed: .*different lengths \(1 to 2\)"):
        asyncio.run(main())


def test_a_provider_without_embeddings_does_not_offer_them():
    async def main():
        async with Anthropic() as server, backend_of(server, ANTHROPIC[1]) as backend:
            with pytest.raises(NotOffered, match="no embeddings of this provider"):
                await backend.embed(EmbedRequest(model="managed", texts=("a",)))

    asyncio.run(main())


def test_an_estimate_is_not_offered_for_a_count():
    async def main():
        async with Anthropic() as server, backend_of(server, ANTHROPIC[1]) as backend:
            with pytest.raises(NotOffered, match="an estimate is not a count"):
                await backend.count_tokens(
                    CountRequest(model="managed", messages=as_messages("Count."))
                )
            assert server.asked == []

    asyncio.run(main())
