"""Large runs by chance: what pipelines ask of two to four models that have no room together.

Sizes are GiB, of models quantized to four bits beside their KV cache; what loading takes is theirs
from an SSD. How long calls take is drawn lognormally, the spread of its logarithm 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from simulation import Job, Known

from harness.residency import Device, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs, what they run on, and what can be known of them."""

    name: str
    about: str
    """Its parameters, in words."""
    jobs: list[Job]
    devices: list[Device]
    tenants: list[Tenant]
    known: Known
    """What a forecast can say of it."""
    alternates: bool = False
    """Whether two models take turns for one thing after another."""


PLANNER = Tenant(model="planner", need={"gpu0": 5}, load_s=5.0, slots=8)
PRODUCER = Tenant(model="producer", need={"gpu0": 9}, load_s=8.0, slots=8)
EVALUATOR = Tenant(model="evaluator", need={"gpu0": 6}, load_s=6.0, slots=8)
CODER = Tenant(model="coder", need={"gpu0": 4}, load_s=4.0, slots=8)
SECONDS = {"planner": 4.0, "producer": 4.0, "evaluator": 2.0, "coder": 3.0}
"""Of a call, by the mean."""


def workloads(seed: int) -> Iterator[Workload]:
    yield alternation(Random(seed), drafts=64, gap_s=0.0)
    yield alternation(Random(seed), drafts=64, gap_s=0.5)
    yield alternation(Random(seed), drafts=64, gap_s=2.0)
    yield alternation(Random(seed), drafts=64, gap_s=2.0, slots=2)
    yield pipelines(Random(seed), requests=24, gap_s=25.0)
    yield skewed(Random(seed), calls=300, gap_s=3.0)
    yield bursts(Random(seed), requests=300, gap_s=4.0)


def alternation(
    random: Random, *, drafts: int, gap_s: float, rounds: int = 3, slots: int = 8
) -> Workload:
    """Each draft is written and judged, round after round; only one of the two has room.

    All at once, FIFO groups the calls by itself: every first draft is asked for before any verdict
    is. With two slots there is more to do than the longest wait leaves time for.
    """
    jobs = []
    for draft, at_s in enumerate(arrivals(random, drafts, gap_s)):
        before: tuple[str, ...] = ()
        for step in range(2 * rounds):
            id_ = f"draft {draft} step {step}"
            model = (PRODUCER, EVALUATOR)[step % 2].model
            jobs.append(job(random, id_, model, after=before, arrives_s=at_s))
            before = (id_,)
    when = f"one every {gap_s:g} s by chance" if gap_s else "all at once"
    return Workload(
        name=f"alternation, {when}, {slots} slots",
        about=f"{drafts} drafts x {rounds} rounds; 12 GiB",
        jobs=jobs,
        devices=gpu(12),
        tenants=[replace(tenant, slots=slots) for tenant in (PRODUCER, EVALUATOR)],
        known="arrived" if gap_s else "full",
        alternates=True,
    )


def pipelines(random: Random, *, requests: int, gap_s: float) -> Workload:
    """A plan, three drafts side by side, a verdict on them, one more draft and its verdict."""
    jobs = []
    for number, at_s in enumerate(arrivals(random, requests, gap_s)):
        steps: list[tuple[str, Tenant, tuple[str, ...]]] = [
            ("plan", PLANNER, ()),
            *((f"draft {i}", PRODUCER, ("plan",)) for i in range(3)),
            ("verdict", EVALUATOR, ("draft 0", "draft 1", "draft 2")),
            ("revision", PRODUCER, ("verdict",)),
            ("last verdict", EVALUATOR, ("revision",)),
        ]
        for step, tenant, after in steps:
            before = tuple(f"request {number} {one}" for one in after)
            id_ = f"request {number} {step}"
            jobs.append(job(random, id_, tenant.model, after=before, arrives_s=at_s))
    return Workload(
        name="pipelines",
        about=f"{requests} requests of 7 calls, one every {gap_s:g} s by chance; 2 of 3 models fit",
        jobs=jobs,
        devices=gpu(16),
        tenants=[PLANNER, PRODUCER, EVALUATOR],
        known="arrived",
    )


def skewed(random: Random, *, calls: int, gap_s: float) -> Workload:
    """Calls that have nothing to do with each other, some models far more popular than others."""
    tenants = [PRODUCER, EVALUATOR, PLANNER, CODER]
    weights = [1 / rank**1.2 for rank in range(1, 5)]
    jobs = [
        job(random, f"call {i}", random.choices(tenants, weights)[0].model, arrives_s=at_s)
        for i, at_s in enumerate(arrivals(random, calls, gap_s))
    ]
    return Workload(
        name="skewed popularity",
        about=f"{calls} calls, Zipf 1.2, one every {gap_s:g} s by chance; 16 of 24 GiB",
        jobs=jobs,
        devices=gpu(16),
        tenants=tenants,
        known="arrived",
    )


def bursts(random: Random, *, requests: int, gap_s: float) -> Workload:
    """Arrivals of the shape that BurstGPT found in a public service (arXiv:2401.17644).

    Gaps are gamma-distributed, and in bursts: of shape 0.25, so that they spread twice as wide as
    Poisson's. Which model and how long are drawn as elsewhere; the numbers are not the trace's.
    """
    tenants = [PRODUCER, EVALUATOR, CODER]
    gaps = (random.gammavariate(0.25, gap_s / 0.25) for _ in range(requests))
    jobs = [
        job(random, f"call {i}", random.choices(tenants, (3, 2, 1))[0].model, arrives_s=at_s)
        for i, at_s in enumerate(accumulate(gaps))
    ]
    return Workload(
        name="bursts",
        about=f"{requests} calls, gamma gaps of shape 0.25 and mean {gap_s:g} s; 14 of 19 GiB",
        jobs=jobs,
        devices=gpu(14),
        tenants=tenants,
        known="arrived",
    )


def arrivals(random: Random, count: int, gap_s: float) -> list[float]:
    """By Poisson, the first at once; all at once without a gap."""
    gaps = [random.expovariate(1 / gap_s) if gap_s else 0.0 for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))


def job(
    random: Random, id_: str, model: str, *, after: tuple[str, ...] = (), arrives_s: float
) -> Job:
    mu = math.log(SECONDS[model]) - 0.5**2 / 2  # so that the mean is what the table says
    call_s = random.lognormvariate(mu, 0.5)
    return Job(id=id_, model=model, call_s=call_s, after=after, arrives_s=arrives_s)


def gpu(room: int) -> list[Device]:
    return [Device(name="machine", capacity_bytes=0), Device(name="gpu0", capacity_bytes=room)]
