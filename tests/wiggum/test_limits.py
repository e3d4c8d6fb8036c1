"""Limits: which go before which, how they are said, and what does not fit into them."""

import itertools
import math

import pytest

from harness.errors import InvalidInput
from harness.wiggum import Limits, LoopLimits, Room, Spent, merged, refusal


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param({"max_tokens": 0}, "max_tokens is 0; it must be more", id="no tokens"),
        pytest.param({"max_cost_usd": -1.5}, "max_cost_usd is -1.5", id="a debt"),
        pytest.param({"max_seconds": math.nan}, "max_seconds is nan", id="no time"),
        pytest.param({"max_calls": 0}, "max_calls is 0; it must be more", id="no calls"),
    ],
)
@pytest.mark.parametrize("kind", [Limits, LoopLimits])
def test_limits_that_leave_nothing_to_be_done_are_refused(kind, limits, message):
    with pytest.raises(InvalidInput, match=message):
        kind(**limits)


@pytest.mark.parametrize(
    ("given", "together"),
    [
        pytest.param([], Limits(), id="none at all"),
        pytest.param([None, None], Limits(), id="none given"),
        pytest.param(
            [Limits(max_calls=3), None, Limits(max_calls=5, max_tokens=7)],
            Limits(max_calls=3, max_tokens=7),
            id="each the first that is given",
        ),
        pytest.param(
            [Limits(max_seconds=9.5), Limits(max_cost_usd=0.5), Limits(max_seconds=1)],
            Limits(max_seconds=9.5, max_cost_usd=0.5),
            id="the first, not the least",
        ),
    ],
)
def test_what_is_given_first_goes_before_what_is_given_later(given, together):
    assert merged(*given) == together


@pytest.mark.parametrize(
    ("own", "left", "expected", "of_run"),
    [
        pytest.param({}, {"max_tokens": 9}, {"max_tokens": 9}, {"tokens"}, id="without its own"),
        pytest.param({"max_tokens": 5}, {"max_tokens": 9}, {"max_tokens": 5}, set(), id="tighter"),
        pytest.param({"max_tokens": 9}, {"max_tokens": 9}, {"max_tokens": 9}, set(), id="as tight"),
        pytest.param(
            {"max_tokens": 5, "max_seconds": 60.0},
            {"max_tokens": 3, "max_cost_usd": 0.5, "max_seconds": 90.0},
            {"max_tokens": 3, "max_cost_usd": 0.5, "max_seconds": 60.0},
            {"tokens", "cost"},
            id="each for itself",
        ),
        pytest.param({"max_calls": 4}, {}, {"max_calls": 4}, set(), id="no limit to the run"),
    ],
)
def test_a_loop_has_the_tighter_of_its_own_limits_and_what_the_run_has_left(
    own, left, expected, of_run
):
    tightened = LoopLimits(max_rounds=7, **own).within(Limits(**left))

    assert tightened == LoopLimits(max_rounds=7, of_run=frozenset(of_run), **expected)


@pytest.mark.parametrize(
    ("limits", "limit", "said"),
    [
        pytest.param(Limits(max_tokens=1_234_567), "tokens", "max_tokens = 1234567", id="whole"),
        pytest.param(Limits(max_cost_usd=0.1), "cost", "max_cost_usd = 0.1", id="dollars"),
        pytest.param(Limits(max_seconds=1 / 3), "time", "max_seconds = 0.333333", id="rounded"),
        pytest.param(
            LoopLimits().within(Limits(max_tokens=80)),
            "tokens",
            "max_tokens = 80 (all that the run has left)",
            id="the run's",
        ),
    ],
)
def test_a_limit_is_said_by_its_name_and_value(limits, limit, said):
    assert limits.said(limit) == said


def test_a_call_fits_if_it_does_beside_what_is_spent_and_held():
    """Against the sum written out, for every small combination."""
    for most, spent, held, need in itertools.product(range(1, 5), *[range(4)] * 3):
        fits = spent + held + need <= most
        rooms = {"held": Room(tokens=held, calls=held), "need": Room(tokens=need, calls=need)}
        for limits, taken in (
            (Limits(max_tokens=most), Spent(input_tokens=spent)),
            (Limits(max_calls=most), Spent(calls=spent)),
        ):
            refused = refusal(limits, model="m", spent=taken, **rooms)
            assert (refused is None) == fits
