"""An endpoint that is down holds its calls: they wait, one tries, and all go on when it is back."""

import asyncio
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from clients import AT_ONCE, ONCE, client_of, meter_of
from manual_clock import ManualClock
from structlog.testing import capture_logs
from test_gate import until_idle

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    EndpointUnreachable,
    Overloaded,
    RateLimited,
    RunLimitReached,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, Limits, ScriptedBackend, as_messages
from harness.inference.gate import Replica
from harness.inference.health import outage_of
from harness.trace import SpanStarted, Tracer

REFUSED = EndpointUnreachable("nothing answers", endpoint="m")
LOADING = Overloaded("HTTP 503: Loading model", endpoint="m")
BAD_GATEWAY = ServerError("HTTP 502: Bad Gateway", endpoint="m", status=502)
BROKEN = ServerError("HTTP 500", endpoint="n", status=500)
RESET = StreamCut("the connection broke before it began", endpoint="m", has_begun=False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (REFUSED, "unreachable"),
        (EndpointUnreachable("Temporary failure in name resolution", endpoint="m"), "unreachable"),
        (CallTimeout("no route", endpoint="m", limit="connect_timeout_s"), "unreachable"),
        (LOADING, "unavailable"),
        (BAD_GATEWAY, "unavailable"),
        (ServerError("HTTP 504", endpoint="m", status=504), "unavailable"),
        (RESET, "cut"),
        (StreamCut("it broke off within the reply", endpoint="m"), None),
        (EndpointUnreachable("self-signed", endpoint="m", code="call.certificate-refused"), None),
        (ServerError("HTTP 500", endpoint="m", status=500), None),
        (RateLimited("429", endpoint="m"), "unavailable"),
        (AuthenticationFailed("401", endpoint="m"), None),
        (CallTimeout("too slow", endpoint="m"), None),
    ],
    ids=str,
)
def test_an_outage_is_told_from_what_is_wrong_with_a_call(error, reason):
    assert outage_of(error) == reason


class Server(ScriptedBackend):
    """Answers while it is up; down, it fails all calls by one error."""

    def __init__(self, down=None):
        super().__init__(lambda request: request.messages[0].content)
        self.down = down

    async def chat(self, request):
        await asyncio.sleep(0)
        if self.down is not None:
            self.requests.append(request)
            raise self.down
        return await super().chat(request)


class Outage:
    """A client of one server or several, and the time, which passes by hand."""

    def __init__(self, *servers, **more):
        self.servers, self.records = servers, []
        self.clock = ManualClock()
        self.timers = []
        first, *others = servers
        gate = {"later": self._later, "max_outage_s": 60.0, **more.pop("gate", {})}
        if others:
            gate["replicas"] = [Replica(name=f"r{number}") for number in range(len(servers))]
        self.client = client_of(
            first,
            tracer=Tracer(self.records.append, clock=self.clock),
            gate=gate,
            replicas=tuple(others),
            **{"retry": ONCE, "timeout_s": 10.0, **more},
        )

    def _later(self, seconds, act):
        self.timers.append((self.clock() + seconds * 1e9, act))

    async def pass_s(self, seconds):
        end_ns = self.clock() + seconds * 1e9
        while due := [one for one in self.timers if one[0] <= end_ns]:
            timer = min(due, key=lambda one: one[0])
            self.timers.remove(timer)
            self.clock.advance(ms=max(0, timer[0] - self.clock()) / 1e6 + 0.001)
            timer[1]()
            await until_idle()
        self.clock.advance(ms=max(0, end_ns - self.clock()) / 1e6)

    def ask(self, text):
        request = ChatRequest(model="m", messages=as_messages(text))
        return asyncio.create_task(self.client.chat(request))

    def asked(self):
        return sum(len(server.requests) for server in self.servers)

    def spans(self, name):
        return [one for one in self.records if isinstance(one, SpanStarted) and one.name == name]


