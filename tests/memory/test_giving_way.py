"""The vector lane as a guest of the keep-alive budget: it goes at any moment, searches go on."""

import asyncio
from random import Random

import pytest
from stored import words

from harness.memory import Passage
from harness.residency import Device, KeepAliveBudget, Tenant
from harness.trace import Tracer

COUNT = 600
BYTES = COUNT * 256 * 4
GONE = "evicted: room for large"


def text_of(number):
    """Words that belong to this number."""
    return " ".join(words(20, seed=number))


def passages():
    return [Passage(text=text_of(number), source=str(number)) for number in range(COUNT)]


def question_about(number):
    return " ".join(text_of(number).split()[:10])


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


@pytest.mark.slow
def test_threads_search_on_while_models_take_the_lanes_room_and_give_it_back(store):
    store.add(passages())
    store.search("anything")  # which reads the vectors
    seen, ended = {None: asyncio.Event(), GONE: asyncio.Event()}, asyncio.Event()

    async def search(random):
        while not ended.is_set():
            number = random.randrange(COUNT)
            hits = await asyncio.to_thread(store.search, question_about(number))
            assert hits[0].passage.source == str(number)
            assert {hit.fallback for hit in hits} == {hits.fallback}
            assert all((hit.vector is None) == (hits.fallback is not None) for hit in hits)
            seen[hits.fallback].set()

    async def searched(fallback):
        """Returns when a search ended like this since."""
        seen[fallback].clear()
        await asyncio.wait_for(seen[fallback].wait(), 60)

    async def main():
        budget = budget_of(3 * BYTES, large=3 * BYTES, small=BYTES)
        async with budget.opened(), asyncio.TaskGroup() as group:
            budget.admit_guest(store.vector_lane)
            for seed in range(8):
                group.create_task(search(Random(seed)))
            for _ in range(5):
                async with budget.lease("large"):
                    assert store.vector_lane.resident_bytes == 0
                    await searched(GONE)
                async with budget.lease("small"):
                    await searched(None)
            ended.set()
            await budget.dismiss_guest(store.vector_lane)

    asyncio.run(main())


def test_a_lane_that_grows_out_of_the_budget_goes_and_stays_away(store):
    async def main():
        budget = budget_of(BYTES // 2)
        async with budget.opened():
            budget.admit_guest(store.vector_lane)
            assert store.search("voles under the snow").fallback is None

            store.add(passages())
            store.search(question_about(7))  # the lane reads what was added
            for _ in range(2):
                budget.recount_guests()
                await asyncio.sleep(0)
            assert store.vector_lane.resident_bytes == 0
            assert store.search(question_about(7)).fallback == (
                "evicted: models have left it no room"
            )
            await budget.dismiss_guest(store.vector_lane)

    asyncio.run(main())
