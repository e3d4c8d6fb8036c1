import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from loopback import Loopback, Reply, error_reply
from servers.emulated import JSON_TEXT, SCENARIOS, TEXT, THOUGHT
from servers.ollama import (
    CACHED_TOKENS,
    CRASHED,
    DECODE_NS,
    OVERFLOW,
    PROMPT_TOKENS,
    OllamaServer,
)

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    ModelNotFound,
    NotOffered,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, CountRequest, EmbedRequest, Endpoint, Message
from harness.inference.completion import Phase, TokenLogprob
from harness.inference.wire.ollama import OllamaWire
from harness.trace import ManualClock, monotonic

REQUEST = ChatRequest(model="judge", messages=(Message("user", "Grüße, 日本"),))
SCHEMA = {"type": "object", "properties": {"owls": {"type": "integer"}}}
PATIENCE_S = 10.0
"""For what happens at once or never."""


@asynccontextmanager
async def wire_to(server, *, clock=monotonic, api_key=None, url=None, **fields):
    """A wire to a server that is running."""
    endpoint = Endpoint.model_validate(
        {"tag": "judge", "backend": "ollama", "url": url or server.root, "model_id": "m:1b"}
        | fields
    )
    wire = OllamaWire(endpoint, api_key=api_key, clock=clock)
    try:
        yield wire
    finally:
        await wire.aclose()


def ask(server="reply", *, request=REQUEST, **how):
    """One call to an emulated Ollama: the completion, and the server with what it was asked."""

    async def main():
        emulated = OllamaServer(server) if isinstance(server, str) else server
        async with emulated, wire_to(emulated, **how) as wire:
            return await wire.chat(request), emulated

    return asyncio.run(main())


def ask_bytes(*chunks, request=REQUEST, **how):
    """One call that is answered with these bytes."""

    async def main():
        reply = Reply(headers=(("content-type", "application/x-ndjson"),), steps=chunks)
        async with Loopback([reply]) as server, wire_to(server, url=server.url, **how) as wire:
            return await wire.chat(request)

    return asyncio.run(main())


def line(text="", **more):
    return (
        json.dumps(
            {"model": "m:1b", "message": {"role": "assistant", "content": text}, "done": False}
            | more,
            ensure_ascii=False,
        ).encode()
        + b"\n"
    )


def last(**more):
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 29, "eval_count": 3}
    return line(**(ending | more))


# --- what is sent ----------------------------------------------------------------------------


def test_a_plain_request_is_sent_as_it_is_and_nothing_is_left_to_ollamas_cutting():
    _, server = ask()

    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", "/api/chat")
    assert asked.headers["content-type"] == "application/json"
    assert asked.body == {
        "model": "m:1b",
        "messages": [{"role": "user", "content": "Grüße, 日本"}],
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": {"temperature": 0.0, "num_predict": 512},
    }


def test_everything_that_was_asked_for_is_sent_in_ollamas_words():
    request = ChatRequest(
        model="judge",
        messages=(Message("system", "Be strict."), Message("user", "Judge.")),
        role="evaluator",
        max_output_tokens=64,
        temperature=0.7,
        frequency_penalty=0.5,
        seed=0,
        stop=("\n\n", "END"),
        reply_schema=SCHEMA,
        top_logprobs=0,
    )

    completion, server = ask(request=request, stream=False, keep_alive="10m", context_tokens=8192)

    assert server.asked[0].body == {
        "model": "m:1b",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": "Judge."},
        ],
        "stream": False,
        "truncate": False,
        "shift": False,
        "options": {
            "temperature": 0.7,
            "frequency_penalty": 0.5,
            "seed": 0,
            "num_predict": 64,
            "stop": ["\n\n", "END"],
            "num_ctx": 8192,
        },
        "format": SCHEMA,
        "logprobs": True,
        "top_logprobs": 0,
        "keep_alive": "10m",
    }
    assert json.loads(completion.text) == {"city": "Kraków", "owls": 3}


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_url_may_end_as_other_protocols_need_it(ending):
    async def main():
        async with OllamaServer() as server, wire_to(server, url=server.root + ending) as wire:
            await wire.chat(REQUEST)
            assert server.asked[0].path == "/api/chat"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        pytest.param({}, None, id="the server's own setting"),
        pytest.param({"keep_alive": None}, None, id="so too"),
        pytest.param({"keep_alive": "10m"}, "10m", id="a text"),
        pytest.param({"keep_alive": 300}, 300, id="seconds"),
        pytest.param({"keep_alive": -1}, -1, id="for ever"),
        pytest.param({"keep_alive": 0}, 0, id="unload at once"),
    ],
)
def test_how_long_the_model_is_kept_is_said_only_if_the_endpoint_says_it(written, sent):
    _, server = ask(**written)

    assert server.asked[0].body.get("keep_alive") == sent
    assert ("keep_alive" in server.asked[0].body) == (sent is not None)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        pytest.param({}, None, id="not written down"),
        pytest.param({"context_tokens": 8192}, 8192, id="written down"),
        pytest.param({"context_tokens": 4096}, 4096, id="written down, though it is the default"),
    ],
)
def test_every_call_has_the_endpoints_context_or_none_has_one(written, sent):
    async def main():
        async with OllamaServer() as server, wire_to(server, **written) as wire:
            await wire.chat(REQUEST)
            await wire.chat(replace(REQUEST, max_output_tokens=9, reply_schema=SCHEMA))
            await wire.embed(EmbedRequest(model="judge", texts=("a",)))
            return [asked.body.get("options", {}).get("num_ctx") for asked in server.asked]

    assert asyncio.run(main()) == [sent] * 3


