import difflib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rubric import Verdict
from harness.wiggum import Round, best_round
from harness.wiggum.policy import changed_chars


def rounds(*verdicts: tuple) -> list[Round]:
    """Rounds of these composites, whether they passed, and the gates that stopped them."""
    return [
        Round(
            number=number,
            draft=f"draft {number}",
            verdict=Verdict(
                rubric="essay",
                rubric_sha256="5eed",
                scores=(),
                composite=composite,
                passed=passed,
                gates=tuple(gates),
            ),
        )
        for number, (composite, passed, *gates) in enumerate(verdicts, start=1)
    ]


@pytest.mark.parametrize(
    ("verdicts", "best"),
    [
        pytest.param([(3, False), (6, False), (4, False)], 2, id="the highest"),
        pytest.param([(3, False), (6, False), (6, False)], 2, id="the earliest of equals"),
        pytest.param([(9, False), (8, True)], 2, id="passed before not passed"),
        pytest.param([(0, False), (-1, False)], 1, id="at the bottom of a scale"),
        pytest.param([(9, False, "form"), (3, False)], 2, id="not the one that a gate stopped"),
    ],
)
def test_the_best_round_is_the_highest_and_then_the_earliest(verdicts, best):
    assert best_round(rounds(*verdicts)).number == best


@pytest.mark.parametrize(
    ("before", "after", "chars"),
    [
        pytest.param("a\nb\n", "a\nb\n", 0, id="the same"),
        pytest.param("a\nb\n", "a\n", 2, id="a line less"),
        pytest.param("a\nbb\n", "bb\na\n", 0, id="lines that moved"),
        pytest.param("a\nb\n", "a\r\nb\r\n", 4 + 6, id="other line ends"),
    ],
)
def test_a_change_is_measured_by_the_lines_that_went_and_came(before, after, chars):
    assert changed_chars(before, after) == chars


lines = st.lists(st.sampled_from(["a\n", "bb\n", "ccc\n", "\n"]), max_size=8).map("".join)


@given(before=lines, after=lines)
def test_a_change_is_measured_as_a_diff_shows_it_but_for_lines_that_moved(before, after):
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    # The lines that Differ marks, with its marks; a line that moved is marked both ways.
    marked = Counter(line for line in difflib.ndiff(old, new) if line[:1] in "+-")
    taken, put = (Counter({m[2:]: n for m, n in marked.items() if m[0] == sign}) for sign in "-+")
    moved = sum(len(line) * times for line, times in (taken & put).items())

    assert changed_chars(before, after) == sum(
        len(line) * times for line, times in (taken + put).items()
    ) - 2 * moved  # fmt: skip


def test_a_change_of_a_long_draft_of_lines_that_repeat_is_measured_at_once():
    """As difflib measures it, that takes minutes."""
    before = "one\n\n" * 20_000

    assert changed_chars(before, before.replace("one", "two", 1)) == 8
