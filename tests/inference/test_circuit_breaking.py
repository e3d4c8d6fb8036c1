import asyncio
from dataclasses import replace

import pytest

from harness.errors import CallTimeout, EndpointUnreachable, NotOffered, ServerError
from harness.inference import ChatRequest, CountRequest, EmbedRequest, ScriptedBackend, as_messages
from harness.inference.around.circuit import CircuitPolicy
from harness.inference.around.circuit_breaking import CircuitBreaking
from harness.trace import ManualClock, Tracer

REQUEST = ChatRequest(model="m", messages=as_messages("Write."))
DOWN = EndpointUnreachable("nothing answers at http://there/v1", endpoint="m")
NO_CONNECTION = CallTimeout("no connection", endpoint="m", limit="connect_timeout_s")
BOOM = ServerError("HTTP 500: boom", endpoint="m", status=500)


class Breaking:
    """A scripted backend behind a circuit, on a clock that is moved by hand."""

    def __init__(self, replies):
        self.clock, self.records = ManualClock(), []
        self.backend = ScriptedBackend(replies)
        self.calls = self.behind(self.backend)

    def behind(self, backend):
        tracer = Tracer(self.records.append, clock=self.clock)
        return CircuitBreaking(backend, policy=CircuitPolicy(), tracer=tracer)

    async def outcome(self, request=REQUEST):
        try:
            return (await self.calls.chat(request)).text
        except Exception as error:  # noqa: BLE001 - whatever leaves a call is the outcome
            return error

    async def outcomes(self, count):
        return [await self.outcome() for _ in range(count)]

    @property
    def instants(self):
        return [(record.name, dict(record.attributes)) for record in self.records]


def test_after_three_failures_in_a_row_calls_are_refused_unasked():
    async def main():
        circuit = Breaking([DOWN, NO_CONNECTION, DOWN])
        assert await circuit.outcomes(3) == [DOWN, NO_CONNECTION, DOWN]

        circuit.clock.advance(ms=1500)
        refusal = await circuit.outcome()
        assert isinstance(refusal, EndpointUnreachable)
        assert str(refusal) == (
            "m: not asked, as it has been out of reach for 1.5 s; it will be asked again in 3.5 s. "
            "The last time: nothing answers at http://there/v1"
        )
        assert len(circuit.backend.requests) == 3

    asyncio.run(main())


@pytest.mark.parametrize("between", ["A draft.", BOOM], ids=["a reply", "an error of the server's"])
def test_an_answer_between_failures_starts_the_count_anew(between):
    async def main():
        circuit = Breaking([DOWN, DOWN, between, DOWN, DOWN, "A draft."])
        await circuit.outcomes(5)
        assert await circuit.outcome() == "A draft."
        assert circuit.instants == []

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["A draft.", BOOM], ids=["a reply", "an error of the server's"])
def test_after_the_pause_one_call_finds_out_and_any_answer_lets_the_others_through(answer):
    async def main():
        circuit = Breaking([DOWN] * 3 + [answer, "Another."])
        await circuit.outcomes(3)
        circuit.clock.advance(ms=5000)
        assert await circuit.outcomes(2) == [answer, "Another."]
        assert circuit.instants == [
            (
                "circuit opened",
                {
                    "model": "m",
                    "reason": "EndpointUnreachable",
                    "detail": str(DOWN),
                    "pause_s": 5.0,
                },
            ),
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


class Held(ScriptedBackend):
    """Says a word at once, and the rest of it only when it is told to."""

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


async def with_a_probe_on_its_way(word):
    circuit = Breaking([])
    held = Held(word)
    circuit.calls = circuit.behind(held)
    await circuit.outcomes(3)
    circuit.clock.advance(ms=5000)
    probe = asyncio.create_task(circuit.outcome())
    await asyncio.sleep(0)
    return circuit, held, probe


def test_while_the_probe_is_on_its_way_others_are_refused():
    async def main():
        circuit, held, probe = await with_a_probe_on_its_way("")
        refusal = await circuit.outcome()
        assert isinstance(refusal, EndpointUnreachable)
        assert "another call is asking it just now" in str(refusal)

        held.may_end.set()
        assert await probe == "A draft."
        assert await circuit.outcome() == "A draft."

    asyncio.run(main())


def test_the_probes_first_words_let_the_others_through():
    async def main():
        circuit, held, probe = await with_a_probe_on_its_way("A")
        other = asyncio.create_task(circuit.outcome())
        await asyncio.sleep(0)
        assert not other.done()

        held.may_end.set()
        assert [await probe, await other] == ["A draft.", "A draft."]

    asyncio.run(main())


def test_a_probe_that_is_cancelled_leaves_its_place_to_the_next_call():
    async def main():
        circuit, held, probe = await with_a_probe_on_its_way("")
        probe.cancel()
        await asyncio.wait([probe])

        held.may_end.set()
        assert await circuit.outcome() == "A draft."
        assert [name for name, _ in circuit.instants] == ["circuit opened", "circuit closed"]

    asyncio.run(main())


def test_whoever_listens_hears_every_piece():
    class Speaking(ScriptedBackend):
        async def chat(self, request):
            request.on_text("A ")
            request.on_text("draft.")
            return await super().chat(replace(request, on_text=None))

    heard = []
    circuit = Breaking([])
    circuit.calls = circuit.behind(Speaking(["A draft."]))
    asyncio.run(circuit.outcome(replace(REQUEST, on_text=heard.append)))
    assert heard == ["A ", "draft."]


def test_vectors_and_counts_are_refused_alike():
    async def main():
        circuit = Breaking([DOWN] * 3)
        embed = EmbedRequest(model="m", texts=("a",))
        count = CountRequest(model="m", messages=REQUEST.messages)
        with pytest.raises(NotOffered):
            await circuit.calls.embed(embed)

        await circuit.outcomes(3)
        with pytest.raises(EndpointUnreachable, match="not asked"):
            await circuit.calls.embed(embed)
        with pytest.raises(EndpointUnreachable, match="not asked"):
            await circuit.calls.count_tokens(count)

    asyncio.run(main())
