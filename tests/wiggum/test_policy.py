import math

import pytest

from harness.errors import InvalidInput
from harness.rubric import DimensionScore, Verdict
from harness.wiggum import (
    LoopLimits,
    LoopPolicy,
    Revise,
    Round,
    Spent,
    Stop,
    decide,
    decide_on_draft,
    next_revision,
)
from harness.wiggum.spent import NOTHING


def score(name: str, points: float, reason: str = "because") -> DimensionScore:
    return DimensionScore(name=name, score=points, source="checked", reason=reason)


def verdict(vector: dict[str, float], **more) -> Verdict:
    return Verdict(
        rubric="essay",
        rubric_sha256="5eed",
        scores=tuple(score(name, points) for name, points in vector.items()),
        composite=round(sum(vector.values()) / len(vector), 1),
        **{"passed": False, **more},
    )


def rounds(
    *vectors: dict[str, float], passed: bool = False, below_floor=(), spent=NOTHING
) -> list[Round]:
    """Rounds with these scores, each made from the one before; the last may have passed."""
    return [
        Round(
            number=number,
            draft=f"draft {number}",
            verdict=verdict(
                vector, passed=passed and number == len(vectors), below_floor=below_floor
            ),
            base_round=number - 1 or None,
            drafting=spent,
            judging=spent,
        )
        for number, vector in enumerate(vectors, start=1)
    ]


def scored(*composites: float, spread: float = 0.0) -> list[Round]:
    """Rounds with these composites; their vectors differ by the spread, so that none repeats."""
    return rounds(
        *(
            {"a": composite - spread * number, "b": composite + spread * number}
            for number, composite in enumerate(composites)
        )
    )


def decided(so_far, *, spent=NOTHING, need=0, policy=None, **limits):
    return decide(
        so_far,
        limits=LoopLimits(**{"max_rounds": 9, **limits}),
        policy=policy or LoopPolicy(),
        spent=spent,
        most_tokens=lambda _step: need,
    )


LOW, HIGH, HIGHER = {"a": 3.0, "b": 5.0}, {"a": 6.0, "b": 5.0}, {"a": 6.0, "b": 6.5}


@pytest.mark.parametrize(
    ("so_far", "max_rounds", "reason"),
    [
        pytest.param(rounds(HIGH, passed=True), 3, "passed", id="passed at once"),
        pytest.param(rounds(LOW, HIGH, passed=True), 2, "passed", id="passed in the last round"),
        pytest.param(rounds(LOW, LOW, passed=True), 3, "passed", id="passed though it cycles"),
        pytest.param(rounds(LOW), 1, "max_rounds", id="the only round"),
        pytest.param(rounds(LOW, HIGH, HIGHER), 3, "max_rounds", id="the last round"),
        pytest.param(rounds(LOW, LOW), 3, "cycle", id="the same scores"),
        pytest.param(rounds(HIGH, LOW, LOW), 9, "cycle", id="the same scores later"),
        pytest.param(rounds(LOW, LOW), 2, "cycle", id="the same scores in the last round"),
        pytest.param(rounds(LOW, HIGH, LOW, LOW), 4, "cycle", id="a cycle, and a regression"),
    ],
)
def test_the_loop_stops_for_a_reason(so_far, max_rounds, reason):
    assert decided(so_far, max_rounds=max_rounds).reason == reason


def test_the_scores_of_what_a_revision_was_made_from_are_a_cycle():
    first, second = rounds(HIGH, LOW)
    third = Round(number=3, draft="draft 3", verdict=verdict(HIGH), base_round=1)

    assert decided([first, second, third]) == Stop(
        reason="cycle", detail="round 3 scored as round 1 in every dimension"
    )


def test_the_scores_of_another_round_are_none():
    so_far = rounds(LOW, HIGH, LOW)

    assert isinstance(decided(so_far), Revise)


