import random
import time
from datetime import UTC, datetime

import pytest

from harness.memory.duplicates import (
    BANDS,
    LEAST_SIMILARITY,
    bands_of,
    same_numbers,
    similarity,
)
from harness.memory.found import Merge
from harness.memory.passage import Passage
from harness.memory.truth import Truth

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def words(count: int, *, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices("abcdefghij", k=6)) for _ in range(count)]


def naive_similarity(first: str, second: str) -> float:
    """Of texts whose words are parted by blanks."""
    sets = []
    for text in (first, second):
        parts = text.lower().split()
        sets.append({" ".join(parts[i : i + 3]) for i in range(len(parts) - 2)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("changed", [0, 1, 2, 5, 20, 119])
def test_the_similarity_is_that_of_the_sets_of_runs(changed):
    text = words(120, seed=1)
    other = words(changed, seed=2) + text[changed:]
    first, second = " ".join(text), " ".join(other).upper()

    assert similarity(first, second) == naive_similarity(first, second)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param("Yes.", "yes!", 1, id="one word"),
        pytest.param("Yes indeed", "yes -- INDEED", 1, id="two words"),
        pytest.param("yes", "no", 0, id="two others"),
        pytest.param("yes", "yes yes", 0, id="once and twice"),
        pytest.param("!!!", "???", 0, id="no words"),
        pytest.param("C: a language", "C++: a language", 0, id="signs that say something"),
        pytest.param("return a < b", "return a > b", 0, id="less and more"),
        pytest.param("दिन", "दान", 0, id="vowels that are marks"),
        pytest.param(" !!!", "!!! ", 1, id="no words, but the same"),
        pytest.param("STRASSE eins zwei", "Straße eins zwei", 1, id="case as Unicode has it"),
        # Six runs of three in each, of which three are in both.
        pytest.param("水獺在水面上漂浮", "水獺在水面下漂浮", 3 / 9, id="no blanks between words"),
    ],
)
def test_short_and_odd_texts_are_alike_by_their_words(first, second, expected):
    assert similarity(first, second) == expected
    shared = set(bands_of([first])[0]) & set(bands_of([second])[0])
    assert len(shared) == BANDS if expected == 1 else len(shared) < BANDS


def test_bands_are_the_texts_own_whatever_else_is_in_the_batch():
    texts = [" ".join(words(count, seed=count)) for count in (1, 2, 3, 4, 50, 1000)] + ["!"]
    together = bands_of(texts * 100)

    assert together.shape == (700, BANDS)
    for place, text in enumerate(texts):
        assert (bands_of([text]) == together[place :: len(texts)]).all()
    assert len({tuple(row) for row in together.tolist()}) == len(texts)
    assert bands_of([]).shape == (0, BANDS)


def test_bands_never_change():
    # They are stored: others would miss the near-duplicates of all that is.
    assert bands_of(["the otter floats on its back"])[0, :2].tolist() == [
        -544769020817813589,
        -1150561124034937620,
    ]


def test_texts_share_a_band_as_often_as_bands_and_rows_predict():
    base = words(120, seed=3)
    pairs = []
    for seed in range(2000):
        chance = random.Random(seed)
        other = list(base)
        for place in chance.sample(range(120), chance.choice((1, 3, 8))):
            other[place] = f"x{seed}"
        pairs.append(" ".join(other))
    bands = bands_of([" ".join(base), *pairs])
    found = [bool(set(bands[0]) & set(row)) for row in bands[1:]]
    similarities = [similarity(" ".join(base), pair) for pair in pairs]

    # Leskovec, Rajaraman and Ullman, section 3.4.2: 1 - (1 - s^r)^b.
    expected = sum(1 - (1 - s**4) ** BANDS for s in similarities)
    assert abs(sum(found) - expected) < 0.05 * len(pairs)
    near = [was for was, s in zip(found, similarities, strict=True) if s >= LEAST_SIMILARITY]
    assert len(near) > 200
    assert sum(near) >= 0.995 * len(near)


@pytest.fixture
def truth(tmp_path):
    opened = Truth.open(tmp_path)
    yield opened
    opened.close()


TEXT = " ".join(words(120, seed=4))
NEARLY = f"{TEXT} indeed"


