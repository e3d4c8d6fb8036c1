"""Limits: which go before which, what calls took, and which call does not fit any more."""

import asyncio
import itertools
import math
from dataclasses import replace

import pytest
from clients import in_a_loop, priced
from manual_clock import ManualClock

from harness.errors import (
    CallTimeout,
    EndpointUnreachable,
    InvalidInput,
    LimitReached,
    RunLimitReached,
    ServerError,
)
from harness.inference import ChatRequest, Completion, Limits, Message, Meter, Spent, Usage
from harness.inference.limits import merged, refusal
from harness.wiggum import LoopPolicy

# --- what they are -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "limits", "code"),
    [
        (Limits, {"max_tokens": 0}, "loop.limit-not-positive"),
        (Limits, {"max_cost_usd": math.inf}, "loop.limit-not-positive"),
        (Limits, {"max_seconds": math.nan}, "loop.limit-not-positive"),
        (LoopPolicy, {"max_rounds": 0}, "loop.number-not-positive"),
        (LoopPolicy, {"revise_from": "first"}, "loop.choice-unknown"),
        (Limits, {"max_tokens": "5"}, "loop.limit-wrong-type"),
        (Limits, {"max_calls": True}, "loop.limit-wrong-type"),
        (LoopPolicy, {"max_rounds": "3"}, "loop.number-not-positive"),
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


def test_a_call_fits_if_it_does_beside_what_is_spent_and_held():
    """Against the sum written out, for every small combination."""
    for most, spent, held, need in itertools.product(range(1, 5), *[range(4)] * 3):
        fits = spent + held + need <= most
        for limits, taken, needed in (
            (Limits(max_tokens=most), Spent(input_tokens=spent + held), Spent(input_tokens=need)),
            (Limits(max_calls=most), Spent(calls=spent + held), Spent(calls=need)),
        ):
            refused = refusal(limits, model="m", need=needed, used=taken)
            assert (refused is None) == fits


# --- what calls took -----------------------------------------------------------------------------

PRICE = priced(usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=10.0)
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

    async def each(self, *requests: ChatRequest, of_run=None, prices=None, **limits) -> Meter:
        """Asks one after another, in a loop with these limits."""
        how = {"of_run": of_run, "prices": prices, "clock": self.clock}
        with in_a_loop(self.ask, Limits(**limits), **how) as (ask, meter):
            self.loop = meter
            for one in requests:
                await ask(one)
        return meter


def ask(backend: Backend, *requests: ChatRequest, **limits) -> Meter:
    return asyncio.run(backend.each(*requests, **limits))


UNCOUNTED = replace(REPLY, usage=None, text="x" * 31, reasoning="x" * 30)
COUNTED = Spent(calls=1, input_tokens=80, output_tokens=20)
GUESSED = Spent(calls=1, input_tokens=100, estimated_calls=1, unpriced_calls=1)


@pytest.mark.parametrize(
    ("outcome", "spent"),
    [
        pytest.param(REPLY, replace(COUNTED, unpriced_calls=1), id="no price"),
        pytest.param(UNCOUNTED, replace(GUESSED, output_tokens=21), id="tokens nobody counted"),
        pytest.param(ServerError("gone", endpoint="m", status=500), GUESSED, id="failed"),
        pytest.param(EndpointUnreachable("gone", endpoint="m"), Spent(), id="never connected"),
        pytest.param(asyncio.CancelledError(), GUESSED, id="cancelled"),
    ],
)
def test_what_is_not_known_is_said_to_be_so_and_what_failed_counts_as_read(outcome, spent):
    backend = Backend(outcome)

    if isinstance(outcome, BaseException):
        with pytest.raises(type(outcome)):
            ask(backend, request(60))
    else:
        ask(backend, request(60))

    assert backend.loop.spent == spent


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
    meter = ask(Backend(reply), request(), prices=prices)

    assert meter.spent.cost_usd == pytest.approx(cost_usd)


def test_laps_add_up_to_what_was_spent():
    backend = Backend(replace(REPLY, cost_usd=0.1), seconds=1)

    async def after_each_lap():
        with in_a_loop(backend.ask, clock=backend.clock) as (ask, meter):
            for calls in (1, 0, 2):
                for _ in range(calls):
                    await ask(request())
                yield meter, meter.lap()

    async def all_of_them():
        return [pair async for pair in after_each_lap()]

    pairs = asyncio.run(all_of_them())
    meter, laps = pairs[0][0], [lap for _, lap in pairs]
    assert [(lap.calls, lap.seconds) for lap in laps] == [(1, 1), (0, 0), (2, 2)]
    assert (meter.spent.calls, meter.spent.tokens) == (3, 300)
    assert meter.spent == laps[0] + laps[1] + laps[2]
    # Another meter that goes on from there has spent the same, to the last bit.
    with in_a_loop(None, clock=backend.clock) as (_, other):
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
    if limit is None:
        ask(backend, asked, prices={"m": PRICE}, **limits)
        assert len(backend.requests) == 1
        return
    with pytest.raises(LimitReached) as caught:
        ask(backend, asked, prices={"m": PRICE}, **limits)
    assert (type(caught.value), caught.value.limit) == (LimitReached, limit)
    assert (backend.requests, backend.loop.spent.calls) == ([], 0)


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
        ask(backend, request(), request(), request(), **limits)
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
    backend, own = Backend(TIMEOUT, seconds=seconds), {"max_tokens": 1_000, "max_seconds": 60}

    with pytest.raises(RunLimitReached) as caught:
        ask(backend, request(60, 50), of_run=left, prices={"m": PRICE}, **own)
    assert caught.value.limit == limit


def test_calls_that_belong_together_are_refused_with_the_number_that_would_do():
    meter = ask(Backend(), request(), max_tokens=500)

    meter.check_room(400, what="a draft")
    with pytest.raises(LimitReached, match="max_tokens = 501"):
        meter.check_room(401, what="a draft")
    of_run = ask(Backend(), max_tokens=900, of_run=Limits(max_tokens=500))
    with pytest.raises(RunLimitReached, match="max_tokens = 520"):
        of_run.check_room(520, what="a draft")
    ask(Backend()).check_room(10**9, what="a draft")


def test_calls_at_the_same_time_do_not_count_on_the_same_room():
    """The second waits for what the first does not need; a third would never fit."""
    backend = Backend()

    async def three():
        with in_a_loop(backend.ask, Limits(max_tokens=299), clock=backend.clock) as (ask, _):
            asked = (ask(request(60, 50)) for _ in range(3))
            return await asyncio.gather(*asked, return_exceptions=True)

    first, second, third = asyncio.run(three())

    assert (first, second) == (REPLY, REPLY)
    assert isinstance(third, LimitReached)


def test_room_that_is_held_is_for_what_comes_after():
    backend = Backend(seconds=2)

    async def use():
        limits = Limits(max_tokens=400, max_seconds=60)
        with in_a_loop(backend.ask, limits, clock=backend.clock) as (ask, meter):
            with (
                meter.holding(Spent(input_tokens=300, time_ns=50 * 10**9)),
                pytest.raises(LimitReached, match="100 left"),
            ):
                await ask(request(60, 50))
            await ask(request(60, 50))
            with meter.holding(Spent(time_ns=50 * 10**9)):
                await ask(request(60, 50))

    asyncio.run(use())

    assert [one.timeout_s for one in backend.requests] == [60, 8]


@pytest.mark.parametrize(("own_s", "timeout_s"), [(None, 8.0), (30.0, 8.0), (3.0, 3.0)])
def test_a_call_may_last_as_long_as_there_is_time(own_s, timeout_s):
    backend = Backend(seconds=2)

    ask(backend, request(), request(timeout_s=own_s), max_seconds=10)

    assert backend.requests[1].timeout_s == timeout_s


@pytest.mark.parametrize(("seconds", "error"), [(10, LimitReached), (5, CallTimeout)])
def test_a_call_that_ran_out_of_the_loops_time_reached_the_limit(seconds, error):
    with pytest.raises(error):
        ask(Backend(TIMEOUT, seconds=seconds), request(), max_seconds=10)
