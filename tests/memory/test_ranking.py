from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.memory.passage import Passage
from harness.memory.ranking import (
    Candidate,
    Floor,
    Ranking,
    are_duplicates,
    is_relevant,
    rank,
)

FLOOR = Floor(cosine=0.2, ceiling=40.0)


def candidate(sequence=1, *, fused=0.5, quality=None, title="", lexical=None, vector=None):
    passage = Passage(text=f"text {sequence}", title=title, quality=quality)
    return Candidate(
        passage=passage, sequence=sequence, fused=fused, lexical=lexical, vector=vector
    )


def order(candidates, *, limit=10, ranking=None):
    hits = rank(candidates, limit=limit, ranking=ranking or Ranking(), fallback=None)
    return [int(hit.text.removeprefix("text ")) for hit in hits]


@pytest.mark.parametrize(
    ("fused", "quality", "score"),
    [
        pytest.param(1, 10, 1, id="the best there can be"),
        pytest.param(0.6, 8, 0.7 * 0.6 + 0.3 * 0.8, id="good"),
        pytest.param(0.6, 7, 0.7 * 0.6 + 0.3 * 0.7, id="just good enough"),
        pytest.param(0.6, 6.8, 0.7 * 0.6 + 0.3 * 0.34, id="low, so half"),
        pytest.param(0.6, 0, 0.7 * 0.6, id="the worst"),
        pytest.param(0.6, None, 0.7 * 0.6 + 0.3 * 0.5, id="never judged"),
    ],
)
def test_a_score_is_seven_parts_relevance_and_three_quality(fused, quality, score):
    assert Ranking().score(candidate(fused=fused, quality=quality)) == pytest.approx(score)


def test_how_much_quality_counts_can_be_chosen():
    relevant, good = candidate(1, fused=0.9, quality=0), candidate(2, fused=0.8, quality=10)

    assert order([relevant, good]) == [2, 1]
    assert order([relevant, good], ranking=Ranking(quality_weight=0)) == [1, 2]


def test_hits_carry_what_they_were_ranked_by():
    best = candidate(7, fused=0.9, quality=9, lexical=12.5, vector=0.4)
    [hit] = rank([best], limit=4, ranking=Ranking(), fallback="evicted")

    assert (hit.passage, hit.rank, hit.fused) == (best.passage, 1, 0.9)
    assert (hit.lexical, hit.vector, hit.fallback) == (12.5, 0.4, "evicted")
    assert hit.score == pytest.approx(0.7 * 0.9 + 0.3 * 0.9)


@given(
    scores=st.lists(
        st.tuples(st.sampled_from([0, 0.25, 0.5, 1]), st.sampled_from([None, 5.0, 9.0])),
        max_size=12,
    ),
    limit=st.integers(1, 12),
)
def test_the_best_come_first_and_of_equals_the_older(scores, limit):
    ranking = Ranking()
    candidates = [candidate(n, fused=f, quality=q) for n, (f, q) in enumerate(scores, start=1)]
    hits = rank(candidates[::-1], limit=limit, ranking=ranking, fallback=None)

    naive = sorted(candidates, key=lambda c: (-ranking.score(c), c.sequence))[:limit]
    assert [hit.passage for hit in hits] == [c.passage for c in naive]
    assert [hit.rank for hit in hits] == list(range(1, len(naive) + 1))


LONG = "Sea otters anchor themselves with kelp while they sleep upon their backs, holding paws"
OTHER = "Grey herons stand motionless among reeds until fishes come near enough for their beaks"


@pytest.mark.parametrize(
    ("texts", "titles", "duplicates"),
    [
        pytest.param(("It floats.", "It eats crabs."), ("Otters", "otters"), True, id="notes"),
        pytest.param((LONG * 3, LONG * 3 + " firmly"), ("Otters", " OTTERS"), True, id="an edit"),
        pytest.param((LONG * 3, f"{OTHER} {LONG}"), ("Otters", "Otters"), True, id="within"),
        pytest.param((LONG * 3, OTHER * 3), ("Summary", "Summary"), True, id="few words"),
        pytest.param((LONG, LONG), ("Otters", "Herons"), False, id="other titles"),
        pytest.param((LONG, LONG), ("", ""), False, id="no titles"),
    ],
)
def test_duplicates_have_one_title_and_say_much_the_same(texts, titles, duplicates):
    one, other = (Passage(text=x, title=t) for x, t in zip(texts, titles, strict=True))

    assert are_duplicates(one, other) is are_duplicates(other, one) is duplicates


