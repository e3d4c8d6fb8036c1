"""The store as its users see it: both indexes, writing, and the work that goes on behind it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from judged_collection import CRANFIELD, JudgedCollection, ndcg
from stored import Letters, failing
from structlog.testing import capture_logs

from harness.errors import EndpointUnreachable, InvalidInput, MemoryStoreFailed
from harness.memory import MemoryStore, Mode, Passage, PrimaryStore, StoreUrl, Turn
from harness.memory.lexical import LexicalIndex
from harness.memory.upkeep import Upkeep
from harness.memory.vector_index import VectorIndex

MODES = ("hybrid", "lexical", "vector")
HIDDEN = "invoice\u202efdp.exe"
STORY = "The lighthouse keeper counted ships until the fog came in and the lamp went out"


def titles(hits):
    return [hit.title for hit in hits]


class Compass:
    """Two directions, by what a text has in it; counts what it is asked."""

    name = "compass"
    dimensions = 2

    def __init__(self):
        self.asked = 0

    def embed(self, texts):
        self.asked += len(texts)
        return np.array([[0, 1] if "far" in text else [1, 0] for text in texts], dtype=np.float32)


# --- searching -------------------------------------------------------------------------------


def test_each_mode_finds_the_passage_that_answers(store):
    for mode in MODES:
        hits = store.search("what does an otter do with shells", mode=mode)
        assert titles(hits)[0] == "Otters"
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        assert hits.fallback is None
        assert store.search("mortgage interest rates for buyers of houses", mode=mode) == []
        assert store.search("", mode=mode) == store.search(" \n\t", mode=mode) == []


def test_hits_carry_both_indexes_scores_and_the_fused_one(store):
    best, *_ = store.search("an otter cracks shells")
    (lexical,) = store.search("shells", mode="lexical")
    vector, *_ = store.search("cracks shells", mode="vector")

    assert (best.id, best.text) == (best.passage.id, best.passage.text)
    assert best.lexical > 0
    assert 0 < best.vector <= 1
    assert best.fused == pytest.approx(1)  # the first of both indexes
    assert best.score == pytest.approx(0.7 + 0.3 * 0.5)  # nobody judged it
    assert lexical.vector is vector.lexical is None
    assert lexical.fused == vector.fused == 1


def test_what_the_words_propose_has_a_cosine_too(place):
    with MemoryStore.open(place, embedder=Compass()) as store:
        store.add([Passage(text="a far zebra")])
        store.add(Passage(text=f"near number {number}") for number in range(200))

        assert store.search("zebra")[0].vector == 0


def test_without_merging_what_says_the_same_is_stored_twice(place, embedder):
    with MemoryStore.open(place, embedder=embedder, merge=False) as store:
        added = store.add([Passage(text=STORY), Passage(text=f"{STORY}\n")])
        # Of equals, the older comes first.
        assert tuple(hit.id for hit in store.search(STORY)) == added.new


def test_a_filter_binds_both_indexes(place, embedder):
    with MemoryStore.open(place, embedder=embedder) as store:
        assert [store.search("anything", mode=mode) for mode in MODES] == [[], [], []]
        store.add(Passage(text=f"Otters swim, day {n}.", metadata={"day": n}) for n in range(9))
        for mode in MODES:
            hits = store.search("otters swim", mode=mode, where={"day": [3, 5]}, limit=9)
            assert {hit.passage.metadata["day"] for hit in hits} == {3, 5}
            both = {"day": [3, 5], "title": ["", "Otters"], "source": ""}
            assert len(store.search("otters swim", mode=mode, where=both, limit=9)) == 2
        assert store.search("otters swim", where={"day": [3], "title": "Otters"}) == []
        assert store.search("otters swim", where={"day": "3"}) == []


def test_a_range_binds_both_indexes_and_only_numbers(place, embedder):
    years = [2023, 2024, 2024.5, 2025, "2024", True]
    with MemoryStore.open(place, embedder=embedder) as store:
        store.add(
            Passage(text=f"Otters, report {n}", id=str(n), metadata={"year": year})
            for n, year in enumerate(years)
        )
        for mode in get_args(Mode):
            for where, expected in (
                ({">=": 2024, "<": 2025}, {"1", "2"}),
                ({">": 2024}, {"2", "3"}),
                ({"<=": 2023}, {"0"}),
                ({">": 3000}, set()),
            ):
                hits = store.search("otters", limit=9, mode=mode, where={"year": where})
                assert {hit.id for hit in hits} == expected
                assert hits.none_match == (not expected)


def test_age_counts_where_a_half_life_is_given(place, embedder):
    now = datetime.now(UTC)
    with MemoryStore.open(place, embedder=embedder, merge=False) as store:
        store.add(
            Passage(text="Otters float", id=str(days), created=now - timedelta(days))
            for days in (300, 30, 0)
        )
        plain = store.search("otters float", limit=3)
        aged = store.search("otters float", limit=3, half_life_days=30)
        assert [hit.id for hit in plain] == ["300", "30", "0"], "of equals, the older first"
        assert [hit.id for hit in aged] == ["0", "30", "300"]
        new, month, _ = (hit.score - 0.15 for hit in aged)  # of unknown quality
        assert month == pytest.approx(new / 2, rel=0.05)


def test_a_turn_and_a_documents_passage_have_neighbors(place, embedder):
    turns = [
        Passage(text="Yes.", turn=Turn(conversation=name, position=n, speaker="Ann"))
        for n in (3, 1, 2)
        for name in ("a", "b")
    ]
    document = [Passage(text=f"Part {n}", source="a.md") for n in range(4)]
    alone = Passage(text="a note")
    with MemoryStore.open(place, embedder=embedder) as store:
        assert len(store.add([*turns, *document, alone]).new) == len({*turns, *document, alone})
        first = next(t for t in turns if t.turn.position == 1 and t.turn.conversation == "b")
        around = store.neighbors(first)
        assert [p.turn for p in around] == [first.turn, replace(first.turn, position=2)]
        assert len(store.neighbors(first, count=10**9)) == 3
        assert [p.text for p in store.neighbors(document[2])] == ["Part 1", "Part 2", "Part 3"]
        assert store.neighbors(document[0], count=9)[-1].text == "Part 3"
        assert store.neighbors(alone) == [alone]
        with failing(InvalidInput, "memory.count-negative"):
            store.neighbors(document[2], count=-1)
        (hit,) = store.search(
            "ann", limit=1, where={"conversation": "a", "position": {">": 2}, "speaker": "Ann"}
        )
        assert hit.passage.turn == Turn(conversation="a", position=3, speaker="Ann")


class Slow(Letters):
    """Embeds in the background, once it may."""

    name = "slow"
    in_background = True

    def __init__(self):
        self.may = Event()

    def embed(self, texts):
        assert self.may.wait(60)
        return super().embed(texts)


def test_what_is_added_does_not_wait_for_the_vectors_of_a_slow_embedder(place):
    embedder, progress = Slow(), []
    embedder.may.set()
    passages = [Passage(text=f"apples, number {n}") for n in range(40)]
    with MemoryStore.open(
        place, embedder=embedder, progress=lambda *p: progress.append(p)
    ) as store:
        store.add(passages)
        assert store.wait()
        assert progress[-1] == ("embedding passages", 40, 40)
        few = [Passage(text=f"cherries, number {n}") for n in range(16)]
        store.add(few)  # takes a moment: they have their vectors at once
        assert store.stats().unembedded == 0
        embedder.may.clear()
        new = Passage(text="apples and pears")
        store.add([new, *(Passage(text=f"plums, number {n}") for n in range(16))])
        # Words find it already; the others are found by meaning meanwhile.
        assert store.search("pears", mode="lexical")[0].id == new.id
        assert store.stats().unembedded == 17
        embedder.may.set()
        assert store.wait()
        assert store.novelty([new.text]) == pytest.approx(0, abs=1e-3)
        assert store.search("x", mode="vector", limit=90).fallback is None


def test_a_limit_may_be_a_small_number_of_numpy(store):
    assert store.search("otters", limit=np.uint8(100))[0].title == "Otters"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"limit": 0}, "memory.limit-not-positive"),
        ({"limit": "3"}, "memory.limit-not-positive"),
        ({"limit": 2.5}, "memory.limit-not-positive"),
        ({"mode": "lexicl"}, "memory.unknown-mode"),
        ({"half_life_days": 0}, "memory.half-life-not-positive"),
        ({"half_life_days": "30"}, "memory.half-life-not-positive"),
        ({"half_life_days": float("inf")}, "memory.half-life-not-positive"),
        ({"where": {"year": {"=": 1}}}, "filter.range"),
    ],
    ids=[
        "no hits",
        "a text",
        "not whole",
        "an unknown mode",
        "no half-life",
        "no number",
        "no end",
        "no comparison",
    ],
)
def test_what_cannot_be_asked_is_refused(store, options, code):
    with failing(InvalidInput, code):
        store.search("otters", **options)


@pytest.mark.slow
@pytest.mark.skipif(not CRANFIELD.exists(), reason=f"no Cranfield collection at {CRANFIELD}")
def test_both_indexes_together_find_better_than_either(place, embedder):
    collection = JudgedCollection.read(CRANFIELD)

    with MemoryStore.open(place, embedder=embedder) as store:
        store.add(collection.passages)
        lexical, vector, hybrid = (
            collection.ndcg_at_10(store, mode) for mode in ("lexical", "vector", "hybrid")
        )

    assert lexical >= 0.365
    assert vector == pytest.approx(0.329, abs=0.005)
    assert hybrid >= 0.38
    assert hybrid > max(lexical, vector)
    # The example that is usual for it: 6.861 of at most 7.141.
    assert ndcg([3, 2, 3, 0, 1, 2], [3, 3, 2, 2, 1, 0]) == pytest.approx(0.961, abs=0.0005)


# --- writing ---------------------------------------------------------------------------------


def test_each_passage_that_is_added_has_one_end(store, animals):
    otters = animals[0]
    there = Passage(text=STORY, quality=4, metadata={"a": 1})
    store.add([there])
    again = Passage(text=f"{STORY}\n", quality=8, metadata={"a": 2, "b": 3})
    new = Passage(text="Badgers dig setts.")

    added = store.add([otters, again, new, new, Passage(text=HIDDEN, title="News")])

    assert added.known == (otters.id, new.id)
    assert added.new == (new.id,)
    assert [(m.id, m.into) for m in added.merged] == [(again.id, there.id)]
    (refused,) = added.refused
    assert (refused.title, refused.code) == ("News", "injection.hidden-characters")
    assert len(store) == len(animals) + 2
    assert store.add([]).new == ()


def test_a_guard_of_ones_own_keeps_passages_out(tmp_path, embedder):
    def guard(passage):
        return "too long" if len(passage.text) > 20 else None

    with MemoryStore.open(tmp_path / "m", embedder=embedder, guard=guard) as store:
        added = store.add(
            [Passage(text="Otters float."), Passage(text="They float on their back.")]
        )
        (refused,) = added.refused
        assert (refused.code, refused.reason) == ("passage.guard-refused", "too long")
        assert (len(added.new), len(store)) == (1, 1)


def test_what_is_deleted_or_comes_again_is_found_by_what_it_says_now(store, animals):
    otters, herons, *_ = animals
    assert store.delete(otters.id, herons.id, "nobody") == 2
    store.add([Passage(id=otters.id, title="Beavers", text="They fell trees and build dams.")])

    assert store.get(herons.id) is None
    for mode in MODES:
        assert titles(store.search("who builds dams of trees", mode=mode))[:1] == ["Beavers"]
        assert "Otters" not in titles(store.search("otters crack shells", mode=mode))
        assert "Herons" not in titles(store.search("waits in shallow water", mode=mode))
    assert len(store) == len(animals) - 1


def test_novelty_is_10_for_what_nobody_said_and_0_for_what_is_there(store, animals):
    assert store.novelty([animals[0].searchable]) == pytest.approx(0, abs=1e-3)
    assert store.novelty(["Mortgage interest rates rose again."]) > 9
    mixed = store.novelty([animals[0].searchable, "Mortgage interest rates rose again."])
    assert 4.5 < mixed <= 5


def test_the_statistics_say_what_is_there(place, store, animals):
    stats = store.stats()
    on_server = store._primary.database.size_bytes()

    assert (stats.passages, stats.unembedded, stats.dimensions) == (
        len(animals),
        0,
        store._embedder.dimensions,
    )
    assert stats.language == "english"
    assert (on_server > 0) == (place != store._primary.directory)
    assert stats.disk_bytes > on_server  # files are here in both cases
    assert stats.vector_bytes >= len(animals) * store._embedder.dimensions * 4


# --- surviving -------------------------------------------------------------------------------


def test_reopening_finds_everything_even_without_the_lexical_index(place, store, embedder):
    before = {mode: store.search("hunting in water", mode=mode) for mode in MODES}
    store.close()
    with failing(MemoryStoreFailed, "memory.store-closed"):
        store.search("otters")
    for _ in range(2):
        with MemoryStore.open(place, embedder=embedder) as reopened:
            found = {mode: reopened.search("hunting in water", mode=mode) for mode in MODES}
            assert found == before
        shutil.rmtree(store._primary.directory / "lexical")


def test_the_lexical_index_is_made_again_when_that_is_asked_for(store):
    told = []
    before = store.search("otters")
    store.rebuild(lambda what, done, total: told.append((what, done, total)))

    assert store.search("otters") == before
    assert told


def test_a_rebuild_embeds_each_passage_once_and_says_why_it_cannot(place, store):
    calls = []

    def embed(texts):
        calls.extend(texts)
        time.sleep(0.3 / (embedding.name != "fails"))  # longer than the words take
        return np.ones((len(texts), 2))

    store.close()
    embedding = SimpleNamespace(name="other", dimensions=2, embed=embed, in_background=True)
    with MemoryStore.open(place, embedder=embedding) as reopened:
        reopened.rebuild()
        assert (len(calls), reopened.stats().unembedded) == (4, 0)
    embedding.name = "fails"
    with MemoryStore.open(place, embedder=embedding) as again, pytest.raises(ZeroDivisionError):
        again.rebuild()


def test_compacting_loses_nothing_and_makes_no_index_again(store, animals):
    directory = store._primary.directory
    store.delete(animals[3].id)
    before = store.search("hunting voles")
    made = (directory / "lexical").stat().st_ino
    store.compact()

    assert store.search("hunting voles") == before
    assert store.search("a log of pages", mode="lexical") == []
    assert len(store) == len(animals) - 1
    assert (directory / "lexical").stat().st_ino == made  # a new one has a directory of its own


@pytest.mark.slow
def test_what_was_acknowledged_outlives_its_killed_writers(tmp_path):
    # make test-nightly kills 200 times.
    script = Path(__file__).with_name("kill_and_reopen.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "12"], capture_output=True, check=False
    )
    tally = json.loads(done.stdout)

    assert tally["faults"] == []
    assert tally["kills"] == 12
    assert tally["acknowledged_writes"] > 0


def test_another_open_store_sees_what_was_written(place, store, embedder):
    with MemoryStore.open(place, embedder=embedder) as other:
        other.search("otters")
        store.add([Passage(text="Badgers dig setts.", title="Badgers")])
        if isinstance(place, StoreUrl):
            assert other.wait(30)

        for mode in MODES:
            assert titles(other.search("badgers", mode=mode, limit=1)) == ["Badgers"]


# --- when vectors are missing ----------------------------------------------------------------


def test_what_another_embedder_embedded_is_embedded_anew_in_the_background(place, store):
    store.close()
    compass = Compass()
    with MemoryStore.open(place, embedder=compass) as other:
        assert other.wait(30)
        hits = other.search("shells", mode="hybrid")

        assert hits.fallback is None
        assert hits[0].vector == 1
        assert other.stats().unembedded == 0
    asked = compass.asked
    # Both embedders' vectors are kept: nobody embeds anything again.
    with MemoryStore.open(place, embedder=compass) as again:
        assert again.search("shells", mode="lexical")
        assert compass.asked == asked


class Unreachable(Compass):
    name = "unreachable"

    def embed(self, _texts):
        raise EndpointUnreachable("nobody is there", endpoint="words")


def test_an_embedder_that_cannot_be_reached_leaves_the_words(place, store):
    store.close()
    with MemoryStore.open(place, embedder=Unreachable()) as other:
        assert not other.wait(30)
        for mode in ("hybrid", "vector"):
            hits = other.search("shells", mode=mode)
            assert titles(hits) == ["Otters"]
            assert "still to be embedded" in hits.fallback
            assert hits[0].vector is None
            assert other.search("nothing of this kind", mode=mode).fallback == hits.fallback
        assert other.search("shells", mode="lexical").fallback is None
        with pytest.raises(EndpointUnreachable):
            other.add([Passage(text="Badgers dig setts.")])
        assert len(other) == 4


class OneByOne(Compass):
    def embed(self, texts):
        if len(texts) > 1:
            raise EndpointUnreachable("too much for one request", endpoint="words")
        return super().embed(texts)


def test_novelty_is_refused_while_passages_have_no_vectors(place, store):
    store.close()
    with MemoryStore.open(place, embedder=OneByOne()) as other:
        assert not other.wait(30)
        with failing(MemoryStoreFailed, "memory.lane-away"):
            other.novelty(["x"])


class NeverDone(VectorIndex):
    """Each turn of the work ends at once, and leaves a passage to the next."""

    def embed_missing(self, *, stop, **_options):
        stop.wait(0.001)


def test_a_wait_has_one_time_limit_for_all_turns_of_the_work(tmp_path):
    embedder, primary = Compass(), PrimaryStore.open(tmp_path)
    primary.add([(Passage(text="far"), None)], embedder=None)
    lexical = LexicalIndex(tmp_path / "lexical", primary)
    vector = NeverDone(primary, embedder)
    options = {"embedder": embedder, "merge": True, "guard": None, "progress": None}
    with MemoryStore(primary, lexical, vector, **options) as store:
        assert not store.wait(0.05)


# --- threads ---------------------------------------------------------------------------------


def test_threads_write_and_find_what_they_wrote(place, embedder):
    async def all_at_once(store):
        async def add_and_find(number):
            passage = Passage(text=f"the number {number}", title=f"word{number}")
            added = await asyncio.to_thread(store.add, [passage])
            assert added.new == (passage.id,)
            hits = await asyncio.to_thread(store.search, f"word{number}", limit=1)
            assert hits[0].id == passage.id

        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(add_and_find(number))

    with MemoryStore.open(place, embedder=embedder) as store:
        asyncio.run(all_at_once(store))
        assert len(store) == 8


def test_closing_while_threads_search_harms_nobody(store):
    codes = []

    def look():
        try:
            while True:
                store.search("otters")
        except MemoryStoreFailed as error:
            codes.append(error.code)

    threads = [Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.close()
    for thread in threads:
        thread.join(30)
    assert codes == ["memory.store-closed"] * 4


# --- upkeep ----------------------------------------------------------------------------------


class Work:
    """Goes on until it is let go; counts how often it began."""

    def __init__(self, raises=None):
        self.begun, self.may_end = Event(), Event()
        self.times = 0
        self.raises = raises

    def __call__(self, stop):
        self.times += 1
        self.begun.set()
        while not (stop.is_set() or self.may_end.wait(0.01)):
            pass
        if self.raises is not None:
            raise self.raises


def test_what_fails_is_a_warning_and_is_left_alone_for_a_while():
    work = Work(raises=ConnectionError("nobody is there"))
    work.may_end.set()
    upkeep = Upkeep(work)
    with capture_logs() as logs:
        for _ in range(2):
            upkeep.start()
            assert upkeep.wait(30)

    assert work.times == 1
    (warning,) = logs
    assert (warning["log_level"], warning["code"]) == ("warning", "memory.upkeep-stopped")
    assert (warning["error"], warning["reason"]) == ("ConnectionError", "nobody is there")


def test_closing_ends_it_for_good_and_what_that_breaks_is_no_warning():
    work = Work(raises=RuntimeError("the store is closed"))
    upkeep = Upkeep(work)
    upkeep.start()
    assert work.begun.wait(30)
    with capture_logs() as logs:
        upkeep.close()

    assert upkeep.wait(0)
    upkeep.start()
    assert work.times == 1
    assert logs == []


ENDING = """
from threading import Event
from harness.memory.upkeep import Upkeep

def work(stop):
    begun.set()
    stop.wait()
    print("kept what was finished", flush=True)

begun = Event()
Upkeep(work).start()
begun.wait()
"""


@pytest.mark.slow
def test_the_interpreters_end_stops_it_and_waits_for_what_it_has_to_say():
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=True
    )

    assert (ended.stdout, ended.stderr) == ("kept what was finished\n", "")


MANY = """
import random, tempfile
from pathlib import Path
from harness.memory import MemoryStore, Passage

def resident_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3

for count in range(25):
    with tempfile.TemporaryDirectory() as directory, MemoryStore.open(directory) as store:
        for _ in range(3):
            store.add([Passage(text=str(random.random())) for _ in range(5)])
            store.search("otter")
    if count == 1:
        before = resident_mb()
print(resident_mb() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_stores_that_were_closed_leave_nothing_in_memory():
    # One arena: those that glibc makes for threads keep up to 90 MB, however few are in use.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MANY], capture_output=True, text=True, check=True, env=environment
    )
    assert float(done.stdout) < 10
