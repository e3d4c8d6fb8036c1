"""Which passages become one: those with equal words, and no contradiction."""

# ruff: noqa: RUF001 - signs that look like others are what it is about

import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import Letters

from harness.memory import MemoryStore, Passage

NOW = datetime(2026, 1, 2, tzinfo=UTC)
THERE = Passage(id="a", text="The valve is open.", source="a", quality=4, created=NOW)
SAME = Passage(id="b", text="The valve is open.\n", source="b", quality=9, created=NOW)
NEAR = Passage(id="c", text="the valve is open", created=NOW)
CONTRARY = Passage(id="d", text="The valve is not open.", created=NOW)

BRACES = re.compile(r"\{([^|}]*)\|([^}]*)\}|\{([^|}]*)\}")
LINES = Path(__file__).with_name("minimal_pairs.txt").read_text(encoding="utf-8").splitlines()
PAIRS = [
    tuple(BRACES.sub(lambda found, side=side: found[side], line) for side in (1, 2))
    for line in LINES
    if line and not line.startswith("#")
]


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


@pytest.mark.parametrize(
    ("options", "new", "merged"),
    [
        ({}, ("a", "c", "d"), [("b", "a")]),
        ({"merge": False}, ("a", "b", "c", "d"), []),
    ],
    ids=["by default", "never"],
)
def test_passages_become_one_as_far_as_is_wanted(opened, options, new, merged):
    store = opened(**options)
    added = store.add([THERE, SAME, NEAR, CONTRARY])
    assert (added.new, [(one.id, one.into) for one in added.merged]) == (new, merged)
    assert len(store) == len(new)
    assert store.get("a") == THERE, "as it was: neither its quality nor its source is another's"


def test_a_merged_passage_is_stored_once_the_other_is_deleted(opened):
    store = opened()
    store.add([THERE, SAME])
    assert store.delete("a", "nobody") == 1
    assert store.add([SAME]).new == ("b",)


def test_of_equal_titles_no_contradiction_hides_another(opened):
    store = opened()
    store.add(
        [
            Passage(id="old", title="Guideline", text="Aspirin is safe for children.", quality=9),
            Passage(id="new", title="Guideline", text="Aspirin is not safe for children."),
        ]
    )
    assert {hit.id for hit in store.search("is aspirin safe for children")} == {"old", "new"}


def test_contradictions_stay_apart_in_four_languages(tmp_path, embedder):
    assert len(PAIRS) >= 200
    with MemoryStore.open(tmp_path, embedder=embedder) as store:
        added = store.add([Passage(text=text, title="T") for texts in PAIRS for text in texts])
        as_titles = store.add([Passage(text="T", title=text) for texts in PAIRS for text in texts])
    assert (added.merged, as_titles.merged) == ((), ())


# --- words -----------------------------------------------------------------------------------


def are_one(one: Passage, other: Passage) -> bool:
    same = one.words == other.words
    assert same is (one.words_number == other.words_number)
    return same


@pytest.mark.parametrize(
    ("one", "other"),
    [("Take 5 mg. ", "Take 5 mg."), ("cafe\u0301 au lait", "café au lait"), ("5 \u212b", "5 Å")],
    ids=["white space around", "accents of their own", "the sign of a unit"],
)
def test_what_unicode_holds_to_be_equal_is_one(one, other):
    assert are_one(Passage(text=one), Passage(text=other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("if a:\n    b()\nc()", "if a:\n    b()\n    c()"),
        ("It isn’t so", "It isn't so"),
        ("It is safe.", "It is safe"),
        ("Turkey is dry", "turkey is dry"),
        ("5–10", "5-10"),
        ("10²", "102"),
        ("1 000", "1000"),
    ],
)
def test_what_differs_in_a_sign_or_in_indentation_stays_apart(one, other):
    assert not are_one(Passage(text=one), Passage(text=other))


def test_a_title_is_not_the_beginning_of_a_text():
    assert not are_one(Passage(title="a b", text="c"), Passage(title="a", text="b c"))


def test_a_thousand_accents_take_no_time():
    start = time.process_time()
    assert Passage(text="e" + "\u0301\u0323" * 200_000).words
    assert time.process_time() - start < 3


@given(one=st.text(max_size=12), other=st.text(max_size=12))
def test_one_is_what_is_equal_but_for_its_form(one, other):
    passages = [Passage(title="T", text=text) for text in (one, other)]
    assert are_one(*passages) or one != other
