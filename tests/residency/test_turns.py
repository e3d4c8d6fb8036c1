"""Where the policy once lost, each a run; and how near the best it is."""

import statistics
from random import Random

import pytest
from simulation import Job, simulate
from small_runs import fewest_loads, small_run
from states import tenant
from workloads import alternation

from harness.residency import Device


def job(id_, model, *, call_s=1, **how):
    return Job(id=id_, model=model, call_s=call_s, **how)


def play(jobs, tenants, *, room, **settings):
    devices = [Device(name="machine", capacity_bytes=room)]
    run = simulate(jobs, devices=devices, tenants=tenants, **settings)
    assert not run.unfinished
    return run


def tenants_of(models, **how):
    return [tenant(model, **how) for model in models]


RUNS = {
    "models that load slowly serve each call before they make way": (
        [job(model, model) for model in "abcd"],
        tenants_of("abcd", load_s=20),
        {"room": 1, "forecast": "full"},
        4,
    ),
    "whatever is known": (
        [job(model, model) for model in "abcd"],
        tenants_of("abcd", load_s=20),
        {"room": 1, "forecast": "none"},
        4,
    ),
    # `m` is asked after each call of `x`: in vain let go, it would be loaded again.
    "what a call under way leads to is kept until it has ended": (
        [
            job("1", "m"),
            job("2", "x", call_s=9, after=("1",)),
            job("3", "m", after=("2",)),
            job("4", "z", arrives_s=4),
        ],
        tenants_of("mxz"),
        {"room": 2},
        3,
    ),
    # `k` is asked as soon as the first call has ended, and fits beside it; `z` does not.
    "the call after the last one is there before another model comes for others": (
        [
            job("1", "m"),
            job("2", "k", after=("1",)),
            job("3", "m", after=("2",)),
            job("4", "z"),
            job("5", "k", after=("4",)),
        ],
        [tenant("m", 4), tenant("k"), tenant("z", 4)],
        {"room": 5},
        3,
    ),
}


@pytest.mark.parametrize(
    ("jobs", "tenants", "how", "loads"), [pytest.param(*row, id=id_) for id_, row in RUNS.items()]
)
def test_no_model_is_loaded_in_vain(jobs, tenants, how, loads):
    assert play(jobs, tenants, **how).loads == loads


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_more_calls_than_there_is_time_for_are_grouped_all_the_same(slots):
    """Each of 384 calls would wait too long: turns must not get shorter for it."""
    workload = alternation(Random(0), drafts=64, gap_s=2.0, slots=slots)

    run = simulate(
        workload.jobs, devices=workload.devices, tenants=workload.tenants, forecast="arrived"
    )

    assert run.loads <= 12


def test_what_can_wait_no_longer_waits_for_no_call_while_an_idle_model_could_go():
    jobs = [
        job("long", "a", call_s=300),
        job("due", "c", arrives_s=2),
        job("later", "b", after=("due",)),
    ]

    run = play(jobs, tenants_of("abc"), room=2, resident=["b"])

    assert run.longest_wait_s <= 60 + 1 + 0.2


def test_what_was_promised_and_does_not_come_is_not_loaded_again_and_again():
    """To have `b` first would save a load, were it asked for: it is, when 500 s are over."""
    jobs = [job("1", "b", arrives_s=500), job("2", "a", after=("1",)), job("3", "a")]

    run = play(jobs, tenants_of("ab", load_s=2), room=1)

    assert run.loads <= 4
    assert run.waits_s["3"] < 10


def ratio(run):
    """Loads, to the fewest that there could be."""
    # No call has waited too long before the run is over: turns that are forced cost loads.
    ours = simulate(run.jobs, devices=run.devices, tenants=run.tenants, max_wait_s=3600)
    assert not ours.unfinished
    return ours.loads / fewest_loads(run)


@pytest.mark.parametrize("runs", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_small_runs_take_hardly_more_loads_than_the_fewest_possible(runs):
    random = Random(1)
    ratios = [ratio(small_run(random)) for _ in range(runs)]

    assert min(ratios) >= 1
    assert statistics.mean(ratios) <= 1.05
    assert max(ratios) <= 1.5
