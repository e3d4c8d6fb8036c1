"""When a server that cannot be reached is not asked: the decisions, and the calls."""

import asyncio

import pytest

from harness.errors import (
    CallTimeout,
    CircuitOpen,
    EndpointUnreachable,
    NotOffered,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, CountRequest, EmbedRequest, ScriptedBackend, as_messages
from harness.inference.around.circuit import (
    CircuitPolicy,
    Closed,
    HalfOpen,
    Open,
    admit,
    after,
    outcome_of,
)
from harness.inference.around.circuit_breaking import CircuitBreaking
from harness.trace import ManualClock, Tracer

SECOND = 1_000_000_000
POLICY = CircuitPolicy(failures=3, pause_s=5.0, longest_pause_s=60.0)


def opened(*, since_s=0, until_s=5, pause_s=5):
    return Open(since_ns=since_s * SECOND, until_ns=until_s * SECOND, pause_ns=pause_s * SECOND)


def half_open(*, since_s=0, probe_s=5, pause_s=5):
    return HalfOpen(since_ns=since_s * SECOND, probe_ns=probe_s * SECOND, pause_ns=pause_s * SECOND)


@pytest.mark.parametrize(
    ("circuit", "outcome", "expected", "sent_s"),
    [
        pytest.param(Closed(), "unreachable", Closed(failures=1), 5, id="the first failure"),
        pytest.param(
            Closed(failures=2), "unreachable", opened(since_s=7, until_s=12), 5, id="the third"
        ),
        pytest.param(Closed(failures=2), "reached", Closed(), 5, id="an answer between"),
        pytest.param(Closed(failures=2), "unknown", Closed(failures=2), 5, id="neither"),
        pytest.param(opened(), "unreachable", opened(), 5, id="a late failure adds nothing"),
        pytest.param(
            half_open(), "unreachable", opened(until_s=17, pause_s=10), 5, id="the probe fails"
        ),
        pytest.param(
            half_open(pause_s=40),
            "unreachable",
            opened(until_s=67, pause_s=60),
            5,
            id="pauses grow to the longest",
        ),
        pytest.param(half_open(), "unknown", opened(until_s=7), 5, id="the probe is given up"),
        pytest.param(half_open(), "reached", Closed(), 5, id="the probe is answered"),
        pytest.param(half_open(), "unreachable", half_open(), 4, id="sent before the probe"),
    ],
)
def test_the_end_of_a_call(circuit, outcome, expected, sent_s):
    now = {"sent_ns": sent_s * SECOND, "now_ns": 7 * SECOND}

    assert after(circuit, outcome, policy=POLICY, **now) == expected


@pytest.mark.parametrize(
    ("circuit", "now_s", "expected"),
    [
        pytest.param(Closed(failures=2), 0, Closed(failures=2), id="closed"),
        pytest.param(opened(until_s=5), 4, None, id="open"),
        pytest.param(opened(until_s=5), 5, half_open(probe_s=5), id="the pause is over"),
        pytest.param(half_open(), 1000, None, id="the probe is on its way"),
    ],
)
def test_a_call_is_let_through_or_not(circuit, now_s, expected):
    assert admit(circuit, now_ns=now_s * SECOND) == expected


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "reached"),
        (EndpointUnreachable("refused", endpoint="m"), "unreachable"),
        (CallTimeout("no connection", endpoint="m", limit="connect_timeout_s"), "unreachable"),
        (CallTimeout("too slow", endpoint="m", limit="first_token_timeout_s"), "unreachable"),
        (CallTimeout("too slow", endpoint="m", limit="between_tokens_timeout_s"), "reached"),
        (Overloaded("loading", endpoint="m"), "reached"),
        (StreamCut("it broke off", endpoint="m"), "reached"),
        (NotOffered("it does not embed", endpoint="m"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
    ids=repr,
)
def test_what_a_call_tells_of_its_server(error, outcome):
    assert outcome_of(error) == outcome


# --- calls -----------------------------------------------------------------------------------

REQUEST = ChatRequest(model="m", messages=as_messages("Write."))
DOWN = EndpointUnreachable("nothing answers at http://there/v1", endpoint="m")
NO_CONNECTION = CallTimeout("no connection", endpoint="m", limit="connect_timeout_s")
BOOM = ServerError("HTTP 500: boom", endpoint="m", status=500)


class Held(ScriptedBackend):
    """Is down three times; then says a word at once, if it has one, and the rest when it may."""

    def __init__(self, word):
        super().__init__([DOWN] * 3 + ["A draft."] * 9)
        self._word = word
        self.may_end = asyncio.Event()

    async def chat(self, request):
        if len(self.requests) >= 3:
            if self._word and request.on_text:
                request.on_text(self._word)
            await self.may_end.wait()
        return await super().chat(request)


class Breaking:
    """A backend behind a circuit, on a clock that is moved by hand."""

    def __init__(self, backend):
        self.clock, self.records = ManualClock(), []
        self.backend = backend if isinstance(backend, Held) else ScriptedBackend(backend)
        tracer = Tracer(self.records.append, clock=self.clock)
        self.calls = CircuitBreaking(self.backend, policy=CircuitPolicy(), tracer=tracer)

    async def outcome(self):
        try:
            return (await self.calls.chat(REQUEST)).text
        except Exception as error:  # noqa: BLE001 - whatever leaves a call is the outcome
            return error

    async def outcomes(self, count):
        return [await self.outcome() for _ in range(count)]

    @property
    def instants(self):
        return [(record.name, dict(record.attributes)) for record in self.records]


def test_after_three_failures_in_a_row_calls_are_refused_unasked():
    async def main():
        circuit = Breaking([NotOffered("no", endpoint="m"), DOWN, NO_CONNECTION, DOWN])
        await circuit.outcomes(1)
        assert await circuit.outcomes(3) == [DOWN, NO_CONNECTION, DOWN]

        circuit.clock.advance(ms=1500)
        for asking in (
            circuit.calls.chat(REQUEST),
            circuit.calls.embed(EmbedRequest(model="m", texts=("a",))),
            circuit.calls.count_tokens(CountRequest(model="m", messages=REQUEST.messages)),
        ):
            with pytest.raises(CircuitOpen, match=r"1\.5 s.* 3\.5 s.*http://there/v1"):
                await asking
        assert len(circuit.backend.requests) == 4

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["A draft.", BOOM], ids=["a reply", "an error of the server's"])
def test_any_answer_starts_the_count_anew_and_after_the_pause_lets_the_others_through(answer):
    async def main():
        circuit = Breaking([DOWN, DOWN, answer, DOWN, DOWN, DOWN, answer, "Another."])
        await circuit.outcomes(5)
        assert circuit.instants == []
        await circuit.outcome()
        circuit.clock.advance(ms=5000)
        assert await circuit.outcomes(2) == [answer, "Another."]
        why = {"reason": "EndpointUnreachable", "detail": str(DOWN), "pause_s": 5.0}
        assert circuit.instants == [
            ("circuit opened", {"model": "m", **why}),
            ("circuit closed", {"model": "m", "open_s": 5.0}),
        ]

    asyncio.run(main())


