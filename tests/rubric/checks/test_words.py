"""What counts as a number, and what as a name's word."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.rubric.words import numbers

# As it is said: with a comma before every three digits, up to where no more digits follow, or
# without any. It takes the square of a list's length, so that it cannot be used.
AS_IT_IS_SAID = re.compile(r"\d{1,3}(?:,\d{3})+(?!,?\d)(?:\.\d+)*|\d+(?:\.\d+)*")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("1,024", ["1,024"], id="thousands"),
        pytest.param("1,024,000.5", ["1,024,000.5"], id="millions and a half"),
        pytest.param("1,2,345", ["1", "2,345"], id="a list that ends in thousands"),
        pytest.param("1,234,56", ["1", "234", "56"], id="a list that does not"),
        pytest.param("12345,678", ["12345", "678"], id="too many digits before"),
        pytest.param("1.5,678", ["1.5", "678"], id="a comma behind decimals"),
    ],
)
def test_a_comma_parts_thousands_or_numbers(text, found):
    assert numbers(text) == found


@settings(derandomize=True, max_examples=500)
@given(st.text(alphabet="0123,,,. x", max_size=30))
def test_numbers_are_what_the_slow_pattern_says(text):
    text = "x" + text  # no mark of a list

    assert numbers(text) == AS_IT_IS_SAID.findall(re.sub(r"(?m)^\s*\d+[.)]\s", " ", text))
