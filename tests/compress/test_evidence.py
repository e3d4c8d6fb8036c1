"""Shortening documents toward what a text says of them."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_documents import documents, headings

from harness.compress import condense_toward, sentences_of
from harness.compress.condense import LEFT_OUT

FLUSHED = "It is flushed twice by hand."
OTTERS = "水獭生活在河流附近吃鱼。" * 20
WEIGHTS = "模型的冷启动时间取决于权重的大小。"
SUBJECTS = ("gateway", "scheduler", "journal", "cache", "tracer", "loader", "planner", "meter")


def manual(*, sections=8, sentences=12) -> str:
    """A document in which every sentence is unlike the others."""
    return "".join(
        f"# The {SUBJECTS[part % 8]} {part}\n\n"
        + " ".join(
            f"Its {SUBJECTS[number % 8]} step {part}.{number} takes exactly "
            f"{part * 100 + number} milliseconds on the reference machine."
            for number in range(sentences)
        )
        + "\n\n"
        for part in range(sections)
    )


@given(
    st.lists(documents, max_size=4), documents, st.integers(0, 300), st.integers(0, 40), documents
)
def test_the_budget_is_never_exceeded_and_what_fits_stays(given_, said, budget, frame, focus):
    seen = condense_toward(given_, draft=said, budget_chars=budget, focus=focus, frame_chars=frame)

    assert len(seen) == len(given_)
    is_whole = seen == tuple(given_)
    if sum(len(text) + frame for text in given_) <= budget:
        assert is_whole
    else:
        assert sum(len(text) + frame for text in seen if text) <= budget


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 11)), min_size=1, max_size=12))
def test_what_the_text_quotes_stays_verbatim(chosen):
    document = manual()
    picked = [sentences_of(document.split("# ")[part + 1])[number + 1] for part, number in chosen]
    said = " ".join(f"As it says: {sentence}" for sentence in picked)

    (seen,) = condense_toward([document], draft=said, budget_chars=3_000)

    assert len(seen) <= 3_000 < len(document)
    assert [sentence for sentence in picked if sentence not in seen] == []


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        pytest.param("It is “flushed twice by” it.", FLUSHED, id="a short quotation"),
        pytest.param(FLUSHED, FLUSHED, id="a short sentence"),
        pytest.param(
            "Zebras came late to the party.", "Some zebras arrived late.", id="rare words"
        ),
        pytest.param("| zinc | 30 |", "| zinc | 30 |\n", id="a row of a long table"),
        pytest.param("冷启动要多久?取决于权重大小。", WEIGHTS, id="no blanks between words"),
    ],
)
def test_what_a_claim_rests_on_stays(said, evidence):
    rows = "".join(f"| metal {number} | {number} |\n" for number in range(200))
    document = (
        f"{manual()}# Odds\n\n{FLUSHED} Some zebras arrived late. {OTTERS}{WEIGHTS}{OTTERS}\n\n"
        f"| what | g |\n|---|---|\n{rows}| zinc | 30 |\n{rows}"
    )
    (seen,) = condense_toward([document], draft=said, budget_chars=1_500)

    assert evidence in seen
    assert len(seen) <= 1_500


def test_kept_text_is_verbatim_in_order_and_marked_where_something_is_left_out():
    document = manual()

    (seen,) = condense_toward([document], draft="The loader takes 305 ms.", budget_chars=2_000)

    pieces = [piece.strip() for piece in seen.split(LEFT_OUT)]
    places = [document.find(piece) for piece in pieces if piece]
    assert -1 not in places
    assert places == sorted(places)
    assert set(headings(seen)) <= set(headings(document))


def test_one_budget_is_for_all_documents_and_goes_where_the_evidence_is():
    texts = [manual(sections=2), "Nothing to do with it. " * 200, manual(sections=8)]
    wanted = sentences_of(texts[2])[-1]

    seen = condense_toward(texts, draft=wanted, budget_chars=700, frame_chars=50)

    assert wanted in seen[2]
    assert sum(len(text) + 50 for text in seen if text) <= 700
    assert "" in seen


def test_a_text_that_claims_nothing_leaves_the_outline_and_what_is_characteristic():
    document = manual()

    (seen,) = condense_toward([document], draft="", budget_chars=3_000)

    assert headings(seen) == headings(document)
    assert 2_700 < len(seen) <= 3_000


def test_a_text_without_sentences_is_shown_in_part():
    data = "[" + ",".join(f'{{"id":{n},"name":"n{n}"}}' for n in range(3_000)) + "]"

    (seen,) = condense_toward(
        [data], draft='The entry "name":"n1500" is there.', budget_chars=4_000
    )

    assert re.search(r'"name":"n1500"', seen)
    assert len(seen) <= 4_000


def test_words_that_most_parts_share_take_no_time_of_their_own():
    items = "".join(f"- The item of number{n} is near\n" for n in range(12_000))
    began_s = time.process_time()
    assert "number100 " in condense_toward([items], draft=items[:99_000], budget_chars=9_000)[0]
    assert time.process_time() - began_s < 12  # each claim by each part takes half a minute