def test_a_key_is_sent_for_a_proxy_that_wants_one():
    _, server = ask(api_key="sk-1")

    assert server.asked[0].headers["authorization"] == "Bearer sk-1"


def test_fields_that_are_to_be_dropped_are_not_sent_wherever_ollama_has_them():
    request = replace(REQUEST, temperature=0.7, seed=1, top_logprobs=2)

    completion, server = ask(request=request, drop=["seed", "logprobs"])

    assert server.asked[0].body["options"] == {"temperature": 0.7, "num_predict": 512}
    assert {"logprobs", "top_logprobs"}.isdisjoint(server.asked[0].body)
    assert completion.dropped == ("seed", "logprobs", "top_logprobs")


def test_a_field_that_is_refused_is_left_out_from_then_on():
    async def main():
        refusal = error_reply(400, {"error": "logprobs is not supported by this model"})
        whole = Reply(steps=(line("Hi"), last()))
        request = replace(REQUEST, top_logprobs=2)
        async with (
            Loopback([refusal, whole, whole]) as server,
            wire_to(server, url=server.url) as wire,
        ):
            completions = [await wire.chat(request), await wire.chat(request)]
            return completions, ["logprobs" in r.body for r in server.requests]

    completions, sent = asyncio.run(main())

    assert sent == [True, False, False]
    assert [c.dropped for c in completions] == [("logprobs", "top_logprobs")] * 2
    assert [c.attempts for c in completions] == [2, 1]


# --- what comes back -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_carries_text_usage_and_the_servers_name_for_the_model(stream):
    heard = []

    completion, _ = ask(request=replace(REQUEST, on_text=heard.append), stream=stream)

    assert completion.text == "".join(TEXT) == "".join(heard)
    assert len(heard) == (len(TEXT) if stream else 1)
    assert completion.reasoning == ""
    assert completion.finish_reason == "stop"
    assert completion.usage.input_tokens == PROMPT_TOKENS
    assert completion.usage.cached_tokens == CACHED_TOKENS
    assert completion.usage.output_tokens == len(TEXT) + 1
    assert completion.model_id == "m:1b"
    assert completion.dropped == ()


@pytest.mark.parametrize("stream", [True, False])
def test_what_it_thinks_is_kept_apart_from_the_answer(stream):
    completion, _ = ask("thinking", stream=stream)

    assert completion.reasoning == "".join(THOUGHT)
    assert completion.text == "".join(TEXT)


@pytest.mark.parametrize("stream", [True, False])
def test_a_schema_goes_where_ollama_enforces_it(stream):
    completion, server = ask(request=replace(REQUEST, reply_schema=SCHEMA), stream=stream)

    assert server.asked[0].body["format"] == SCHEMA
    assert completion.text == "".join(JSON_TEXT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("scenario", "text"), [("length", "".join(TEXT)), ("empty", "")])