@pytest.mark.parametrize("down", [REFUSED, LOADING, BAD_GATEWAY, RESET], ids=str)
@pytest.mark.parametrize("replicas", [1, 2])
def test_calls_wait_while_a_server_is_down_and_one_at_a_time_tries_it(down, replicas):
    servers = [Server() for _ in range(replicas)]
    outage = Outage(*servers)

    async def main():
        assert (await outage.ask("before")).text == "before"
        for server in servers:
            server.down = down
        calls = [outage.ask(f"call {number}") for number in range(40)]
        await until_idle()
        at_once = outage.asked()
        await outage.pass_s(50)
        assert not any(call.done() for call in calls)
        tries = outage.asked() - at_once
        for server in servers:
            server.down = None
        await outage.pass_s(16)
        return at_once, tries, [(await call).text for call in calls]

    with capture_logs() as logs:
        at_once, tries, texts = asyncio.run(main())

    assert texts == [f"call {number}" for number in range(40)]
    assert at_once <= 1 + 40 * replicas  # those that were under way
    assert 4 * replicas <= tries <= 12 * replicas
    assert [one["code"] for one in logs] == ["endpoint.down", "endpoint.back"]
    assert {one.attributes["reason"] for one in outage.spans("hold")} == {outage_of(down)}


def test_new_calls_wait_too_and_are_not_counted_in_the_queue():
    server = Server()
    outage = Outage(server, gate={"max_queue": 0, "max_parallel": 2})

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        calls = [outage.ask("first")]
        await until_idle()
        calls += [outage.ask(f"{number}") for number in range(9)]
        await until_idle()
        assert outage.asked() == 2
        server.down = None
        await outage.pass_s(2)
        return [(await call).text for call in calls]

    assert asyncio.run(main()) == ["first", *map(str, range(9))]


@pytest.mark.parametrize(
    ("down", "failed", "remedy"),
    [
        (REFUSED, "'m' did not answer for 60 s", "start its server again"),
        (BAD_GATEWAY, "'m' did not answer for 60 s", "start its server again"),
        (LOADING, "'m' took no calls for 60 s", "wait until its server is ready"),
        (
            RateLimited("the account is at its limit", endpoint="m"),
            "'m' refused calls (HTTP 429) for 60 s",
            "wait until the account may call again",
        ),
    ],
    ids=str,
)
def test_the_end_says_how_the_server_failed_and_what_would_help(down, failed, remedy):
    server = Server()
    outage = Outage(server)

    async def main():
        await outage.ask("before")
        server.down = down
        call = outage.ask("after")
        await until_idle()
        await outage.pass_s(61)
        return await asyncio.gather(call, return_exceptions=True)

    (error,) = asyncio.run(main())
    assert f"endpoint {failed} (max_outage_s): {down}; {remedy}, and go on" in str(error)


def test_after_the_limit_the_run_ends_and_no_call_of_it_begins():
    server = Server()
    outage = Outage(server)

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        calls = [outage.ask(f"{number}") for number in range(5)]
        await until_idle()
        await outage.pass_s(59)
        assert not any(call.done() for call in calls)
        await outage.pass_s(2)
        errors = await asyncio.gather(*calls, return_exceptions=True)
        server.down = None
        with pytest.raises(RunLimitReached):
            await outage.ask("later")
        return errors

    errors = asyncio.run(main())
    assert {(type(one), one.code, one.limit) for one in errors} == {
        (RunLimitReached, "run.endpoint-down", "outage")
    }


@pytest.mark.parametrize(
    ("down", "gate"),
    [(REFUSED, {}), (RESET, {}), (BAD_GATEWAY, {}), (REFUSED, {"max_outage_s": 0.0})],
    ids=["refused", "cut", "a proxy", "no waiting is asked for"],
)
def test_a_server_that_has_never_answered_fails_its_calls_at_once(down, gate):
    outage = Outage(Server(down), gate=gate)

    async def main():
        if gate:
            outage.servers[0].down = None
            await outage.ask("before")
            outage.servers[0].down = down
        await outage.ask("x")

    with pytest.raises(type(down)):
        asyncio.run(main())
    assert not outage.timers


def test_a_server_that_still_loads_is_waited_for_from_the_start():
    server = Server(LOADING)
    outage = Outage(server)

    async def main():
        call = outage.ask("x")
        await until_idle()
        await outage.pass_s(20)
        server.down = None
        await outage.pass_s(16)
        return (await call).text

    assert asyncio.run(main()) == "x"


@pytest.mark.parametrize(
    ("asks_s", "tried_after_s"), [(None, 1), (0.1, 1), (30, 30), (45, 45), (60, 60)]
)
def test_a_full_server_is_not_tried_before_it_wants_to_be(asks_s, tried_after_s):
    server = Server(RateLimited("429", endpoint="m", retry_after_s=asks_s))
    outage = Outage(server)

    async def main():
        call = outage.ask("x")
        await until_idle()
        await outage.pass_s(tried_after_s / 2 - 0.1)
        assert len(server.requests) == 1
        server.down = None
        await outage.pass_s(tried_after_s / 2 + 0.2)
        return (await call).text

    assert asyncio.run(main()) == "x"


