"""What only llama-cpp-python does, compiled on this machine, with the demo's model."""

import asyncio
from dataclasses import replace

import pytest
from real_engines import HELLO, needs_package, request, with_model
from real_engines import small_endpoint as endpoint_of

from harness.errors import CallTimeout, ContextOverflow, LoadFailed, ServerError, StreamCut
from harness.inference.providers.llama_cpp_python import LlamaCppPython

pytestmark = [pytest.mark.slow, needs_package]

BACKEND = "llama-cpp-python"
CONTEXT_TOKENS = 2048
LONG = "river and mill " * 300
"""Seconds of reading, on one thread."""


def small_endpoint(**changes):
    return endpoint_of(BACKEND, **{"context_tokens": CONTEXT_TOKENS, **changes})


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


# --- replies ---------------------------------------------------------------------------------


def test_a_reply_that_is_cut_inside_a_character_ends_before_it(chat):
    def cut(tokens):
        schema = {"const": "日本☃日本☃"}
        return chat(request("Hi.", reply_schema=schema, max_output_tokens=tokens))

    cuts = [cut(tokens) for tokens in range(2, 9)]

    assert {one.finish_reason for one in cuts} == {"length"}
    assert all('"日本☃日本☃"'.startswith(one.text) for one in cuts)
    # Of some tokens nothing is told: they are only a part of a character.
    assert len({one.text for one in cuts}) < len(cuts)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "strange"}, id="no such type"),
        pytest.param({"enum": ['a "quote"', "a"]}, id="what its converter writes wrongly"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(chat, schema):
    with pytest.raises(ServerError) as caught:
        chat(request("Hi.", reply_schema=schema))

    assert caught.value.status == 400
    assert chat(request("Say hello.", max_output_tokens=2)).text == "Hello!"


# --- the context and its cache ---------------------------------------------------------------


def test_a_reply_that_fills_the_context_ends_there():
    endless = {"type": "array", "items": {"const": "river"}, "minItems": 100}

    async def act(model):
        async def ask(words):
            asked = request("river " * words, max_output_tokens=100, reply_schema=endless)
            return await model.chat(asked)

        frame = (await ask(1)).usage.input_tokens - 1
        completions = [await ask(words - frame) for words in (251, 255)]
        with pytest.raises(ContextOverflow) as caught:
            await ask(256 - frame)
        return completions, caught.value

    completions, error = with_model(act, BACKEND, context_tokens=256)
    tokens = [(one.usage.input_tokens, one.usage.output_tokens) for one in completions]
    assert tokens == [(251, 5), (255, 1)]
    assert {one.finish_reason for one in completions} == {"length"}
    assert (error.prompt_tokens, error.context_tokens) == (256, 256)


# --- time ------------------------------------------------------------------------------------


# --- being stopped ---------------------------------------------------------------------------


def test_a_cancelled_reply_stops_and_the_next_call_is_right(runner, model, chat):
    hello = chat(request("Say hello.", max_output_tokens=12)).text
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


def test_a_time_limit_stops_the_computation_and_names_itself():
    async def act(model):
        with pytest.raises(CallTimeout) as caught:
            await model.chat(request(LONG))
        return caught.value, await model.chat(replace(HELLO, timeout_s=60.0))

    error, after = with_model(act, BACKEND, context_tokens=CONTEXT_TOKENS, timeout_s=1.0)
    assert error.limit == "timeout_s"
    assert after.text == "Hello!"


# --- coming and going ------------------------------------------------------------------------


def test_unloading_cuts_off_a_call_and_turns_away_those_that_wait():
    async def act(model):
        calls = [asyncio.ensure_future(model.chat(request(LONG))) for _ in range(2)]
        await asyncio.sleep(0.4)
        await model.unload()
        return await asyncio.gather(*calls, return_exceptions=True)

    cut, turned_away = with_model(act, BACKEND, context_tokens=CONTEXT_TOKENS)
    assert isinstance(cut, StreamCut)
    assert isinstance(turned_away, ServerError)


def test_a_split_over_gpus_is_taken_where_there_may_be_some(monkeypatch):
    import llama_cpp

    endpoint = small_endpoint(device={"gpu0": 1.0, "gpu1": 3.0})
    with pytest.raises(LoadFailed, match="'gpu0, gpu1', and llama-cpp-python was built without"):
        asyncio.run(LlamaCppPython(endpoint).load())

    # Then it has all layers on the processor, which is all that there is.
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: True)

    async def placed(model):
        llama = model._engine._llama
        return [*llama.tensor_split], llama.model_params.split_mode

    split = with_model(placed, BACKEND, device=endpoint.device)
    assert split == ([1.0, 3.0], llama_cpp.LLAMA_SPLIT_MODE_LAYER)
