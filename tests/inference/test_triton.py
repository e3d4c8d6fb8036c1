import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from loopback import Loopback, Reply, event
from servers.emulated import TEXT
from servers.triton import PROMPT_TOKENS, TritonServer

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    ModelNotFound,
    NotOffered,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference import (
    ChatRequest,
    CountRequest,
    EmbedRequest,
    Endpoint,
    Message,
    connect,
)
from harness.inference.completion import TokenLogprob, Usage
from harness.inference.wire.triton import TritonWire
from harness.trace import ManualClock, monotonic

REQUEST = ChatRequest(model="judge", messages=(Message("user", "Grüße, 日本"),))
SAID = "".join(TEXT)
PATIENCE_S = 10.0
"""For what happens at once or never."""

streamed_or_whole = pytest.mark.parametrize(
    "stream", [True, False], ids=["generate_stream", "generate"]
)


def endpoint_at(url, **fields):
    return Endpoint.model_validate(
        {
            "tag": "judge",
            "backend": "triton",
            "url": url,
            "model_id": "ensemble",
            "prompt_template": "chatml",
            **fields,
        }
    )


@asynccontextmanager
async def wire_at(url, *, clock=monotonic, api_key=None, **fields):
    wire = TritonWire(endpoint_at(url, **fields), api_key=api_key, clock=clock)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield wire
    finally:
        await wire.aclose()


def ask(server=None, *, request=REQUEST, **how):
    """One call: the completion, and the server with what it was asked."""

    async def main():
        async with server or TritonServer() as here, wire_at(here.root, **how) as wire:
            return await wire.chat(request), here

    return asyncio.run(main())


def ask_in_vain(server, *, error, match, request=REQUEST, **how):
    """One call that fails: the error."""

    async def main():
        async with server, wire_at(server.root, **how) as wire:
            with pytest.raises(error, match=match) as caught:
                await wire.chat(request)
            assert type(caught.value) is error
            assert caught.value.endpoint == "judge"
            return caught.value

    return asyncio.run(main())


def ask_of(*events, **how):
    """One call that is answered with these events, whatever they are."""

    async def main():
        async with Loopback([Reply(steps=events)]) as server, wire_at(server.url, **how) as wire:
            return await wire.chat(REQUEST)

    return asyncio.run(main())


# --- what is sent ----------------------------------------------------------------------------


@streamed_or_whole
def test_a_conversation_is_sent_as_one_text_with_what_is_asked_for(stream):
    _, server = ask(stream=stream)

    [asked] = server.asked
    assert asked.path == f"/v2/models/ensemble/{'generate_stream' if stream else 'generate'}"
    sampling = json.loads(asked.body["parameters"].pop("sampling_parameters"))
    assert asked.body == {
        "text_input": "<|im_start|>user\nGrüße, 日本<|im_end|>\n<|im_start|>assistant\n",
        "parameters": {
            "stream": stream,
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
            "return_logprobs": False,
        },
    }
    assert sampling == {"max_tokens": 512, "temperature": 0.0, "stop": ["<|im_end|>"]}


def test_all_of_the_sampling_is_sent_and_the_schema_is_not():
    request = ChatRequest(
        model="judge",
        messages=REQUEST.messages,
        max_output_tokens=64,
        temperature=0.7,
        frequency_penalty=0.5,
        seed=0,
        stop=("\n\n", "END"),
        reply_schema={"type": "object"},
        top_logprobs=2,
    )

    _, server = ask(request=request, prompt_template="llama3")

    assert json.loads(server.asked[0].body["parameters"]["sampling_parameters"]) == {
        "max_tokens": 64,
        "temperature": 0.7,
        "frequency_penalty": 0.5,
        "seed": 0,
        "stop": ["\n\n", "END", "<|eot_id|>"],
        "logprobs": 2,
    }


def test_what_a_model_refuses_is_left_out_and_told():
    request = ChatRequest(model="judge", messages=REQUEST.messages, seed=7, top_logprobs=0)

    completion, server = ask(request=request, drop=["seed", "logprobs"])

    parameters = server.asked[0].body["parameters"]
    assert not {"seed", "logprobs"} & json.loads(parameters["sampling_parameters"]).keys()
    assert parameters["return_logprobs"] is False
    assert completion.dropped == ("seed", "logprobs")
    assert completion.logprobs == ()


