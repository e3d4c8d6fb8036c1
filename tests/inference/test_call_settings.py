"""What users set for an endpoint or a call, as servers get it."""

import asyncio
from dataclasses import replace

import pytest
from calls import REQUEST, ask
from clients import client_of
from loopback import Reply, vllm_stream

from harness.errors import RateLimited
from harness.inference import ChatRequest, Endpoint, Message, ScriptedBackend
from harness.inference.client import with_defaults
from harness.inference.health import RetryPolicy
from harness.inference.providers import PROVIDERS
from harness.inference.providers.error_replies import error_from_reply
from harness.inference.reply_store import call_key, reply_identity

WHOLE = Reply(steps=vllm_stream("a"))
OLLAMA = Reply(
    headers=(("content-type", "application/x-ndjson"),),
    steps=(b'{"message": {"content": "a"}, "done": true, "done_reason": "stop"}\n',),
)
OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("backend", "effort", "sent"),
    [
        ("vllm", "none", {"chat_template_kwargs": OFF}),
        ("llamacpp", "max", {"chat_template_kwargs": ON, "reasoning_effort": "high"}),
        ("openai", "none", {"chat_template_kwargs": OFF, "reasoning_effort": "none"}),
        ("ollama", "none", {"think": False}),
        ("ollama", "minimal", {"think": "low"}),
        ("mlc", "none", {}),
    ],
)
def test_each_server_is_told_in_its_own_words_how_much_to_think(backend, effort, sent):
    reply = OLLAMA if backend == "ollama" else WHOLE
    request = replace(REQUEST, reasoning_effort=effort)

    completion, server = ask(reply, request=request, backend=backend)

    body = server.asked[0].body
    names = {"reasoning_effort", "chat_template_kwargs", "think"}
    assert {name: body[name] for name in names & body.keys()} == sent
    assert ("reasoning_effort" in completion.dropped) == (not sent)


@pytest.mark.parametrize(
    ("url", "off", "low"),
    [
        ("https://api.openai.com/v1", {"reasoning_effort": "none"}, {"reasoning_effort": "low"}),
        (
            "https://api.deepseek.com/v1",
            {"thinking": {"type": "disabled"}},
            {"reasoning_effort": "low"},
        ),
        (
            "https://dashscope.aliyuncs.com/v1",
            {"enable_thinking": False},
            {"enable_thinking": True},
        ),
        (
            "https://openrouter.ai/api/v1",
            {"reasoning": {"enabled": False}},
            {"reasoning": {"effort": "low"}},
        ),
    ],
)
def test_a_managed_api_is_told_by_its_host(url, off, low):
    endpoint, provider = Endpoint(tag="m", url=url), PROVIDERS["openai"]

    assert (provider.thinking(endpoint, "none"), provider.thinking(endpoint, "low")) == (off, low)


def test_fields_of_a_call_are_merged_last_and_go_before_those_of_its_endpoint():
    endpoint = Endpoint(
        tag="m",
        url="http://127.0.0.1:9/v1",
        extra_body={"provider": {"order": ["a"], "sort": "price"}, "user": "u"},
        reasoning_effort="low",
        top_k=5,
    )
    request = replace(
        REQUEST,
        extra_body={"provider": {"sort": "speed"}, "chat_template_kwargs": {"thinking": True}},
        reasoning_effort="none",
        presence_penalty=0.5,
    )

    _, server = ask(WHOLE, request=with_defaults(request, endpoint), backend="vllm")

    body = server.asked[0].body
    assert body["provider"] == {"order": ["a"], "sort": "speed"}
    assert (body["user"], body["top_k"], body["presence_penalty"]) == ("u", 5, 0.5)
    assert body["chat_template_kwargs"] == {**OFF, "thinking": True}


def test_an_endpoints_settings_reach_its_calls_and_the_trace():
    backend = ScriptedBackend(["a"])
    client = client_of(backend)
    line = client.routes["m"]
    settings = {"extra_body": {"user": "u"}, "top_k": 7, "reasoning_effort": "none"}
    own = replace(line, endpoint=line.endpoint.model_copy(update=settings))

    request = ChatRequest(model="m", messages=(Message("user", "a"),))
    asyncio.run(replace(client, routes={"m": own}).chat(request))
    sent = backend.requests[0]
    assert {name: getattr(sent, name) for name in settings} == settings


@pytest.mark.parametrize(
    "way", [{}, {"backend": "litellm", "model_id": "hosted_vllm/m"}], ids=["http", "litellm"]
)
def test_headers_and_parameters_go_with_every_request(way):
    fields = {"headers": {"X-Team": "blue", "Authorization": "Basic x"}, "query": {"v": "2"}}

    _, server = ask(WHOLE, api_key="sk-1", **fields, **way)

    (asked,) = server.asked
    assert (asked.headers["x-team"], asked.headers["authorization"]) == ("blue", "Basic x")
    assert asked.path == "/v1/chat/completions?v=2"


@pytest.mark.parametrize(
    "setting",
    [
        {"top_k": 5},
        {"presence_penalty": 0.5},
        {"reasoning_effort": "none"},
        {"extra_body": {"a": 1}},
        {"headers": {"x-route": "b"}},
        {"query": {"v": "2"}},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_that_change_replies_are_part_of_what_an_endpoint_and_a_judge_is(setting):
    plain = Endpoint(tag="m", url="http://127.0.0.1:9/v1")
    changed = plain.model_copy(update=setting)
    (name,) = setting

    assert reply_identity(plain) != reply_identity(changed)
    assert plain.with_settings == "m"
    if name in {"reasoning_effort", "extra_body", "top_k", "presence_penalty"}:
        assert changed.with_settings == f"m ({name} {setting[name]})"
        request = replace(REQUEST, **setting)
        assert call_key(request, identity="") != call_key(REQUEST, identity="")


def test_a_server_that_asks_for_a_long_wait_is_quoted_and_not_waited_for():
    error = error_from_reply(
        429, b"{}", headers={"retry-after": "3600"}, endpoint="m", model_id="m"
    )
    backend = ScriptedBackend([error])

    with pytest.raises(type(error), match="3600 s"):
        asyncio.run(
            client_of(backend, gate={"max_outage_s": 600.0}).chat(
                ChatRequest(model="m", messages=(Message("user", "a"),))
            )
        )
    assert len(backend.requests) == 1


def test_a_server_that_asks_for_a_wait_gets_it_where_outages_are_not_waited_for():
    backend = ScriptedBackend([RateLimited("429", endpoint="m", retry_after_s=0.01), "a"])
    client = client_of(backend, gate={"max_outage_s": 0.0}, retry=RetryPolicy())

    assert asyncio.run(client.chat(replace(REQUEST, model="m"))).text == "a"