def test_a_near_duplicate_becomes_one_with_the_passage_that_is_there(truth):
    there = Passage(
        text=TEXT, title="A", source="a", created=NOW, quality=6, metadata={"k": 1, "only": "there"}
    )
    comes = Passage(text=NEARLY, title="A", source="b", quality=8, metadata={"k": 2, "new": True})
    truth.add([(there, None)], embedder=None)

    foreseen = truth.near_duplicate_of(comes)
    added = truth.add([(comes, None)], embedder=None)

    # One run in 120 more than 119: title, 120 words, and one.
    expected = Merge(id=comes.id, into=there.id, similarity=119 / 120)
    assert foreseen == expected
    assert added.merged == (expected,)
    assert added.new == ()
    kept = truth.get(there.id)
    assert kept == Passage(
        id=there.id,
        text=TEXT,
        title="A",
        source="a",
        created=NOW,
        quality=8,
        metadata={"k": 1, "only": "there", "new": True},
    )
    assert len(truth) == 1
    # What changed is a write, which lanes will read.
    assert dict(truth.passages_between(1, truth.last_sequence())) == {2: kept}
    assert truth.removed_between(1, 2) == [1]


def test_a_near_duplicate_that_brings_nothing_changes_nothing(truth):
    truth.add([(Passage(text=TEXT, quality=6), None)], embedder=None)

    added = truth.add([(Passage(text=NEARLY, quality=5), None)] * 2, embedder=None)

    assert len(added.merged) == 2
    assert truth.last_sequence() == 1


def test_near_duplicates_are_merged_within_one_batch_and_with_what_was_merged(truth):
    batch = [Passage(text=f"{TEXT} {end}", quality=q) for q, end in enumerate(("one", "two", "x"))]

    added = truth.add([(passage, None) for passage in batch], embedder=None)

    assert added.new == (batch[0].id,)
    assert [merge.into for merge in added.merged] == [batch[0].id] * 2
    assert truth.get(batch[0].id).quality == 2


def test_nothing_is_merged_when_that_is_not_wanted_nor_when_less_is_alike(truth):
    half = " ".join(TEXT.split()[:60] + words(60, seed=5))
    truth.add([(Passage(text=TEXT), None)], embedder=None)

    assert truth.add([(Passage(text=half), None)], embedder=None).new
    assert truth.add([(Passage(text=NEARLY), None)], embedder=None, merge=False).new
    assert len(truth) == 3


def test_what_was_stored_without_merging_is_found_by_later_ones(truth):
    first = Passage(text=TEXT)
    truth.add([(first, None)], embedder=None, merge=False)

    assert truth.near_duplicate_of(Passage(text=NEARLY)).into == first.id


def test_passages_follow_their_text_when_it_changes_or_goes(truth):
    passage = Passage(text=TEXT, id="p")
    truth.add([(passage, None)], embedder=None)
    other = " ".join(words(120, seed=6))

    truth.update(Passage(text=other, id="p"), None, None)
    assert truth.near_duplicate_of(Passage(text=NEARLY)) is None
    assert truth.near_duplicate_of(Passage(text=f"{other} indeed")).into == "p"
    truth.delete(["p"])
    assert truth.near_duplicate_of(Passage(text=f"{other} indeed")) is None


def test_of_several_the_most_alike_is_found(truth):
    nearer = f"{TEXT} one two"
    truth.add([(Passage(text=f"{TEXT} {'x ' * 8}"), None)], embedder=None, merge=False)
    truth.add([(Passage(text=nearer), None)], embedder=None, merge=False)

    merge = truth.near_duplicate_of(Passage(text=f"{TEXT} one two three"))
    assert merge.similarity == similarity(nearer, f"{TEXT} one two three")


def test_many_passages_of_one_template_do_not_become_slow(truth):
    template = words(90, seed=7)
    passages = [
        Passage(text=" ".join(template + words(30, seed=seed)), id=str(seed))
        for seed in range(1600)
    ]
    durations = []
    for start in range(0, 1600, 400):
        begun = time.perf_counter()
        added = truth.add([(p, None) for p in passages[start : start + 400]], embedder=None)
        durations.append(time.perf_counter() - begun)
        assert len(added.new) == 400
    # The last take what the second did: not thrice, as they would if all were compared.
    assert durations[-1] < 2 * durations[1] + 0.3


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param("in 2023, 5 of 9", "5 of 9 in 2023", True, id="in any order"),
        pytest.param("none", "no numbers", True, id="none"),
        pytest.param("the revenue of 2023", "the revenue of 2024", False, id="another year"),
        pytest.param("version 1.2", "version 1.3", False, id="another version"),
    ],
)
def test_numbers_are_compared_for_themselves(first, second, same):
    assert same_numbers(first, second) is same