def test_a_probe_that_fails_doubles_the_pause():
    async def main():
        circuit = Breaking([DOWN] * 8)
        await circuit.outcomes(3)
        for pause_s in (5, 10, 20, 40, 60):
            circuit.clock.advance(ms=pause_s * 1000 - 1)
            asked = len(circuit.backend.requests)
            await circuit.outcome()
            assert len(circuit.backend.requests) == asked, "too early"
            circuit.clock.advance(ms=1)
            assert await circuit.outcome() is DOWN
        assert [said["pause_s"] for _, said in circuit.instants] == [5, 10, 20, 40, 60, 60]

    asyncio.run(main())


@pytest.mark.parametrize("end", ["first word", "reply", "cancellation"])
def test_while_the_probe_is_on_its_way_others_are_refused_until_it_tells_something(end):
    async def main():
        circuit = Breaking(Held("A" if end == "first word" else ""))
        await circuit.outcomes(3)
        circuit.clock.advance(ms=5000)
        probe = asyncio.create_task(circuit.outcome())
        await asyncio.sleep(0)

        other = asyncio.create_task(circuit.outcome())
        await asyncio.sleep(0)
        assert other.done() == (end != "first word")
        if end == "cancellation":
            probe.cancel()
            await asyncio.wait([probe])
        circuit.backend.may_end.set()
        assert end == "cancellation" or await probe == "A draft."
        assert isinstance(await other, CircuitOpen) or end == "first word"
        assert await circuit.outcome() == "A draft."
        assert [name for name, _ in circuit.instants] == ["circuit opened", "circuit closed"]

    asyncio.run(main())
