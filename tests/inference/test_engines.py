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
from engines import (
    HELLO,
    MIB,
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
from harness.inference import (
    CountRequest,
    EmbedRequest,
    Endpoint,
    Message,
    ServerFacts,
    as_messages,
    connect,
    metrics_source,
    model_identity,
    served_metadata,
    server_facts,
    whole_reply,
)
from harness.inference.providers.model_files import type_number
from harness.inference.request import most_tokens_in

slow = pytest.mark.slow
MEMORY_IN_USE = Path("/proc/self/statm")
needs_statm = pytest.mark.skipif(not MEMORY_IN_USE.exists(), reason="needs Linux's /proc")
NOT_READ_BEFORE = "A prompt that has not been read before. " * 8
ENGLISH = "The weights are read from disk before the first prompt can be processed.\n" * 20


def resident_bytes():
    return int(MEMORY_IN_USE.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def numbers(readings):
    return {reading.name: reading.value for reading in readings}


@slow
def test_a_reply_that_was_cut_and_gone_on_with_is_the_one_that_was_not_cut():
    prompt = "Write two paragraphs about the sea, and then stop."

    async def act(model):
        calls = [
            whole_reply(model.chat, request(prompt, max_output_tokens=room), on_cut="continue")
            for room in (None, 40)
        ]
        return [await call for call in calls]

    whole, joined = with_model(act)
    assert whole.usage.output_tokens > 40
    assert (whole.attempts, joined.attempts) == (1, 2)
    assert joined.text == whole.text


@slow
def test_a_call_that_states_no_room_has_what_the_context_leaves():
    said = Message("assistant", "The sea, the sea" + ", the sea" * 50)
    going_on = replace(request("Sing!"), messages=(Message("user", "Sing!"), said), goes_on=True)
    [completion] = replies([going_on], context_tokens=256)
    assert completion.finish_reason == "length"
    assert completion.usage.output_tokens > 10
    assert completion.usage.input_tokens + completion.usage.output_tokens in range(250, 258)


def test_the_embedded_engine_answers_tells_of_itself_and_goes_when_nobody_uses_its_address():
    async def act(model):
        source = metrics_source(small_endpoint(), model)
        usage = (await model.chat(HELLO)).usage
        counts = [
            await model.count_tokens(CountRequest(model="m", messages=as_messages(text)))
            for text in ("?", ENGLISH)
        ]
        read = numbers(await source.read())
        with model.address() as address, model.address() as second:
            assert second is None
            endpoint = Endpoint(tag="our-judge", backend="llamacpp", url=f"{address}/v1/")
            facts, told = await server_facts(endpoint), await served_metadata(endpoint)
            unloading = asyncio.create_task(model.unload())
            await asyncio.wait([unloading], timeout=0.01)
            assert not unloading.done()
            with model.address() as late:
                assert late is None
        await unloading
        with model.address() as gone:
            assert gone is None
        assert numbers(await source.read()) == {"running": 0, "waiting": 0, "KV cache": 0}
        await source.aclose()
        return usage, counts, read, facts, model_identity(endpoint, told)

    usage, (frame, english), read, facts, identity = with_model(act)
    assert (usage.output_tokens, read["prompt"]) == (2, usage.input_tokens)
    assert 0 < english - frame <= most_tokens_in(ENGLISH)
    assert facts == ServerFacts(
        reachable=True,
        ready=True,
        models=("smollm2-135m",),
        context_tokens=512,
        slots=2,
        metrics=True,
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
@pytest.mark.parametrize(
    ("k", "v"),
    [("q8_0", "f16"), ("bf16", "f32"), ("q5_1", "iq4_nl")],
)
def test_a_model_answers_from_a_cache_of_any_type(backend, k, v):
    asked = replace(HELLO, max_output_tokens=4)

    [completion] = replies([asked], backend, cache_type_k=k, cache_type_v=v)

    assert completion.text
    assert completion.usage.output_tokens == 4


@slow
@either_engine
def test_texts_become_vectors_that_lie_nearer_the_more_alike_they_are(backend):
    texts = ("The owl hunts at night.", "An owl is hunting by night.", "Taxes are due in April.")

    async def act(model):
        return await model.embed(EmbedRequest(model="small", texts=texts))

    embeddings = with_model(act, backend, embeddings=True)

    assert embeddings.vectors.shape == (3, 576)
    assert embeddings.vectors.dtype == np.float32
    assert embeddings.input_tokens > 0
    lengths = np.linalg.norm(embeddings.vectors, axis=1, keepdims=True)
    owl, owls, taxes = embeddings.vectors / lengths
    assert owl @ owls > owl @ taxes


# --- coming and going ------------------------------------------------------------------------


@slow
@needs_statm
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
        count = CountRequest(model="small", messages=HELLO.messages)

        async def is_not_there():
            for asking in (model.chat(HELLO), model.count_tokens(count)):
                with pytest.raises(ServerError) as caught:
                    await asking
                assert caught.value.endpoint == "smollm2-135m"
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


def test_a_model_that_was_loaded_to_chat_does_not_embed_nor_the_other_way_round():
    def unloaded(**settings):
        endpoint = small_endpoint("llama-cpp-python", **settings)
        return connect(endpoint)

    with pytest.raises(NotOffered):
        asyncio.run(unloaded(embeddings=True).chat(HELLO))
    with pytest.raises(NotOffered):
        asyncio.run(unloaded().embed(EmbedRequest(model="small", texts=("owl",))))


@pytest.mark.skipif(installed, reason="llama-cpp-python is installed")
def test_without_the_package_loading_says_how_to_get_it():
    endpoint = Endpoint(tag="small", backend="llama-cpp-python", path=Path(__file__))

    with pytest.raises(ConfigurationInvalid) as caught:
        asyncio.run(connect(endpoint).load())
    assert caught.value.code == "endpoint.package-missing"


# --- in a process of its own -----------------------------------------------------------------

CYCLES = """
import asyncio, os, sys
from pathlib import Path
from harness.inference import ChatRequest, Endpoint, as_messages, metrics_source
from harness.inference.providers.embedded import EmbeddedLlamaCpp, _start_server

if hasattr(os, "sched_setaffinity"):
    # On one core the engine's loop has not begun when its constructor returns.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

endpoint = Endpoint(tag="small", path=Path(sys.argv[1]), context_tokens=512, slots=2, threads=1)
for _ in range(5):  # sooner than a thread could
    _start_server(endpoint)

model = EmbeddedLlamaCpp(endpoint)
story = ChatRequest(model="small", messages=as_messages("Tell a story."), max_output_tokens=400)
hello = ChatRequest(model="small", messages=as_messages("Say hello."), max_output_tokens=2)

async def ask(source, asked):
    while True:
        await source.read()
        if source.pause_s:  # as after an answer, not while there is nobody to ask
            asked.set()
        await asyncio.sleep(0)

async def main():
    for _ in range(3):  # after a call
        await model.load()
        await model.chat(hello)
        await model.unload()
    for _ in range(2):  # after a cancelled call
        await model.load()
        call = asyncio.create_task(model.chat(story))
        await model.chat(hello)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await model.unload()
    source, asked = metrics_source(endpoint, model), asyncio.Event()
    asking = asyncio.create_task(ask(source, asked))
    for _ in range(5):  # while it is asked without a pause
        asked.clear()
        await model.load()
        await asked.wait()
        await model.unload()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await source.aclose()
    await model.load()  # and not at all, before the process ends

asyncio.run(main())
print("done")
"""


@slow
def test_a_model_can_be_unloaded_at_any_moment():
    # A process of its own: what goes wrong here is that it hangs, with the interpreter's lock.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CYCLES, small_endpoint().path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


GRAPH_FIRST = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from harness.inference import Endpoint, connect, metrics_source
from harness.memory import hnsw
from harness.trace import monotonic
path, directory = sys.argv[1:]
vectors = [(np.arange(4), np.eye(4, dtype=np.float32))]
flat = SimpleNamespace(name="flat", dimensions=4)
assert hnsw.write(Path(directory), flat, position=4, vectors=vectors, went_on=lambda _: True)

async def main():
    endpoint = Endpoint(tag="small", backend="embedded", path=path, context_tokens=512)
    model = connect(endpoint)
    source = metrics_source(endpoint, model)
    await model.load()
    print(*sorted(reading.name for reading in await source.read()))
    await source.aclose()
    await model.unload()

asyncio.run(main())
"""


@slow
def test_an_engine_that_comes_after_a_graph_of_vectors_can_still_write_numbers(tmp_path):
    # A process of its own: what goes wrong here is the order in which two packages are loaded.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GRAPH_FIRST, small_endpoint().path, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert {"running", "waiting", "prompt"} <= set(done.stdout.split())


# --- memory ----------------------------------------------------------------------------------

LOAD = """
import asyncio, os, resource, sys
from pathlib import Path
from harness.inference import Endpoint, connect
from harness.trace import monotonic
endpoint = Endpoint.model_validate_json(sys.argv[1])
model = connect(endpoint)
asyncio.run(model.load())
print(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(), flush=True)
os._exit(0)
"""


@slow
@needs_statm
@either_engine
def test_a_quantized_cache_takes_as_much_less_memory_as_is_computed(backend):
    long = 8192
    header = read_gguf_header(small_endpoint().path)

    def taken_and_computed(cache_type):
        types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
        slots = {"slots": 1} if backend == "embedded" else {}
        endpoint = small_endpoint(backend, context_tokens=long, **types, **slots)
        footprint = gguf_footprint(header, Loading(context_tokens=long, **types))
        run = [sys.executable, "-c", LOAD, endpoint.model_dump_json(exclude_defaults=True)]
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

    number = type_number(cache_type)

    name = f"GGML_TYPE_{cache_type.upper()}"
    assert number == xllamacpp.ggml_type[name]
    # The package has no name for bf16.
    assert number == getattr(llama_cpp, name, number)
