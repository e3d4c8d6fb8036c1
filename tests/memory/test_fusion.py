from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory import convex_combination, min_max, reciprocal_rank_fusion

# Quarters, so that ties occur and no rounding does.
scores = st.dictionaries(
    st.integers(1, 20), st.integers(-40, 40).map(lambda quarters: quarters / 4), max_size=12
)


@given(scores=scores)
def test_min_max_keeps_the_order_and_spans_0_to_1(scores):
    scaled = min_max(scores)

    assert scaled.keys() == scores.keys()
    for one, other in pairwise(sorted(scores, key=scores.__getitem__)):
        assert (scores[one] < scores[other]) == (scaled[one] < scaled[other])
    if len(set(scores.values())) > 1:
        assert (min(scaled.values()), max(scaled.values())) == (0, 1)


def test_min_max_gives_equals_1():
    assert min_max({3: 0.7}) == {3: 1}
    assert min_max({3: -2, 4: -2}) == {3: 1, 4: 1}


@given(lexical=scores, vector=scores, weight=st.sampled_from([0, 0.25, 0.5, 1]))
def test_convex_combination_is_the_weighted_sum(lexical, vector, weight):
    fused = convex_combination(lexical, vector, weight=weight)

    assert fused.keys() == lexical.keys() | vector.keys()
    for sequence, score in fused.items():
        naive = 0.0
        for lane, share in ((lexical, weight), (vector, 1 - weight)):
            if sequence in lane:
                spread = max(lane.values()) - min(lane.values())
                scaled = (lane[sequence] - min(lane.values())) / spread if spread else 1
                naive += share * scaled
        assert score == pytest.approx(naive)


@given(lexical=scores, vector=scores, k=st.integers(0, 100))
def test_reciprocal_rank_fusion_is_the_sum_of_reciprocal_ranks(lexical, vector, k):
    fused = reciprocal_rank_fusion(lexical, vector, k=k)

    assert fused.keys() == lexical.keys() | vector.keys()
    for sequence, score in fused.items():
        naive = 0.0
        for lane in (lexical, vector):
            if sequence in lane:
                # A rank is one more than how many come before; of equals, the older does.
                ahead = sum((-s, n) < (-lane[sequence], sequence) for n, s in lane.items())
                naive += 1 / (k + ahead + 1)
        assert score == pytest.approx(naive)


def test_reciprocal_rank_fusion_by_hand():
    fused = reciprocal_rank_fusion({1: 9.0, 2: 5.0}, {2: 0.8, 3: 0.1})

    assert fused == {1: 1 / 61, 2: 1 / 62 + 1 / 61, 3: 1 / 62}
