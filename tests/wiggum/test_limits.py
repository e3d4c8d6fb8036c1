"""Limits: which go before which, what calls took, and which call does not fit any more."""

import asyncio
import itertools
import math
from dataclasses import replace

import pytest

from harness.errors import (
    CallTimeout,
    EndpointUnreachable,
    InvalidInput,
    LimitReached,
    RunLimitReached,
)
from harness.inference import (
    Charges,
    ChatRequest,
    Completion,
    Limits,
    Message,
    Spent,
    TokenPrice,
    Usage,
    merged,
)
from harness.inference.limits import Room, refusal
from harness.trace import ManualClock
from harness.wiggum import LoopLimits, LoopMeter

# --- what they are -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "limits", "code"),
    [
        (Limits, {"max_tokens": 0}, "loop.limit-not-positive"),
        (LoopLimits, {"max_cost_usd": -1.5}, "loop.limit-not-positive"),
        (LoopLimits, {"max_seconds": math.nan}, "loop.limit-not-positive"),
        (LoopLimits, {"max_rounds": 0}, "loop.rounds-not-positive"),
        (Limits, {"max_tokens": "5"}, "loop.limit-wrong-type"),
        (Limits, {"max_calls": True}, "loop.limit-wrong-type"),
        (LoopLimits, {"max_rounds": "3"}, "loop.limit-wrong-type"),
    ],
)
def test_limits_that_leave_nothing_to_be_done_are_refused(kind, limits, code):
    with pytest.raises(InvalidInput) as caught:
        kind(**limits)
    assert caught.value.code == code
    assert next(iter(limits)) in str(caught.value)


def test_what_is_given_first_goes_before_what_is_given_later():
    first, second = Limits(max_calls=3), Limits(max_calls=5, max_tokens=7)

    assert merged(None, first, None, second) == Limits(max_calls=3, max_tokens=7)