@pytest.mark.parametrize(
    ("model_id", "path"),
    [
        ("ensemble", "/v2/models/ensemble/generate_stream"),
        ("ensemble/versions/2", "/v2/models/ensemble/versions/2/generate_stream"),
        ("a model?", "/v2/models/a%20model%3F/generate_stream"),
    ],
)
def test_the_model_stands_in_the_address(model_id, path):
    _, server = ask(model_id=model_id)

    assert server.asked[0].path == path


def test_a_url_may_end_in_a_slash_and_a_key_is_sent():
    async def main():
        async with TritonServer() as server:
            async with wire_at(f"{server.root}/", api_key="secret\n") as wire:
                await wire.chat(REQUEST)
            [asked] = server.asked
            assert asked.path == "/v2/models/ensemble/generate_stream"
            assert asked.headers["authorization"] == "Bearer secret"

    asyncio.run(main())


# --- what comes back -------------------------------------------------------------------------


@streamed_or_whole
def test_a_reply_is_text_usage_and_the_servers_name_for_the_model(stream):
    completion, _ = ask(stream=stream)

    assert completion.text == SAID
    assert completion.reasoning == ""
    assert completion.finish_reason == "stop"
    assert completion.usage == Usage(
        input_tokens=PROMPT_TOKENS, output_tokens=len(TEXT) + 1, cached_tokens=None
    )
    assert completion.model_id == "ensemble"


def test_an_answer_is_told_as_it_comes():
    told = []
    request = ChatRequest(model="judge", messages=REQUEST.messages, on_text=told.append)

    completion, _ = ask(request=request)

    assert told == list(TEXT)
    assert completion.itl is not None


def test_before_the_first_token_all_counts_as_prefill():
    clock = ManualClock()

    async def main():
        steps = (
            lambda: clock.advance(ns=300),
            event({"text_output": "Hel", "finish_reason": "None"}),
            event({"text_output": "lo", "finish_reason": "stop"}),
        )
        async with (
            Loopback([Reply(steps=steps)]) as server,
            wire_at(server.url, clock=clock) as wire,
        ):
            return await wire.chat(REQUEST)

    completion = asyncio.run(main())

    [prefill] = completion.phases
    assert (prefill.name, prefill.source) == ("prefill", "derived")
    assert prefill.end_ns - prefill.start_ns == 300
    assert completion.first_token_ns == prefill.end_ns


@streamed_or_whole
@pytest.mark.parametrize(
    ("scenario", "text", "finish_reason", "reasoning"),
    [
        ("empty", "", "stop", ""),
        ("length", SAID, "length", ""),
        ("thinking", SAID, "stop", "Let me think."),
    ],
)
def test_replies_of_every_kind(scenario, text, finish_reason, reasoning, stream):
    completion, _ = ask(TritonServer(scenario), stream=stream)

    assert completion.text == text
    assert completion.finish_reason == finish_reason
    assert completion.reasoning == reasoning


@pytest.mark.parametrize(
    ("since", "usage"),
    [
        pytest.param("23.10", None, id="no additional outputs at all"),
        pytest.param("24.12", None, id="no count of the prompt"),
        pytest.param(
            "25.02", Usage(input_tokens=31, output_tokens=7, cached_tokens=None), id="all"
        ),
    ],
)
@streamed_or_whole
def test_usage_is_what_the_server_counts(since, usage, stream):
    completion, _ = ask(TritonServer(since=since), stream=stream)

    assert completion.usage == usage
    assert completion.text == SAID


@pytest.mark.parametrize(
    ("counted", "finish_reason"),
    [
        pytest.param(512, "length", id="as many tokens as were allowed"),
        pytest.param(511, "stop", id="fewer"),
        pytest.param(None, "stop", id="nobody counts"),
    ],
)
def test_a_finish_reason_that_is_not_given_is_found_by_counting(counted, finish_reason):
    tokens = {} if counted is None else {"num_output_tokens": counted}

    completion = ask_of(event({"text_output": "Hello", **tokens}))

    assert completion.finish_reason == finish_reason


@pytest.mark.parametrize(
    ("alternatives", "top"),
    [(0, ()), (1, ((" the", -0.5),)), (3, ((" the", -0.5), ("done.", -1.5), ("", -3.0)))],
)
@streamed_or_whole
def test_log_probabilities_are_of_the_token_that_was_chosen(alternatives, top, stream):
    request = ChatRequest(model="judge", messages=REQUEST.messages, top_logprobs=alternatives)

    completion, _ = ask(request=request, stream=stream)

    if stream:
        assert len(completion.logprobs) == len(TEXT) + 1
        chosen = completion.logprobs[len(TEXT) - 1]
    else:
        [chosen] = completion.logprobs
        top = tuple((SAID if token == "done." else token, value) for token, value in top)
    assert chosen == TokenLogprob(token="done." if stream else SAID, logprob=-1.5, top=top)


