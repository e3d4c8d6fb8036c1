"""The embedded engine's process: who may ask it, how it ends, and what its end is called."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
import xllamacpp
from real_engines import HELLO, children, loaded, request, small_endpoint

from harness.errors import LoadFailed, ServerError, StreamCut
from harness.inference.providers import embedded, embedded_child
from harness.inference.providers.registry import connect
from harness.inference.providers.server_host import in_time

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
slow = pytest.mark.slow
STORY = request("Tell a story.", max_output_tokens=400)


def is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def shown_of(pid):
    """What other programs of this user see of a process."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def test_only_who_has_the_key_may_ask_and_the_key_is_shown_nowhere():
    async def main():
        before = children()
        async with loaded() as model:
            [pid] = children() - before
            page = {"origin": "http://localhost"}
            async with httpx2.AsyncClient(base_url=model.address, headers=page) as stranger:
                answers = [
                    await stranger.get(path) for path in ("/slots", "/metrics", "/props", "/health")
                ]
                answers.append(await stranger.post("/v1/chat/completions", json={}))
            return model, answers, shown_of(pid)

    model, answers, shown = asyncio.run(main())

    assert model.address is None
    assert [one.status_code for one in answers] == [401, 401, 401, 200, 401]
    assert {one.headers.get("access-control-allow-origin") for one in answers} == {""}
    assert model.api_key.encode() not in shown


PARENT = """
import asyncio, sys
sys.path[:0] = sys.argv[1:]
from real_engines import children, loaded

async def main():
    async with loaded():
        print(*children(), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@slow
def test_the_engine_ends_when_its_parent_is_killed():
    run = [sys.executable, "-c", PARENT, *sys.path]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    until = time.monotonic() + 10
    while not is_gone(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_engine_ends_with_its_standard_input_while_a_load_holds_the_lock():
    script = """
import ctypes, runpy, sys
runpy.run_path(sys.argv[1])["_end_with_standard_input"]()
print("loading", flush=True)
ctypes.PyDLL(None).sleep(60)
"""
    run = [sys.executable, "-P", "-c", script, embedded._SCRIPT]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"loading\n"
        child.stdin.close()
        assert child.wait(10) == -signal.SIGIO


@slow
@pytest.mark.parametrize("limit_s", [0.05, None], ids=["in time", "alive"])
def test_a_load_that_takes_too_long_or_crashes_leaves_no_process(limit_s):
    async def main():
        before = children()
        model = connect(small_endpoint())
        loading = asyncio.create_task(model.load())
        if limit_s is None:
            while not (begun := children() - before):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
            os.kill(*begun, signal.SIGKILL)
        with pytest.raises(LoadFailed) as caught:
            async with in_time("small", limit_s or 60.0, "load"):
                await loading
        return caught.value.code, children() - before, model.is_loaded

    code = "model.load-timeout" if limit_s else "model.engine-died"
    assert asyncio.run(main()) == (code, set(), False)


@slow
def test_a_crash_is_told_to_the_calls_under_way_and_the_engine_can_be_loaded_again():
    async def main():
        before = children()
        async with loaded() as model:
            [pid] = children() - before
            calls = [asyncio.create_task(model.chat(STORY)) for _ in range(2)]
            await asyncio.sleep(0.3)
            os.kill(pid, signal.SIGSEGV)
            errors = await asyncio.gather(*calls, return_exceptions=True)
            with pytest.raises(StreamCut) as late:
                await model.chat(HELLO)
            assert not model.is_loaded
            await model.unload()
            with pytest.raises(ServerError):
                await model.chat(HELLO)
            await model.load()
            return [*errors, late.value], (await model.chat(HELLO)).text

    errors, text = asyncio.run(main())
    assert [(type(one), one.code) for one in errors] == [(StreamCut, "model.engine-died")] * 3
    assert "SIGSEGV" in str(errors[0])
    assert text


@slow
def test_a_model_that_names_no_pooling_is_loaded_on_one_core():
    # There the engine's loop has not begun when its server is made, and is made a second time.
    async def main():
        for _ in range(3):
            async with loaded(embeddings=True, load_timeout_s=20) as model:
                assert model.is_loaded

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        asyncio.run(main())
    finally:
        os.sched_setaffinity(0, cores)


def test_the_engine_takes_a_split_over_gpus_and_says_that_there_are_none():
    endpoint = small_endpoint(device={"gpu0": 1.0, "gpu2": 3.0})
    params = xllamacpp.CommonParams()

    for name, value in embedded._placement(endpoint).items():
        embedded_child._set(params, name, value)

    assert (params.n_gpu_layers, params.split_mode.name) == (-2, "LLAMA_SPLIT_MODE_LAYER")
    assert [params.tensor_split[number] for number in range(4)] == [1.0, 0.0, 3.0, 0.0]
    with pytest.raises(LoadFailed, match="gpu0, gpu2"):
        asyncio.run(connect(endpoint).load())
