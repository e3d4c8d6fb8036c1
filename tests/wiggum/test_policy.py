import pytest

from harness.errors import InvalidInput
from harness.rubric import DimensionScore, Verdict
from harness.wiggum import LoopLimits, Revise, Round, Stop, decide


def score(name: str, points: float, reason: str = "because") -> DimensionScore:
    return DimensionScore(name=name, score=points, source="checked", reason=reason)


def rounds(*vectors: dict[str, float], passed: bool = False, below_floor=()) -> list[Round]:
    """Rounds with these scores, whose composite is their mean; the last may have passed."""
    return [
        Round(
            number=number,
            draft=f"draft {number}",
            verdict=Verdict(
                rubric="essay",
                scores=tuple(score(name, points) for name, points in vector.items()),
                composite=sum(vector.values()) / len(vector),
                passed=passed and number == len(vectors),
                below_floor=below_floor,
            ),
        )
        for number, vector in enumerate(vectors, start=1)
    ]


LOW, HIGH, HIGHER = {"a": 3.0, "b": 5.0}, {"a": 6.0, "b": 5.0}, {"a": 6.0, "b": 6.5}


@pytest.mark.parametrize(
    ("so_far", "max_rounds", "reason"),
    [
        pytest.param(rounds(HIGH, passed=True), 3, "passed", id="passed at once"),
        pytest.param(rounds(LOW, HIGH, passed=True), 2, "passed", id="passed in the last round"),
        pytest.param(rounds(LOW, LOW, passed=True), 3, "passed", id="passed though it cycles"),
        pytest.param(rounds(LOW), 1, "max_rounds", id="the only round"),
        pytest.param(rounds(LOW, HIGH, HIGHER), 3, "max_rounds", id="the last round"),
        pytest.param(rounds(LOW, LOW), 3, "cycling", id="the same scores"),
        pytest.param(rounds(HIGH, LOW, LOW), 9, "cycling", id="the same scores later"),
        pytest.param(rounds(LOW, LOW), 2, "cycling", id="the same scores in the last round"),
        pytest.param(rounds(HIGH, LOW, HIGH), 9, "cycling", id="the scores of what it began from"),
    ],
)
def test_the_loop_stops_for_a_reason(so_far, max_rounds, reason):
    assert decide(so_far, LoopLimits(max_rounds=max_rounds)) == Stop(reason=reason)


@pytest.mark.parametrize(
    ("so_far", "base"),
    [
        pytest.param(rounds(LOW), 1, id="after the first round"),
        pytest.param(rounds(LOW, HIGH), 2, id="the better second"),
        pytest.param(rounds(HIGH, LOW), 1, id="not the worse second"),
        pytest.param(rounds(LOW, HIGH, LOW), 2, id="not the last"),
        pytest.param(
            rounds({"a": 3, "b": 5}, {"a": 5, "b": 3}), 1, id="the earlier of the same composite"
        ),
        pytest.param(rounds(LOW, HIGH, LOW), 2, id="the scores of two rounds ago are no cycle"),
    ],
)
def test_a_revision_starts_from_the_best_round(so_far, base):
    step = decide(so_far, LoopLimits(max_rounds=9))

    assert isinstance(step, Revise)
    assert step.base.number == base
    assert {s.name for s in step.focus} <= step.base.verdict.vector.keys()


@pytest.mark.parametrize(
    ("vector", "focus"),
    [
        pytest.param({"a": 5, "b": 3, "c": 9, "d": 4}, ["b", "d", "a"], id="worst first"),
        pytest.param({"a": 6.5, "b": 7, "c": 9}, ["a"], id="at the line is not under it"),
        pytest.param({"a": 5, "b": 5}, ["a", "b"], id="equals as in the rubric"),
        pytest.param({"a": 9, "b": 7.5, "c": 7, "d": 8}, ["c", "b"], id="else the two lowest"),
        pytest.param({"a": 7.5}, ["a"], id="else the only one"),
    ],
)
def test_a_revision_is_for_what_failed(vector, focus):
    (only,) = rounds(vector)

    step = decide([only], LoopLimits(focus_below=7))

    assert isinstance(step, Revise)
    assert [s.name for s in step.focus] == focus


def test_a_revision_looks_at_what_failed_in_the_round_it_starts_from():
    step = decide(rounds({"a": 8, "b": 4}, {"a": 2, "b": 8}), LoopLimits(max_rounds=9))

    assert isinstance(step, Revise)
    assert [s.name for s in step.focus] == ["b"]


def test_a_dimension_under_its_floor_is_revised_however_high_it_is():
    so_far = rounds({"a": 8, "b": 9, "c": 8}, below_floor=("b",))

    step = decide(so_far, LoopLimits(focus_below=7))

    assert isinstance(step, Revise)
    assert [s.name for s in step.focus] == ["b"]


@pytest.mark.parametrize(
    ("reasons", "focus"),
    [
        pytest.param(("too long", ""), ["a"], id="one of the two lowest"),
        pytest.param(("", ""), ["a", "b"], id="all of them: there is always something to revise"),
    ],
)
def test_what_nothing_is_said_against_is_not_revised(reasons, focus):
    scores = (score("a", 8, reasons[0]), score("b", 10, reasons[1]))
    verdict = Verdict(rubric="essay", scores=scores, composite=9, passed=False)

    step = decide([Round(number=1, draft="x", verdict=verdict)], LoopLimits())

    assert isinstance(step, Revise)
    assert [s.name for s in step.focus] == focus


@pytest.mark.parametrize("max_rounds", [0, -1])
def test_a_loop_without_a_round_is_refused(max_rounds):
    with pytest.raises(InvalidInput, match=f"max_rounds is {max_rounds}; at least one"):
        LoopLimits(max_rounds=max_rounds)
