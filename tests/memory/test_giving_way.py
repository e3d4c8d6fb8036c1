"""The vector lane as a guest of the keep-alive budget: it goes at any moment, searches go on."""

import asyncio

from stored import words

from harness.memory import Passage
from harness.residency import Device, KeepAliveBudget, Tenant
from harness.trace import Tracer

COUNT = 600
BYTES = COUNT * 256 * 4
MANY = [Passage(text=" ".join(words(9, seed=number))) for number in range(COUNT)]
QUESTION = "voles under the snow"


class Model:
    """One that is loaded and unloaded in no time."""

    async def load(self):
        pass

    async def unload(self):
        pass

    async def report(self):
        return None

    async def aclose(self):
        pass


def budget_of(capacity_bytes, **needs):
    return KeepAliveBudget(
        devices=[Device(name="machine", capacity_bytes=capacity_bytes)],
        tenants=[Tenant(model=tag, need={"machine": need}) for tag, need in needs.items()],
        hosts={tag: Model() for tag in needs},
        tracer=Tracer(),
    )


def test_a_lane_goes_while_a_model_needs_its_room_and_comes_back(store):
    store.add(MANY)
    store.search("anything")  # which reads the vectors

    async def main():
        budget = budget_of(3 * BYTES, large=3 * BYTES, small=BYTES)
        async with budget.opened(), asyncio.timeout(60):
            budget.admit_guest(store.vector_index)
            async with budget.lease("large"):
                assert store.search(QUESTION).fallback == "evicted: room for large"
            async with budget.lease("small"):
                while (await asyncio.to_thread(store.search, QUESTION)).fallback:
                    pass
            await budget.dismiss_guest(store.vector_index)

    asyncio.run(main())


def test_a_lane_that_grows_out_of_the_budget_goes_and_stays_away(store):
    async def main():
        budget = budget_of(BYTES // 2)
        async with budget.opened():
            budget.admit_guest(store.vector_index)
            assert store.search(QUESTION).fallback is None

            store.add(MANY)
            store.search(QUESTION)  # the lane reads what was added
            for _ in range(2):
                budget.recount_guests()
                await asyncio.sleep(0)
            assert store.vector_index.resident_bytes == 0
            assert store.search(QUESTION).fallback == ("evicted: models have left it no room")
            await budget.dismiss_guest(store.vector_index)

    asyncio.run(main())
