import statistics
from random import Random

import pytest
from small_runs import fewest_loads, small_run

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
