"""Failures that people have documented of harnesses like this one, and that ours must not have.

The numbers are those of the collection of the Agentic Harness Engineering series; only what has to
do with model calls is here.
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from loopback import Loopback, Reply
from pydantic import BaseModel, Field
from servers.ollama import OllamaServer
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    InferenceError,
    ReplyInvalid,
    StreamCut,
)
from harness.inference import (
    ChatRequest,
    Endpoint,
    Message,
    OllamaWire,
    OpenAIWire,
    ReplyType,
    ScriptedBackend,
    Traced,
)
from harness.trace import ManualClock, Tracer
from harness.trace.records import SpanEnded, SpanStarted

PROMPT = "Costs — in €, naïvely “rounded” — of 日本 🦉"
REQUEST = ChatRequest(model="m", messages=(Message("user", PROMPT),))


def openai(server, **fields):
    return OpenAIWire(
        Endpoint.model_validate(
            {"tag": "m", "url": server.url, "model_id": MODEL, "backend": "vllm", **fields}
        )
    )


def ollama(server, **fields):
    return OllamaWire(
        Endpoint.model_validate(
            {"tag": "m", "url": server.root, "model_id": MODEL, "backend": "ollama", **fields}
        )
    )


def ask(server, wire_to, request=REQUEST, **fields):
    """What one call ends in, and what the server was asked."""

    async def main():
        async with server:
            wire = wire_to(server, **fields)
            try:
                outcome = await wire.chat(request)
            except InferenceError as error:
                outcome = error
            finally:
                await wire.aclose()
            return outcome, server.asked

    return asyncio.run(main())


def vllm(scenario="reply"):
    return OpenAIServer(scenario, dialect=DIALECTS["vllm"])


BOTH = pytest.mark.parametrize(
    ("server_of", "wire_to"), [(vllm, openai), (OllamaServer, ollama)], ids=["vLLM", "Ollama"]
)


@BOTH
def test_8_dashes_and_other_characters_arrive_as_they_were_written(server_of, wire_to):
    completion, (asked,) = ask(server_of(), wire_to)

    assert asked.body["messages"][0]["content"] == PROMPT
    assert "Kraków — naïve façade" in completion.text


def test_9_a_verdict_that_does_not_parse_is_an_error_and_never_a_score_of_zero():
    class Verdict(BaseModel):
        score: float = Field(default=0.0)

    async def main():
        reply = await ScriptedBackend(["I would say it is rather good."]).chat(REQUEST)
        with pytest.raises(ReplyInvalid, match="rather good"):
            ReplyType(Verdict).parse(reply, endpoint="m")

    asyncio.run(main())


def test_11_tokens_a_second_leave_the_time_of_loading_out():
    clock = ManualClock()

    def line(**fields):
        return json.dumps({"model": MODEL, "created_at": "2026-11-20T00:00:00Z", **fields}) + "\n"

    def said(content, **fields):
        message = {"role": "assistant", "content": content}
        return line(message=message, **{"done": False, **fields}).encode()

    def after(pieces, ms):
        """Lets time pass once so many pieces have arrived."""

        async def wait():
            while len(heard) < pieces:  # noqa: ASYNC110 - told by a callback
                await asyncio.sleep(0)
            clock.advance(ms=ms)

        return wait

    heard = []
    reply = Reply(
        headers=(("content-type", "application/x-ndjson"),),
        steps=(
            after(0, 5_000),  # of which it loads for 4.5 s
            said("Three "),
            after(1, 100),
            said("owls."),
            after(2, 0),
            said(
                "",
                done=True,
                done_reason="stop",
                load_duration=4_500_000_000,
                prompt_eval_count=20,
                prompt_eval_duration=400_000_000,
                eval_count=2,
                eval_duration=100_000_000,
            ),
        ),
    )

    async def main():
        async with Loopback([reply]) as server:
            settings = Endpoint(tag="m", url=server.url, model_id=MODEL, backend="ollama")
            wire = OllamaWire(settings, clock=clock)
            completion = await wire.chat(replace(REQUEST, on_text=heard.append))
            await wire.aclose()
            return completion

    spent_ms = {
        phase.name: (phase.end_ns - phase.start_ns) // 1_000_000
        for phase in asyncio.run(main()).phases
    }
    assert spent_ms == {"queue": 100, "load": 4_500, "prefill": 400, "decode": 100}


def test_15_which_model_answered_is_the_servers_word_and_not_the_settings():
    # llama-server answers whatever it is called: its reply says what it is.
    server = OpenAIServer("reply", dialect=DIALECTS["llamacpp"])
    completion, _ = ask(server, openai, model_id="another-judge", backend="llamacpp")

    assert completion.model_id == MODEL


@pytest.mark.parametrize("backend", sorted(DIALECTS))
def test_19_a_prompt_that_is_too_long_is_refused_and_never_cut_in_silence(backend):
    error, _ = ask(OpenAIServer("overflow", dialect=DIALECTS[backend]), openai, backend=backend)

    # Triton's front end finds out when its stream has begun, and then only breaks it off.
    assert isinstance(error, StreamCut if backend == "triton-openai" else ContextOverflow)


def test_19_ollama_is_told_not_to_cut_it_either():
    error, (asked,) = ask(OllamaServer("overflow"), ollama)

    assert isinstance(error, ContextOverflow)
    assert asked.body["truncate"] is False
    assert asked.body["shift"] is False


@BOTH
def test_24_a_reply_that_the_token_limit_cut_says_so(server_of, wire_to):
    completion, _ = ask(server_of("length"), wire_to)

    assert completion.finish_reason == "length"


def test_28_nothing_is_kept_loaded_for_ever_unless_that_was_written_down():
    _, (plain,) = ask(OllamaServer(), ollama)
    _, (chosen,) = ask(OllamaServer(), ollama, keep_alive=-1)

    assert "keep_alive" not in plain.body
    assert chosen.body["keep_alive"] == -1


def test_28_the_size_of_the_context_is_the_same_in_every_call_since_another_loads_anew():
    async def main():
        async with OllamaServer() as server:
            wire = ollama(server, context_tokens=8192)
            for words in (1, 500, 2000):
                await wire.chat(ChatRequest(model="m", messages=(Message("user", "owl " * words),)))
            await wire.aclose()
            return {asked.body["options"]["num_ctx"] for asked in server.asked}

    assert asyncio.run(main()) == {8192}


@BOTH
def test_28_a_server_that_hangs_up_is_an_error_of_its_own(server_of, wire_to):
    error, _ = ask(server_of("cut stream"), wire_to)

    assert isinstance(error, StreamCut)


@BOTH
@pytest.mark.parametrize(
    ("scenario", "limit"),
    [("silent", "first_token_timeout_s"), ("stalled", "between_tokens_timeout_s")],
)
def test_29_what_hangs_ends_at_a_limit_that_names_itself(server_of, wire_to, scenario, limit):
    error, _ = ask(server_of(scenario), wire_to, **{limit: 0.1})

    assert isinstance(error, CallTimeout)
    assert limit in str(error)


def test_29_a_call_under_way_is_on_record_before_it_ends():
    records = []

    async def main():
        async with vllm("silent") as server:
            wire = openai(server, first_token_timeout_s=0.1)
            traced = Traced(wire, tracer=Tracer(records.append))
            call = asyncio.create_task(traced.chat(REQUEST))
            while not server.asked:  # noqa: ASYNC110 - the server has no event for this
                await asyncio.sleep(0)
            begun = [type(record) for record in records]
            with pytest.raises(CallTimeout):
                await call
            await wire.aclose()
            return begun

    begun = asyncio.run(main())
    assert SpanStarted in begun
    assert SpanEnded not in begun
    (ended,) = [record for record in records if isinstance(record, SpanEnded)]
    assert "first_token_timeout_s" in ended.error


def test_31_endpoints_of_the_environment_reach_a_process_that_is_started():
    endpoints = {"far": {"url": "http://127.0.0.1:9/v1", "model_id": "x", "backend": "vllm"}}
    read = (
        "import os, harness as h;"
        "print(h.load_settings(environment=os.environ).endpoints['far'].model_id)"
    )
    said = subprocess.run(
        [sys.executable, "-c", read],
        env=os.environ | {"HARNESS_ENDPOINTS": json.dumps(endpoints)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.strip() == "x"


@dataclass
class OneAtATime(OllamaServer):
    """An Ollama that was started with OLLAMA_NUM_PARALLEL=1."""

    def __post_init__(self):
        self._turn = asyncio.Lock()

    async def respond(self, asked, answer):
        async with self._turn:
            await super().respond(asked, answer)


def test_32_calls_that_the_server_makes_queue_stand_one_after_another_in_the_trace():
    async def main():
        async with OneAtATime() as server:
            wire = ollama(server)
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(wire.chat(REQUEST)) for _ in range(4)]
            await wire.aclose()
            return [call.result() for call in calls]

    completions = asyncio.run(main())
    ends = sorted(one.phases[-1].end_ns for one in completions)
    starts = sorted(one.first_token_ns for one in completions)
    assert all(start >= end for start, end in zip(starts[1:], ends, strict=False))