def test_two_long_texts_under_one_heading_are_no_duplicates():
    one, other = (
        Passage(text=" ".join(f"{word}{n}" for n in range(30)), title="Introduction")
        for word in ("otter", "heron")
    )

    assert not are_duplicates(one, other)


def test_of_equal_titles_the_best_stays_and_the_next_moves_up():
    candidates = [
        candidate(1, fused=0.5, title="Otters"),
        candidate(2, fused=0.9, title="OTTERS "),
        candidate(3, fused=0.4, title="Herons"),
        candidate(4, fused=0.3),
        candidate(5, fused=0.2, title="  "),
    ]

    assert order(candidates, limit=3) == [2, 3, 4]
    assert order(candidates) == [2, 3, 4, 5]
    assert order(candidates, ranking=Ranking(unique_titles=False)) == [2, 1, 3, 4, 5]


@pytest.mark.parametrize(("limit", "candidates"), [(1, 12), (4, 12), (5, 15), (10, 30)])
def test_three_candidates_for_each_hit_are_weighed_and_never_fewer_than_twelve(limit, candidates):
    assert Ranking().candidates(limit) == candidates


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"quality_weight": 1.1}, id="weight above 1"),
        pytest.param({"quality_weight": float("nan")}, id="weight is no number"),
        pytest.param({"low_quality": 10.5}, id="threshold above the scale"),
        pytest.param({"unknown_quality": -0.1}, id="unknown below 0"),
        pytest.param({"candidates_per_hit": 0}, id="no candidates"),
    ],
)
def test_an_impossible_ranking_says_so(wrong):
    [name] = wrong

    with pytest.raises(InvalidInput, match=name):
        replace(Ranking(), **wrong)


@pytest.mark.parametrize(
    ("lexical", "vector", "relevant"),
    [
        # Of 40, 0.1 is 4; of the way from 0.2 to 1, 0.1 is at 0.28.
        pytest.param(8.1, 0.1, True, id="many words, nothing alike"),
        pytest.param(7.9, 0.1, False, id="some words, nothing alike"),
        pytest.param(None, 0.37, True, id="no word, much alike"),
        pytest.param(None, 0.35, False, id="no word, somewhat alike"),
        pytest.param(4.1, 0.29, True, id="a bit of both"),
        pytest.param(3.9, 0.27, False, id="too little of both"),
        pytest.param(4.1, None, True, id="words alone, enough"),
        pytest.param(3.9, None, False, id="words alone, too few"),
        pytest.param(8.1, -1, True, id="the other way is no worse than unrelated"),
        pytest.param(None, None, False, id="nothing known"),
    ],
)
def test_the_floor_is_for_words_and_meaning_together(lexical, vector, relevant):
    assert is_relevant(candidate(lexical=lexical, vector=vector), floor=FLOOR) is relevant


@pytest.mark.parametrize(("vector", "relevant"), [(0.29, True), (0.27, False)])
def test_meaning_alone_decides_where_no_words_were_asked_for(vector, relevant):
    floor = replace(FLOOR, ceiling=0.0)

    assert is_relevant(candidate(vector=vector), floor=floor) is relevant


@given(
    lexical=st.none() | st.floats(0, 40),
    vector=st.none() | st.floats(-1, 1),
    cosine=st.floats(-0.5, 0.95),
)
def test_more_of_either_never_makes_a_passage_less_relevant(lexical, vector, cosine):
    floor = replace(FLOOR, cosine=cosine)
    if is_relevant(candidate(lexical=lexical, vector=vector), floor=floor):
        more_words = None if lexical is None else lexical + 1
        nearer = None if vector is None else min(1, vector + 0.1)
        assert is_relevant(candidate(lexical=more_words, vector=nearer), floor=floor)
