"""What calls took, and which call does not fit any more."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import (
    CallTimeout,
    CircuitOpen,
    EndpointUnreachable,
    LimitReached,
    RunLimitReached,
)
from harness.inference import ChatRequest, Completion, Message, Usage
from harness.trace import ManualClock
from harness.wiggum import Limits, LoopLimits, Meter, Spent, TokenPrice

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


def request(chars: int = 300, room: int = 50, *, model: str = "m", **more) -> ChatRequest:
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

    def meter(self, *, prices=None, **limits) -> Meter:
        return self.meter_of(LoopLimits(**limits), prices=prices)

    def meter_of(self, limits: LoopLimits, *, prices=None) -> Meter:
        return Meter(self.ask, limits=limits, clock=self.clock, prices=prices)


def ask(meter: Meter, *requests: ChatRequest) -> None:
    async def all_of_them():
        for one in requests:
            await meter.ask(one)

    asyncio.run(all_of_them())


def test_what_calls_took_is_added_up():
    backend = Backend(replace(REPLY, cost_usd=0.25), seconds=1.5)
    meter = backend.meter()

    ask(meter, request(), request())

    assert meter.spent == Spent(
        calls=2, input_tokens=160, output_tokens=40, cost_usd=0.5, time_ns=3_000_000_000
    )
    assert (meter.spent.tokens, meter.spent.seconds) == (200, 3.0)


@pytest.mark.parametrize(
    ("reply", "spent"),
    [
        pytest.param(
            replace(REPLY, usage=None, text="x" * 31, reasoning="x" * 30),
            Spent(calls=1, input_tokens=100, output_tokens=21, estimated_calls=1, unpriced_calls=1),
            id="tokens that nobody counted",
        ),
        pytest.param(replace(REPLY, from_cache=True), Spent(calls=1), id="a reply from the cache"),
        pytest.param(
            REPLY,
            Spent(calls=1, input_tokens=80, output_tokens=20, unpriced_calls=1),
            id="no price",
        ),
        pytest.param(
            replace(REPLY, cost_usd=0.0),
            Spent(calls=1, input_tokens=80, output_tokens=20, cost_usd=0.0),
            id="a price of nothing",
        ),
    ],
)
def test_what_is_not_known_is_said_to_be_so(reply, spent):
    meter = Backend(reply).meter()

    ask(meter, request(300))

    assert meter.spent == spent


def test_prices_that_are_given_go_before_what_a_reply_says():
    meter = Backend(replace(REPLY, cost_usd=9.0)).meter(prices={"m": PRICE})

    ask(meter, request(), request(model="other"))

    assert meter.spent.cost_usd == pytest.approx(9.0 + (80 * 2 + 20 * 10) / 1e6)


def test_the_reply_of_a_stand_in_has_the_stand_ins_price():
    meter = Backend(replace(REPLY, endpoint="other", cost_usd=9.0)).meter(prices={"other": PRICE})

    ask(meter, request())

    assert meter.spent.cost_usd == pytest.approx((80 * 2 + 20 * 10) / 1e6)


def test_a_call_that_was_not_sent_took_nothing():
    meter = Backend(CircuitOpen("not asked", endpoint="m")).meter()

    with pytest.raises(CircuitOpen):
        ask(meter, request())

    assert meter.spent == Spent()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(EndpointUnreachable("gone", endpoint="m"), id="failed"),
        pytest.param(asyncio.CancelledError(), id="cancelled"),
    ],
)
def test_a_call_that_failed_counts_as_one_that_was_read(error):
    meter = Backend(error).meter()

    with pytest.raises(type(error)):
        ask(meter, request(300))

    assert meter.spent == Spent(calls=1, input_tokens=100, estimated_calls=1, unpriced_calls=1)


@pytest.mark.parametrize(
    ("limits", "asked", "limit"),
    [
        pytest.param({"max_tokens": 150}, request(300, 50), None, id="tokens that just suffice"),
        pytest.param({"max_tokens": 149}, request(300, 50), "tokens", id="a token too little"),
        pytest.param({"max_tokens": 149}, request(301, 48), None, id="a longer prompt, less room"),
        # 100 tokens in at 2 dollars a million, 50 out at 10.
        pytest.param({"max_cost_usd": 0.0007}, request(300, 50), None, id="enough money"),
        pytest.param({"max_cost_usd": 0.00069}, request(300, 50), "cost", id="too little money"),
        pytest.param({"max_calls": 1}, request(), None, id="one call"),
        pytest.param({"max_seconds": 0.06}, request(), None, id="enough time"),
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
    assert backend.requests == []
    assert meter.spent.calls == 0


def test_when_all_calls_are_made_there_are_no_more():
    backend = Backend()
    meter = backend.meter(max_calls=2)

    with pytest.raises(LimitReached, match="max_calls = 2 are made; 'm' is not called") as caught:
        ask(meter, request(), request(), request())

    assert (caught.value.limit, len(backend.requests)) == ("calls", 2)


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
    backend = Backend(CallTimeout("no whole reply", endpoint="m"), seconds=seconds)
    own = LoopLimits(max_tokens=1_000, max_seconds=60)
    meter = backend.meter_of(own.within(left), prices={"m": PRICE})

    with pytest.raises(RunLimitReached, match="all that the run has left") as caught:
        ask(meter, request(300, 50))

    assert caught.value.limit == limit


def test_what_the_run_lacks_for_calls_that_belong_together_is_said():
    meter = Backend().meter_of(LoopLimits(max_tokens=900).within(Limits(max_tokens=500)))

    with pytest.raises(RunLimitReached, match="no room for that; the run's has to be 20 more"):
        meter.check_room(520, what="a draft")


def test_without_a_price_the_call_that_oversteps_is_the_last():
    backend = Backend(replace(REPLY, cost_usd=0.3))
    meter = backend.meter(max_cost_usd=0.5)

    with pytest.raises(LimitReached, match=r"max_cost_usd = 0\.5 there are 0 left"):
        ask(meter, request(), request(), request())

    assert len(backend.requests) == 2


def test_calls_that_belong_together_are_refused_with_the_number_that_would_do():
    meter = Backend().meter(max_tokens=500)
    ask(meter, request())

    meter.check_room(400, what="a draft")
    with pytest.raises(LimitReached) as caught:
        meter.check_room(401, what="a draft")

    assert str(caught.value) == (
        "a draft may take 401 tokens, and max_tokens = 500 has no room for that; "
        "max_tokens = 501 has"
    )
    Backend().meter().check_room(10**9, what="a draft")


def test_calls_at_the_same_time_do_not_count_on_the_same_room():
    backend = Backend()
    meter = backend.meter(max_tokens=299)

    async def two():
        return await asyncio.gather(
            meter.ask(request(300, 50)), meter.ask(request(300, 50)), return_exceptions=True
        )

    first, second = asyncio.run(two())

    assert first == REPLY
    assert isinstance(second, LimitReached)
    # What the first one did not need is there again.
    ask(meter, request(300, 50))


def test_room_that_is_held_is_for_what_comes_after():
    backend = Backend(seconds=2)
    meter = backend.meter(max_tokens=400, max_seconds=60)

    left = "400 there are 100 left, beside 300 kept"
    with meter.holding(tokens=300, seconds=50), pytest.raises(LimitReached, match=left):
        ask(meter, request(300, 50))
    ask(meter, request(300, 50))
    with meter.holding(seconds=50):
        ask(meter, request(300, 50))

    assert [one.timeout_s for one in backend.requests] == [60, 8]


@pytest.mark.parametrize(
    ("own_s", "timeout_s"),
    [
        pytest.param(None, 8.0, id="without its own limit"),
        pytest.param(30.0, 8.0, id="with a longer one"),
        pytest.param(3.0, 3.0, id="with a shorter one"),
    ],
)
def test_a_call_may_last_as_long_as_there_is_time(own_s, timeout_s):
    backend = Backend(seconds=2)

    ask(backend.meter(max_seconds=10), request(), request(timeout_s=own_s))

    assert backend.requests[1].timeout_s == timeout_s


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        pytest.param(10, LimitReached, id="at the end of the loop's time"),
        pytest.param(5, CallTimeout, id="at the end of its own"),
    ],
)
def test_a_call_that_ran_out_of_the_loops_time_reached_the_limit(seconds, error):
    backend = Backend(CallTimeout("no whole reply", endpoint="m"), seconds=seconds)

    with pytest.raises(error):
        ask(backend.meter(max_seconds=10), request())


def test_laps_add_up_to_what_was_spent():
    backend = Backend(replace(REPLY, cost_usd=0.1), seconds=1)
    meter = backend.meter()
    laps = []
    for calls in (1, 0, 2):
        ask(meter, *[request()] * calls)
        laps.append(meter.lap())

    assert [lap.calls for lap in laps] == [1, 0, 2]
    assert [lap.seconds for lap in laps] == [1, 0, 2]
    assert meter.spent == laps[0] + laps[1] + laps[2]
    # Another meter that goes on from there has spent the same, to the last bit.
    other = backend.meter()
    for lap in laps:
        other.go_on_from(lap)
    assert other.spent == meter.spent


spending = st.builds(
    Spent,
    calls=st.integers(0, 9),
    input_tokens=st.integers(0, 9),
    cost_usd=st.none() | st.integers(0, 9).map(float),
    time_ns=st.integers(0, 9),
)


@given(a=spending, b=spending, c=spending)
def test_sums_do_not_hang_on_their_order(a, b, c):
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Spent() == a
