"""That the table of servers is whole, and says of each what its emulation does."""

import asyncio
from dataclasses import replace
from typing import get_args

import httpx
import pytest
from servers.openai_dialects import DIALECTS
from servers.openai_server import CONTEXT_TOKENS, OpenAIServer

from harness.errors import NotOffered
from harness.inference import ChatRequest, CountRequest, EmbedRequest, OpenAIWire, as_messages
from harness.inference.endpoint import Endpoint, WireName
from harness.inference.wire.profile import ALWAYS
from harness.inference.wire.profiles import PROFILES

NAMES = get_args(WireName)
HELLO = ChatRequest(model="judge", messages=as_messages("Say hello."))


def every(holds=lambda _profile: True):
    """The names of the servers of which something holds."""
    return pytest.mark.parametrize("name", [name for name in NAMES if holds(PROFILES[name])])


def with_server(name, act, **of_dialect):
    """What comes of a wire, and its emulated server, whose dialect may differ."""

    async def main():
        async with OpenAIServer(dialect=replace(DIALECTS[name], **of_dialect)) as server:
            wire = OpenAIWire(Endpoint(tag="judge", backend=name, url=server.url))
            try:
                return await act(wire, server)
            finally:
                await wire.aclose()

    return asyncio.run(main())


def page(name, path):
    """What the emulated server says of itself there."""

    async def act(_wire, server):
        async with httpx.AsyncClient() as client:
            return await client.get(server.root + path)

    return with_server(name, act)


def test_every_wire_has_a_profile_and_a_dialect_of_its_own():
    # Ollama, Triton and llama.cpp have wires of their own.
    assert set(PROFILES) == {*NAMES, "ollama", "triton", "embedded"}
    assert set(DIALECTS) == set(NAMES)


@every()
def test_what_a_server_can_be_made_to_tell_has_a_place_where_it_is_looked_for(name):
    profile = PROFILES[name]

    # `openai` is any: each place is looked at, and none is promised.
    assert (profile.times is not None) == (profile.timings is not None or name == "openai")
    assert profile.schema is not None or profile.enforces == ALWAYS


TIMES = {
    "llamacpp": {"beside_usage": {"timings": {"prompt_ms": 30.0, "predicted_ms": 20.0}}},
    "vllm": {"beside_usage": {"metrics": {"queue_time_ms": 5.0, "generation_time_ms": 20.0}}},
    "tabbyapi": {"usage": {"prompt_time": 0.03, "completion_time": 0.02}},
}


@pytest.mark.parametrize("sent_as", TIMES)
@pytest.mark.parametrize("name", [*TIMES, "openai", "lmstudio"])
def test_times_are_read_where_the_servers_row_says_and_nowhere_else(name, sent_as):
    told = {"usage": {}, "beside_usage": {}} | TIMES[sent_as]

    completion = with_server(name, lambda wire, _server: wire.chat(HELLO), **told)

    reported = any(phase.source == "reported" for phase in completion.phases)
    assert reported == (name in {sent_as, "openai"})


@every(lambda profile: profile.health)
def test_a_server_that_is_ready_says_so_where_its_profile_asks(name):
    assert page(name, PROFILES[name].health).status_code == 200


@every(lambda profile: profile.context)
def test_a_server_tells_its_context_where_its_profile_looks(name):
    report = PROFILES[name].context

    said = page(name, report.path).json()

    for key in report.keys:
        said = said[0][key] if isinstance(said, list) else said[key]
    assert said == CONTEXT_TOKENS


@every(lambda profile: profile.counting is None)
def test_a_server_that_does_not_count_is_not_asked_to(name):
    async def act(wire, server):
        with pytest.raises(NotOffered, match="does not count tokens"):
            await wire.count_tokens(CountRequest(model="judge", messages=HELLO.messages))
        return server.asked

    assert with_server(name, act) == []


def test_what_makes_a_server_embed_is_said_where_it_does_not():
    async def act(wire, _server):
        with pytest.raises(NotOffered, match=r"not embed as it was started .*; --embeddings makes"):
            await wire.embed(EmbedRequest(model="judge", texts=("an owl",)))

    with_server("llamacpp", act, embeds="nothing")


@pytest.mark.parametrize("name", [n for n in NAMES if DIALECTS[n].embeds == "nothing"])
def test_a_server_that_does_not_embed_says_so(name):
    async def act(wire, _server):
        with pytest.raises(NotOffered, match="does not embed"):
            await wire.embed(EmbedRequest(model="judge", texts=("an owl",)))

    assert PROFILES[name].embeds != ALWAYS
    with_server(name, act)


@every()
def test_a_profile_tells_whether_replies_come_with_cached_tokens_and_times(name):
    profile = PROFILES[name]

    completion = with_server(name, lambda wire, _server: wire.chat(HELLO))

    reported = any(phase.source == "reported" for phase in completion.phases)
    assert reported == (profile.timings == ALWAYS)
    # `openai` stands for servers that do and for servers that do not.
    said = completion.usage.cached_tokens is not None
    assert said == (profile.cached_tokens == ALWAYS) or name == "openai"


@every()
def test_fields_that_have_to_be_left_out_cost_the_call_nothing_else(name):
    async def act(wire, server):
        request = ChatRequest(
            model="judge",
            messages=HELLO.messages,
            seed=1,
            frequency_penalty=0.5,
            stop=("never",),
            temperature=0.7,
        )
        return await wire.chat(request), len(server.asked)

    completion, calls = with_server(name, act)

    assert (completion.dropped, calls) == ((), 1)


def test_a_schema_is_offered_where_there_is_a_place_for_it():
    assert {name for name in NAMES if PROFILES[name].schema is None} == {"triton-openai"}


def test_log_probabilities_that_are_taken_and_not_given_are_none():
    request = ChatRequest(model="judge", messages=HELLO.messages, top_logprobs=2)

    completion = with_server("lmstudio", lambda wire, _server: wire.chat(request))

    assert completion.logprobs == ()
    assert PROFILES["lmstudio"].logprobs is None


def test_tgi_tells_its_queue_with_replies_that_are_not_streamed():
    async def act(_wire, server):
        endpoint = Endpoint(tag="judge", backend="tgi", url=server.url, stream=False)
        wire = OpenAIWire(endpoint)
        try:
            return await wire.chat(HELLO)
        finally:
            await wire.aclose()

    completion = with_server("tgi", act)

    assert [(p.name, p.source) for p in completion.phases if p.name == "queue"] == [
        ("queue", "reported")
    ]
