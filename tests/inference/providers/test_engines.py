"""Both engines with a real model; what holds of every backend is in the contract's rows."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from real_engines import (
    HELLO,
    MIB,
    children,
    either_engine,
    installed,
    needs_package,
    replies,
    request,
    small_endpoint,
    with_model,
)

from harness.errors import (
    ConfigurationInvalid,
    ModelFileInvalid,
    NotOffered,
    ServerError,
    StreamCut,
)
from harness.hardware import CacheType, Loading, gguf_footprint, read_gguf_header
from harness.inference import EmbedRequest, Endpoint, Message
from harness.inference.answer import answer
from harness.inference.model_identity import model_identity
from harness.inference.providers.llama_cpp_python import TYPE_NUMBERS
from harness.inference.providers.registry import (
    connect,
    metrics_source,
    served_metadata,
    server_facts,
)
from harness.inference.providers.server_host import ServerFacts

slow = pytest.mark.slow
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
NOT_READ_BEFORE = "A prompt that has not been read before. " * 8


def resident_bytes():
    """What this process and its children have in memory."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in ("self", *children())]
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")


def numbers(readings):
    return {reading.name: reading.value for reading in readings}


@slow
def test_a_reply_that_was_cut_goes_on_from_its_last_whole_word():
    prompt = "Write two paragraphs about the sea, and then stop."

    # Not `attempts`, which count a request again whose kept connection the server had closed.
    calls = []

    async def act(model):
        async def chat(request):
            calls[-1] += 1
            return await model.chat(request)

        async def reply(request, on_cut):
            calls.append(0)
            return await answer(chat, request, on_cut=on_cut)

        whole = await reply(request(prompt), "continue")
        # How long the text is, and how many calls it takes in parts, differs by processor.
        half = request(prompt, max_output_tokens=whole.usage.output_tokens * 2 // 3)
        return whole, await reply(half, "keep"), await reply(half, "continue")

    whole, cut, joined = with_model(act)
    assert whole.usage.output_tokens > 40
    assert calls[:2] == [1, 1]
    assert joined.attempts >= calls[2] > 1
    assert (cut.finish_reason, joined.finish_reason) == ("length", "stop")
    kept = cut.text.rsplit(" ", 1)[0]
    assert whole.text.startswith(kept)
    assert joined.text.startswith(kept)
    assert len(joined.text) > len(cut.text)


@slow
def test_a_call_that_states_no_room_has_what_the_context_leaves():
    said = Message("assistant", "The sea, the sea" + ", the sea" * 50)
    going_on = replace(request("Sing!"), messages=(Message("user", "Sing!"), said), goes_on=True)
    [completion] = replies([going_on], context_tokens=256)
    assert completion.finish_reason == "length"
    assert completion.usage.output_tokens > 10
    assert completion.usage.input_tokens + completion.usage.output_tokens in range(250, 258)


def test_the_embedded_engine_answers_and_tells_of_itself_until_it_is_unloaded():
    async def act(model):
        source = metrics_source(small_endpoint(), model)
        usage = (await model.chat(HELLO)).usage
        read = numbers(await source.read())
        endpoint = Endpoint(tag="our-judge", backend="llamacpp", url=f"{model.address}/v1/")
        facts = await server_facts(endpoint, api_key=model.api_key)
        told = await served_metadata(endpoint, api_key=model.api_key)
        await model.unload()
        assert model.address is None
        assert numbers(await source.read()) == {"running": 0, "waiting": 0}
        await source.aclose()
        return usage, read, facts, model_identity(endpoint, told)

    usage, read, facts, identity = with_model(act)
    assert (usage.output_tokens, read["prompt"]) == (2, usage.input_tokens)
    assert facts == ServerFacts(
        reachable=True, models=("smollm2-135m",), context_tokens=512, slots=2, metrics=True
    )
    assert (identity.served, identity.quantization) == ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1")
    assert identity.family == "smollm"


# --- replies ---------------------------------------------------------------------------------


@slow
@either_engine
@pytest.mark.parametrize("cutoff", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_of_the_likeliest_token_alone_nothing_else_is_drawn(backend, cutoff):
    hot = replace(HELLO, temperature=2.0, seed=7, max_output_tokens=12)
    greedy, cut, free = replies(
        [replace(hot, temperature=0.0), replace(hot, **cutoff), hot], backend=backend
    )
    assert cut.text == greedy.text != free.text


@slow
@either_engine
def test_text_outside_ascii_survives_both_ways(backend):
    text = "Grüße ☃ 日本"
    properties = {"text": {"const": text}}
    schema = {"type": "object", "properties": properties, "required": ["text"]}
    pieces = []
    asked = [
        request(
            said,
            reply_schema=schema | {"additionalProperties": False},
            max_output_tokens=64,
            on_text=pieces.append,
        )
        for said in ("Repeat: hello", f"Repeat: {text} 🦫")
    ]

    plain, foreign = replies(asked, backend)

    assert json.loads(foreign.text) == {"text": text}
    assert "\ufffd" not in "".join(pieces)
    assert foreign.usage.input_tokens > plain.usage.input_tokens


@slow
@either_engine
def test_a_prompt_seen_before_comes_from_the_cache_and_the_engine_reports_how_long_it_read(backend):
    prompt = (Message("system", "You judge drafts."), Message("user", NOT_READ_BEFORE))

    first, second = replies([request(prompt, max_output_tokens=8)] * 2, backend)

    assert second.usage.input_tokens == first.usage.input_tokens
    assert first.usage.cached_tokens < 10
    # All but the last token, which has to be computed for the next to follow.
    assert second.usage.cached_tokens == second.usage.input_tokens - 1
    assert second.text == first.text
    assert second.model_id == "smollm2-135m"
    sources = {phase.name: phase.source for phase in first.phases}
    assert (sources["prefill"], sources["decode"]) == ("reported", "measured")


@slow
def test_calls_are_answered_side_by_side():
    async def act(model):
        stories = (request(f"Tell of a {it}.", max_output_tokens=24) for it in ("river", "mill"))
        return await asyncio.gather(*(model.chat(story) for story in stories))

    calls = with_model(act)

    assert calls[0].text != calls[1].text
    assert max(one.sent_ns for one in calls) < min(one.phases[-1].end_ns for one in calls)


@slow
@either_engine
@pytest.mark.parametrize(("k", "v"), [("q8_0", "f16"), ("bf16", "f32"), ("q5_1", "iq4_nl")])
def test_a_model_answers_from_a_cache_of_any_type(backend, k, v):
    asked = replace(HELLO, max_output_tokens=4)

    [completion] = replies([asked], backend, cache_type_k=k, cache_type_v=v)

    assert completion.text
    assert completion.usage.output_tokens == 4


@slow
def test_texts_become_vectors_that_lie_nearer_the_more_alike_they_are():
    texts = ("The owl hunts at night.", "An owl is hunting by night.", "Taxes are due in April.")

    async def act(model):
        return await model.embed(EmbedRequest(model="small", texts=texts))

    embeddings = with_model(act, embeddings=True)

    assert embeddings.vectors.shape == (3, 576)
    assert embeddings.vectors.dtype == np.float32
    assert embeddings.input_tokens > 0
    lengths = np.linalg.norm(embeddings.vectors, axis=1, keepdims=True)
    owl, owls, taxes = embeddings.vectors / lengths
    assert owl @ owls > owl @ taxes


# --- coming and going ------------------------------------------------------------------------


@slow
@needs_proc
@either_engine
def test_unloading_gives_the_memory_back(backend):
    async def act(model):
        await model.chat(HELLO)
        loaded_bytes = resident_bytes()
        await model.unload()
        return loaded_bytes - resident_bytes()

    assert with_model(act, backend) > 0.8 * small_endpoint().path.stat().st_size


@slow
@either_engine
def test_a_model_that_is_not_loaded_says_so_and_can_be_loaded_again(backend):
    async def main():
        model = connect(small_endpoint(backend))

        async def is_not_there():
            with pytest.raises(ServerError):
                await model.chat(HELLO)
            return not model.is_loaded

        assert await is_not_there()
        await model.unload()  # nothing to unload
        loading = asyncio.create_task(model.load())
        await asyncio.sleep(0)  # it has begun
        loading.cancel()
        await asyncio.wait([loading])
        assert loading.cancelled()
        assert await is_not_there()
        await model.load()
        before = await model.chat(HELLO)
        await model.unload()
        assert await is_not_there()
        await model.load()
        assert (await model.chat(HELLO)).text == before.text
        await model.aclose()
        assert await is_not_there()

    asyncio.run(main())


@slow
def test_unloading_cuts_off_a_call_that_is_under_way():
    async def act(model):
        story = request("Tell a story.", max_output_tokens=400)
        call = asyncio.create_task(model.chat(story))
        await model.chat(HELLO)  # when that has ended, the long one is under way
        await model.unload()
        with pytest.raises(StreamCut):
            await call

    with_model(act)


@slow
@either_engine
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, id="a header of nonsense"),
        pytest.param("cut", id="cut in half"),
    ],
)
def test_a_file_that_is_no_model_is_named(tmp_path, content, backend):
    path = tmp_path / "model.gguf"
    if content == "cut":
        whole = small_endpoint().path
        content = whole.read_bytes()[: whole.stat().st_size // 2]
    if content is not None:
        path.write_bytes(content)
    model = connect(small_endpoint(backend, path=path))

    with pytest.raises(ModelFileInvalid) as caught:
        asyncio.run(model.load())

    assert caught.value.path == path
    assert not model.is_loaded


def test_llama_cpp_python_only_chats():
    model = connect(small_endpoint("llama-cpp-python"))
    with pytest.raises(NotOffered):
        asyncio.run(model.embed(EmbedRequest(model="small", texts=("owl",))))


@pytest.mark.skipif(installed, reason="llama-cpp-python is installed")
def test_without_the_package_loading_says_how_to_get_it():
    endpoint = Endpoint(tag="small", backend="llama-cpp-python", path=Path(__file__))

    with pytest.raises(ConfigurationInvalid) as caught:
        asyncio.run(connect(endpoint).load())
    assert caught.value.code == "endpoint.package-missing"


# --- memory ----------------------------------------------------------------------------------

LOAD = """
import asyncio, sys
sys.path[:0] = sys.argv[2:]
from test_engines import connect, resident_bytes
from harness.inference import Endpoint

async def main():
    model = connect(Endpoint.model_validate_json(sys.argv[1]))
    await model.load()
    print(resident_bytes(), flush=True)
    await model.unload()

asyncio.run(main())
"""


@slow
@needs_proc
@either_engine
def test_a_quantized_cache_takes_as_much_less_memory_as_is_computed(backend):
    long = 8192
    header = read_gguf_header(small_endpoint().path)

    def taken_and_computed(cache_type):
        types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
        slots = {"slots": 1} if backend == "embedded" else {}
        endpoint = small_endpoint(backend, context_tokens=long, **types, **slots)
        footprint = gguf_footprint(header, Loading(context_tokens=long, **types))
        told = endpoint.model_dump_json(exclude_defaults=True)
        run = [sys.executable, "-c", LOAD, told, *sys.path]
        done = subprocess.run(run, capture_output=True, check=True, timeout=120)
        return int(done.stdout), footprint.kv_bytes

    (taken, computed), (less_taken, less_computed) = map(taken_and_computed, ("f16", "q4_0"))

    assert taken - less_taken == pytest.approx(computed - less_computed, abs=16 * MIB)


@slow
@needs_package
@pytest.mark.parametrize("cache_type", get_args(CacheType))
def test_types_have_the_numbers_that_ggml_gives_them(cache_type):
    import llama_cpp
    import xllamacpp

    number = TYPE_NUMBERS[cache_type]

    name = f"GGML_TYPE_{cache_type.upper()}"
    assert number == xllamacpp.ggml_type[name]
    # The package has no name for bf16.
    assert number == getattr(llama_cpp, name, number)