# --- what is no reply ------------------------------------------------------------------------


@streamed_or_whole
@pytest.mark.parametrize(
    ("scenario", "error", "match"),
    [
        ("overflow", ContextOverflow, "maximum context length is 4096 tokens"),
        ("unknown model", ModelNotFound, "'ensemble' is not found"),
        ("overload", Overloaded, "Exceeds maximum queue size"),
        ("cut stream", StreamCut, "the connection broke"),
        ("unended stream", StreamCut, "unfinished, with the finish reason 'None'"),
        ("late error", ServerError, "EngineCore encountered|exactly 1 response"),
        ("garbage", ServerError, "answers with text/html.*url right"),
    ],
)
def test_what_is_no_whole_reply_is_an_error(scenario, error, match, stream):
    caught = ask_in_vain(TritonServer(scenario), error=error, match=match, stream=stream)

    assert "data:" not in str(caught).partition("holds")[0]


@streamed_or_whole
@pytest.mark.parametrize("scenario", ["silent", "stalled", "endless"])
def test_a_call_ends_when_its_time_is_over_and_hangs_up(scenario, stream):
    async def main():
        async with (
            TritonServer(scenario) as server,
            wire_at(server.root, timeout_s=0.2, stream=stream) as wire,
        ):
            with pytest.raises(CallTimeout) as caught:
                await wire.chat(REQUEST)
            assert caught.value.limit == "timeout_s"
            await server.hung_up.wait()

    asyncio.run(main())


def test_a_pause_between_tokens_has_a_limit_of_its_own():
    ask_in_vain(
        TritonServer("stalled"),
        error=CallTimeout,
        match="within between_tokens_timeout_s = 0.1 s",
        between_tokens_timeout_s=0.1,
    )


@pytest.mark.parametrize("finish_reason", ["None", "abort", "error", "timeout", "cancelled"])
def test_a_generation_that_was_broken_off_is_no_reply(finish_reason):
    with pytest.raises(StreamCut, match=f"finish reason '{finish_reason}'"):
        ask_of(event({"text_output": "Hel", "finish_reason": finish_reason}))


@pytest.mark.parametrize(
    ("events", "error", "match"),
    [
        pytest.param((), StreamCut, "ended before it began", id="none"),
        pytest.param((b": ping\n\n",), StreamCut, "ended before it began", id="a comment"),
        pytest.param((b"data: [DONE]\n\n",), StreamCut, "", id="another protocol's end"),
        pytest.param((event({}),), ServerError, "", id="no text"),
        pytest.param((event({"text_output": 7}),), ServerError, "", id="a number for a text"),
        pytest.param(
            (event({"text_output": "", "logprobs": "[7]"}),), ServerError, "", id="odd logprobs"
        ),
    ],
)
def test_events_of_another_kind_are_no_reply(events, error, match):
    with pytest.raises(error, match=match or "holds what is not a part of one"):
        ask_of(*events)


@streamed_or_whole
def test_a_failure_before_the_first_token_has_a_status_even_in_a_stream(stream):
    error = ask_in_vain(
        TritonServer(sampling=frozenset({"max_tokens", "temperature", "stop"})),
        request=ChatRequest(model="judge", messages=REQUEST.messages, seed=7),
        error=ServerError,
        match="HTTP 500: Error generating stream: 'NoneType' object",
        stream=stream,
    )

    assert error.status == 500


def test_a_server_that_is_not_there_is_named():
    async def main():
        async with wire_at("http://127.0.0.1:1") as wire:
            with pytest.raises(EndpointUnreachable, match="/v2/models/ensemble/generate_stream"):
                await wire.chat(REQUEST)

    asyncio.run(main())


def test_it_neither_embeds_nor_counts():
    async def main():
        async with wire_at("http://127.0.0.1:1") as wire:
            with pytest.raises(NotOffered, match="does not embed"):
                await wire.embed(EmbedRequest(model="judge", texts=("a",)))
            with pytest.raises(NotOffered, match="does not count tokens"):
                await wire.count_tokens(CountRequest(model="judge", messages=REQUEST.messages))

    asyncio.run(main())


def test_an_endpoint_of_this_backend_is_connected_by_it():
    assert type(connect(endpoint_at("http://x"), api_key=None, clock=monotonic)) is TritonWire
