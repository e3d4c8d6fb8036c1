"""The tables of the languages: each row is of a language, and is used."""

from __future__ import annotations

import re
import unicodedata
from importlib.resources import files
from typing import get_args

import pytest

from harness.text.languages import Language, Trait, has_trait, numerals
from harness.text.numbers import numbers


def rows(name: str) -> list[list[str]]:
    lines = files("harness.text").joinpath(f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def test_every_language_has_a_row() -> None:
    assert [code for code, *_ in rows("languages")] == list(get_args(Language))
    assert {trait for row in rows("languages") for trait in row[2].split()} <= set(get_args(Trait))


def test_scripts_are_named_as_their_letters_are_in_unicode() -> None:
    letters = filter(str.isalpha, map(chr, range(0x30000)))
    names = {unicodedata.name(letter, "").partition(" ")[0] for letter in letters}
    assert {script for row in rows("languages") for script in row[3].split()} <= names


def test_words_behind_numbers_are_by_power_of_ten_unit_or_percent() -> None:
    for name, pattern in rows("number_words"):
        assert (
            name == "percent" or name.isdecimal() or numbers(f"3 {name}")[0].readings == {(3, name)}
        )
        re.compile(pattern)


@pytest.mark.parametrize(
    ("language", "numeral"), [("de", "drei"), ("ar", "\u062b\u0644\u0627\u062b\u0629")]
)
def test_a_language_tells_its_numerals_from_zero_on(language: str, numeral: str) -> None:
    assert numerals(language)[3] == numeral
    assert not has_trait(language, "no-stops")
