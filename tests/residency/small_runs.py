"""Small runs by chance, and the fewest loads they can do with, by trying everything.

Written without the look-ahead, which it judges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

from simulation import Job, Known, Policy, SimulatedRun, simulate

from harness.residency import Device, Tenant


class SmallRun(NamedTuple):
    """Jobs that all come at once, but for what they come after."""

    jobs: list[Job]
    devices: list[Device]
    tenants: list[Tenant]


def small_run(random: Random) -> SmallRun:
    """At most 4 models and 12 calls, on one device or on two; loads all take equally long.

    Three shapes by turns: any order, a few chains side by side, and layers.
    """
    devices = [Device(name="machine", capacity_bytes=random.randint(4, 10))]
    if random.random() < 0.25:
        devices.append(Device(name="gpu0", capacity_bytes=random.randint(4, 10)))
    load_s = random.choice((1.0, 5.0, 20.0))
    tenants = [
        _tenant(random, f"m{number}", devices, load_s) for number in range(random.randint(2, 4))
    ]
    count = random.randint(4, 12)
    after = random.choice((_any_order, _chains, _layers))(random, count)
    jobs = [
        Job(
            id=f"j{index:02}",
            model=random.choice(tenants).model,
            call_s=random.choice((0.5, 2.0, 8.0)) * random.uniform(0.5, 1.5),
            after=tuple(f"j{before:02}" for before in after[index]),
        )
        for index in range(count)
    ]
    return SmallRun(jobs, devices, tenants)


class RoughRun(NamedTuple):
    """A small run in which nothing is as it should be."""

    jobs: list[Job]
    devices: list[Device]
    tenants: list[Tenant]
    max_wait_s: float
    known: Known
    unload_s: float


def rough_run(random: Random) -> RoughRun:
    """A small run with pins, priorities, late arrivals, full caches, and waits that cannot be kept.

    Some do not fit at all.
    """
    run = small_run(random)
    tenants = [
        replace(
            tenant,
            load_s=random.choice((0.0, 1.0, 5.0, 20.0, 60.0)),
            call_s=random.choice((0.0, 5.0)),
            slots=random.choice((None, None, 1, 2)),
            priority=random.choice((0, 0, 0, 1, -1)),
            pin=random.random() < 0.1,
        )
        for tenant in run.tenants
    ]
    jobs = [
        replace(
            job,
            arrives_s=random.choice((0.0, 0.0, random.uniform(0, 60))),
            call_s=random.choice((0.0, job.call_s)),
        )
        for job in run.jobs
    ]
    return RoughRun(
        jobs,
        run.devices,
        tenants,
        max_wait_s=random.choice((0.0, 1.0, 10.0, 60.0, 600.0)),
        known=random.choice(("full", "arrived", "none")),
        unload_s=random.choice((0.0, 0.1, 3.0)),
    )


def played(run: RoughRun, policy: Policy) -> SimulatedRun:
    """What becomes of it."""
    return simulate(
        run.jobs,
        devices=run.devices,
        tenants=run.tenants,
        policy=policy,
        max_wait_s=run.max_wait_s,
        forecast=run.known,
        unload_s=run.unload_s,
    )


def _tenant(random: Random, model: str, devices: list[Device], load_s: float) -> Tenant:
    where = random.sample(devices, random.randint(1, len(devices)))
    return Tenant(
        model=model,
        need={device.name: random.randint(1, device.capacity_bytes) for device in where},
        is_split=len(where) > 1,
        load_s=load_s,
        slots=random.choice((1, 2, 4, None)),
    )


def _any_order(random: Random, count: int) -> list[list[int]]:
    return [random.sample(range(i), min(i, random.choice((0, 1, 1, 2)))) for i in range(count)]


def _chains(random: Random, count: int) -> list[list[int]]:
    side_by_side = random.randint(1, 4)
    return [[i - side_by_side] if i >= side_by_side else [] for i in range(count)]


def _layers(random: Random, count: int) -> list[list[int]]:
    width = random.randint(1, 3)
    return [
        list(range(i - i % width - width, i - i % width)) if i >= width else []
        for i in range(count)
    ]


def fewest_loads(run: SmallRun) -> int:
    """The fewest loads after which all jobs can have ended, by breadth-first search.

    A state is what has ended and what is resident. A call of a resident model is made at once:
    that costs nothing, and leaves no fewer ways open.
    """
    need = {tenant.model: tenant.need for tenant in run.tenants}
    room = {device.name: device.capacity_bytes for device in run.devices}
    bit = {job.id: 1 << index for index, job in enumerate(run.jobs)}
    work = [(bit[job.id], sum(bit[b] for b in job.after), job.model) for job in run.jobs]
    everything = (1 << len(run.jobs)) - 1

    def run_all(ended: int, residents: frozenset[str]) -> int:
        while True:
            more = ended
            for own, before, model in work:
                if model in residents and before & ~more == 0:
                    more |= own
            if more == ended:
                return ended
            ended = more

    def next_to(ended: int, residents: frozenset[str]) -> Iterator[tuple[int, frozenset[str]]]:
        for model in need.keys() - residents:
            for kept in subsets(residents):
                there = kept | {model}
                if all(sum(need[m].get(d, 0) for m in there) <= room[d] for d in room):
                    yield run_all(ended, there), there

    layer = {(run_all(0, frozenset()), frozenset[str]())}
    seen = set(layer)
    for loads in itertools.count():
        if any(ended == everything for ended, _ in layer):
            return loads
        layer = {there for here in layer for there in next_to(*here)} - seen
        seen |= layer
    raise AssertionError


def subsets(models: frozenset[str]) -> Iterator[frozenset[str]]:
    for count in range(len(models) + 1):
        yield from map(frozenset, itertools.combinations(sorted(models), count))
