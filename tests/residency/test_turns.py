"""Where the policy once lost: each a run, or a state, as small as could be found."""

from dataclasses import replace
from random import Random

import pytest
from states import SECOND, calls, expected, resident, state, tenant
from workloads import alternation

from harness.residency import Device, Wait, WaitingCall, decide
from harness.residency.choice import Choice
from harness.residency.simulation import Job, simulate


def play(jobs, tenants, *, room, **settings):
    devices = [Device(name="machine", capacity_bytes=room)]
    return simulate(jobs, devices=devices, tenants=tenants, **settings)


@pytest.mark.parametrize("known", ["full", "none"])
def test_models_that_load_slowly_serve_each_call_before_they_make_way(known):
    tenants = [tenant(model, load_s=20) for model in "abcd"]

    run = play(
        [Job(id=model, model=model, call_s=1) for model in "abcd"],
        tenants,
        room=1,
        forecast=known,
    )

    assert run.loads == 4
    assert not run.unfinished


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_more_calls_than_there_is_time_for_are_grouped_all_the_same(slots):
    """Each of 384 calls would wait too long: turns must not get shorter for it."""
    workload = alternation(Random(0), drafts=64, gap_s=2.0, slots=slots)

    run = simulate(
        workload.jobs, devices=workload.devices, tenants=workload.tenants, forecast="arrived"
    )

    assert run.loads <= 12


def test_a_call_that_could_not_wait_for_its_model_to_return_is_not_held_up():
    tenants = [tenant("a", load_s=10), tenant("b", load_s=10)]
    waiting = [
        WaitingCall(id=1, model="b", since_ns=0),
        WaitingCall(id=2, model="a", since_ns=10 * SECOND),
    ]
    present = state(tenants, [resident("a", leases=1)], waiting, room=1, now_s=60)

    assert decide(present).calls == (2,)


def test_but_no_turn_is_longer_than_two_waits():
    tenants = [tenant("a", load_s=10), tenant("b", load_s=10)]
    waiting = [
        WaitingCall(id=1, model="b", since_ns=0),
        WaitingCall(id=2, model="a", since_ns=10 * SECOND),
    ]

    present = state(tenants, [resident("a", leases=1)], waiting, room=1, now_s=120)

    assert decide(present) == Wait()


def test_of_equal_ways_to_make_room_one_that_need_not_wait_is_taken():
    """`c` became idle in this very moment, and how long calls of `a` take is not known yet."""
    tenants = [tenant(model) for model in "abc"]
    residents = [resident("a", leases=1), resident("c", idle_since_s=4)]
    present = state(tenants, residents, calls("b", since_s=4), room=2, now_s=4)

    assert Choice(present).best({"b": "why"}).evict == ("c",)


def test_what_can_wait_no_longer_waits_for_no_call_while_an_idle_model_could_go():
    run = play(
        [
            Job(id="long", model="a", call_s=300),
            Job(id="due", model="c", call_s=1, arrives_s=2),
            Job(id="later", model="b", call_s=1, after=("due",)),
        ],
        [tenant(model) for model in "abc"],
        room=2,
        resident=["b"],
    )

    assert run.longest_wait_s <= 60 + 1 + 0.2


def test_what_a_call_under_way_leads_to_is_kept_until_it_has_ended():
    """`m` is asked after each call of `x`: in vain let go, it would be loaded again."""
    jobs = [
        Job(id="1", model="m", call_s=1),
        Job(id="2", model="x", call_s=9, after=("1",)),
        Job(id="3", model="m", call_s=1, after=("2",)),
        Job(id="4", model="z", call_s=1, arrives_s=4),
    ]

    run = play(jobs, [tenant(model) for model in "mxz"], room=2)

    assert run.loads == 3


def test_the_call_after_the_last_one_is_there_before_another_model_comes_for_others():
    """`k` is asked as soon as the first call has ended, and fits beside it; `z` does not."""
    sizes = {"m": 4, "k": 1, "z": 4}
    jobs = [
        Job(id="1", model="m", call_s=1),
        Job(id="2", model="k", call_s=1, after=("1",)),
        Job(id="3", model="m", call_s=1, after=("2",)),
        Job(id="4", model="z", call_s=1),
        Job(id="5", model="k", call_s=1, after=("4",)),
    ]

    run = play(jobs, [tenant(model, size) for model, size in sizes.items()], room=5)

    assert run.loads == 3


def test_what_was_promised_and_does_not_come_is_not_loaded_again_and_again():
    """To have `b` first would save a load, were it asked for: it is, when 500 s are over."""
    jobs = [
        Job(id="1", model="b", call_s=1, arrives_s=500),
        Job(id="2", model="a", call_s=1, after=("1",)),
        Job(id="3", model="a", call_s=1),
    ]

    run = play(jobs, [tenant("a", load_s=2), tenant("b", load_s=2)], room=1)

    assert run.loads <= 4
    assert run.waits_s["3"] < 10


def test_the_order_of_tenants_decides_nothing():
    tenants = [tenant("b", pin=True), tenant("a", pin=True)]
    present = state(tenants, room=2)
    other = replace(present, tenants=dict(reversed(present.tenants.items())))

    assert other == present
    assert decide(other) == decide(present)


def test_the_order_of_residents_decides_nothing():
    residents = [resident("b"), resident("a")]
    present = state([tenant("a"), tenant("b")], residents, room=2, forecast=expected())
    ledger = replace(present.ledger, residents=dict(reversed(present.ledger.residents.items())))

    assert decide(replace(present, ledger=ledger)) == decide(present)