def test_replicas_that_go_down_while_they_are_left_out_for_failures_are_tried_again():
    servers = [Server(), Server()]
    outage = Outage(*servers, gate={"max_parallel": 2})

    async def main():
        await asyncio.gather(*(outage.ask(f"before {number}") for number in range(4)))
        for server in servers:
            server.down = ServerError("HTTP 500", endpoint="m", status=500)
        with pytest.raises(ServerError):
            await outage.ask("fails")
        for server in servers:
            server.down = REFUSED
        calls = [outage.ask(f"{number}") for number in range(4)]
        await until_idle()
        await outage.pass_s(20)
        for server in servers:
            server.down = None
        await outage.pass_s(20)
        return [(await asyncio.wait_for(call, 5)).text for call in calls]

    assert asyncio.run(main()) == [*map(str, range(4))]


def test_a_failed_call_is_no_outage_where_the_other_replica_is_gone():
    class Particular(Server):
        async def chat(self, request):
            if request.messages[0].content == "odd" and self.down is None:
                raise ServerError("HTTP 500", endpoint="m", status=500)
            return await super().chat(request)

    gone = Particular()
    outage = Outage(gone, Particular(), retry=AT_ONCE)

    async def main():
        await asyncio.gather(*(outage.ask(f"before {number}") for number in range(8)))
        gone.down = REFUSED
        await asyncio.gather(*(outage.ask(f"since {number}") for number in range(8)))
        with pytest.raises(ServerError):
            await asyncio.wait_for(outage.ask("odd"), 5)
        return (await asyncio.wait_for(outage.ask("even"), 5)).text

    with capture_logs() as logs:
        assert asyncio.run(main()) == "even"
    assert logs == []


@pytest.mark.parametrize("failure", [REFUSED, ServerError("500", endpoint="m", status=500)])
def test_a_replica_that_was_left_out_gets_waiting_calls_while_the_other_one_is_busy(failure):
    done = asyncio.Event()

    class Busy(Server):
        async def chat(self, request):
            answer = await super().chat(request)
            if request.messages[0].content != "before":
                await done.wait()
            return answer

    busy, failing = Busy(), Server()
    outage = Outage(busy, failing, gate={"max_parallel": 1})

    async def main():
        await asyncio.gather(*(outage.ask("before") for _ in range(4)))
        failing.down = failure
        calls = [outage.ask(f"{number}") for number in range(6)]
        await until_idle()
        failing.down = None
        await outage.pass_s(2)
        assert any(call.done() for call in calls)
        done.set()
        await asyncio.gather(*calls)

    asyncio.run(main())


def test_what_a_call_waits_for_is_told_again_when_an_outage_begins_and_when_it_ends():
    server = Server()
    outage = Outage(server, gate={"max_parallel": 1})

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        calls = [outage.ask(f"{number}") for number in range(3)]
        await until_idle()
        server.down = None
        await outage.pass_s(2)
        await asyncio.gather(*calls)

    asyncio.run(main())
    waits = {}
    for one in outage.records:
        if isinstance(one, SpanStarted) and one.name in {"queue", "hold"}:
            waits.setdefault(one.parent, []).append(one.name)
    assert [*waits.values()] == [["queue", "hold"], ["queue", "hold"], ["hold", "queue"]]


def test_a_call_that_its_server_fails_by_while_others_are_answered_fails_alone():
    class Poisoned(Server):
        async def chat(self, request):
            self.down = REFUSED if request.messages[0].content == "poison" else None
            return await super().chat(request)

    outage = Outage(Poisoned())

    async def main():
        await outage.ask("before")
        poison = outage.ask("poison")
        for number in range(9):
            await until_idle()
            if poison.done():
                break
            call = outage.ask(f"{number}")
            await outage.pass_s(20)
            await call
        return await poison

    with pytest.raises(EndpointUnreachable):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("refused", "error", "is_answered"),
    [
        (9, RateLimited("too many at once", endpoint="m"), True),
        (9, RateLimited("too many at once", endpoint="m", retry_after_s=0.001), True),
        (9, Overloaded("its queue is full", endpoint="m", retry_after_s=0.001), True),
        (9, LOADING, False),  # by a proxy, whose server the call may break
        (99, RateLimited("always", endpoint="m", retry_after_s=0.02), False),
    ],
)
def test_a_call_refused_by_a_full_server_that_answers_others_waits_for_its_turn(
    refused, error, is_answered
):
    class Full(Server):
        async def chat(self, request):
            if request.messages[0].content == "x" and next(tries) < refused:
                await outage.ask("another")
                raise error
            return await super().chat(request)

    tries = count()
    outage = Outage(
        Full(), retry=AT_ONCE, gate={"max_outage_s": 0.2}, randomness=SimpleNamespace(random=float)
    )

    async def main():
        await asyncio.wait_for(outage.ask("x"), 5)

    with nullcontext() if is_answered else pytest.raises(type(error)):
        asyncio.run(main())
    assert not outage.spans("hold")


