from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    EndpointUnreachable,
    NotOffered,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference.around.circuit import (
    CircuitPolicy,
    Closed,
    HalfOpen,
    Open,
    admit,
    after,
    outcome_of,
)

SECOND = 1_000_000_000
POLICY = CircuitPolicy(failures=3, pause_s=5.0, longest_pause_s=60.0)


def end(circuit, outcome, *, sent_s=0, now_s=0):
    return after(circuit, outcome, sent_ns=sent_s * SECOND, now_ns=now_s * SECOND, policy=POLICY)


def opened(*, since_s=0, until_s=5, pause_s=5):
    return Open(since_ns=since_s * SECOND, until_ns=until_s * SECOND, pause_ns=pause_s * SECOND)


def half_open(*, since_s=0, probe_s=5, pause_s=5):
    return HalfOpen(since_ns=since_s * SECOND, probe_ns=probe_s * SECOND, pause_ns=pause_s * SECOND)


@pytest.mark.parametrize(
    ("circuit", "outcome", "expected"),
    [
        pytest.param(Closed(), "unreachable", Closed(failures=1), id="the first failure"),
        pytest.param(Closed(failures=1), "unreachable", Closed(failures=2), id="the second"),
        pytest.param(
            Closed(failures=2), "unreachable", opened(since_s=7, until_s=12), id="the third opens"
        ),
        pytest.param(Closed(failures=2), "reached", Closed(), id="an answer between"),
        pytest.param(Closed(failures=2), "unknown", Closed(failures=2), id="neither"),
        pytest.param(opened(), "unreachable", opened(), id="a late failure adds nothing"),
        pytest.param(opened(), "unknown", opened(), id="a late end says nothing"),
        pytest.param(opened(), "reached", Closed(), id="a late answer closes"),
        pytest.param(
            half_open(), "unreachable", opened(until_s=17, pause_s=10), id="the probe fails"
        ),
        pytest.param(
            half_open(pause_s=40),
            "unreachable",
            opened(until_s=67, pause_s=60),
            id="pauses grow to the longest",
        ),
        pytest.param(
            half_open(), "unknown", opened(until_s=7), id="the probe is given up, another may go"
        ),
        pytest.param(half_open(), "reached", Closed(), id="the probe is answered"),
    ],
)
def test_the_end_of_a_call(circuit, outcome, expected):
    assert end(circuit, outcome, sent_s=5, now_s=7) == expected


@pytest.mark.parametrize("outcome", ["unreachable", "unknown"])
def test_a_call_sent_before_the_probe_does_not_end_it(outcome):
    assert end(half_open(probe_s=5), outcome, sent_s=4, now_s=7) == half_open(probe_s=5)


@pytest.mark.parametrize(
    ("circuit", "now_s", "expected"),
    [
        pytest.param(Closed(failures=2), 0, Closed(failures=2), id="closed"),
        pytest.param(opened(until_s=5), 4, None, id="open"),
        pytest.param(opened(until_s=5), 5, half_open(probe_s=5), id="the pause is over"),
        pytest.param(half_open(), 1000, None, id="the probe is on its way"),
    ],
)
def test_a_call_is_let_through_or_not(circuit, now_s, expected):
    assert admit(circuit, now_ns=now_s * SECOND) == expected


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "reached"),
        (EndpointUnreachable("refused", endpoint="m"), "unreachable"),
        (CallTimeout("no connection", endpoint="m", limit="connect_timeout_s"), "unreachable"),
        (CallTimeout("too slow", endpoint="m"), "reached"),
        (CallTimeout("too slow", endpoint="m", limit="first_token_timeout_s"), "unreachable"),
        (CallTimeout("too slow", endpoint="m", limit="between_tokens_timeout_s"), "reached"),
        (ServerError("boom", endpoint="m", status=500), "reached"),
        (Overloaded("loading", endpoint="m"), "reached"),
        (AuthenticationFailed("no", endpoint="m"), "reached"),
        (StreamCut("it broke off", endpoint="m"), "reached"),
        (NotOffered("it does not embed", endpoint="m"), "unknown"),
        (LookupError("a fault of the program"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
    ids=repr,
)
def test_what_a_call_tells_of_its_server(error, outcome):
    assert outcome_of(error) == outcome


STEPS = st.lists(
    st.one_of(
        st.just("ask"),
        st.tuples(st.integers(0, 5), st.sampled_from(["reached", "unreachable", "unknown"])),
        st.integers(0, 70 * SECOND),
    ),
    max_size=200,
)
"""A call is made; one of those on their way ends; time passes."""


def lives(steps):
    """The circuit after each step, with the calls on their way and the probe, if one of them is."""
    circuit, now_ns, on_their_way, probe = Closed(), 0, [], None
    yield circuit, now_ns, tuple(on_their_way), probe
    for step in steps:
        match step:
            case "ask":
                admitted = admit(circuit, now_ns=now_ns)
                if admitted is not None:
                    call = [now_ns]
                    on_their_way.append(call)
                    if isinstance(circuit, Open):
                        assert probe is None, "a second probe"
                        probe = call
                    else:
                        assert isinstance(circuit, Closed)
                    circuit = admitted
            case (which, outcome) if on_their_way:
                call = on_their_way.pop(which % len(on_their_way))
                [sent_ns] = call
                circuit = after(circuit, outcome, sent_ns=sent_ns, now_ns=now_ns, policy=POLICY)
                if outcome == "reached":
                    assert circuit == Closed()
                if probe is call or circuit == Closed():
                    probe = None
            case int():
                now_ns += step
        yield circuit, now_ns, tuple(on_their_way), probe


@given(STEPS)
def test_there_is_one_probe_exactly_while_the_circuit_is_half_open(steps):
    for circuit, _, on_their_way, probe in lives(steps):
        assert isinstance(circuit, HalfOpen) == (probe is not None)
        assert probe is None or any(probe is call for call in on_their_way)


@given(STEPS)
def test_with_no_call_on_its_way_one_is_let_through_within_the_longest_pause(steps):
    for circuit, now_ns, on_their_way, _ in lives(steps):
        if not on_their_way:
            assert admit(circuit, now_ns=now_ns + 60 * SECOND) is not None


@given(STEPS)
def test_pauses_only_grow_until_an_answer_comes(steps):
    circuits = [circuit for circuit, *_ in lives(steps)]
    for earlier, later in pairwise(circuits):
        if not isinstance(earlier, Closed) and not isinstance(later, Closed):
            assert earlier.pause_ns <= later.pause_ns <= 60 * SECOND
            assert earlier.since_ns == later.since_ns
