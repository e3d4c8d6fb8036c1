"""What the loop does next: a revision, made from which draft for which dimensions, or its end."""

from dataclasses import replace

import pytest
from clients import in_a_loop
from manual_clock import ManualClock

from harness.inference import Limits, Spent
from harness.inference.limits import NOTHING
from harness.rubric import DimensionScore, Verdict
from harness.wiggum import LoopPolicy, Round
from harness.wiggum.policy import (
    FINAL_TEXT,
    STOPPED_SINCE,
    Revise,
    Stop,
    decide,
    decide_on_draft,
)


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
    *vectors: dict[str, float], passed: bool = False, below_floor=(), gated=(), spent=NOTHING
) -> list[Round]:
    """Rounds with these scores, each made from the one before; the last may have passed."""
    return [
        Round(
            number=number,
            draft=f"draft {number}",
            verdict=verdict(
                vector,
                passed=passed and number == len(vectors),
                below_floor=below_floor,
                gates=("a",) if number in gated else (),
            ),
            base_round=number - 1 or None,
            drafting=spent,
            judging=spent,
        )
        for number, vector in enumerate(vectors, start=1)
    ]


def scored(*composites: float, spread: float = 0.25) -> list[Round]:
    """Rounds with these composites; their vectors differ by the spread, so that none repeats."""
    return rounds(
        *(
            {"a": composite - spread * number, "b": composite + spread * number}
            for number, composite in enumerate(composites)
        )
    )


def decided(so_far, *, spent=NOTHING, need=0, policy=None, **limits):
    policy = replace(policy or LoopPolicy(), max_rounds=limits.pop("max_rounds", 9))
    clock = ManualClock()
    with in_a_loop(None, Limits(**limits), clock=clock) as (_, meter):
        meter.go_on_from(spent)
        return decide(so_far, policy=policy, rest_of=meter.left, most_tokens=lambda _step: need)


LOW, HIGH, HIGHER = {"a": 3.0, "b": 5.0}, {"a": 6.0, "b": 5.0}, {"a": 6.0, "b": 6.5}


@pytest.mark.parametrize(
    ("so_far", "max_rounds", "reason"),
    [
        pytest.param(rounds(HIGH, passed=True), 3, "passed", id="passed at once"),
        pytest.param(rounds(LOW, LOW, passed=True), 3, "passed", id="passed though it cycles"),
        pytest.param(rounds(LOW, HIGH, HIGHER), 3, "max_rounds", id="the last round"),
        pytest.param(rounds(LOW, LOW), 3, "cycle", id="the same scores"),
        pytest.param(rounds(HIGH, LOW, LOW), 9, "cycle", id="the same scores later"),
        pytest.param(rounds(LOW, LOW), 2, "cycle", id="the same scores in the last round"),
        pytest.param(rounds(LOW, HIGH, LOW, LOW), 4, "cycle", id="a cycle, and a regression"),
        pytest.param(rounds(LOW, HIGH, LOW), 9, None, id="the scores of another round"),
        pytest.param(scored(5, 4, 3), 3, "regression", id="a regression in the last round"),
        pytest.param(scored(5, 5, 5), 3, "plateau", id="a plateau in the last round"),
    ],
)
def test_the_loop_stops_for_a_reason(so_far, max_rounds, reason):
    assert getattr(decided(so_far, max_rounds=max_rounds), "reason", None) == reason


@pytest.mark.parametrize(("vector", "same"), [(HIGH, "round 1"), (LOW, "round 2")])
def test_the_scores_of_the_round_before_or_of_the_revised_one_are_a_cycle(vector, same):
    third = Round(number=3, draft="draft 3", verdict=verdict(vector), base_round=1)

    step = decided([*rounds(HIGH, LOW), third])

    assert step.reason == "cycle"
    assert ("round 3" in step.detail, same in step.detail) == (True, True)


@pytest.mark.parametrize(
    ("composites", "noise", "reason"),
    [
        pytest.param([5, 4], 0, None, id="one loss"),
        pytest.param([5, 4, 3], 0, "regression", id="two losses"),
        pytest.param([5, 4, 4.5], 0, "regression", id="two losses, the second less"),
        pytest.param([5, 4, 6], 0, None, id="a loss, then a gain"),
        pytest.param([5, 6, 4], 0, None, id="a gain, then a loss"),
        pytest.param([5, 6, 4, 3], 0, "regression", id="a gain, then two losses"),
        pytest.param([5, 5, 5], 0, "plateau", id="nothing gained, nothing lost"),
        pytest.param([5, 4, 5], 0, "plateau", id="a loss made good"),
        pytest.param([5, 5.2, 5.1], 0.3, "plateau", id="gains within the noise"),
        pytest.param([5, 5.2, 5.4], 0.3, None, id="two small gains that make a large one"),
        pytest.param([8, 8.3, 8.3], 0.3, "plateau", id="a gain as large as the noise"),
        pytest.param([5, 4.8, 4.9], 0.3, "plateau", id="losses within the noise"),
        pytest.param([5, 4.6, 4.6], 0.3, "regression", id="losses beyond the noise"),
        pytest.param([5, 4.6, 4.8], 0.3, "plateau", id="one of them beyond the noise"),
    ],
)
def test_a_loop_that_gains_nothing_stops(composites, noise, reason):
    step = decided(scored(*composites), policy=LoopPolicy(noise=noise))

    assert getattr(step, "reason", None) == reason
    if reason == "plateau":
        assert (f"{noise:g}" in step.detail) is (noise > 0)


