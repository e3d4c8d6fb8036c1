"""Which passages are near-duplicates, and what becomes of them."""

from datetime import UTC, datetime

import pytest
from stored import words

from harness.memory.duplicates import (
    BANDS,
    bands_of,
    similarity,
)
from harness.memory.found import Merge
from harness.memory.passage import Passage

NOW = datetime(2026, 1, 2, tzinfo=UTC)

# --- how alike texts are -----------------------------------------------------------------------


SHORT_AND_ODD = {
    "two words": ("Yes indeed", "yes -- INDEED", 1),
    "no words": ("!!!", "???", 0),
    "signs that say something": ("C: a language", "C++: a language", 0),
    "vowels that are marks": ("दिन", "दान", 0),
    "no words, but the same": (" !!!", "!!! ", 1),
    "case as Unicode has it": ("STRASSE eins zwei", "Straße eins zwei", 1),
    # Six runs of three in each, of which three are in both.
    "no blanks between words": ("水獺在水面上漂浮", "水獺在水面下漂浮", 3 / 9),
}


@pytest.mark.parametrize(("first", "second", "expected"), SHORT_AND_ODD.values(), ids=SHORT_AND_ODD)
def test_short_and_odd_texts_are_alike_by_their_words(first, second, expected):
    assert similarity(first, second) == expected
    shared = set(bands_of([first])[0]) & set(bands_of([second])[0])
    assert len(shared) == BANDS if expected == 1 else len(shared) < BANDS


def test_bands_are_the_texts_own_whatever_else_is_in_the_batch():
    texts = [" ".join(words(count, seed=count)) for count in (1, 2, 3, 4, 50, 1000)] + ["!"]
    together = bands_of(texts * 10)

    assert together.shape == (70, BANDS)
    for place, text in enumerate(texts):
        assert (bands_of([text]) == together[place :: len(texts)]).all()
    assert len({tuple(row) for row in together.tolist()}) == len(texts)
    assert bands_of([]).shape == (0, BANDS)


def test_bands_never_change():
    # They are stored: others would miss the near-duplicates of all that is.
    bands = bands_of(["the otter floats on its back"])
    assert (bands[0, 0], bands.sum()) == (-544769020817813589, 6792658988380563425)


# --- what becomes of them ----------------------------------------------------------------------

TEXT = " ".join(words(120, seed=4))
NEARLY = f"{TEXT} indeed"


def put(truth, *passages, **options):
    return truth.add([(passage, None) for passage in passages], embedder=None, **options)


def test_a_near_duplicate_becomes_one_with_the_passage_that_is_there(truth):
    there = Passage(
        text=TEXT, title="A", source="a", created=NOW, quality=6, metadata={"k": 1, "only": "there"}
    )
    comes = Passage(text=NEARLY, title="A", source="b", quality=8, metadata={"k": 2, "new": True})
    put(truth, there)

    foreseen = truth.near_duplicate_of(comes)
    added = put(truth, comes)

    # One run in 120 more than 119: title, 120 words, and one.
    expected = Merge(id=comes.id, into=there.id, similarity=119 / 120)
    assert foreseen == expected
    assert (added.merged, added.new) == ((expected,), ())
    kept = truth.get(there.id)
    assert (kept.text, kept.source, kept.created, kept.quality) == (TEXT, "a", NOW, 8)
    assert kept.metadata == {"k": 1, "only": "there", "new": True}
    assert len(truth) == 1
    # What changed is a write, which lanes will read.
    assert dict(truth.passages_between(1, truth.last_sequence())) == {2: kept}
    assert truth.removed_between(1, 2) == [1]


def test_near_duplicates_are_merged_within_one_batch_and_with_what_was_merged(truth):
    batch = [Passage(text=f"{TEXT} {end}", quality=q) for q, end in enumerate(("one", "two", "x"))]

    added = put(truth, *batch)

    assert added.new == (batch[0].id,)
    assert [merge.into for merge in added.merged] == [batch[0].id] * 2
    assert truth.get(batch[0].id).quality == 2


def test_nothing_is_merged_when_that_is_not_wanted_nor_when_less_is_alike(truth):
    half = Passage(text=" ".join(TEXT.split()[:60] + words(60, seed=5)))
    first = Passage(text=TEXT)
    put(truth, first, merge=False)

    assert put(truth, half).new
    assert put(truth, Passage(text=f"{TEXT} 2023")).new  # another year is another fact
    assert truth.near_duplicate_of(Passage(text=NEARLY)).into == first.id
    assert put(truth, Passage(text=NEARLY), merge=False).new
    assert len(truth) == 4


def test_passages_follow_their_text_when_it_changes_or_goes(truth):
    put(truth, Passage(text=TEXT, id="p"))
    other = " ".join(words(120, seed=6))

    truth.update(Passage(text=other, id="p"), None, None)
    assert truth.near_duplicate_of(Passage(text=NEARLY)) is None
    assert truth.near_duplicate_of(Passage(text=f"{other} indeed")).into == "p"
    truth.delete(["p"])
    assert truth.near_duplicate_of(Passage(text=f"{other} indeed")) is None


def test_of_several_the_most_alike_is_found(truth):
    nearer = f"{TEXT} one two"
    put(truth, Passage(text=f"{TEXT} {'x ' * 8}"), Passage(text=nearer), merge=False)

    merge = truth.near_duplicate_of(Passage(text=f"{TEXT} one two three"))
    assert merge.similarity == similarity(nearer, f"{TEXT} one two three")


def test_of_many_passages_of_one_template_only_a_few_are_compared(truth, monkeypatch):
    compared = []

    def counted(*texts):  # as a clock would tell too little on a loaded machine
        compared.append(texts)
        return similarity(*texts)

    template = words(90, seed=7)
    passages = [Passage(text=" ".join(template + words(30, seed=seed))) for seed in range(200)]
    put(truth, *passages[1:], merge=False)
    monkeypatch.setattr("harness.memory.near.similarity", counted)
    assert put(truth, passages[0]).new
    assert len(compared) == 8
