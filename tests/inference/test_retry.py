import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from clients import client_of
from manual_clock import ManualClock

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, ScriptedBackend, as_messages
from harness.inference.health import RetryPolicy, another_may_answer, retry_delay_s
from harness.trace import Instant, Tracer

REQUEST = ChatRequest(model="m", messages=as_messages("Write."))
POLICY = RetryPolicy(max_attempts=4, base_s=0.5, cap_s=1.5)
AT_ONCE = RetryPolicy(max_attempts=4, base_s=0.0)
BUSY = Overloaded("loading", endpoint="m")
CUT = StreamCut("it broke off", endpoint="m")


def delay_s(error, **how):
    return retry_delay_s(error, **{"attempt": 1, "policy": POLICY, "jitter": 1.0, **how})


@pytest.mark.parametrize(
    ("error", "may_pass", "another_may"),
    [
        (BUSY, True, True),
        (CUT, True, True),
        (ServerError("boom", endpoint="m", status=500), True, True),
        (ServerError("no such field", endpoint="m", status=400), False, False),
        (ServerError("another request runs", endpoint="m", status=409), True, True),
        (ServerError("not loaded", endpoint="m"), False, True),
        (EndpointUnreachable("refused", endpoint="m"), True, True),
        (EndpointUnreachable("no", endpoint="m", code="call.certificate-refused"), False, True),
        (AuthenticationFailed("no", endpoint="m"), False, False),
        (ContextOverflow("too long", endpoint="m"), False, False),
        (CallTimeout("300 s", endpoint="m"), False, True),
        (CallTimeout("5 s", endpoint="m", limit="first_token_timeout_s"), True, True),
        (CallTimeout("5 s", endpoint="m", limit="connect_timeout_s"), True, True),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}" if isinstance(value, Exception) else "",
)
def test_only_what_may_pass_is_tried_again_and_another_asked_where_nobody_has_to_mend_it(
    error, may_pass, another_may
):
    assert (delay_s(error) is not None) == may_pass
    assert another_may_answer(error) == another_may


@pytest.mark.parametrize(
    ("asked_s", "how", "expected"),
    [
        pytest.param(None, {"jitter": 0.0}, 0.0, id="no wait at the lower end"),
        pytest.param(None, {}, 0.5, id="the first bound"),
        pytest.param(None, {"attempt": 3}, 1.5, id="the cap"),
        pytest.param(None, {"attempt": 4}, None, id="no attempt is left"),
        (None, {"attempt": 1999, "policy": RetryPolicy(max_attempts=2000)}, 8.0),
        pytest.param(0.0, {}, 0.0, id="the server asks for none"),
        pytest.param(30.0, {"jitter": 0.5}, 30.0, id="the server asks for long"),
        pytest.param(30.0, {"attempt": 4}, None, id="no attempt is left, though it asks"),
        pytest.param(30.0, {"left_s": 30.1}, 30.0, id="there is time"),
        pytest.param(30.0, {"left_s": 30.0}, None, id="the wait alone would use it up"),
    ],
)
def test_how_long_the_next_attempt_waits(asked_s, how, expected):
    assert delay_s(Overloaded("busy", endpoint="m", retry_after_s=asked_s), **how) == expected


# --- the shell around it ---------------------------------------------------------------------


def retrying(backend, *, policy=AT_ONCE, **how):
    return client_of(backend, retry=policy, **how)


def chat(replies, request=REQUEST, **how):
    """What comes of a call behind the policy, and how many attempts it took."""

    async def main():
        backend = ScriptedBackend(replies)
        try:
            outcome = (await retrying(backend, **how).chat(request)).text
        except Exception as error:  # noqa: BLE001 - whatever leaves a call is the outcome
            outcome = error
        assert all(one == request for one in backend.requests)
        return outcome, len(backend.requests)

    return asyncio.run(main())


