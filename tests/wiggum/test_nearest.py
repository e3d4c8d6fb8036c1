import pytest

from harness.wiggum.nearest import nearest_sources

CLOCK = "A clock has a spring and an escapement."
SPRING = "A spring drives a clock with its escapement and pendulum."
BREAD = "Bread is made from flour, water, salt and yeast."


@pytest.mark.parametrize(
    ("sources", "limit_chars", "shown"),
    [
        pytest.param([], 100, "", id="none"),
        pytest.param([BREAD, CLOCK], 100, f"{BREAD}\n\n{CLOCK}", id="all that fit as they come"),
        pytest.param(
            [BREAD, "x" * 90, CLOCK], 100, f"{CLOCK}\n\n{BREAD}", id="else the nearest first"
        ),
        pytest.param([BREAD, CLOCK], 80, CLOCK, id="only those that fit"),
        pytest.param([CLOCK, SPRING], 60, SPRING, id="by the words in common"),
        pytest.param([CLOCK, "x" * 90, BREAD], 100, f"{CLOCK}\n\n{BREAD}", id="not one too long"),
        pytest.param(["One.", "Two."], 100, "One.\n\nTwo.", id="equals as they come"),
        pytest.param(["Same.", "Same."], 100, "Same.", id="each once"),
    ],
)
def test_sources_are_shown_whole_and_of_too_many_the_nearest_first(sources, limit_chars, shown):
    assert nearest_sources(sources, to=["clock spring pendulum"], limit_chars=limit_chars) == shown


def test_of_a_nearest_source_that_is_too_long_the_nearest_passages_are_shown():
    filler = "Nothing is said here. " * 50

    shown = nearest_sources(
        [BREAD, filler + SPRING + filler], to=["clock spring pendulum"], limit_chars=400
    )

    assert SPRING in shown
    assert BREAD not in shown
    assert len(shown) <= 400


def test_a_later_text_only_decides_between_equals():
    sources = ["bread and water", "clock and salt", "clock and water"]

    shown = nearest_sources(sources, to=["clock", "water bread"], limit_chars=33)

    assert shown == "clock and water\n\nclock and salt"
