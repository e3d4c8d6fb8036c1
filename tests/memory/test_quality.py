"""Retrieval quality with the defaults, on a collection that is not in the repository."""

import pytest
from judged_collection import CRANFIELD, JudgedCollection, ndcg

from harness.memory import MemoryStore, reciprocal_rank_fusion


@pytest.mark.slow
@pytest.mark.skipif(not CRANFIELD.exists(), reason=f"no Cranfield collection at {CRANFIELD}")
def test_both_lanes_together_find_better_than_either_and_than_by_their_ranks(tmp_path, embedder):
    collection = JudgedCollection.read(CRANFIELD)

    with MemoryStore.open(tmp_path, embedder=embedder) as store:
        store.add(collection.passages)
        lexical = collection.ndcg_at_10(store, "lexical")
        vector = collection.ndcg_at_10(store, "vector")
        hybrid = collection.ndcg_at_10(store, "hybrid")
    with MemoryStore.open(tmp_path, embedder=embedder, fusion=reciprocal_rank_fusion) as store:
        by_rank = collection.ndcg_at_10(store, "hybrid")

    assert lexical >= 0.365
    assert vector == pytest.approx(0.329, abs=0.005)
    assert hybrid >= 0.385
    assert hybrid > max(lexical, vector, by_rank)


@pytest.mark.parametrize(
    ("gains", "ideal", "expected"),
    [
        # The example that is usual for it: 6.861 of at most 7.141.
        pytest.param([3, 2, 3, 0, 1, 2], [3, 3, 2, 2, 1, 0], 0.961, id="six documents"),
        pytest.param([0, 0], [1], 0.0, id="nothing relevant found"),
        pytest.param([1], [1], 1.0, id="all there is"),
        pytest.param([0] * 10 + [1], [1], 0.0, id="below the tenth"),
    ],
)
def test_ndcg_is_as_published(gains, ideal, expected):
    assert ndcg(gains, ideal) == pytest.approx(expected, abs=0.0005)
