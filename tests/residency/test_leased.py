import asyncio
from dataclasses import replace

import pytest
from machine import Machine

from harness.errors import StreamCut
from harness.inference import ChatRequest, ScriptedBackend, as_messages
from harness.residency import Leased

REQUEST = ChatRequest(model="a", messages=as_messages("Write."))


def leases_while_answering(reply, budget):
    """A backend that notes the leases on its model, and answers."""
    seen = []

    def answer(_request):
        seen.append(budget.ledger.residents["a"].leases)
        return reply

    return ScriptedBackend(answer), seen


def test_a_call_holds_a_lease_for_as_long_as_it_takes():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            backend, seen = leases_while_answering("A draft.", budget)
            leased = Leased(backend, budget=budget, model="a")

            completion = await leased.chat(REQUEST)

            assert completion.text == "A draft."
            assert backend.requests == [REQUEST]
            assert seen == [1]
            assert budget.ledger.residents["a"].leases == 0
            assert machine.log == ["load a"]
            await leased.aclose()

    asyncio.run(main())


def test_a_call_that_fails_gives_its_lease_back():
    async def main():
        async with Machine(10, a=6).lending() as budget:
            backend, seen = leases_while_answering(StreamCut("it broke off", endpoint="a"), budget)

            with pytest.raises(StreamCut):
                await Leased(backend, budget=budget, model="a").chat(REQUEST)

            assert seen == [1]
            assert budget.ledger.residents["a"].leases == 0

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_is_not_asked():
    async def main():
        machine = Machine(10, a=6)
        machine.broken.add("load a")
        backend = ScriptedBackend(["never given"])
        async with machine.lending() as budget:
            with pytest.raises(OSError, match="cannot load a"):
                await Leased(backend, budget=budget, model="a").chat(REQUEST)

        assert backend.requests == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("context_tokens", "kv_tokens"),
    [
        pytest.param(None, 2 + 100, id="prompt and reply"),
        pytest.param(64, 64, id="but no more than a slot holds"),
    ],
)
def test_a_lease_says_what_the_call_may_come_to_hold_in_the_kv_cache(context_tokens, kv_tokens):
    seen = []

    async def main():
        async with Machine(10, a=6).lending() as budget:

            def answer(_request):
                seen.append(budget.ledger.residents["a"].kv_tokens)
                return "A draft."

            leased = Leased(
                ScriptedBackend(answer), budget=budget, model="a", context_tokens=context_tokens
            )
            await leased.chat(replace(REQUEST, max_output_tokens=100))
            assert budget.ledger.residents["a"].kv_tokens == 0

    asyncio.run(main())
    assert seen == [kv_tokens]
