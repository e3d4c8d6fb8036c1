"""Connections: one for each call at once, none left behind, and the cost of a call in a crowd."""

import asyncio
import sys
from itertools import repeat
from threading import Thread

import pytest
from calls import REQUEST, backend_at
from loopback import Loopback, Reply, delta, llama_server_stream

from harness.errors import EndpointUnreachable, StreamCut
from harness.inference import Endpoint
from harness.inference.providers.connection_stack import KEEPALIVE_S
from harness.inference.providers.http import Exchange, HttpConnection

WHOLE = Reply(steps=llama_server_stream("Hel", "lo"))


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that a test puts forward in time."""

    ahead_s = 0.0

    def time(self):
        return super().time() + self.ahead_s


class Gathering(Loopback):
    """Answers when so many requests are here."""

    def __init__(self, count):
        super().__init__(repeat(WHOLE))
        self.gathered = asyncio.Barrier(count)

    async def respond(self, asked, answer):
        await self.gathered.wait()
        await super().respond(asked, answer)


def functions_called_in(calls_at_once, *, rounds):
    """How many functions a call takes, of so many at once, with the server's own."""
    called = 0

    def count(_frame, event, _argument):
        nonlocal called
        called += event == "call"

    async def main():
        async with Gathering(calls_at_once) as server, backend_at(server) as backend:
            for number in range(rounds):
                if number == 1:
                    sys.setprofile(count)  # the connections are there
                await asyncio.gather(*(backend.chat(REQUEST) for _ in range(calls_at_once)))
            sys.setprofile(None)
            assert server.connections == calls_at_once

    try:
        asyncio.run(main())
    finally:
        sys.setprofile(None)
    return called / calls_at_once / (rounds - 1)


def test_a_call_takes_as_many_steps_in_a_crowd_as_in_a_small_group():
    assert functions_called_in(96, rounds=2) < 1.1 * functions_called_in(4, rounds=8)


def test_connections_that_nobody_uses_any_more_are_closed():
    loop = SkippingLoop()

    async def main():
        async with Gathering(20) as server, backend_at(server) as backend:
            await asyncio.gather(*(backend.chat(REQUEST) for _ in range(20)))
            assert server.open_connections == 20
            loop.ahead_s = 2 * KEEPALIVE_S
            await server.deserted.wait()
            # And what comes later gets new ones, which are closed in turn.
            await asyncio.gather(*(backend.chat(REQUEST) for _ in range(20)))
            assert server.connections == 40
            server.deserted.clear()
            loop.ahead_s += 2 * KEEPALIVE_S
            await server.deserted.wait()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def test_what_is_used_again_and_again_stays_open():
    loop = SkippingLoop()

    async def main():
        async with Loopback(repeat(WHOLE)) as server, backend_at(server) as backend:
            for _ in range(5):
                await backend.chat(REQUEST)
                loop.ahead_s += KEEPALIVE_S / 3
                await asyncio.sleep(0)
            assert server.connections == 1

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def test_calls_that_are_cancelled_leave_no_connection_and_the_next_one_works():
    class Silent(Loopback):
        async def respond(self, asked, answer):
            if len(self.asked) == 51:
                await super().respond(asked, answer)
            elif len(self.asked) == 50:
                self.holding.set()
            await answer.hold()

    async def main():
        async with Silent([WHOLE]) as server, backend_at(server) as backend:
            calls = [asyncio.create_task(backend.chat(REQUEST)) for _ in range(50)]
            await server.holding.wait()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert all(call.cancelled() for call in calls)
            await server.deserted.wait()
            assert (await backend.chat(REQUEST)).text == "Hello"
            assert server.connections == 51

    asyncio.run(main())


def test_all_that_came_of_a_reply_is_read_before_its_cut_is_told():
    cut = asyncio.Event()
    pieces = tuple(delta(content=f"{number}") for number in range(6))

    async def main():
        server = Loopback([Reply(steps=(*pieces, cut.set), ending="close")])
        async with server:
            connection = HttpConnection(Endpoint(tag="m", url=server.url, model_id="m"))
            read = b""
            async with Exchange(connection) as exchange:
                reply = await exchange.post(server.url, {})
                await cut.wait()
                await server.deserted.wait()
                try:
                    async for chunk in connection.chunks(reply):
                        read += chunk
                except StreamCut:
                    read += b"(cut)"
            await connection.client.aclose()
        assert read == b"".join(pieces) + b"(cut)"

    asyncio.run(main())


@pytest.mark.parametrize("excepted", [False, True], ids=["through it", "past it"])
def test_a_proxy_of_the_environment_gets_the_calls_to_other_machines(monkeypatch, excepted):
    async def main():
        async with Loopback(repeat(WHOLE)) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.root)
            monkeypatch.setenv("http_proxy", proxy.root)
            monkeypatch.setenv("NO_PROXY", "127.0.0.2" if excepted else "example.org")
            monkeypatch.setenv("no_proxy", "127.0.0.2" if excepted else "example.org")
            # An address that is not taken for this machine's, and where nothing answers.
            async with backend_at("http://127.0.0.2:9/v1") as backend:
                if excepted:
                    with pytest.raises(EndpointUnreachable):
                        await backend.chat(REQUEST)
                else:
                    assert (await backend.chat(REQUEST)).text == "Hello"
                    assert (await backend.chat(REQUEST)).text == "Hello"
            paths = [asked.path for asked in proxy.asked]
            assert paths == [] if excepted else 2 * ["http://127.0.0.2:9/v1/chat/completions"]
            assert proxy.connections == (0 if excepted else 1)

    asyncio.run(main())


def test_each_event_loop_has_connections_of_its_own():
    texts = []

    async def main():
        async with Gathering(3) as server, backend_at(server) as backend:
            for _ in range(2):
                calls = [backend.chat(REQUEST) for _ in range(3)]
                texts.extend(reply.text for reply in await asyncio.gather(*calls))

    threads = [Thread(target=asyncio.run, args=(main(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(main())

    assert texts == 18 * ["Hello"]


def test_where_a_redirect_leads_nothing_is_sent():
    async def main():
        async with Loopback([]) as elsewhere:
            location = (("location", f"{elsewhere.url}/x"), ("content-type", "text/html"))
            moved = Reply(status=307, headers=location)
            async with Loopback([moved]) as server, backend_at(server, api_key="sk-1") as backend:
                with pytest.raises(Exception, match="redirects"):
                    await backend.chat(REQUEST)
                assert (len(server.asked), elsewhere.asked) == (1, [])

    asyncio.run(main())
