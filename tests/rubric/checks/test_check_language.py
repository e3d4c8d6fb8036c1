"""The language of a draft, on texts that nobody wrote for the purpose of being told."""

# ruff: noqa: RUF001 - Cyrillic letters and Chinese commas are meant

from typing import get_args

import py3langid
import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.rubric.checks import Language
from harness.rubric.checks.language import LanguageCode

# Article 1 of the Universal Declaration of Human Rights, as the United Nations publish it.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with "
    "reason and conscience and should act towards one another in a spirit of brotherhood.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft "
    "und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués "
    "de raison et de conscience et doivent agir les uns envers les autres dans un esprit de "
    "fraternité.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como "
    "están de razón y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены "
    "разумом и совестью и должны поступать в отношении друг друга в духе братства.",
}


@pytest.mark.parametrize("code", ARTICLE)
@pytest.mark.parametrize("written", ARTICLE)
def test_a_language_is_told_from_others(code, written):
    grade = Language(code=code).grade(draft(ARTICLE[written]))

    assert grade.share == (code == written)
    if code != written:
        assert found(grade) == [(f"this reads as '{written}'; write it in '{code}'", 0)]


def test_a_section_in_another_language_is_found():
    text = f"# A\n\n{ARTICLE['en']}\n\n# B\n\n{ARTICLE['de']}\n\n# C\n\n{ARTICLE['en']}\n"

    grade = Language(code="en").grade(draft(text))

    assert found(grade) == [("this reads as 'de'; write it in 'en'", 1)]
    assert grade.share == pytest.approx(2 / 3, abs=0.02)


def test_short_sections_are_taken_together():
    parts = ["Alle Menschen sind frei.", "Sie sind mit Vernunft begabt.", "Sie sollen einander so"]
    text = "\n\n".join(f"# {n}\n\n{part}" for n, part in enumerate([*parts, *parts]))

    grade = Language(code="en").grade(draft(text))

    assert grade.share == 0
    assert found(grade) == [("this reads as 'de'; write it in 'en'", n) for n in range(6)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("Alle Menschen sind frei.", id="a few words"),
        pytest.param(f"```\n{ARTICLE['de']}\n```\n", id="only code"),
        pytest.param(f"| a |\n|---|\n| {ARTICLE['de']} |\n", id="only a table"),
        pytest.param(f"# {ARTICLE['de']}\n", id="only a heading"),
        pytest.param(f"So `{ARTICLE['es']}`.", id="only a code span"),
        pytest.param(f"https://example.org/{ARTICLE['de'].replace(' ', '-')}", id="an address"),
    ],
)
def test_too_short_a_prose_is_not_judged_and_says_so(text):
    grade = Language(code="en").grade(draft(text))

    assert grade.unjudged == "it is too short to tell its language"
    assert grade.findings == ()


def test_relatives_are_taken_for_each_other():
    # Article 1 again, in Croatian.
    croatian = (
        "Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima. Ona su obdarena "
        "razumom i sviješću i trebaju jedna prema drugima postupati u duhu bratstva."
    )

    assert all(Language(code=code).grade(draft(croatian)).share == 1 for code in ("hr", "sr", "bs"))
    assert Language(code="sl").grade(draft(croatian)).share == 0


def test_the_codes_are_those_that_can_be_told():
    told = {code for code, _ in py3langid.rank(ARTICLE["en"]) if len(code) == 2}

    assert set(get_args(LanguageCode)) == told


@pytest.mark.parametrize("code", ["english", "EN", "xx", ""])
def test_a_code_that_is_none_is_refused(code):
    with pytest.raises(ValidationError):
        Language(code=code)
