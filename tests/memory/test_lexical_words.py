import pytest

from harness.errors import InvalidInput
from harness.memory.words import LANGUAGES, analyzer, check_language, spaced


def words(text, language="english"):
    return analyzer(language).analyze(spaced(text))


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        pytest.param("english", "running foxes", "run fox", id="english"),
        pytest.param("german", "die Häuser", "die Haus", id="german, umlaut and plural"),
        pytest.param("french", "les élèves", "les élève", id="french"),
        pytest.param("russian", "книги", "книга", id="russian"),
        pytest.param("english", "CAFÉ Café", "cafe cafe", id="accents and case"),
        pytest.param("none", "Ångström", "angstrom", id="accents without stemming"),
        pytest.param("none", "re\u0301sume\u0301", "résumé", id="accents after their letters"),
        pytest.param("none", "Vie\u0323\u0302t", "Việt", id="two accents after one letter"),
        pytest.param("english", "don't stop", "don t stop", id="apostrophe"),
        pytest.param("english", "snake_case kebab-case", "snake case kebab case", id="joined"),
        pytest.param("none", "ผู้ใหญ่", "ผูใหญ", id="thai, tone marks"),
    ],
)
def test_texts_that_differ_in_form_have_the_same_words(language, one, other):
    assert words(one, language) == words(other, language) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("running foxes", ["running", "foxes"], id="no stemming"),
        pytest.param("東京都", ["東京", "京都"], id="chinese or japanese"),
        pytest.param("SQLite 数据库 3", ["sqlite", "数据", "据库", "3"], id="mixed"),
        pytest.param("猫", ["猫"], id="a single letter"),
        pytest.param("データ", ["デー", "ータ"], id="katakana"),
        pytest.param("한국어 말", ["한국", "국어", "말"], id="korean"),
        pytest.param("ไทย", ["ไท", "ทย"], id="thai"),
        pytest.param("... !?", [], id="signs"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_text_becomes_words(text, expected):
    assert words(text, "none") == expected


def test_digests_are_words_and_what_was_encoded_is_not():
    sha1, sha256 = "da39a3ee5e6b4b0d3255bfef95601890afd80709", "9f86d081" * 8

    assert words(f"{sha1} {sha256} {'QUJD' * 100}") == [sha1, sha256]


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_its_analyzer(language):
    check_language(language)

    assert analyzer(language).analyze("2024")


def test_a_language_that_nobody_knows_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match="no language 'finish'; did you mean 'finnish'"):
        check_language("finish")


def test_a_text_of_nothing_but_accents_is_read_at_once():
    # Normalised as a whole, this one would take minutes: accents are put in order.
    assert words("a" + "\u0301\u0327" * 250_000, "none") == ["a"]
