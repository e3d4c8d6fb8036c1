import pytest
from clients import client_of
from machine import Machine, residents
from virtual_loop import virtually

from harness.errors import StreamCut
from harness.inference import ChatRequest, ScriptedBackend, as_messages

REQUEST = ChatRequest(model="a", messages=as_messages("Write."), max_output_tokens=100)


def leasing(backend, budget):
    """A client whose calls hold a lease."""
    return client_of(backend, tag="a", gate={"lease": lambda request: budget.lease(request.model)})


@virtually
async def test_a_call_holds_a_lease_for_as_long_as_it_takes():
    seen = []

    def answer(_request):
        seen.append(budget.ledger.residents["a"].leases)
        return "A draft."

    machine = Machine(10, a=6)
    async with machine.lending() as budget:
        backend = ScriptedBackend(answer)
        leased = leasing(backend, budget)
        assert (await leased.chat(REQUEST)).text == "A draft."
        assert backend.requests == [REQUEST]
        assert [*seen, budget.ledger.residents["a"].leases] == [1, 0]


@virtually
async def test_a_call_that_fails_gives_its_lease_back():
    async with Machine(10, a=6).lending() as budget:
        backend = ScriptedBackend([StreamCut("it broke off", endpoint="a")])
        with pytest.raises(StreamCut):
            await leasing(backend, budget).chat(REQUEST)
        assert residents(budget) == {"a": 0}


@virtually
async def test_a_model_that_cannot_be_loaded_is_not_asked():
    machine = Machine(10, a=6)
    machine.broken.add("load a")
    backend = ScriptedBackend(["never given"])
    async with machine.lending() as budget:
        with pytest.raises(OSError, match="cannot load a"):
            await leasing(backend, budget).chat(REQUEST)
    assert backend.requests == []
