"""Forms of one text, and texts that must not be taken for each other."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.text.folding import composed, folded


@given(st.text())
@example("\ufef2\u064a 10\u00b2 \u0130I")
def test_a_folded_text_stays_as_it_is_and_is_the_same_from_any_normal_form(text):
    for form in ("NFC", "NFD"):
        assert folded(unicodedata.normalize(form, text)) == folded(text)
    assert folded(folded(text)) == folded(text)


@given(st.text())
def test_a_composed_text_is_nfc_and_loses_nothing(text):
    assert composed(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("one", "other", "language"),
    [
        ("10\u00b2", "102", None),
        ("2\u00bd", "21/2", None),
        ("H\u2082O", "H2O", None),
        ("Ma\u00dfe", "Masse", "de"),
        ("s\u0131k", "sik", "tr"),
        ("\u0645\u06cc\u200c\u0631\u0648\u0645", "\u0645\u06cc\u0631\u0648\u0645", "fa"),
        ("\u304c", "\u304b", "ja"),
    ],
)
def test_what_means_something_else_stays_apart(one, other, language):
    assert folded(one, language) != folded(other, language)


@pytest.mark.parametrize("flood", ["a" + "\u0301\u0323" * 100_000, "\u1161" * 100_000])
def test_a_flood_of_marks_or_parts_of_letters_stays(flood):
    assert composed(flood) == flood
