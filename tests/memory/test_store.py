import asyncio
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory import MemoryStore, Passage, reciprocal_rank_fusion

MODES = ["hybrid", "lexical", "vector"]


def titles(hits):
    return [hit.passage.title for hit in hits]


@pytest.mark.parametrize("mode", MODES)
def test_the_passage_that_answers_comes_first_and_whole(store, animals, mode):
    hits = store.search("floating on the back", mode=mode)

    assert hits[0].passage == animals[0]
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert [hit.score for hit in hits] == sorted((h.score for h in hits), reverse=True)


@pytest.mark.parametrize("mode", MODES)
def test_titles_count(store, mode):
    assert titles(store.search("heron", limit=1, mode=mode)) == ["Herons"]


def test_a_hit_carries_the_scores_of_both_lanes(store):
    otters, *others = store.search("shells")

    assert otters.lexical > 0
    assert otters.score == 1  # the best in both lanes
    for hit in others:  # no other has the word, and all have a cosine
        assert hit.lexical is None
        assert -1 <= hit.vector < otters.vector


def test_what_only_the_words_find_gets_its_cosine_too(tmp_path):
    class Compass:
        name = "compass"
        dimensions = 2

        def embed(self, texts):
            directions = [[0, 1] if "zebra" in text and "far" in text else [1, 0] for text in texts]
            return np.array(directions, dtype=np.float32)

    with MemoryStore.open(tmp_path, embedder=Compass()) as store:
        store.add([Passage(text="far zebra")])
        store.add(Passage(text=f"near {number}") for number in range(200))
        found = store.search("zebra")[0]

    assert found.passage.text == "far zebra"
    assert found.vector == 0


def test_one_lane_alone_leaves_the_other_out(store):
    (lexical,) = store.search("shells", mode="lexical")
    vector, *_ = store.search("shells", mode="vector")

    assert lexical.score == lexical.lexical
    assert lexical.vector is None
    assert vector.score == vector.vector
    assert vector.lexical is None


def test_the_fusion_can_be_another(tmp_path, embedder, animals):
    with MemoryStore.open(tmp_path, embedder=embedder, fusion=reciprocal_rank_fusion) as store:
        store.add(animals)
        assert store.search("shells")[0].score == pytest.approx(2 / 61)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory, embedder, animals):
    with MemoryStore.open(tmp_path_factory.mktemp("store"), embedder=embedder) as opened:
        opened.add(animals)
        yield opened


@settings(deadline=None)  # it reads a disk
@given(
    # With halves of surrogate pairs, which models do produce.
    query=st.lists(st.characters() | st.sampled_from("\ud83d\ude00")).map("".join),
    mode=st.sampled_from(MODES),
    limit=st.integers(1, 5),
)
def test_any_text_is_a_query(shared_store, query, mode, limit):
    hits = shared_store.search(query, limit=limit, mode=mode)

    assert len(hits) <= min(limit, len(shared_store))
    assert bool(hits) == bool(query.strip()) or mode == "lexical"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("query", ["", " \n\t"])
def test_a_blank_query_finds_nothing(store, query, mode):
    assert store.search(query, mode=mode) == []


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_store_finds_nothing(tmp_path, embedder, mode):
    with MemoryStore.open(tmp_path, embedder=embedder) as store:
        assert len(store) == 0
        assert store.search("anything", mode=mode) == []


def test_the_same_passage_is_stored_once(store, animals):
    otters = animals[0]
    judged = Passage(text=otters.text, title=otters.title, source=otters.source, quality=3)
    new = Passage(text="Badgers dig setts.")

    assert store.add([judged, new, new]) == 1
    assert store.add([judged, new]) == 0
    assert len(store) == len(animals) + 1
    assert titles(store.search("otters badgers", mode="lexical")).count("Otters") == 1
    assert store.search("otters")[0].passage.quality is None


def test_adding_nothing_is_fine(store):
    assert store.add([]) == 0


def test_a_limit_below_1_is_refused(store):
    with pytest.raises(InvalidInput, match="at least 1"):
        store.search("otters", limit=0)


def test_an_unknown_mode_is_refused_with_the_nearest(store):
    with pytest.raises(InvalidInput, match="did you mean 'lexical'"):
        store.search("otters", mode="lexicl")


def test_reopening_finds_everything(tmp_path, store, embedder):
    before = {mode: store.search("hunting in water", mode=mode) for mode in MODES}
    store.close()

    with MemoryStore.open(tmp_path, embedder=embedder) as reopened:
        assert {mode: reopened.search("hunting in water", mode=mode) for mode in MODES} == before


def test_what_only_the_truth_had_is_caught_up_at_reopening(tmp_path, store, embedder):
    store.search("otters")  # the lanes have read the animals
    store.add([Passage(text="Badgers dig setts.", title="Badgers")])  # and not this
    store.close()

    with MemoryStore.open(tmp_path, embedder=embedder) as reopened:
        for mode in MODES:
            assert titles(reopened.search("badgers", limit=1, mode=mode)) == ["Badgers"]


def test_a_store_without_its_lexical_lane_is_whole_again_at_reopening(tmp_path, store, embedder):
    before = store.search("otters")
    store.close()
    shutil.rmtree(tmp_path / "lexical")

    with MemoryStore.open(tmp_path, embedder=embedder) as reopened:
        assert reopened.search("otters") == before


KILLED = """
import os, signal, sys
from harness.memory import MemoryStore, Passage
store = MemoryStore.open(sys.argv[1])
store.add([Passage(text="Badgers dig setts.", title="Badgers")])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_added_survives_a_killed_process(tmp_path, embedder):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)

    with MemoryStore.open(tmp_path, embedder=embedder) as store:
        assert titles(store.search("badgers")) == ["Badgers"]


def test_a_store_of_another_embedder_does_not_open(tmp_path, store):
    class Other:
        name = "other"
        dimensions = 256

        def embed(self, texts):
            raise NotImplementedError

    store.close()
    with pytest.raises(MemoryStoreFailed, match=r"by 'wordllama.*open it with the first"):
        MemoryStore.open(tmp_path, embedder=Other())


def test_a_closed_store_says_so(store):
    store.close()

    with pytest.raises(MemoryStoreFailed, match="closed"):
        store.search("otters")


def test_threads_take_turns(tmp_path, embedder):
    async def all_at_once(store):
        async def add_and_find(number):
            passage = Passage(text=f"the number {number}", title=f"word{number}")
            assert await asyncio.to_thread(store.add, [passage]) == 1
            hits = await asyncio.to_thread(store.search, f"word{number}", limit=1)
            assert hits[0].passage == passage

        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(add_and_find(number))

    with MemoryStore.open(tmp_path, embedder=embedder) as store:
        asyncio.run(all_at_once(store))
        assert len(store) == 20