@pytest.mark.parametrize(
    ("composites", "noise", "patience", "reason"),
    [
        pytest.param([5, 4], 0, 2, None, id="one loss"),
        pytest.param([5, 4, 3], 0, 2, "regression", id="two losses"),
        pytest.param([5, 4, 4.5], 0, 2, "regression", id="two losses, the second less"),
        pytest.param([5, 4, 6], 0, 2, None, id="a loss, then a gain"),
        pytest.param([5, 6, 4], 0, 2, None, id="a gain, then a loss"),
        pytest.param([5, 6, 4, 3], 0, 2, "regression", id="a gain, then two losses"),
        pytest.param([5, 5, 5], 0, 2, "plateau", id="nothing gained, nothing lost"),
        pytest.param([5, 4, 5], 0, 2, "plateau", id="a loss made good"),
        pytest.param([5, 5.2, 5.1], 0.3, 2, "plateau", id="gains within the noise"),
        pytest.param([5, 5.2, 5.4], 0.3, 2, None, id="two small gains that make a large one"),
        pytest.param([8, 8.3, 8.3], 0.3, 2, "plateau", id="a gain as large as the noise"),
        pytest.param([5, 4.8, 4.9], 0.3, 2, "plateau", id="losses within the noise"),
        pytest.param([5, 4.6, 4.6], 0.3, 2, "regression", id="losses beyond the noise"),
        pytest.param([5, 4.6, 4.8], 0.3, 2, "plateau", id="one of them beyond the noise"),
        pytest.param([5, 4], 0, 1, "regression", id="no patience, a loss"),
        pytest.param([5, 5], 0, 1, "plateau", id="no patience, no gain"),
        pytest.param([5, 4, 3], 0, 3, None, id="more patience"),
        pytest.param([5, 4, 3, 2], 0, 3, "regression", id="more patience, at its end"),
    ],
)
def test_a_loop_that_gains_nothing_stops(composites, noise, patience, reason):
    policy = LoopPolicy(noise=noise, patience=patience)

    step = decided(scored(*composites, spread=0.25), policy=policy)

    assert getattr(step, "reason", None) == reason


def test_that_nothing_is_gained_is_said_even_when_no_round_is_left():
    assert decided(scored(5, 4, 3), max_rounds=3) == Stop(reason="regression")
    assert decided(scored(5, 5, 5, spread=0.5), max_rounds=3) == Stop(reason="plateau")


def test_with_a_measured_noise_a_plateau_says_what_gain_counts_for_none():
    so_far = scored(5, 5.2, 5.1, spread=0.5)

    step = decided(so_far, policy=LoopPolicy(noise=0.3))

    assert step.detail == "a gain of 0.3 points or less may be chance"


@pytest.mark.parametrize(
    ("stopped_by_gate", "reason"),
    [
        pytest.param((1,), None, id="behind a gate first"),
        pytest.param((2, 3), "regression", id="behind a gate since"),
        pytest.param((1, 2, 3), "plateau", id="behind it all along"),
    ],
)
def test_a_composite_that_a_gate_cut_short_is_no_measure(stopped_by_gate, reason):
    vectors = [{"a": 5.0, "b": 5.0}, {"a": 4.5, "b": 5.5}, {"a": 4.0, "b": 6.0}]
    so_far = [
        Round(
            number=number,
            draft=f"draft {number}",
            verdict=verdict(vector, gates=("a",) if number in stopped_by_gate else ()),
        )
        for number, vector in enumerate(vectors, start=1)
    ]

    assert getattr(decided(so_far), "reason", None) == reason


EACH = Spent(calls=1, input_tokens=400, output_tokens=100, cost_usd=0.02, time_ns=4_000_000_000)


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ({"max_tokens": 1_599}, "600 tokens, and of max_tokens = 1599 there are 599 left"),
        ({"max_cost_usd": 0.01}, "0.04 dollars, and of max_cost_usd = 0.01 there are 0 left"),
        ({"max_seconds": 9}, "8 seconds, and of max_seconds = 9 there are 1 left"),
    ],
    ids=["tokens", "cost, overstepped", "seconds"],
)
def test_what_there_is_too_little_of_is_said_by_its_limits_name(limits, detail):
    step = decided(rounds(LOW, spent=EACH), spent=EACH + EACH, need=600, **limits)

    assert step.detail == f"a revision and its evaluation may take {detail}"


@pytest.mark.parametrize(
    ("limits", "spent", "need", "fits"),
    [
        pytest.param({"max_tokens": 1_600}, EACH + EACH, 600, True, id="tokens that just suffice"),
        pytest.param({"max_tokens": 1_599}, EACH + EACH, 600, False, id="a token too little"),
        # As much again as the dearest draft and the dearest verdict before.
        pytest.param({"max_cost_usd": 0.08}, EACH + EACH, 0, True, id="dollars that just suffice"),
        pytest.param({"max_cost_usd": 0.079}, EACH + EACH, 0, False, id="dollars too few"),
        pytest.param({"max_seconds": 16}, EACH + EACH, 0, True, id="seconds that just suffice"),
        pytest.param({"max_seconds": 15.9}, EACH + EACH, 0, False, id="seconds too few"),
        pytest.param({}, EACH, 10**9, True, id="no limit"),
    ],
)
def test_no_revision_is_begun_that_could_not_be_evaluated(limits, spent, need, fits):
    step = decided(rounds(LOW, spent=EACH), spent=spent, need=need, **limits)

    assert isinstance(step, Revise) == fits
    if not fits:
        assert step.reason == "budget"
        assert "a revision and its evaluation may take" in step.detail


