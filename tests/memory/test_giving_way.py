"""The vector lane as a guest of the keep-alive budget: it goes at any moment, searches go on."""

import asyncio
from random import Random

import pytest

from harness.memory import MemoryStore, Passage
from harness.residency import Device, KeepAliveBudget, Tenant
from harness.session.library import PassageLibrary
from harness.session.settings import MemorySettings
from harness.trace import CounterSet, Instant, Journal, RunTrace, SpanRecord, TraceOptions, Tracer

MIB = 1 << 20
COUNT = 6_000
GONE = "evicted: room for large"
SYLLABLES = [first + second for first in "bdgklmnprstvz" for second in "aeiou"]
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]


def text_of(number):
    """Words that belong to this number, in an order that no other text has."""
    return " ".join(Random(number).sample(WORDS, 20))


def passages(count):
    return [Passage(text=text_of(number), source=str(number)) for number in range(count)]


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


def budget_of(capacity_bytes, *, tracer, **needs):
    return KeepAliveBudget(
        devices=[Device(name="machine", capacity_bytes=capacity_bytes)],
        tenants=[Tenant(model=tag, need={"machine": need}) for tag, need in needs.items()],
        hosts={tag: Model() for tag in needs},
        tracer=tracer,
    )


async def search_while_models_come_and_go(directory, trace):
    """Eight search on while the lane goes, and comes back, five times; returns each fallback."""
    budget = budget_of(64 * MIB, tracer=trace, large=60 * MIB, small=8 * MIB)
    library = PassageLibrary(
        MemorySettings(path=directory),
        tracer=trace,
        ask=pytest.fail,
        warn=pytest.fail,
        budget=budget,
    )
    fallbacks = [[] for _ in range(8)]
    searched, ended = asyncio.Event(), asyncio.Event()

    async def search(own, random):
        while not ended.is_set():
            number = random.randrange(COUNT)
            hits = await library.recall(question_about(number), limit=4)
            assert hits[0].passage.source == str(number)
            assert {hit.fallback for hit in hits} == {hits.fallback}
            own.append(hits.fallback)
            searched.set()

    async def search_on():
        """Returns when each has begun and ended some searches since."""
        enough = [len(own) + 4 for own in fallbacks]
        while any(len(own) < n for own, n in zip(fallbacks, enough, strict=True)):
            searched.clear()
            await searched.wait()

    async with budget.opened(), asyncio.timeout(120):
        async with asyncio.TaskGroup() as group:
            for number, own in enumerate(fallbacks):
                group.create_task(search(own, Random(number)))
            await search_on()
            for _ in range(5):
                async with budget.lease("large"):  # which leaves the lane no room
                    (lane,) = budget.ledger.guests
                    assert (lane.is_out, lane.resident_bytes) == (True, 0)
                    await search_on()
                async with budget.lease("small"):
                    while budget.ledger.guests[0].is_out:
                        await search_on()
                    await search_on()
            ended.set()
        await library.aclose()
    return [one for own in fallbacks for one in own]


@pytest.mark.slow
def test_eight_search_on_while_the_budget_takes_the_lane_and_gives_it_back(tmp_path, embedder):
    with MemoryStore.open(tmp_path / "store", embedder=embedder) as store:
        store.add(passages(COUNT))
    with RunTrace(tmp_path, name="searches", options=TraceOptions(timelines=())) as trace:
        fallbacks = asyncio.run(search_while_models_come_and_go(tmp_path / "store", trace))

    assert set(fallbacks) == {None, GONE}
    items = list(Journal(trace.journal_path).items())
    evicted = [
        item
        for item in items
        if isinstance(item, Instant) and item.name == "evict" and "guest" in item.attributes
    ]
    spans = [item for item in items if isinstance(item, SpanRecord)]
    restored = [span for span in spans if span.name == "restore"]
    recalls = [span for span in spans if span.name == "recall"]
    assert [one.attributes["reason"] for one in evicted] == ["room for large"] * 5
    assert {one.status for one in (*restored, *recalls)} == {"ok"}
    assert len(recalls) == len(fallbacks)

    # 1. Searches while it was out are marked, those while it was there are by both lanes.
    ends_ns = [*(one.time_ns for one in evicted[1:]), max(span.end_ns for span in spans)]
    for eviction, restoring, end_ns in zip(evicted, restored, ends_ns, strict=True):
        without = within(recalls, eviction.time_ns, restoring.start_ns)
        with_it = within(recalls, restoring.end_ns, end_ns)
        assert min(len(without), len(with_it)) >= 8
        for some, fallback in ((without, GONE), (with_it, None)):
            assert {span.attributes["fallback"] for span in some} == {fallback}
            vectors = {h["vector"] for span in some for h in span.attributes["hits"]}
            assert vectors == {None} if fallback else None not in vectors

    # 2. Its bytes are among those that the budget counts.
    (lane_bytes,) = {one.attributes["bytes"] for one in evicted}
    assert lane_bytes >= COUNT * 256 * 4
    counted = {
        item.value for item in items if isinstance(item, CounterSet) and item.name == "resident"
    }
    assert counted == {0, lane_bytes, 60 * MIB, 8 * MIB, 8 * MIB + lane_bytes}


def within(spans, start_ns, end_ns):
    """Those that began and ended in between."""
    return [span for span in spans if start_ns <= span.start_ns and span.end_ns <= end_ns]


def test_a_lane_that_grows_out_of_the_budget_goes_and_stays_away(store):
    async def main():
        budget = budget_of(300 * 256 * 4, tracer=Tracer())
        async with budget.opened():
            budget.admit_guest(store.vector_lane)
            assert store.search("voles under the snow").fallback is None

            store.add(passages(600))
            store.search(question_about(7))  # the lane reads what was added
            budget.recount_guests()
            assert store.search(question_about(7)).fallback == (
                "evicted: models have left it no room"
            )
            budget.recount_guests()
            await asyncio.sleep(0)
            assert store.vector_lane.resident_bytes == 0
            await budget.dismiss_guest(store.vector_lane)

    asyncio.run(main())
