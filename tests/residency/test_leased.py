from functools import partial

import pytest
from clients import client_of
from machine import Machine, residents
from virtual_loop import virtually

from harness.errors import StreamCut
from harness.inference import ChatRequest, ScriptedBackend, as_messages

REQUEST = ChatRequest(model="a", messages=as_messages("Write."), max_output_tokens=100)


def leasing(backend, budget, **of_call):
    """A client whose calls hold a lease."""
    return client_of(backend, tag="a", gate={"lease": partial(budget.lease_for, **of_call)})


@pytest.mark.parametrize(
    ("context_tokens", "kv_tokens"),
    [(None, 2 + 72 + 100), (64, 64)],
    ids=["prompt and reply", "but no more than a slot holds"],
)
@virtually
async def test_a_call_holds_a_lease_for_as_long_as_it_takes(context_tokens, kv_tokens):
    seen = []

    def answer(_request):
        entry = budget.ledger.residents["a"]
        seen.append((entry.leases, entry.kv_tokens))
        return "A draft."

    machine = Machine(10, a=6)
    async with machine.lending() as budget:
        backend = ScriptedBackend(answer)
        leased = leasing(backend, budget, context_tokens=context_tokens)
        assert (await leased.chat(REQUEST)).text == "A draft."
        assert backend.requests == [REQUEST]
        entry = budget.ledger.residents["a"]
        assert [*seen, (entry.leases, entry.kv_tokens)] == [(1, kv_tokens), (0, 0)]


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
