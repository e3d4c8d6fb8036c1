"""The vector lane as a guest of the keep-alive budget: it goes at any moment, searches go on."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from harness.memory import MemoryStore, Passage
from harness.residency import Device, KeepAliveBudget, Tenant
from harness.session.library import PassageLibrary
from harness.session.settings import MemorySettings
from harness.trace import CounterSet, Instant, Journal, RunTrace, SpanRecord, TraceOptions, Tracer

MIB = 1 << 20
SYLLABLES = [first + second for first in "bdgklmnprstvz" for second in "aeiou"]
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]


def text_of(number):
    """Words that belong to this number, in an order that no other text has."""
    return " ".join(Random(number).sample(WORDS, 20))


def passages(numbers):
    return [Passage(text=text_of(number), source=str(number)) for number in numbers]


def question_about(number):
    return " ".join(text_of(number).split()[:10])


@pytest.fixture(scope="module")
def directory(tmp_path_factory, embedder):
    """A store of 20,000 passages."""
    path = tmp_path_factory.mktemp("giving-way")
    with MemoryStore.open(path, embedder=embedder) as store:
        assert len(store.add(passages(range(20_000))).new) == 20_000
    return path


@pytest.fixture
def large_store(directory, embedder):
    with MemoryStore.open(directory, embedder=embedder) as opened:
        yield opened


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


class Searchers:
    """Eight that search without a pause, each for one passage after the other.

    Attributes:
        fallbacks: Of each search so far, by searcher.
    """

    def __init__(self, library, group):
        self.fallbacks = [[] for _ in range(8)]
        self._library = library
        self._searched = asyncio.Condition()
        self._ended = False
        for searcher in range(8):
            group.create_task(self._search(searcher))

    async def search_on(self):
        """Returns when each has begun and ended some searches since."""
        enough = [len(own) + 4 for own in self.fallbacks]
        async with self._searched:
            await self._searched.wait_for(
                lambda: all(len(own) >= n for own, n in zip(self.fallbacks, enough, strict=True))
            )

    def end(self):
        self._ended = True

    async def _search(self, searcher):
        random = Random(searcher)
        while not self._ended:
            number = random.randrange(20_000)
            hits = await self._library.recall(question_about(number), limit=4)
            assert hits[0].passage.source == str(number)
            assert {hit.fallback for hit in hits} == {hits.fallback}
            async with self._searched:
                self.fallbacks[searcher].append(hits.fallback)
                self._searched.notify_all()


async def search_while_models_come_and_go(directory, trace, *, times):
    """Returns what fallback each search was marked with."""
    budget = budget_of(64 * MIB, tracer=trace, large=60 * MIB, small=8 * MIB)
    library = PassageLibrary(
        MemorySettings(path=directory),
        tracer=trace,
        ask=pytest.fail,
        warn=pytest.fail,
        budget=budget,
    )
    async with budget.opened(), asyncio.timeout(120):
        async with asyncio.TaskGroup() as group:
            searchers = Searchers(library, group)
            await searchers.search_on()
            for _ in range(times):
                async with budget.lease("large"):  # which leaves the lane no room
                    (lane,) = budget.ledger.guests
                    assert (lane.is_out, lane.resident_bytes) == (True, 0)
                    await searchers.search_on()
                async with budget.lease("small"):
                    while budget.ledger.guests[0].is_out:
                        await searchers.search_on()
                    await searchers.search_on()
            searchers.end()
        await library.aclose()
    return [one for own in searchers.fallbacks for one in own]


@pytest.mark.slow
def test_eight_search_on_while_the_budget_takes_the_lane_and_gives_it_back(directory, tmp_path):
    with RunTrace(tmp_path, name="searches", options=TraceOptions(timelines=())) as trace:
        fallbacks = asyncio.run(search_while_models_come_and_go(directory, trace, times=5))

    gone = "evicted: room for large"
    assert set(fallbacks) == {None, gone}
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
        assert len(without) >= 8
        assert {span.attributes["fallback"] for span in without} == {gone}
        assert {hit["vector"] for span in without for hit in span.attributes["hits"]} == {None}
        with_it = within(recalls, restoring.end_ns, end_ns)
        assert len(with_it) >= 8
        assert {span.attributes["fallback"] for span in with_it} == {None}
        assert None not in {h["vector"] for span in with_it for h in span.attributes["hits"]}

    # 2. Its bytes are among those that the budget counts.
    (lane_bytes,) = {one.attributes["bytes"] for one in evicted}
    assert lane_bytes >= 20_000 * 256 * 4
    counted = {
        item.value for item in items if isinstance(item, CounterSet) and item.name == "resident"
    }
    assert counted == {0, lane_bytes, 60 * MIB, 8 * MIB, 8 * MIB + lane_bytes}


def within(spans, start_ns, end_ns):
    """Those that began and ended in between."""
    return [span for span in spans if start_ns <= span.start_ns and span.end_ns <= end_ns]


def test_the_lane_may_go_and_come_back_in_the_middle_of_any_search(large_store):
    over = threading.Event()

    def search(searcher):
        random = Random(searcher)
        fallbacks = set()
        while not over.is_set():
            number, mode = random.randrange(20_000), random.choice(["hybrid", "vector"])
            hits = large_store.search(question_about(number), mode=mode)
            assert hits[0].passage.source == str(number)
            fallbacks.add(hits.fallback)
        return fallbacks

    with ThreadPoolExecutor(8) as threads:
        searching = [threads.submit(search, searcher) for searcher in range(8)]
        try:
            for _ in range(4):
                large_store.vector_lane.evict("room for a model")
                large_store.vector_lane.restore()
        finally:
            over.set()
    fallbacks = set().union(*(one.result() for one in searching))
    assert fallbacks <= {None, "evicted: room for a model"}
    assert "evicted: room for a model" in fallbacks


def test_a_search_finds_the_same_as_before_once_the_lane_is_back(large_store):
    questions = [question_about(number) for number in range(0, 20_000, 1_000)]
    before = [large_store.search(question) for question in questions]

    large_store.vector_lane.evict("room for a model")
    meanwhile = [large_store.search(question) for question in questions]
    large_store.vector_lane.restore()

    assert {hits.fallback for hits in meanwhile} == {"evicted: room for a model"}
    assert [large_store.search(question) for question in questions] == before


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_words_decide_while_the_lane_is_out_and_the_hits_say_so(store, mode):
    store.vector_lane.evict("room for a model")

    hits = store.search("voles under the snow", mode=mode)

    assert [hit.title for hit in hits] == ["Foxes"]
    assert (hits[0].fallback, hits[0].vector) == ("evicted: room for a model", None)
    assert store.search("nothing of that", mode=mode).fallback == "evicted: room for a model"
    assert store.search("voles under the snow", mode="lexical").fallback is None


def test_what_is_added_while_the_lane_is_out_does_not_bring_it_back_and_is_found(store):
    lane = store.vector_lane
    lane.evict("room for a model")
    store.add(passages(range(300)))

    assert store.search(question_about(7))[0].passage.source == "7"
    assert lane.resident_bytes == 0
    assert lane.needed_bytes >= 300 * 256 * 4

    lane.restore()
    (best, *_) = store.search(question_about(7), mode="vector")
    assert (best.passage.source, best.fallback) == ("7", None)
    assert lane.resident_bytes == lane.needed_bytes


def test_a_lane_that_grows_out_of_the_budget_goes_and_stays_away(store):
    async def main():
        budget = budget_of(300 * 256 * 4, tracer=Tracer())
        async with budget.opened():
            budget.admit_guest(store.vector_lane)
            assert store.search("voles under the snow").fallback is None

            await asyncio.to_thread(store.add, passages(range(600)))
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
