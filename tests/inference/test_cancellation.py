"""A call that nobody waits for any more costs its server nothing: seen at the real ones."""

import asyncio
import os
import re

import httpx
import pytest

from harness.inference import (
    ChatRequest,
    EmbeddedLlamaCpp,
    Endpoint,
    OpenAIWire,
    as_messages,
)
from harness.session.demo_model import demo_endpoint

PATIENCE_S = 30.0
VLLM_URL = os.environ.get("HARNESS_TEST_VLLM_URL", "")


async def under_way(backend):
    """A call whose reply has begun, and has long to go."""
    begun = asyncio.Event()
    request = ChatRequest(
        model="m",
        # Asked for less plainly, the small model is done in four tokens.
        messages=as_messages("Write the numbers from 1 to 2000, separated by commas: 1, 2, 3,"),
        max_output_tokens=1500,
        on_text=lambda _: begun.set(),
    )
    call = asyncio.create_task(backend.chat(request))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    return call


async def cancelled(backend, running, *, pause_s):
    """How many replies the server was writing before and after the call was cancelled."""
    call = await under_way(backend)
    before = await running()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(PATIENCE_S):
        while after := await running():  # noqa: ASYNC110 - the server is asked, it tells nobody
            await asyncio.sleep(pause_s)
    return before, after


@pytest.mark.slow
def test_llama_cpp_stops_writing():
    endpoint = demo_endpoint().model_copy(update={"context_tokens": 2048, "threads": 1})

    async def main():
        backend = EmbeddedLlamaCpp(endpoint)
        await backend.load()
        try:
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:

                async def running():
                    with backend.address() as address:
                        slots = (await client.get(f"{address}/slots")).json()
                    return sum(slot["is_processing"] for slot in slots)

                # Asked more often, it would not look whether the client has gone.
                return await cancelled(backend, running, pause_s=1.1)
        finally:
            await backend.unload()

    assert asyncio.run(main()) == (1, 0)


@pytest.mark.skipif(not VLLM_URL, reason="HARNESS_TEST_VLLM_URL names no running vLLM")
def test_vllm_stops_writing():
    async def main():
        async with httpx.AsyncClient(base_url=VLLM_URL, timeout=PATIENCE_S) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]

            async def running():
                text = (await client.get("/metrics")).text
                found = re.search(r"^vllm:num_requests_running\{.*\} (\S+)", text, re.MULTILINE)
                return float(found[1])

            backend = OpenAIWire(
                Endpoint(tag="m", url=f"{VLLM_URL}/v1", model_id=model, backend="vllm")
            )
            try:
                return await cancelled(backend, running, pause_s=0.1)
            finally:
                await backend.aclose()

    assert asyncio.run(main()) == (1, 0)
