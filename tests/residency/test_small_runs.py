import statistics
from random import Random

import pytest
from small_runs import SmallRun, fewest_loads, small_run
from states import tenant

from harness.residency import Device
from harness.residency.jobs import Job
from harness.residency.simulation import simulate


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