def test_a_cut_or_empty_reply_is_one(scenario, text, stream):
    completion, _ = ask(scenario, stream=stream)

    assert completion.finish_reason == ("length" if scenario == "length" else "stop")
    assert completion.text == text


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_are_those_of_every_token(stream):
    completion, _ = ask(request=replace(REQUEST, top_logprobs=2), stream=stream)

    assert [one.token for one in completion.logprobs] == list(TEXT)
    assert completion.logprobs[0] == TokenLogprob(
        token=TEXT[0], logprob=-0.25, top=((TEXT[0], -0.25), ("other 1", -3.0))
    )


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        pytest.param({"prompt_eval_cached_count": 24}, (29, 24, 3), id="since 0.33"),
        pytest.param({"prompt_eval_cached_count": 0}, (29, 0, 3), id="nothing cached"),
        pytest.param({}, (29, None, 3), id="up to 0.33, which does not say"),
        pytest.param({"prompt_eval_cached_count": None}, (29, None, 3), id="null"),
        pytest.param({"eval_count": None}, (29, None, 0), id="zero tokens, which Go leaves out"),
        pytest.param({"prompt_eval_count": None}, None, id="old builds, with the prompt cached"),
    ],
)
def test_what_is_not_counted_is_not_made_up(counts, usage):
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 29, "eval_count": 3}
    ending |= counts
    kept = {name: n for name, n in ending.items() if n is not None or name.endswith("cached_count")}

    told = ask_bytes(line("Hi"), line(**kept)).usage

    assert usage == (told and (told.input_tokens, told.cached_tokens, told.output_tokens))


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\n\n"], ids=["LF", "CRLF", "blank lines"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_reply_does_not_depend_on_how_its_bytes_were_cut(size, line_end):
    text = "Grüße ☃\u2028日本\u0085 “x” 🦫"
    stream = b"".join((*(line(piece) for piece in (text, *text)), last()))
    stream = stream.replace(b"\n", line_end)

    completion = ask_bytes(*(stream[at : at + size] for at in range(0, len(stream), size)))

    assert completion.text == text + text


def test_the_last_line_may_lack_its_end():
    assert ask_bytes(line("Hi"), last().rstrip()).text == "Hi"


def test_what_comes_after_the_last_line_is_not_part_of_the_reply():
    assert ask_bytes(line("Hi"), last() + line("!")).text == "Hi"


# --- when ------------------------------------------------------------------------------------


@dataclass
class Slow(OllamaServer):
    """Takes a while before it says anything."""

    takes_ms: int = 120
    clock: ManualClock = field(default_factory=lambda: ManualClock(start_ns=1_000_000_000))

    async def respond(self, asked, answer):
        self.clock.advance(ms=self.takes_ms)
        await super().respond(asked, answer)


def phase(name, start_ms, end_ms, source):
    return Phase(name=name, start_ns=start_ms * 1_000_000, end_ns=end_ms * 1_000_000, source=source)


# Told are 25 ms for loading and 30 for the prompt: the rest was waiting.
BEFORE_THE_FIRST_TOKEN = (
    phase("queue", 1000, 1065, "derived"),
    phase("load", 1065, 1090, "reported"),
    phase("prefill", 1090, 1120, "reported"),
)


def test_phases_of_a_stream_are_the_servers_word_before_the_first_token_and_measured_after():
    slow = Slow()
    request = replace(REQUEST, on_text=lambda _: slow.clock.advance(ms=50))

    completion, _ = ask(slow, request=request, clock=slow.clock)

    assert completion.sent_ns == 1_000_000_000
    assert completion.first_token_ns == 1_120_000_000
    assert completion.phases == (
        *BEFORE_THE_FIRST_TOKEN,
        phase("decode", 1120, 1120 + 50 * len(TEXT), "measured"),
    )
    assert completion.itl.mean_ns == 50_000_000