def test_what_a_revision_takes_is_only_worked_out_where_tokens_are_limited():
    asked = []

    for limits in (LoopLimits(), LoopLimits(max_tokens=100)):
        decide(
            rounds(LOW),
            limits=limits,
            policy=LoopPolicy(),
            spent=NOTHING,
            most_tokens=lambda step: asked.append(step) or 10,
        )

    assert [step.base.number for step in asked] == [1]


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
    ],
)
def test_a_revision_starts_from_the_best_round(so_far, base):
    step = decided(so_far)

    assert isinstance(step, Revise)
    assert step.base.number == base
    assert {s.name for s in step.focus} <= step.base.verdict.vector.keys()


def test_a_revision_may_be_asked_to_start_from_the_last_round():
    step = decided(rounds(HIGH, LOW), policy=LoopPolicy(revise_from="last"))

    assert isinstance(step, Revise)
    assert step.base.number == 2


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
    step = next_revision(rounds(vector), LoopPolicy(focus_below=7))

    assert [s.name for s in step.focus] == focus


def test_a_revision_looks_at_what_failed_in_the_round_it_starts_from():
    step = next_revision(rounds({"a": 8, "b": 4}, {"a": 2, "b": 8}), LoopPolicy())

    assert [s.name for s in step.focus] == ["b"]


def test_a_dimension_under_its_floor_is_revised_however_high_it_is():
    so_far = rounds({"a": 8, "b": 9, "c": 8}, below_floor=("b",))

    assert [s.name for s in next_revision(so_far, LoopPolicy()).focus] == ["b"]


@pytest.mark.parametrize(
    ("reasons", "focus"),
    [
        pytest.param(("too long", ""), ["a"], id="one of the two lowest"),
        pytest.param(("", ""), ["a", "b"], id="all of them: there is always something to revise"),
    ],
)
def test_what_nothing_is_said_against_is_not_revised(reasons, focus):
    scores = (score("a", 8, reasons[0]), score("b", 10, reasons[1]))
    judged = Verdict(rubric="essay", rubric_sha256="5eed", scores=scores, composite=9, passed=False)

    step = next_revision([Round(number=1, draft="x", verdict=judged)], LoopPolicy())

    assert [s.name for s in step.focus] == focus


@pytest.mark.parametrize(
    ("text", "again"),
    [
        pytest.param("draft 1", 1, id="the first again"),
        pytest.param("draft 2", 2, id="the last again"),
        pytest.param("draft 2 ", None, id="another by one space"),
    ],
)
def test_a_draft_that_was_evaluated_before_is_not_evaluated_again(text, again):
    stop = decide_on_draft(text, rounds(LOW, HIGH))

    if again is None:
        assert stop is None
    else:
        assert stop == Stop(
            reason="cycle", detail=f"the revision is the draft of round {again} again"
        )


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_draft_without_text_ends_the_loop(text):
    assert decide_on_draft(text, rounds(LOW)).reason == "producer_empty"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param({"max_rounds": 0}, "max_rounds is 0; at least one", id="no round"),
        pytest.param({"max_rounds": -1}, "max_rounds is -1; at least one", id="fewer"),
        pytest.param({"max_tokens": 0}, "max_tokens is 0; it must be more", id="no tokens"),
        pytest.param({"max_cost_usd": -1.5}, "max_cost_usd is -1.5", id="a debt"),
        pytest.param({"max_seconds": math.nan}, "max_seconds is nan", id="no time"),
    ],
)
def test_limits_that_leave_nothing_to_be_done_are_refused(limits, message):
    with pytest.raises(InvalidInput, match=message):
        LoopLimits(**limits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"noise": -0.1}, "noise is -0.1; it cannot be less than 0", id="noise"),
        pytest.param({"patience": 0}, "patience is 0; it must be 1 or more", id="patience"),
    ],
)
def test_a_policy_out_of_its_range_is_refused(fields, message):
    with pytest.raises(InvalidInput, match=message):
        LoopPolicy(**fields)
