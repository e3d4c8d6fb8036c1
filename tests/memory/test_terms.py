"""How a text becomes words, and what a query asks for besides."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import failing

from harness.errors import InvalidInput
from harness.memory.terms import LANGUAGES, analyzer, check_language, parse_query, spaced


def words(text, language="english"):
    return analyzer(language).analyze(spaced(text))


SAME = {
    "english": ("english", "running foxes", "run fox"),
    "german, umlaut and plural": ("german", "die Häuser", "die Haus"),
    "french": ("french", "les élèves", "les élève"),
    "accents without stemming": ("none", "Ångström re\u0301sume\u0301", "angstrom résumé"),
    "accents where no ending has one": ("english", "Eïné résumés", "Eine resumes"),
    "accents of greek, capitals": ("none", "σχολείο ὁδός μαΐου", "ΣΧΟΛΕΙΟ ΟΔΟΣ μαιου"),
    "ё and stress": ("russian", "Ещё ёж, я\u0301щик", "еще еж, ящик"),
    "hamza over alef": ("none", "أحمد إلى آخر", "احمد الى اخر"),
    "accents that compose with no letter": ("none", "ɛ\u0301wɔ\u0300", "ɛwɔ"),
    "joined": ("english", "snake_case kebab-case", "snake case kebab case"),
    "thai, tone marks": ("none", "ผู้ใหญ่", "ผูใหญ"),
    "korean in its parts": ("none", unicodedata.normalize("NFD", "가게는 문을"), "가게는 문을"),
    "half and full width": ("none", "ﾊﾞｯｸｱｯﾌﾟ \uff21\uff11\uff12", "バックアップ a12"),
    "arabic vowel signs": ("none", "الكِتَابُ", "الكتاب"),
    "hebrew points and a tatweel": ("none", "שָׁלוֹם كتـاب", "שלום كتاب"),
}


@pytest.mark.parametrize(("language", "one", "other"), SAME.values(), ids=SAME)
def test_texts_that_differ_in_form_have_the_same_words(language, one, other):
    assert words(one, language) == words(other, language) != []


SHA_1, SHA_256 = "da39a3ee5e6b4b0d3255bfef95601890afd80709", "9f86d081" * 8
WORDS = {
    "chinese or japanese": ("東京都 猫", ["東京", "京都", "猫"]),
    "korean and thai": ("한국어 말 ไทย", ["한국", "국어", "말", "ไท", "ทย"]),
    "marks that make another letter": ("мой їжак сумку", ["мой", "їжак", "сумку"]),
    "signs": ("... !?", []),
    "names that end in signs": (
        "C++17, notepad++; c\uff03 a#b 1++",
        ["c", "cplusplus", "17", "notepad", "notepadplusplus", "c", "csharp", "a", "b", "1"],
    ),
    "parts of names": (
        "getUserById HTTPServer",
        ["get", "user", "by", "id", "getuserbyid", "http", "server", "httpserver"],
    ),
    "parts in other letters": (
        "使用getÜber utf8Map",
        ["使用", "get", "uber", "getuber", "utf8", "map", "utf8map"],
    ),
    "names without parts": (
        f"PDFs APIs A1B2C3 snake_case 東京Tokyo {'aB' * 40}",
        ["pdfs", "apis", "a1b2c3", "snake", "case", "東京", "tokyo", "ab" * 40],
    ),
    "a name that ends in signs": ("fooBar++", ["foo", "bar", "foobar", "foobarplusplus"]),
    "thousands": ("$1,000. 0,500 1,00", ["1", "000", "1000", "0", "500", "1", "00"]),
    "many thousands": (
        "1,234,567 and 24,2025",
        ["1", "234", "567", "1234567", "and", "24", "2025"],
    ),
    "digests, but nothing encoded": (f"{SHA_1} {SHA_256} {'QUJD' * 100}", [SHA_1, SHA_256]),
    # Normalised as a whole, this one would take minutes: accents are put in order.
    "nothing but accents": ("a" + "\u0301\u0327" * 100_000, ["a"]),
}


@pytest.mark.parametrize(("text", "expected"), WORDS.values(), ids=WORDS)
def test_text_becomes_words(text, expected):
    assert words(text, "none") == expected


def test_each_language_has_its_analyzer_and_no_other_is_known():
    for language in LANGUAGES:
        check_language(language)
        assert analyzer(language).analyze("2024")
        assert analyzer(language, stop_words=False).analyze("2024")
    with failing(InvalidInput, "memory.unknown-language"):
        check_language("finish")


# --- what a query asks for ---------------------------------------------------------------------

ASKED = {
    "phrase": ('a "red otter" swims', ("red otter",), ()),
    "the same twice": ('"red otter" "red otter"', ("red otter",), ()),
    "title": ("title:otter", (), ("otter",)),
    "quote without its end": ('a "red otter', (), ()),
    "a title's line": ("title: otter", (), ()),
    "other fields are mere text": ("subtitle:otter body:otter", (), ()),
    "quotes do not reach over lines": ('"one\ntwo"', (), ()),
    "a long quotation is no phrase": (f'"{"otter " * 100}"', (), ()),
}


@pytest.mark.parametrize(("text", "phrases", "titles"), ASKED.values(), ids=ASKED)
def test_what_a_text_asks_for(text, phrases, titles):
    asked = parse_query(text)

    assert (asked.phrases, asked.titles) == (phrases, titles)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_all_words_count_whatever_the_signs_say(text):
    kept = [c for c in parse_query(text).words if c.isalnum()]

    # Of `title:otter` the otter alone.
    assert "title:" in text.lower() or kept == [c for c in text if c.isalnum()]


def test_a_flood_of_quotes_is_mere_text_from_the_seventeenth_on():
    asked = parse_query(" ".join(f'"number {n}"' for n in range(5_000)))

    assert asked.phrases == tuple(f"number {n}" for n in range(16))
    assert '"number 4999"' in asked.words