def test_phases_of_a_reply_in_one_piece_are_all_the_servers_word():
    slow = Slow(takes_ms=120 + DECODE_NS // 1_000_000)

    completion, _ = ask(slow, clock=slow.clock, stream=False)

    assert completion.phases == (
        *BEFORE_THE_FIRST_TOKEN,
        phase("decode", 1120, 1320, "reported"),
    )
    assert completion.first_token_ns == 1_120_000_000
    assert completion.itl is None


@pytest.mark.parametrize("scenario", ["reply", "thinking", "empty", "length"])
@pytest.mark.parametrize("stream", [True, False])
def test_phases_lie_back_to_back_from_the_request_to_the_last_token(scenario, stream):
    slow = Slow(scenario)

    completion, _ = ask(slow, clock=slow.clock, stream=stream)

    assert completion.phases[0].start_ns == completion.sent_ns
    assert completion.phases[-1].end_ns == slow.clock()
    for earlier, later in zip(completion.phases, completion.phases[1:], strict=False):
        assert earlier.end_ns == later.start_ns


def test_a_thought_is_a_token_too():
    slow = Slow("thinking")
    request = replace(REQUEST, on_text=lambda _: slow.clock.advance(ms=50))

    completion, _ = ask(slow, request=request, clock=slow.clock)

    assert completion.first_token_ns == 1_120_000_000


# --- errors ----------------------------------------------------------------------------------


ERRORS = {
    "overflow": (ContextOverflow, "12628 tokens.*8192 tokens.*Shorten"),
    "unknown model": (ModelNotFound, "does not serve 'm:1b'.*model_id"),
    "overload": (Overloaded, "server busy, please try again"),
    "cut stream": (StreamCut, "the reply was cut off: the connection broke"),
    "unended stream": (StreamCut, "ended without `done: true`.*frequency_penalty"),
    "late error": (ServerError, CRASHED),
    "garbage": (ServerError, "answers with text/html.*url right"),
}
REPLIES = {"reply", "empty", "length", "thinking"}
WAITS = {"silent", "stalled", "endless"}


def test_there_is_a_test_for_every_scenario():
    assert {*ERRORS} | REPLIES | WAITS == {*SCENARIOS}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("scenario", ERRORS)
def test_what_is_no_whole_reply_becomes_the_error_it_means(scenario, stream):
    error, says = ERRORS[scenario]

    with pytest.raises(error, match=f"^judge: .*{says}") as caught:
        ask(scenario, stream=stream)
    assert type(caught.value) is error


def test_an_overflow_tells_both_lengths_from_the_json_within_the_json():
    with pytest.raises(ContextOverflow) as caught:
        ask("overflow")

    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (12628, 8192)


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        pytest.param(
            400, "the input length exceeds the context length", ContextOverflow, id="0.2x"
        ),
        pytest.param(500, f"llama-server chat error: {OVERFLOW}", ContextOverflow, id="prefixed"),
        pytest.param(
            404, 'model "x" not found, try pulling it first', ModelNotFound, id="gone meanwhile"
        ),
        pytest.param(500, "{ is no JSON", ServerError, id="a brace"),
        pytest.param(500, "{}", ServerError, id="an empty object"),
    ],
)
def test_what_ollama_says_in_other_versions_and_places_is_understood(status, said, error):
    async def main():
        refusal = error_reply(status, {"error": said})
        async with Loopback([refusal]) as server, wire_to(server, url=server.url) as wire:
            await wire.chat(REQUEST)

    with pytest.raises(error) as caught:
        asyncio.run(main())
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("chunks", "error", "says"),
    [
        pytest.param((), StreamCut, "without `done: true`", id="nothing at all"),
        pytest.param((line("Hi"), last()[:40]), StreamCut, "not a part of one", id="half a line"),
        pytest.param((b"<p>\n",), StreamCut, "not a part of one", id="no JSON"),
        pytest.param((b"[1]\n",), ServerError, "not a part of one", id="JSON, but no object"),
        pytest.param(
            (line("Hi"), last(done_reason=None)), StreamCut, "done_reason is None", id="no reason"
        ),
        pytest.param(
            (line("Hi"), last(done_reason="timeout")), StreamCut, "'timeout'", id="no proper end"
        ),
        pytest.param((last(done_reason="load"),), ServerError, "did nothing but load", id="load"),
        pytest.param((last(done_reason="unload"),), ServerError, "but unload", id="unload"),
        pytest.param(
            (line("Hi"), b'{"error":"the input length exceeds the context length"}\n'),
            ContextOverflow,
            "Shorten",
            id="an overflow in the middle",
        ),
    ],
)
def test_a_part_of_a_reply_is_never_a_reply(chunks, error, says):
    with pytest.raises(error, match=f"^judge: .*{says}"):
        ask_bytes(*chunks)


@pytest.mark.parametrize(
    ("scenario", "limit"),
    [
        ("silent", "first_token_timeout_s"),
        ("silent", "timeout_s"),
        ("stalled", "between_tokens_timeout_s"),
        ("endless", "timeout_s"),
    ],
)
def test_a_time_limit_names_itself_and_hangs_up(scenario, limit):
    async def main():
        async with (
            OllamaServer(scenario) as server,
            wire_to(server, **{"timeout_s": PATIENCE_S, limit: 0.1}) as wire,
        ):
            with pytest.raises(CallTimeout, match=rf"^judge: .* within {limit} = 0\.1 s") as caught:
                await wire.chat(REQUEST)
            assert caught.value.limit == limit
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


