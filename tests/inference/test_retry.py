import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    CircuitOpen,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ReplyInvalid,
    ServerError,
    StreamCut,
)
from harness.inference import (
    ChatRequest,
    Endpoint,
    Retrying,
    RetryPolicy,
    ScriptedBackend,
    Timed,
    Wrapper,
    as_messages,
    retry_delay_s,
)
from harness.trace import ManualClock, Tracer

REQUEST = ChatRequest(model="m", messages=as_messages("Write."))
POLICY = RetryPolicy(max_attempts=4, base_s=0.5, cap_s=1.5)
AT_ONCE = RetryPolicy(max_attempts=4, base_s=0.0)
BUSY = Overloaded("loading", endpoint="m")
CUT = StreamCut("it broke off", endpoint="m")


def delay_s(error, *, attempt=1, jitter=1.0):
    return retry_delay_s(error, attempt=attempt, policy=POLICY, jitter=jitter)


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (BUSY, True),
        (RateLimited("slow down", endpoint="m"), True),
        (CUT, True),
        (ServerError("boom", endpoint="m", status=500), True),
        (ServerError("boom", endpoint="m", status=502), True),
        (ServerError("no such field", endpoint="m", status=400), False),
        (ServerError("not loaded", endpoint="m"), False),
        (EndpointUnreachable("refused", endpoint="m"), False),
        (AuthenticationFailed("no", endpoint="m"), False),
        (ModelNotFound("no", endpoint="m"), False),
        (ContextOverflow("too long", endpoint="m"), False),
        (CallTimeout("300 s", endpoint="m"), False),
        (CallTimeout("5 s", endpoint="m", limit="first_token_timeout_s"), True),
        (CallTimeout("5 s", endpoint="m", limit="between_tokens_timeout_s"), True),
        (CallTimeout("5 s", endpoint="m", limit="connect_timeout_s"), True),
        (ReplyInvalid("not JSON", endpoint="m", text=""), False),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}" if isinstance(value, Exception) else "",
)
def test_only_what_may_pass_is_tried_again(error, may_pass):
    assert (delay_s(error) is not None) == may_pass


@pytest.mark.parametrize(
    ("attempt", "jitter", "expected"),
    [
        pytest.param(1, 0.0, 0.0, id="no wait at the lower end"),
        pytest.param(1, 0.5, 0.25, id="half the first bound"),
        pytest.param(1, 1.0, 0.5, id="the first bound"),
        pytest.param(2, 1.0, 1.0, id="twice that"),
        pytest.param(3, 1.0, 1.5, id="the cap"),
        pytest.param(4, 1.0, None, id="no attempt is left"),
    ],
)
def test_waits_grow_to_the_cap_until_attempts_run_out(attempt, jitter, expected):
    assert delay_s(BUSY, attempt=attempt, jitter=jitter) == expected


@pytest.mark.parametrize("asked_s", [0.0, 0.2, 30.0])
@pytest.mark.parametrize("error_class", [Overloaded, RateLimited])
def test_a_server_that_says_how_long_to_wait_is_obeyed(error_class, asked_s):
    error = error_class("busy", endpoint="m", retry_after_s=asked_s)

    assert delay_s(error, jitter=0.5) == asked_s
    assert delay_s(error, attempt=4) is None


def chat(replies, policy=AT_ONCE, tracer=None):
    """What comes of a call behind the policy, and how many attempts it took."""

    async def main():
        backend = ScriptedBackend(replies)
        retrying = Retrying(
            backend, policy=policy, randomness=random.Random(7), tracer=tracer or Tracer()
        )
        try:
            outcome = (await retrying.chat(REQUEST)).text
        except Exception as error:  # noqa: BLE001 - whatever leaves a call is the outcome
            outcome = error
        assert all(request == REQUEST for request in backend.requests)
        return outcome, len(backend.requests)

    return asyncio.run(main())


def test_a_call_is_repeated_until_it_succeeds():
    assert chat([BUSY, CUT, "A draft."]) == ("A draft.", 3)


def test_every_repetition_is_an_instant_with_its_reason():
    records = []

    chat([BUSY, CUT, "A draft."], tracer=Tracer(records.append))

    retries = [(r.name, dict(r.attributes)) for r in records]
    assert [name for name, _ in retries] == ["retry", "retry"]
    assert [(a["reason"], a["detail"], a["attempt"]) for _, a in retries] == [
        ("Overloaded", str(BUSY), 1),
        ("StreamCut", str(CUT), 2),
    ]


def test_the_last_error_is_raised_when_attempts_run_out():
    assert chat([CUT, CUT, CUT, BUSY, "too late"]) == (BUSY, 4)


def test_an_error_that_will_not_pass_is_raised_at_once():
    refused = AuthenticationFailed("no", endpoint="m")
    assert chat([refused, "never asked for"]) == (refused, 1)


