"""Numbers of a text, by value."""

import pytest

from harness.text.numbers import values_in


@pytest.mark.parametrize("form", ["{}", "-{}", "{}e3", "{} million", "1{}.5"])
def test_numbers_of_many_digits_differ_in_the_last_one(form: str) -> None:
    digits = "1234567890" * 3
    assert values_in(form.format(f"{digits}1")).isdisjoint(values_in(form.format(f"{digits}2")))


def test_a_number_may_have_more_digits_than_any_exponent_of_the_usual_context() -> None:
    assert values_in("9" * 1_000_001) == values_in(f"0{'9' * 1_000_001}")