def test_a_held_call_has_its_whole_time_when_its_server_is_back():
    server = Server()
    outage = Outage(server, timeout_s=10.0)

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        call = outage.ask("x")
        await until_idle()
        await outage.pass_s(30)
        server.down = None
        await outage.pass_s(16)
        await call

    asyncio.run(main())
    assert server.requests[-1].timeout_s == 10.0


def test_tries_at_a_server_that_is_down_take_none_of_a_held_calls_time():
    class Unplugged(Server):
        async def chat(self, request):
            if self.down is not None:
                outage.clock.advance(ms=5_000)
            return await super().chat(request)

    server = Unplugged()
    outage = Outage(server, timeout_s=12.0)

    async def main():
        await outage.ask("before")
        server.down = CallTimeout("no route", endpoint="m", limit="connect_timeout_s")
        call = outage.ask("x")
        await until_idle()
        await outage.pass_s(40)
        server.down = None
        await outage.pass_s(16)
        return (await call).text

    assert asyncio.run(main()) == "x"
    assert len(server.requests) > 4
    assert server.requests[-1].timeout_s == 12.0


def test_calls_go_on_with_the_first_piece_of_the_call_that_tries():
    begun = asyncio.Event()

    class Slow(Server):
        async def chat(self, request):
            if request.messages[0].content == "slow" and self.down is None:
                request.on_piece()
                await begun.wait()
            return await super().chat(request)

    server = Slow()
    outage = Outage(server)

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        slow, other = outage.ask("slow"), outage.ask("other")
        await until_idle()
        server.down = None
        await outage.pass_s(2)
        assert (await other).text == "other"
        assert not slow.done()
        begun.set()
        await slow

    asyncio.run(main())


def test_where_another_endpoint_stands_in_no_call_waits():
    server, other = Server(), Server()
    outage = Outage(server, others={"n": other})

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        return [(await outage.ask(f"{number}")).endpoint for number in range(5)]

    assert asyncio.run(main()) == ["n"] * 5
    assert len(server.requests) == 2


def test_an_error_of_an_outage_has_the_notes_of_its_own_call_alone():
    server = ScriptedBackend(lambda _: copy(REFUSED) if server.requests[1:] else "ok")
    outage = Outage(server, others={"n": ScriptedBackend(lambda _: copy(BROKEN))})

    async def main():
        await outage.ask("before")
        errors = []
        for _ in range(3):
            errors += await asyncio.gather(outage.ask("after"), return_exceptions=True)
        return errors

    assert [len(error.__notes__) for error in asyncio.run(main())] == [1, 1, 1]


def test_others_have_the_room_of_calls_that_wait_for_their_server():
    server = Server()
    outage = Outage(server)
    meter = meter_of(Limits(max_calls=6), outage.clock)
    outage.client = replace(outage.client, meter=meter)
    other = client_of(Server(), tag="n", meter=meter)

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        held = [outage.ask(f"{number}") for number in range(5)]
        await until_idle()
        request = ChatRequest(model="n", messages=as_messages("meanwhile"))
        assert (await asyncio.wait_for(other.chat(request), 5)).text == "meanwhile"
        server.down = None
        await outage.pass_s(16)
        return await asyncio.gather(*held, return_exceptions=True)

    assert sum(isinstance(result, RunLimitReached) for result in asyncio.run(main())) == 1


def test_a_held_call_that_is_cancelled_ends_at_once():
    server = Server()
    outage = Outage(server)

    async def main():
        await outage.ask("before")
        server.down = REFUSED
        calls = [outage.ask(f"{number}") for number in range(3)]
        await until_idle()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls, timeout=1)
        assert all(call.cancelled() for call in calls)
        server.down = None
        await outage.pass_s(2)
        return (await outage.ask("after")).text

    assert asyncio.run(main()) == "after"
