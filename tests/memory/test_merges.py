"""What becomes of passages that say the same: kept beside the one that is there, and had back."""

from datetime import UTC, datetime

import pytest
from stored import Letters, failing

from harness.errors import InvalidInput
from harness.memory import MemoryStore, Passage

NOW = datetime(2026, 1, 2, tzinfo=UTC)
THERE = Passage(id="a", text="The valve is open.", source="a", quality=4, created=NOW)
SAME = Passage(
    id="b", text="The valve\nis open.", source="b", quality=9, metadata={"k": 1}, created=NOW
)
NEAR = Passage(id="c", text="the valve is open", created=NOW)
CONTRARY = Passage(id="d", text="The valve is not open.", created=NOW)


@pytest.fixture
def opened(place):
    """Opens the store in one way or another."""
    stores = []

    def open_(**options):
        stores.append(MemoryStore.open(place, embedder=Letters(), **options))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def ends(added):
    return added.new, [(one.id, one.into, one.rule) for one in added.merged]


@pytest.mark.parametrize(
    ("options", "new", "merged"),
    [
        ({}, ("a", "c", "d"), [("b", "a", "same")]),
        ({"merge": "near"}, ("a", "d"), [("b", "a", "same"), ("c", "a", "near")]),
        ({"merge": False}, ("a", "b", "c", "d"), []),
    ],
    ids=["by default", "near", "never"],
)
def test_passages_become_one_as_far_as_is_wanted(opened, options, new, merged):
    store = opened(**options)
    assert ends(store.add([THERE, SAME, NEAR, CONTRARY])) == (new, merged)
    assert len(store) == len(new)
    assert store.get("a") == THERE, "as it was: neither its quality nor its source is another's"
    assert [(one.id, one.into, one.rule) for one in store.stats().merges] == merged


def test_what_became_one_is_had_back_as_it_came(opened):
    store = opened(merge="near")
    store.add([THERE, SAME, NEAR])
    assert store.split("b") == store.get("b") == SAME
    assert (len(store), [one.id for one in store.stats().merges]) == (2, ["c"])
    assert store.stats().unembedded == 0
    assert {hit.id for hit in store.search("valve", limit=9)} == {"a", "b"}
    assert store.add([SAME]).known == ("b",), "it does not become one with the other again"
    for id_ in ("b", "a", "nobody", "\ud800"):
        with failing(InvalidInput, "memory.not-merged"):
            store.split(id_)


def test_what_became_one_goes_when_it_or_the_other_is_deleted(opened):
    store = opened(merge="near")
    store.add([THERE, SAME, NEAR])
    assert (store.delete("b"), [one.id for one in store.stats().merges]) == (1, ["c"])
    assert (store.delete("a", "nobody"), store.stats().merges, len(store)) == (1, (), 0)
    assert store.add([NEAR]).new == ("c",)


def test_of_a_merged_passage_the_last_wording_alone_is_kept(opened):
    store = opened()
    store.add([Passage(id="a", text="The valve is open.")])
    store.add([Passage(id="g", text=" The valve is open."), Passage(id="g", text="It is gone")])
    with failing(InvalidInput, "memory.not-merged"):
        store.split("g")


def test_no_other_way_to_merge_is_taken(tmp_path):
    with failing(InvalidInput, "memory.unknown-merge"):
        MemoryStore.open(tmp_path, embedder=Letters(), merge="nearly")


def test_of_equal_titles_no_contradiction_hides_another(opened):
    store = opened()
    store.add(
        [
            Passage(id="old", title="Guideline", text="Aspirin is safe for children.", quality=9),
            Passage(id="new", title="Guideline", text="Aspirin is not safe for children."),
        ]
    )
    assert {hit.id for hit in store.search("is aspirin safe for children")} == {"old", "new"}
