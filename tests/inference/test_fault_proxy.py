import asyncio

import httpx
import pytest
from servers.emulated import TEXT
from servers.fault_proxy import BODIES, Fault, FaultProxy, no_fault
from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer

from harness.errors import (
    InferenceError,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, OpenAIWire, as_messages
from harness.inference.endpoint import Endpoint

HELLO = ChatRequest(model="judge", messages=as_messages("Say hello."), timeout_s=10)
WHOLE = "".join(TEXT)


def through(fault, act):
    """What comes of a wire whose server is behind a proxy."""

    async def main():
        async with OpenAIServer(dialect=DIALECTS["llamacpp"]) as server:
            port = httpx.URL(server.root).port
            async with FaultProxy("127.0.0.1", port, fault) as proxy:
                wire = OpenAIWire(Endpoint(tag="judge", backend="llamacpp", url=proxy.root + "/v1"))
                try:
                    return await act(wire, proxy)
                finally:
                    await wire.aclose()

    return asyncio.run(main())


def always(fault):
    return lambda _number: fault


def test_without_a_fault_everything_comes_through_over_one_connection():
    async def act(wire, proxy):
        texts = [(await wire.chat(HELLO)).text for _ in range(3)]
        return texts, proxy.requests, proxy.open_connections

    assert through(no_fault, act) == ([WHOLE] * 3, 3, 1)


@pytest.mark.parametrize(
    ("fault", "sent"),
    [
        pytest.param(Fault(kind="reset"), 1, id="reset before a byte"),
        pytest.param(Fault(kind="cut"), 1, id="cut before a byte"),
        pytest.param(Fault(kind="garbage"), 1, id="garbage for a status line"),
        pytest.param(Fault(kind="reset", after_bytes=0), 1, id="reset after the head"),
        pytest.param(Fault(kind="reset", after_bytes=300), 1, id="reset in the middle"),
        pytest.param(Fault(kind="cut", after_bytes=303), 1, id="cut in a token"),
        pytest.param(Fault(kind="garbage", after_bytes=300), 1, id="garbage in the middle"),
        pytest.param(Fault(kind="no end"), 1, id="no end"),
    ],
)
def test_what_breaks_is_no_reply(fault, sent):
    async def act(wire, proxy):
        with pytest.raises(StreamCut):
            await wire.chat(HELLO)
        return proxy.faults

    faults = through(always(fault), act)

    assert faults == [(number, fault) for number in range(1, sent + 1)]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(
    ("status", "error"), [(500, ServerError), (429, RateLimited), (503, Overloaded)]
)
def test_a_refusal_is_read_in_every_shape(status, error, body):
    fault = Fault(kind="refuse", status=status, body=body, headers=(("retry-after", "2"),))

    async def act(wire, _proxy):
        with pytest.raises(InferenceError, match="boom") as caught:
            await wire.chat(HELLO)
        return caught.value

    raised = through(always(fault), act)

    assert type(raised) is error
    assert getattr(raised, "retry_after_s", 2.0) == 2.0


def test_a_client_that_leaves_a_stall_is_noticed():
    async def act(wire, proxy):
        call = asyncio.create_task(wire.chat(HELLO))
        while not proxy.faults:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        assert not proxy.hung_up.is_set()
        call.cancel()
        async with asyncio.timeout(10):
            await proxy.hung_up.wait()

    through(always(Fault(kind="stall", after_bytes=300)), act)


def test_a_client_that_leaves_in_the_middle_of_a_reply_is_noticed():
    """By whichever sees it first: the one that waits for it to go, or the one that writes to it."""

    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"5\r\nriver\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            writer.close()

    async def main():
        server = await asyncio.start_server(endless, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, asyncio.timeout(10), FaultProxy("127.0.0.1", port) as proxy:
            for _ in range(20):
                proxy.hung_up.clear()
                reader, writer = await asyncio.open_connection(*proxy.root[7:].split(":"))
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await reader.readuntil(b"river")
                writer.transport.abort()
                await proxy.hung_up.wait()

    asyncio.run(main())


def test_calls_side_by_side_meet_each_its_own_fault():
    def fault(number):
        return Fault(kind="cut", after_bytes=300) if number % 3 == 0 else None

    async def act(wire, proxy):
        calls = (wire.chat(HELLO) for _ in range(30))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return outcomes, proxy.requests

    outcomes, requests = through(fault, act)

    assert requests == 30
    assert sum(isinstance(outcome, StreamCut) for outcome in outcomes) == 10
    assert {o.text for o in outcomes if not isinstance(o, Exception)} == {WHOLE}
