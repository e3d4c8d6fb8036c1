import pytest

from harness.rubric import Verdict
from harness.wiggum import Round, best_round


def rounds(*verdicts: tuple[float, bool]) -> list[Round]:
    return [
        Round(
            number=number,
            draft=f"draft {number}",
            verdict=Verdict(rubric="essay", scores=(), composite=composite, passed=passed),
        )
        for number, (composite, passed) in enumerate(verdicts, start=1)
    ]


@pytest.mark.parametrize(
    ("verdicts", "best"),
    [
        pytest.param([(3, False)], 1, id="the only one"),
        pytest.param([(3, False), (6, False), (4, False)], 2, id="the highest"),
        pytest.param([(3, False), (6, False), (6, False)], 2, id="the earliest of equals"),
        pytest.param([(6, False), (6, False), (6, False)], 1, id="the first of all equals"),
        pytest.param([(9, False), (8, True)], 2, id="passed before not passed"),
        pytest.param([(8, True), (9, True), (9.5, False)], 2, id="the highest that passed"),
        pytest.param([(0, False), (-1, False)], 1, id="at the bottom of a scale"),
    ],
)
def test_the_best_round_is_the_highest_and_then_the_earliest(verdicts, best):
    assert best_round(rounds(*verdicts)).number == best


def test_of_no_rounds_none_is_the_best():
    with pytest.raises(ValueError, match="empty"):
        best_round([])