GONE = EndpointUnreachable("refused", endpoint="m")
REFUSED = AuthenticationFailed("no", endpoint="m")
MISTAKE = ZeroDivisionError("a fault of the program")
# With the policy's own wait this would take most of an hour.
PATIENT = RetryPolicy(max_attempts=2, base_s=3600.0, cap_s=3600.0)
SOON = RateLimited("slow down", endpoint="m", retry_after_s=0.0)


def mistaken(_request):
    raise MISTAKE


@pytest.mark.parametrize(
    ("replies", "policy", "outcome"),
    [
        pytest.param([BUSY, CUT, "A draft."], AT_ONCE, ("A draft.", 3), id="until it succeeds"),
        pytest.param([CUT, CUT, CUT, CUT, "late"], AT_ONCE, (CUT, 4), id="attempts run out"),
        pytest.param([GONE, GONE, "A draft."], AT_ONCE, ("A draft.", 3), id="a connection too"),
        pytest.param([REFUSED, "never asked for"], AT_ONCE, (REFUSED, 1), id="what will not pass"),
        pytest.param(mistaken, AT_ONCE, (MISTAKE, 1), id="a fault of the program"),
        pytest.param([SOON, "A draft."], PATIENT, ("A draft.", 2), id="the server's word first"),
    ],
)
def test_a_call_is_repeated_as_long_as_that_may_help(replies, policy, outcome):
    assert chat(replies, policy=policy) == outcome


def test_every_repetition_is_an_instant_with_its_reason():
    records = []

    chat([BUSY, CUT, "A draft."], tracer=Tracer(records.append))

    retries = [one for one in records if isinstance(one, Instant) and one.name == "retry"]
    told = [record.attributes for record in retries]
    assert [(a["reason"], a["detail"], a["attempt"]) for a in told] == [
        ("Overloaded", str(BUSY), 1),
        ("StreamCut", str(CUT), 2),
    ]


@pytest.mark.parametrize(
    ("replies", "request_", "seconds", "limits"),
    [
        # What the attempts before have left; a call's own limit; without waits for a turn.
        ([CUT, CUT, "A draft."], REQUEST, {"each": 3}, [10.0, 7.0, 4.0]),
        ([CUT] * 4, replace(REQUEST, timeout_s=5.0), {"each": 3}, [5.0, 2.0]),
        ([CUT, "A draft."], REQUEST, {"before": 6}, [10.0, 10.0]),
    ],
)
def test_a_calls_time_is_for_all_its_attempts(replies, request_, seconds, limits):
    clock, script = ManualClock(), iter(replies)

    def reply(_request):
        clock.advance(ms=1000 * seconds.get("each", 0))
        return next(script)

    async def main():
        backend = ScriptedBackend(reply)

        @asynccontextmanager
        async def waiting(_request):
            """Has no place for a call for a while."""
            clock.advance(ms=1000 * seconds.get("before", 0))
            yield

        client = retrying(
            backend, gate={"lease": waiting}, tracer=Tracer(clock=clock), timeout_s=10
        )
        with suppress(InferenceError):
            await client.chat(request_)
        return [request.timeout_s for request in backend.requests]

    assert asyncio.run(main()) == limits


@pytest.mark.parametrize(("pieces", "attempts"), [((), 4), (("A dr", "aft"), 1)])
def test_who_has_heard_a_part_of_an_answer_does_not_hear_another(pieces, attempts):
    heard, asked = [], []

    class Breaking:
        """Says a part of its answer, or none, and then the connection breaks."""

        async def chat(self, request):
            asked.append(request)
            for piece in pieces:
                request.on_text(piece)
            raise CUT

    with pytest.raises(StreamCut):
        asyncio.run(retrying(Breaking()).chat(replace(REQUEST, on_text=heard.append)))
    assert (len(asked), heard) == (attempts, list(pieces))


def test_the_client_names_the_endpoint_of_an_error_that_does_not():
    backend = ScriptedBackend([ServerError("boom", status=400)])

    with pytest.raises(ServerError) as caught:
        asyncio.run(client_of(backend).chat(REQUEST))

    assert (caught.value.endpoint, caught.value.statement) == ("m", "boom")
    assert str(caught.value) == "m: boom"