@pytest.mark.parametrize("scenario", ["silent", "stalled", "endless"])
def test_a_call_may_have_less_time_than_its_endpoint(scenario):
    with pytest.raises(CallTimeout, match=r"within timeout_s = 0\.1 s"):
        ask(scenario, request=replace(REQUEST, timeout_s=0.1), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("scenario", ["stalled", "endless"])
def test_cancelling_a_call_hangs_up(scenario):
    async def main():
        begun = asyncio.Event()
        request = replace(REQUEST, on_text=lambda _: begun.set())
        async with OllamaServer(scenario) as server, wire_to(server) as wire:
            async with asyncio.TaskGroup() as group:
                call = group.create_task(wire.chat(request))
                await begun.wait()
                call.cancel()
            assert call.cancelled()
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()

    asyncio.run(main())


def test_calls_one_after_another_share_a_connection():
    async def main():
        replies = [Reply(steps=(line("Hi"), last()))] * 2
        async with Loopback(replies) as server, wire_to(server, url=server.url) as wire:
            await wire.chat(REQUEST)
            await wire.chat(REQUEST)
            assert server.connections == 1

    asyncio.run(main())


# --- embeddings and counts -------------------------------------------------------------------


def embed(scenario="reply", *, texts=("", "a", "four"), **how):
    async def main():
        async with OllamaServer(scenario) as server, wire_to(server, **how) as wire:
            return await wire.embed(EmbedRequest(model="judge", texts=texts)), server

    return asyncio.run(main())


def test_texts_become_vectors_in_their_order():
    embeddings, server = embed(keep_alive=-1)

    assert server.asked[0].path == "/api/embed"
    assert server.asked[0].body == {
        "model": "m:1b",
        "input": ["", "a", "four"],
        "truncate": False,
        "keep_alive": -1,
    }
    assert embeddings.vectors.dtype == np.float32
    angles = np.array([0.0, 0.01, 0.04])
    np.testing.assert_allclose(
        embeddings.vectors, np.stack([np.cos(angles), np.sin(angles)], axis=1), rtol=1e-6
    )
    assert embeddings.input_tokens == 9
    assert embeddings.model_id == "m:1b"


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("overflow", ContextOverflow),
        ("unknown model", ModelNotFound),
        ("overload", Overloaded),
        ("garbage", ServerError),
    ],
)
def test_texts_that_cannot_be_embedded_say_why(scenario, error):
    with pytest.raises(error) as caught:
        embed(scenario)
    assert type(caught.value) is error


def test_embedding_has_a_time_limit_too():
    with pytest.raises(CallTimeout, match=r"timeout_s = 0\.1 s"):
        embed("silent", timeout_s=0.1)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        pytest.param(
            error_reply(501, {"error": "This server does not support embeddings."}),
            NotOffered,
            id="a model that only chats",
        ),
        pytest.param(
            error_reply(404, None, raw=b"404 page not found"), NotOffered, id="before 0.3"
        ),
        pytest.param(
            Reply(steps=(b'{"embeddings":[[1.0]]}',)), ServerError, id="one vector for two texts"
        ),
        pytest.param(
            Reply(steps=(b'{"embeddings":[[1.0],[1.0,2.0]]}',)), ServerError, id="unequal vectors"
        ),
    ],
)
def test_what_is_not_one_vector_per_text_is_an_error(reply, error):
    async def main():
        async with Loopback([reply]) as server, wire_to(server, url=server.url) as wire:
            await wire.embed(EmbedRequest(model="judge", texts=("a", "b")))

    with pytest.raises(error, match=r"^judge: ") as caught:
        asyncio.run(main())
    assert type(caught.value) is error


def test_tokens_are_not_counted_and_nobody_is_asked():
    async def main():
        async with OllamaServer() as server, wire_to(server) as wire:
            with pytest.raises(NotOffered, match=r"^judge: Ollama does not count tokens"):
                await wire.count_tokens(CountRequest(model="judge", messages=REQUEST.messages))
            assert server.asked == []

    asyncio.run(main())
