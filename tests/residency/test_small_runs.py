import itertools
import statistics
from random import Random

import pytest
from small_runs import SmallRun, fewest_loads, small_run, subsets
from states import tenant
from workloads import alternation

from harness.residency import Device
from harness.residency.jobs import Job
from harness.residency.simulation import simulate

RUNS = 60


def ratios(seed):
    random = Random(seed)
    for run in [small_run(random) for _ in range(RUNS)]:
        # No call has waited too long before the run is over: turns that are forced cost loads.
        ours = simulate(run.jobs, devices=run.devices, tenants=run.tenants, max_wait_s=3600)
        assert not ours.unfinished
        yield ours.loads / fewest_loads(run)


def test_small_runs_take_hardly_more_loads_than_the_fewest_possible():
    found = list(ratios(seed=1))

    assert min(found) >= 1
    assert statistics.mean(found) <= 1.05
    assert max(found) <= 1.5


def test_the_fewest_loads_are_those_that_trying_every_order_finds():
    random = Random(3)
    runs = [small_run(random) for _ in range(40)]

    for run in runs:
        few = SmallRun(run.jobs[:5], run.devices, run.tenants)
        assert fewest_loads(few) == fewest_by_every_step(few)


@pytest.mark.parametrize(
    ("models", "room", "fewest"),
    [("aaaa", 1, 1), ("abab", 1, 4), ("abab", 2, 2), ("abcabc", 2, 4)],
)
def test_the_fewest_loads_of_a_chain_are_known(models, room, fewest):
    jobs = [
        Job(id=str(i), model=model, call_s=1, after=(str(i - 1),) if i else ())
        for i, model in enumerate(models)
    ]
    tenants = [tenant(model) for model in sorted(set(models))]

    run = SmallRun(jobs, [Device(name="machine", capacity_bytes=room)], tenants)

    assert fewest_loads(run) == fewest


def test_drafts_that_come_one_after_another_are_grouped():
    """64 of them, in 3 rounds: 384 calls, alternately of two models of which one has room."""
    workload = alternation(Random(0), drafts=64, gap_s=0.5)

    run = simulate(
        workload.jobs,
        devices=workload.devices,
        tenants=workload.tenants,
        forecast=workload.known,
    )

    assert not run.unfinished
    assert run.loads == 6
    assert run.longest_wait_s <= 60 + max(one.load_s for one in workload.tenants)


def fewest_by_every_step(run):
    """Without any shortcut: one call, or one load in place of whatever goes, at a time."""
    need = {one.model: one.need for one in run.tenants}
    room = {device.name: device.capacity_bytes for device in run.devices}
    layer = {(frozenset(), frozenset())}
    for loads in itertools.count():
        while True:  # all that costs nothing
            more = {
                (ended | {job.id}, residents)
                for ended, residents in layer
                for job in run.jobs
                if job.model in residents and job.id not in ended and ended.issuperset(job.after)
            } - layer
            if not more:
                break
            layer |= more
        if any(len(ended) == len(run.jobs) for ended, _ in layer):
            return loads
        layer = {
            (ended, kept | {model})
            for ended, residents in layer
            for model in need.keys() - residents
            for kept in subsets(residents)
            if all(sum(need[m].get(d, 0) for m in kept | {model}) <= room[d] for d in room)
        }
    raise AssertionError
