import asyncio
import json
from dataclasses import replace

import pytest
from calls import REQUEST, ask, backend_at, fail, streamed_or_whole
from loopback import Loopback, Reply
from servers.emulated import TEXT, event
from servers.triton import PROMPT_TOKENS, TritonServer

from harness.errors import EndpointUnreachable, NotOffered, ServerError, StreamCut
from harness.inference import EmbedRequest
from harness.inference.completion import Usage

SAID = "".join(TEXT)
TRITON = {"backend": "triton", "model_id": "ensemble", "prompt_template": "chatml"}


def events(*steps):
    """A server that answers one call with these events, whatever they are."""
    return Loopback([Reply(steps=steps)])


# --- what is sent ----------------------------------------------------------------------------


@streamed_or_whole
def test_a_conversation_is_sent_as_one_text_with_what_is_asked_for(stream):
    _, server = ask(TritonServer(), stream=stream, api_key="secret\n", **TRITON)

    [asked] = server.asked
    assert asked.path == f"/v2/models/ensemble/{'generate_stream' if stream else 'generate'}"
    assert asked.headers["authorization"] == "Bearer secret"
    sampling = json.loads(asked.body["parameters"].pop("sampling_parameters"))
    assert asked.body == {
        "text_input": "<|im_start|>user\nGrüße, 日本<|im_end|>\n<|im_start|>assistant\n",
        "parameters": {
            "stream": stream,
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        },
    }
    assert sampling == {"max_tokens": 1024, "temperature": 0.0, "stop": ["<|im_end|>"]}


def test_all_of_the_sampling_is_sent_and_the_schema_is_not():
    cutoffs = {"top_p": 0.9, "top_k": 40, "min_p": 0.05}
    sampling = {"temperature": 0.7, **cutoffs, "frequency_penalty": 0.5, "seed": 0}
    more = {"reply_schema": {"type": "object"}, "stop": ("\n\n", "END")}
    request = replace(REQUEST, max_output_tokens=64, **sampling, **more)

    _, server = ask(TritonServer(), request=request, **TRITON | {"prompt_template": "llama3"})

    sent = json.loads(server.asked[0].body["parameters"]["sampling_parameters"])
    stop = ["\n\n", "END", "<|eot_id|>"]
    assert sent == sampling | {"max_tokens": 64, "stop": stop}


@pytest.mark.parametrize(
    ("model_id", "path"),
    [
        ("ensemble/versions/2", "/v2/models/ensemble/versions/2/generate_stream"),
        ("a model?", "/v2/models/a%20model%3F/generate_stream"),
    ],
)
def test_the_model_stands_in_the_address_whose_end_may_be_a_slash(model_id, path):
    class Slashed(TritonServer):
        url = property(lambda self: f"{self.root}/")

    _, server = ask(Slashed(), **TRITON | {"model_id": model_id})

    assert server.asked[0].path == path


# --- what comes back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        (True, Usage(input_tokens=PROMPT_TOKENS, output_tokens=len(TEXT) + 1, cached_tokens=None)),
        (False, None),
    ],
    ids=["counted", "by an old release"],
)
@streamed_or_whole
def test_usage_is_what_the_server_counts(counts, usage, stream):
    completion, _ = ask(TritonServer(counts=counts), stream=stream, **TRITON)

    assert completion.usage == usage
    assert (completion.text, completion.model_id) == (SAID, "ensemble")


@pytest.mark.parametrize(
    ("counted", "finish_reason"),
    [
        pytest.param(64, "length", id="as many tokens as were allowed"),
        pytest.param(63, "stop", id="fewer"),
    ],
)
def test_a_finish_reason_that_is_not_given_is_found_by_counting(counted, finish_reason):
    tokens = {} if counted is None else {"num_output_tokens": counted}

    server = events(event({"text_output": "Hello", **tokens}))
    completion, _ = ask(server, request=replace(REQUEST, max_output_tokens=64), **TRITON)

    assert completion.finish_reason == finish_reason


# --- what is no reply ------------------------------------------------------------------------


@pytest.mark.parametrize("finish_reason", ["None", "abort"])
def test_a_generation_that_was_broken_off_is_no_reply(finish_reason):
    fail(StreamCut, events(event({"text_output": "Hel", "finish_reason": finish_reason})), **TRITON)


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        pytest.param((), StreamCut, id="none"),
        pytest.param((b"data: [DONE]\n\n",), StreamCut, id="another protocol's end"),
        pytest.param((event({}),), ServerError, id="no text"),
    ],
)
def test_events_of_another_kind_are_no_reply(steps, error):
    fail(error, events(*steps), **TRITON)


def test_it_does_not_embed_and_a_server_that_is_not_there_is_named():
    class Nowhere(TritonServer):
        url = "http://127.0.0.1:1"

    async def main():
        async with backend_at(Nowhere(), **TRITON) as wire:
            with pytest.raises(NotOffered):
                await wire.embed(EmbedRequest(model="judge", texts=("a",)))
            with pytest.raises(EndpointUnreachable, match="/v2/models/ensemble/generate_stream"):
                await wire.chat(REQUEST)

    asyncio.run(main())
