"""The policy on the simulated clock: waits and loads that are computed by hand."""

import pytest
from simulation import Job, simulate
from states import tenant

from harness.errors import DoesNotFit
from harness.residency import Device
from harness.residency.load_policy import decide


def job(id_, model="a", call_s=1.0, **settings):
    return Job(id=id_, model=model, call_s=call_s, **settings)


def play(jobs, *tenants, room=1, **settings):
    devices = [Device(name="machine", capacity_bytes=room)]
    return simulate(jobs, devices=devices, tenants=tenants, **settings)


def seen(jobs, *tenants, **settings):
    """The states that the policy is asked about."""
    states = []

    def watched(state):
        states.append(state)
        return decide(state)

    play(jobs, *tenants, policy=watched, **settings)
    return states


def test_a_call_waits_for_its_model_to_load():
    run = play([job("j", call_s=3)], tenant("a", load_s=5))

    assert (run.makespan_s, run.waits_s, run.loads) == (8, {"j": 5}, 1)


TENS = [job(f"j{n}", call_s=10) for n in range(3)]


def test_calls_go_side_by_side_up_to_the_slots():
    run = play(TENS, tenant("a", slots=2), tenant("b"))
    assert list(run.waits_s.values()) == [1, 1, 11]


def test_the_policy_is_told_how_long_calls_took_and_since_when_models_are_idle():
    jobs = [job("1", call_s=10), job("2", call_s=2, after=("1",)), job("3", arrives_s=20)]

    states = seen(jobs, tenant("a"))

    learned = list(dict.fromkeys(state.tenants["a"].call_s for state in states))
    assert learned == [0, 10, 9.5]  # the longest, slowly forgotten
    [last] = [state for state in states if state.now_ns == 20e9 and state.waiting]
    assert last.ledger.residents["a"].idle_since_ns == 13e9


def test_a_model_that_never_fits_is_refused():
    with pytest.raises(DoesNotFit):
        play([job("1")], tenant("a", 2), room=1)