@pytest.mark.parametrize(
    ("gated", "reason"),
    [
        pytest.param((1,), None, id="behind a gate first"),
        pytest.param((2, 3), "regression", id="behind a gate since"),
        pytest.param((1, 2, 3), "plateau", id="behind it all along"),
    ],
)
def test_a_composite_that_a_gate_cut_short_is_no_measure(gated, reason):
    so_far = rounds({"a": 5.0, "b": 5.0}, {"a": 4.5, "b": 5.5}, {"a": 4.0, "b": 6.0}, gated=gated)

    assert getattr(decided(so_far), "reason", None) == reason


EACH = Spent(calls=1, input_tokens=400, output_tokens=100, cost_usd=0.02, time_ns=4_000_000_000)


@pytest.mark.parametrize(
    ("limits", "need", "lacks"),
    [
        pytest.param({"max_tokens": 1_600}, 600, (), id="tokens that just suffice"),
        pytest.param({"max_tokens": 1_599}, 600, ("600", "1599", "599"), id="a token too little"),
        # As much again as the dearest draft and the dearest verdict before.
        pytest.param({"max_cost_usd": 0.08}, 0, (), id="dollars that just suffice"),
        pytest.param({"max_cost_usd": 0.079}, 0, ("0.04 dollars", "0.079"), id="dollars too few"),
        pytest.param({"max_cost_usd": 0.01}, 0, ("0.01", " 0 left"), id="overstepped"),
        pytest.param({"max_calls": 4}, 0, (), id="calls that just suffice"),
        pytest.param({"max_calls": 3}, 0, ("2 calls", "1 left"), id="a call too few"),
        pytest.param({"max_seconds": 16}, 0, (), id="seconds that just suffice"),
        pytest.param({"max_seconds": 15.9}, 0, ("8 seconds", "15.9"), id="seconds too few"),
        pytest.param({}, 10**9, (), id="no limit"),
    ],
)
def test_no_revision_is_begun_that_could_not_be_evaluated(limits, need, lacks):
    step = decided(rounds(LOW, spent=EACH), spent=EACH + EACH, need=need, **limits)

    assert isinstance(step, Revise) == (not lacks)
    if lacks:
        assert step.reason == "budget"
        assert all(fact in step.detail for fact in (*limits, *lacks))


@pytest.mark.parametrize(("max_calls", "revises"), [(3, True), (2, False)])
def test_a_first_draft_that_was_given_tells_nothing_of_the_calls_of_a_revision(max_calls, revises):
    (first,) = rounds(LOW, spent=EACH)
    given = replace(first, drafting=NOTHING)

    assert isinstance(decided([given], spent=EACH, max_calls=max_calls), Revise) is revises


@pytest.mark.parametrize(
    ("so_far", "revise_from", "base"),
    [
        pytest.param(rounds(LOW), "best", 1, id="after the first round"),
        pytest.param(rounds(LOW, HIGH), "best", 2, id="the better second"),
        pytest.param(rounds(HIGH, LOW), "best", 1, id="not the worse second"),
        pytest.param(rounds(LOW, HIGH, LOW), "best", 2, id="not the last"),
        pytest.param(rounds({"a": 3, "b": 5}, {"a": 5, "b": 3}), "best", 1, id="the earlier"),
        pytest.param(rounds(HIGH, LOW), "last", 2, id="the last, where that is asked for"),
    ],
)
def test_a_revision_starts_from_the_best_round_unless_the_last_is_asked_for(
    so_far, revise_from, base
):
    step = decided(so_far, policy=LoopPolicy(revise_from=revise_from))

    assert isinstance(step, Revise)
    assert step.base.number == base
    assert {s.name for s in step.focus} <= step.base.verdict.vector.keys()


@pytest.mark.parametrize(
    ("vectors", "below_floor", "focus"),
    [
        pytest.param([{"a": 5, "b": 3, "c": 9, "d": 4}], (), ["b", "d", "a"], id="worst first"),
        pytest.param([{"a": 6.5, "b": 7, "c": 9}], (), ["a"], id="at the line is not under it"),
        pytest.param([{"a": 5, "b": 5}], (), ["a", "b"], id="equals as in the rubric"),
        pytest.param([{"a": 9, "b": 7.5, "c": 7, "d": 8}], (), ["c", "b"], id="the two lowest"),
        pytest.param([{"a": 7.5}], (), ["a"], id="else the only one"),
        pytest.param([{"a": 8, "b": 4}, {"a": 2, "b": 8}], (), ["b"], id="of the best round"),
        pytest.param([{"a": 8, "b": 9, "c": 8}], ("b",), ["b"], id="under its floor, if high"),
    ],
)
def test_a_revision_is_for_what_failed(vectors, below_floor, focus):
    step = decided(rounds(*vectors, below_floor=below_floor), policy=LoopPolicy(focus_below=7))

    assert [s.name for s in step.focus] == focus


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

    step = decided([Round(number=1, draft="x", verdict=judged)])

    assert [s.name for s in step.focus] == focus


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        pytest.param("draft 1", "cycle", "round 1", id="the first again"),
        pytest.param("draft 2", "cycle", "round 2", id="the last again"),
        pytest.param("draft 2 ", None, "", id="another by one space"),
        pytest.param("", "producer_empty", "", id="nothing"),
        pytest.param(" \n\t", "producer_empty", "", id="white space"),
    ],
)
def test_a_draft_that_was_evaluated_before_or_has_no_text_ends_the_loop(text, reason, detail):
    stop = decide_on_draft(text, rounds(LOW, HIGH))

    assert getattr(stop, "reason", None) == reason
    assert isinstance(stop, Stop | None)
    assert stop is None or detail in stop.detail


def test_each_reason_says_whether_a_further_round_would_change_the_text():
    failed = {"producer_empty", "producer_failed", "evaluator_failed"}
    would = {"budget", "abstained", "cancelled", *failed}
    assert FINAL_TEXT | would == STOPPED_SINCE.keys()
    assert not FINAL_TEXT & would