def test_a_fault_of_the_program_is_not_retried():
    outcome, attempts = chat([])
    assert isinstance(outcome, LookupError)
    assert attempts == 1


def test_the_servers_word_goes_before_the_policys_wait():
    # With the policy's own wait this would take most of an hour.
    patient = RetryPolicy(max_attempts=2, base_s=3600.0, cap_s=3600.0)
    busy = RateLimited("slow down", endpoint="m", retry_after_s=0.0)
    assert chat([busy, "A draft."], policy=patient) == ("A draft.", 2)


def test_waits_are_drawn_from_the_given_generator():
    drawn = []

    class Watched(random.Random):
        def random(self):
            drawn.append(super().random())
            return drawn[-1]

    async def main():
        backend = ScriptedBackend([CUT, "A draft."])
        retrying = Retrying(backend, policy=AT_ONCE, randomness=Watched(7), tracer=Tracer())
        await retrying.chat(REQUEST)

    asyncio.run(main())
    assert drawn == [random.Random(7).random()]


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        pytest.param(30.1, 30.0, id="there is time"),
        pytest.param(30.0, None, id="the wait alone would use it up"),
        pytest.param(0.0, None, id="none is left"),
        pytest.param(-1.0, None, id="less than none"),
    ],
)
def test_no_attempt_begins_when_the_calls_time_is_over(left_s, expected):
    error = Overloaded("busy", endpoint="m", retry_after_s=30.0)

    given = retry_delay_s(error, attempt=1, policy=POLICY, jitter=0.5, left_s=left_s)
    assert given == expected


def asked(replies, request, *, seconds_each, **how):
    """What a backend whose attempts take so long was asked, and what the call ended in."""
    clock = ManualClock()

    def reply(_request):
        clock.advance(ms=1000 * seconds_each)
        return next(script)

    async def main():
        backend = ScriptedBackend(reply)
        endpoint = Endpoint(tag="m", backend="scripted")
        retrying = Retrying(
            Timed(backend, endpoint=endpoint),
            policy=AT_ONCE,
            randomness=random.Random(7),
            tracer=Tracer(clock=clock),
            **how,
        )
        with suppress(InferenceError):
            await retrying.chat(request)
        return backend.requests

    script = iter(replies)
    return asyncio.run(main())


def test_each_attempt_has_what_the_ones_before_it_have_left():
    requests = asked([CUT, CUT, "A draft."], REQUEST, seconds_each=3, timeout_s=10)

    assert [request.timeout_s for request in requests] == [10.0, 7.0, 4.0]


def test_a_calls_own_limit_holds_for_all_its_attempts():
    requests = asked([CUT] * 4, replace(REQUEST, timeout_s=5.0), seconds_each=3, timeout_s=300)

    assert [request.timeout_s for request in requests] == [5.0, 2.0]


class Breaking:
    """Says a part of its answer, or none, and then the connection breaks."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.attempts = 0

    async def chat(self, request):
        self.attempts += 1
        for piece in self.pieces:
            request.on_text(piece)
        raise CUT


@pytest.mark.parametrize(("pieces", "attempts"), [((), 4), (("A dr", "aft"), 1)])
def test_who_has_heard_a_part_of_an_answer_does_not_hear_another(pieces, attempts):
    heard = []
    backend = Breaking(*pieces)

    async def main():
        retrying = Retrying(backend, policy=AT_ONCE, randomness=random.Random(7), tracer=Tracer())
        with pytest.raises(StreamCut):
            await retrying.chat(replace(REQUEST, on_text=heard.append))

    asyncio.run(main())
    assert backend.attempts == attempts
    assert heard == list(pieces)


class Waiting(Wrapper):
    """Has no place for a call for a while."""

    def __init__(self, backend, *, clock, seconds):
        super().__init__(backend)
        self._clock, self._seconds = clock, seconds

    async def around(self, request, ask):
        self._clock.advance(ms=1000 * self._seconds)
        return await ask(request)


def test_a_calls_time_begins_when_it_is_sent_and_not_while_it_waits_for_its_turn():
    clock = ManualClock()

    async def main():
        backend = ScriptedBackend([CUT, "A draft."])
        timed = Timed(backend, endpoint=Endpoint(tag="m", backend="scripted"))
        retrying = Retrying(
            Waiting(timed, clock=clock, seconds=60),
            policy=AT_ONCE,
            timeout_s=100,
            randomness=random.Random(7),
            tracer=Tracer(clock=clock),
        )
        await retrying.chat(REQUEST)
        return [request.timeout_s for request in backend.requests]

    # The first wait is not in it; the second is, as the call had begun.
    assert asyncio.run(main()) == [100.0, 40.0]


def test_of_a_call_that_was_made_its_own_error_is_told_and_not_that_it_was_not_made_again():
    not_asked = CircuitOpen("not asked", endpoint="m")

    assert chat([CUT, not_asked]) == (CUT, 2)
    assert chat([not_asked]) == (not_asked, 1)
