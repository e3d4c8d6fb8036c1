from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory.fusion import (
    contenders,
    convex_combination,
    min_max,
    reciprocal_rank_fusion,
)

# Quarters, so that ties occur and no rounding does.
scores = st.dictionaries(
    st.integers(1, 20), st.integers(-40, 40).map(lambda quarters: quarters / 4), max_size=12
)
bm25 = st.dictionaries(st.integers(1, 20), st.integers(0, 80).map(lambda n: n / 4), max_size=12)
cosines = st.dictionaries(st.integers(1, 20), st.integers(-8, 8).map(lambda n: n / 8), max_size=12)


@given(scores=scores)
def test_min_max_keeps_the_order_and_ends_at_1(scores):
    scaled = min_max(scores, least=-10)

    assert scaled.keys() == scores.keys()
    for one, other in pairwise(sorted(scores, key=scores.__getitem__)):
        assert (scores[one] < scores[other]) == (scaled[one] < scaled[other])
    if scores and max(scores.values()) > -10:
        assert 0 <= min(scaled.values()) <= max(scaled.values()) == 1


def test_min_max_of_the_least_that_there_can_be_is_0():
    assert min_max({3: -1.0, 4: 1.0}, least=-1) == {3: 0, 4: 1}
    assert min_max({3: 0.0}, least=0) == {3: 0}
    assert min_max({}, least=0) == {}


@given(lexical=bm25, vector=cosines, weight=st.sampled_from([0, 0.25, 0.5, 1]))
def test_convex_combination_is_the_weighted_sum(lexical, vector, weight):
    fused = convex_combination(lexical, vector, weight=weight)

    assert fused.keys() == lexical.keys() | vector.keys()
    for sequence, score in fused.items():
        naive = 0.0
        if sequence in lexical and lexical[sequence] > 0:
            naive += weight * lexical[sequence] / max(lexical.values())
        if sequence in vector and vector[sequence] > -1:
            naive += (1 - weight) * (vector[sequence] + 1) / (max(vector.values()) + 1)
        assert score == pytest.approx(naive)
        assert 0 <= score <= 1


@given(lexical=bm25, vector=cosines, worse=bm25)
def test_what_else_was_proposed_changes_no_score(lexical, vector, worse):
    """As long as it is no better than the best."""
    best = max(lexical.values(), default=0)
    more = {**{n: min(s, best) for n, s in worse.items()}, **lexical}

    fewer, all_of_them = (convex_combination(some, vector) for some in (lexical, more))

    assert {n: all_of_them[n] for n in lexical} == {n: fewer[n] for n in lexical}


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
        assert score == pytest.approx(naive * (k + 1) / 2)


def test_reciprocal_rank_fusion_by_hand():
    fused = reciprocal_rank_fusion({1: 9.0, 2: 5.0}, {2: 0.8, 3: 0.1})

    expected = {1: 1 / 61, 2: 1 / 62 + 1 / 61, 3: 1 / 62}
    assert fused == pytest.approx({n: score * 61 / 2 for n, score in expected.items()})
    assert reciprocal_rank_fusion({1: 9.0}, {1: 0.5}) == {1: 1.0}


@pytest.mark.parametrize("fusion", [convex_combination, reciprocal_rank_fusion])
@given(words=bm25.filter(len), meaning=cosines, depth=st.integers(1, 4), count=st.integers(1, 6))
def test_who_is_no_contender_would_change_nothing_by_its_words(
    fusion, words, meaning, depth, count
):
    proposed = dict(sorted(words.items(), key=lambda one: (-one[1], one[0]))[:depth])
    asked = contenders(proposed, meaning, fusion=fusion, count=count)
    assert not proposed.keys() & set(asked)

    def best(lexical):
        return sorted(fusion(lexical, meaning).values(), reverse=True)[:count]

    everything = proposed | {n: words[n] for n in meaning if n in words}
    assert best(proposed | {n: words[n] for n in asked if n in words}) == best(everything)
