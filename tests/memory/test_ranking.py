"""How two indexes' scores become one, and which passages are hits, in which order."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory.ranking import fuse, is_relevant, min_max, recency, score

# --- fusion ------------------------------------------------------------------------------------

# Quarters, so that ties occur and no rounding does.
scores = st.dictionaries(
    st.integers(1, 20), st.integers(-40, 40).map(lambda quarters: quarters / 4), max_size=12
)
bm25 = st.dictionaries(st.integers(1, 20), st.integers(0, 80).map(lambda n: n / 4), max_size=12)
cosines = st.dictionaries(st.integers(1, 20), st.integers(-8, 8).map(lambda n: n / 8), max_size=12)


@given(scores=scores)
def test_min_max_keeps_the_order_and_ends_at_1(scores):
    scaled = min_max(scores, zero=-10)

    assert scaled.keys() == scores.keys()
    for one, other in pairwise(sorted(scores, key=scores.__getitem__)):
        assert (scores[one] < scores[other]) == (scaled[one] < scaled[other])
    if scores and max(scores.values()) > -10:
        assert 0 <= min(scaled.values()) <= max(scaled.values()) == 1


def test_min_max_of_the_least_that_there_can_be_is_0():
    assert min_max({3: -1.0, 4: 1.0}, zero=-1) == {3: 0, 4: 1}
    assert min_max({3: 0.0}, zero=0) == {3: 0}
    assert min_max({}, zero=0) == {}


@given(lexical=bm25, vector=cosines)
def test_fuse_is_the_mean(lexical, vector):
    fused = fuse(lexical, vector, least_cosine=-1)

    assert fused.keys() == lexical.keys() | vector.keys()
    for sequence, found in fused.items():
        naive = 0.0
        if sequence in lexical and lexical[sequence] > 0:
            naive += 0.5 * lexical[sequence] / max(lexical.values())
        if sequence in vector and vector[sequence] > -1:
            naive += 0.5 * (vector[sequence] + 1) / (max(vector.values()) + 1)
        assert found == pytest.approx(naive)
        assert 0 <= found <= 1


@given(lexical=bm25, vector=cosines, worse=bm25)
def test_what_else_was_proposed_changes_no_score(lexical, vector, worse):
    """As long as it is no better than the best."""
    best = max(lexical.values(), default=0)
    more = {**{n: min(s, best) for n, s in worse.items()}, **lexical}

    fewer, all_of_them = (fuse(some, vector, least_cosine=-1) for some in (lexical, more))

    assert {n: all_of_them[n] for n in lexical} == {n: fewer[n] for n in lexical}


# --- ranking -----------------------------------------------------------------------------------


SCORES = {
    "just good enough": (0.6, 7, 0.7 * 0.6 + 0.3 * 0.7),
    "low, so half": (0.6, 6.8, 0.7 * 0.6 + 0.3 * 0.34),
    "the worst": (0.6, 0, 0.7 * 0.6),
    "never judged": (0.6, None, 0.7 * 0.6 + 0.3 * 0.5),
}


@pytest.mark.parametrize(("fused", "quality", "expected"), SCORES.values(), ids=SCORES)
def test_a_score_is_seven_parts_relevance_and_three_quality(fused, quality, expected):
    assert score(fused, quality) == pytest.approx(expected)


# Of 40, 0.1 is 4; of the way from 0.2 to 1, 0.1 is at 0.28.
FLOORED = {
    "many words, nothing alike": (8.1, 0.1, True),
    "some words, nothing alike": (7.9, 0.1, False),
    "no word, much alike": (None, 0.37, True),
    "a bit of both": (4.1, 0.29, True),
    "too little of both": (3.9, 0.27, False),
    "the other way is no worse than unrelated": (8.1, -1, True),
    "nothing known": (None, None, False),
}


@pytest.mark.parametrize(("lexical", "vector", "relevant"), FLOORED.values(), ids=FLOORED)
def test_the_floor_is_for_words_and_meaning_together(lexical, vector, relevant):
    assert is_relevant(lexical, vector, unrelated=0.2, ceiling=40) is relevant


@pytest.mark.parametrize(("vector", "relevant"), [(0.29, True), (0.27, False)])
def test_meaning_alone_decides_where_no_words_were_asked_for(vector, relevant):
    assert is_relevant(None, vector, unrelated=0.2, ceiling=0) is relevant


@pytest.mark.parametrize(
    ("age", "share"),
    [(timedelta(0), 1), (timedelta(days=30), 0.5), (timedelta(days=60), 0.25), (-timedelta(1), 1)],
    ids=["new", "one half-life", "two", "of tomorrow"],
)
def test_relevance_is_halved_by_each_half_life(age, share):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    aged = recency(now - age, half_life_days=30, now=now)
    assert aged == pytest.approx(share)
    assert recency(now - age, half_life_days=None, now=now) == 1
    assert recency(now - timedelta(days=1), half_life_days=1e-12, now=now) == 0