@pytest.mark.parametrize(
    ("own", "left", "expected", "of_run"),
    [
        pytest.param({"max_tokens": 5}, {"max_tokens": 9}, {"max_tokens": 5}, set(), id="tighter"),
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


# --- what calls took -----------------------------------------------------------------------------

PRICE = TokenPrice(usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=10.0)
REPLY = Completion(
    text="It is so.",
    reasoning="",
    finish_reason="stop",
    usage=Usage(input_tokens=80, output_tokens=20, cached_tokens=None),
    sent_ns=0,
    first_token_ns=None,
    phases=(),
    model_id="m",
)
TIMEOUT = CallTimeout("no whole reply", endpoint="m")


def request(chars: int = 60, room: int = 50, *, model: str = "m", **more) -> ChatRequest:
    messages = (Message("system", "x" * (chars // 3)), Message("user", "x" * (chars - chars // 3)))
    return ChatRequest(model=model, messages=messages, max_output_tokens=room, **more)


class Backend:
    """Answers all with one completion, or fails, after so many seconds by the clock."""

    def __init__(self, outcome=REPLY, *, seconds: float = 0.0) -> None:
        self.clock = ManualClock()
        self.requests: list[ChatRequest] = []
        self._outcome = outcome
        self._seconds = seconds

    async def ask(self, asked: ChatRequest) -> Completion:
        self.requests.append(asked)
        await asyncio.sleep(0)
        self.clock.advance(ns=round(self._seconds * 1e9))
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def meter(self, limits: LoopLimits | None = None, *, prices=None, **fields) -> LoopMeter:
        limits = limits or LoopLimits(**fields)
        charges = Charges(prices or {})
        return LoopMeter(self.ask, limits=limits, clock=self.clock, charges=charges)


def ask(meter: LoopMeter, *requests: ChatRequest) -> None:
    async def all_of_them():
        for one in requests:
            await meter.ask(one)

    asyncio.run(all_of_them())


UNCOUNTED = replace(REPLY, usage=None, text="x" * 31, reasoning="x" * 30)
COUNTED = Spent(calls=1, input_tokens=80, output_tokens=20)
GUESSED = Spent(calls=1, input_tokens=100, estimated_calls=1, unpriced_calls=1)


@pytest.mark.parametrize(
    ("outcome", "spent"),
    [
        pytest.param(REPLY, replace(COUNTED, unpriced_calls=1), id="no price"),
        pytest.param(replace(REPLY, from_cache=True), Spent(calls=1), id="from the cache"),
        pytest.param(UNCOUNTED, replace(GUESSED, output_tokens=21), id="tokens nobody counted"),
        pytest.param(EndpointUnreachable("gone", endpoint="m"), GUESSED, id="failed"),
        pytest.param(asyncio.CancelledError(), GUESSED, id="cancelled"),
    ],
)
def test_what_is_not_known_is_said_to_be_so_and_what_failed_counts_as_read(outcome, spent):
    meter = Backend(outcome).meter()

    if isinstance(outcome, BaseException):
        with pytest.raises(type(outcome)):
            ask(meter, request(60))
    else:
        ask(meter, request(60))

    assert meter.spent == spent


@pytest.mark.parametrize(
    ("reply", "prices", "cost_usd"),
    [
        pytest.param(replace(REPLY, cost_usd=9.0), {"m": PRICE}, 0.00036, id="given, and said"),
        pytest.param(
            replace(REPLY, endpoint="other", cost_usd=9.0),
            {"other": PRICE},
            0.00036,
            id="of a stand-in",
        ),
    ],
)
def test_prices_that_are_given_go_before_what_a_reply_says(reply, prices, cost_usd):
    meter = Backend(reply).meter(prices=prices)

    ask(meter, request())

    assert meter.spent.cost_usd == pytest.approx(cost_usd)


def test_laps_add_up_to_what_was_spent():
    backend = Backend(replace(REPLY, cost_usd=0.1), seconds=1)
    meter = backend.meter()
    laps = []
    for calls in (1, 0, 2):
        ask(meter, *[request()] * calls)
        laps.append(meter.lap())

    assert [(lap.calls, lap.seconds) for lap in laps] == [(1, 1), (0, 0), (2, 2)]
    assert (meter.spent.calls, meter.spent.tokens) == (3, 300)
    assert meter.spent == laps[0] + laps[1] + laps[2]
    # Another meter that goes on from there has spent the same, to the last bit.
    other = backend.meter()
    for lap in laps:
        other.go_on_from(lap)
    assert other.spent == meter.spent


# --- what does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "asked", "limit"),
    [
        pytest.param({"max_tokens": 150}, request(60, 50), None, id="tokens that just suffice"),
        pytest.param({"max_tokens": 149}, request(60, 50), "tokens", id="a token too little"),
        # 20 tokens of text and 80 around them, at 2 dollars a million, 50 out at 10.
        pytest.param({"max_cost_usd": 0.0007}, request(60, 50), None, id="enough money"),
        pytest.param({"max_cost_usd": 0.00069}, request(60, 50), "cost", id="too little money"),
        pytest.param({"max_seconds": 0.04}, request(), "time", id="hardly any time"),
    ],
)
def test_a_call_that_does_not_fit_is_not_sent(limits, asked, limit):
    backend = Backend()
    meter = backend.meter(prices={"m": PRICE}, **limits)

    if limit is None:
        ask(meter, asked)
        assert len(backend.requests) == 1
        return
    with pytest.raises(LimitReached) as caught:
        ask(meter, asked)
    assert caught.value.limit == limit
    assert (backend.requests, meter.spent.calls) == ([], 0)


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        pytest.param({"max_calls": 2}, "calls", id="calls"),
        pytest.param({"max_cost_usd": 0.5}, "cost", id="no price: the one that oversteps is last"),
    ],
)
def test_when_all_is_spent_there_are_no_more_calls(limits, limit):
    backend = Backend(replace(REPLY, cost_usd=0.3))

    with pytest.raises(LimitReached) as caught:
        ask(backend.meter(**limits), request(), request(), request())
    assert (caught.value.limit, len(backend.requests)) == (limit, 2)


@pytest.mark.parametrize(
    ("left", "limit", "seconds"),
    [
        pytest.param(Limits(max_tokens=149), "tokens", 0, id="tokens"),
        pytest.param(Limits(max_cost_usd=0.0006), "cost", 0, id="cost"),
        pytest.param(Limits(max_seconds=2), "time", 2, id="time"),
    ],
)
def test_where_the_run_has_too_little_left_it_is_the_runs_limit_that_is_reached(
    left, limit, seconds
):
    own = LoopLimits(max_tokens=1_000, max_seconds=60)
    meter = Backend(TIMEOUT, seconds=seconds).meter(own.within(left), prices={"m": PRICE})

    with pytest.raises(RunLimitReached) as caught:
        ask(meter, request(60, 50))
    assert caught.value.limit == limit


def test_calls_that_belong_together_are_refused_with_the_number_that_would_do():
    meter = Backend().meter(max_tokens=500)
    ask(meter, request())

    meter.check_room(400, what="a draft")
    with pytest.raises(LimitReached, match="max_tokens = 501"):
        meter.check_room(401, what="a draft")
    of_run = Backend().meter(LoopLimits(max_tokens=900).within(Limits(max_tokens=500)))
    with pytest.raises(RunLimitReached, match="20 more"):
        of_run.check_room(520, what="a draft")
    Backend().meter().check_room(10**9, what="a draft")


def test_calls_at_the_same_time_do_not_count_on_the_same_room():
    meter = Backend().meter(max_tokens=299)

    async def two():
        asked = (meter.ask(request(60, 50)) for _ in range(2))
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second = asyncio.run(two())

    assert first == REPLY
    assert isinstance(second, LimitReached)
    # What the first one did not need is there again.
    ask(meter, request(60, 50))


def test_room_that_is_held_is_for_what_comes_after():
    backend = Backend(seconds=2)
    meter = backend.meter(max_tokens=400, max_seconds=60)

    with meter.holding(Room(tokens=300, seconds=50)), pytest.raises(LimitReached, match="300 kept"):
        ask(meter, request(60, 50))
    ask(meter, request(60, 50))
    with meter.holding(Room(seconds=50)):
        ask(meter, request(60, 50))

    assert [one.timeout_s for one in backend.requests] == [60, 8]


@pytest.mark.parametrize(("own_s", "timeout_s"), [(None, 8.0), (30.0, 8.0), (3.0, 3.0)])
def test_a_call_may_last_as_long_as_there_is_time(own_s, timeout_s):
    backend = Backend(seconds=2)

    ask(backend.meter(max_seconds=10), request(), request(timeout_s=own_s))

    assert backend.requests[1].timeout_s == timeout_s


@pytest.mark.parametrize(("seconds", "error"), [(10, LimitReached), (5, CallTimeout)])
def test_a_call_that_ran_out_of_the_loops_time_reached_the_limit(seconds, error):
    with pytest.raises(error):
        ask(Backend(TIMEOUT, seconds=seconds).meter(max_seconds=10), request())
