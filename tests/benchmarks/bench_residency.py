"""Loads and waits by the keep-alive budget, against the fewest possible and against other rules.

    python tests/benchmarks/bench_residency.py [--json] [--seed 0] [--part NAME] [--runs 500]

On a simulated clock, so that the figures are the same on every machine, but for the seconds of
deciding. The parts, both unless one is named:

small   Random runs of at most 4 models and 12 calls, all of which come at once but for what they
        come after: loads against the fewest possible, found by trying everything
        (`small_runs.py`). Once where no call has waited too long before the run is over, once with
        the usual longest wait, which the fewest loads know nothing of.
large   Workloads of hundreds of calls (`workloads.py`), against FIFO with LRU, Ollama's five
        minutes, and calls for residents first (`residency_peers.py`). Ours once with a forecast of
        what has arrived and comes after it, once without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from figures import Figure, print_figures

sys.path.insert(0, str(Path(__file__).parent.parent / "residency"))

from residency_peers import PEERS
from simulation import Known, Policy, SimulatedRun, simulate
from small_runs import SmallRun, fewest_loads, small_run
from workloads import Workload, workloads

from harness.residency import MAX_WAIT_S
from harness.residency.load_policy import decide

OURS, OURS_BLIND = "ours", "ours without a forecast"
FIFO = "FIFO + LRU"
NEVER_TOO_LONG_S = 3600.0
"""Longer than any small run takes."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--part", choices=("small", "large"))
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--runs", type=int, default=500)
    options = arguments.parse_args()
    parts = {
        "small": lambda: small_figures(options.seed, options.runs),
        "large": lambda: large_figures(options.seed),
    }
    chosen = [part for name, part in parts.items() if options.part in {None, name}]
    figures = (figure for part in chosen for figure in part())
    print_figures(figures, as_json=options.json)


# --- 1. Small runs, against the fewest loads ----------------------------------------------------


def small_figures(seed: int, count: int) -> Iterator[Figure]:
    random = Random(seed)
    runs = [small_run(random) for _ in range(count)]
    fewest = [fewest_loads(run) for run in runs]
    for max_wait_s, name in ((NEVER_TOO_LONG_S, "no wait too long"), (MAX_WAIT_S, "60 s at most")):
        yield from compared_to_fewest(f"{count} small runs, {name}", runs, fewest, max_wait_s)


def compared_to_fewest(
    name: str, runs: Sequence[SmallRun], fewest: Sequence[int], max_wait_s: float
) -> Iterator[Figure]:
    ratios = []
    for run, least in zip(runs, fewest, strict=True):
        ours = simulate(run.jobs, devices=run.devices, tenants=run.tenants, max_wait_s=max_wait_s)
        assert not ours.unfinished
        ratios.append(ours.loads / least)
    mean, worst = statistics.mean(ratios), max(ratios)
    yield Figure(f"{name}: loads / fewest, mean", mean, aim(mean, 1.05))
    yield Figure(f"{name}: the same, worst", worst, aim(worst, 1.5))
    for ratio, times in sorted(Counter(round(ratio, 2) for ratio in ratios).items()):
        yield Figure(f"{name}: runs at {ratio:.2f}", times)


# --- 2. Large ones, against other rules ---------------------------------------------------------


class Played(NamedTuple):
    run: SimulatedRun
    took_s: float
    """Seconds of deciding, and of simulating."""


def large_figures(seed: int) -> Iterator[Figure]:
    for workload in workloads(seed):
        played = {
            OURS: play(workload, decide, workload.known),
            OURS_BLIND: play(workload, decide, "none"),
            **{name: play(workload, policy, "none") for name, policy in PEERS.items()},
        }
        yield from workload_figures(workload, played)


def play(workload: Workload, policy: Policy, known: Known) -> Played:
    begun = time.perf_counter()
    run = simulate(
        workload.jobs,
        devices=workload.devices,
        tenants=workload.tenants,
        policy=policy,
        forecast=known,
    )
    took_s = time.perf_counter() - begun
    assert not run.unfinished
    return Played(run, took_s)


def workload_figures(workload: Workload, played: dict[str, Played]) -> Iterator[Figure]:
    fifo_loads = played[FIFO].run.loads
    best_peer_s = min(played[name].run.makespan_s for name in PEERS)
    longest_s = MAX_WAIT_S + max(tenant.load_s for tenant in workload.tenants)
    yield Figure(f"{workload.name}: {workload.about}; calls", len(workload.jobs))
    for name, (run, took_s) in played.items():
        of_fifo, of_best = run.loads / fifo_loads, run.makespan_s / best_peer_s
        is_ours = name in {OURS, OURS_BLIND}
        few = aim(of_fifo, 0.1, of=" of FIFO's") if is_ours and workload.alternates else ""
        soon = aim(of_best, 1.02, of=" of the best peer's") if is_ours else ""
        kept = aim(run.longest_wait_s, longest_s) if is_ours else ""
        line = f"{workload.name}, {name}"
        yield Figure(f"{line}: loads", run.loads, f"{of_fifo:.2f} of FIFO's  {few}".rstrip())
        yield Figure(
            f"{line}: makespan, s", run.makespan_s, f"{of_best:.3f} of best  {soon}".rstrip()
        )
        yield Figure(f"{line}: longest wait, s", run.longest_wait_s, kept)
        if is_ours:
            yield Figure(f"{line}: deciding and simulating, s", took_s)


def aim(value: float, most: float, *, of: str = "") -> str:
    return f"aim <= {most:g}{of}: {'reached' if value <= most else 'MISSED'}"


if __name__ == "__main__":
    main()
