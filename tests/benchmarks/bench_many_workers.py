"""What saturates first when 1,000 workers run 100,000 rows: a simulation, on a clock of its own.

    python tests/benchmarks/bench_many_workers.py [--json] [--rows 100000] [--nodes 5]

No cluster stands behind it. A row has five nodes, one after the other, each with one call to a
model. A node call passes these stations, and waits where others are before it:

driver    One process: schedules the call, sends it, writes it to the journal. Its time is measured
          here, on this machine, as the processor's time of a batch with scripted replies.
engine    Hands the call to a worker (`--engine-ms`, a Ray task as `bench_ray.py` measures it); the
          driver's process does that too.
memory    One write a row (`--write-ms`, PostgreSQL as `bench_postgres.py` measures it).
models    Replicas with so many places each (`--places`), chosen by the code that chooses them in a
          run. A call takes `--call-s` in the mean, exponentially distributed. There are as many as
          the workers need at two thirds of their places.

The table has a line for each number of workers: how long it takes, how much longer than with
stations that take no time, and how busy each station is. The first at 100 % is the one to divide.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import NamedTuple

from harness.inference.gate import ReplicaState, choice, preference

WORKERS = (10, 100, 300, 1000)
MEASURED_ROWS = (100, 500)
PREFIXES = 200
"""Rubrics and sources that calls begin with."""


class Times(NamedTuple):
    """What one call takes at each station, in seconds."""

    driver_s: float
    engine_s: float
    write_s: float
    call_s: float


class Clock:
    """Calls what is due, in the order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        heappush(self._due, (self.now_s + delay_s, next(self._numbers), act))

    def run(self) -> None:
        while self._due:
            self.now_s, _, act = heappop(self._due)
            act()


class Station:
    """Serves one after the other, at so many places."""

    def __init__(self, clock: Clock, places: int = 1) -> None:
        self._clock = clock
        self._free = self.places = places
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self.busy_s = 0.0

    @property
    def under_way(self) -> int:
        return self.places - self._free

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take(self, time_s: float, then: Callable[[], None]) -> None:
        """Serves a call for so long, when its turn has come."""
        self._queue.append((time_s, then))
        self._serve()

    def _serve(self) -> None:
        while self._free and self._queue:
            time_s, then = self._queue.popleft()
            self._free -= 1
            self.busy_s += time_s
            self._clock.after(time_s, lambda then=then: self._done(then))

    def _done(self, then: Callable[[], None]) -> None:
        self._free += 1
        then()
        self._serve()

    def busy(self) -> float:
        return self.busy_s / self.places / self._clock.now_s


class Farm:
    """Workers that take one row after the other."""

    def __init__(self, times: Times, *, workers: int, rows: int, nodes: int, places: int) -> None:
        self._times, self._nodes, self._rows = times, nodes, iter(range(rows))
        self._random = random.Random(0)
        self.clock = Clock()
        self.driver, self.memory = Station(self.clock), Station(self.clock)
        replicas = math.ceil(1.5 * workers / places)
        self.replicas = [Station(self.clock, places) for _ in range(replicas)]
        names = [str(number) for number in range(replicas)]
        self._orders = [preference(str(prefix), names) for prefix in range(PREFIXES)]
        self.at_home = self.calls = 0
        for _ in range(workers):
            self._next_row()
        self.clock.run()

    def _next_row(self) -> None:
        row = next(self._rows, None)
        if row is not None:
            self._node(row, self._nodes)

    def _node(self, row: int, left: int) -> None:
        if not left:
            self.memory.take(self._times.write_s, self._next_row)
            return
        served_s = self._times.driver_s + self._times.engine_s
        self.driver.take(served_s, lambda: self._call(row, lambda: self._node(row, left - 1)))

    def _call(self, row: int, then: Callable[[], None]) -> None:
        order = self._orders[row % PREFIXES]
        home = order[0]
        states = [
            _state(one.under_way, one.waiting + (number == home), one.places)
            for number, one in enumerate(self.replicas)
        ]
        chosen = choice(order, states)
        number = home if chosen is None else chosen[0]
        self.calls += 1
        self.at_home += number == home
        self.replicas[number].take(self._random.expovariate(1 / self._times.call_s), then)


@cache
def _state(under_way: int, waiting: int, places: int) -> ReplicaState:
    """Making a new one for each replica at each call would take most of the time."""
    return ReplicaState(load=under_way + waiting, has_place=under_way < places)


class Line(NamedTuple):
    """A number of workers."""

    workers: int
    replicas: int
    hours: float
    of_ideal: float
    """By how much longer than if only the models took time."""
    driver: float
    memory: float
    models: float
    at_home: float
    """The share of calls that went to the replica with their prefix."""


def simulated(times: Times, *, rows: int, nodes: int, places: int) -> Iterator[Line]:
    for workers in WORKERS:
        farm = Farm(times, workers=workers, rows=rows, nodes=nodes, places=places)
        ideal_s = rows * nodes * times.call_s / workers
        yield Line(
            workers=workers,
            replicas=len(farm.replicas),
            hours=farm.clock.now_s / 3600,
            of_ideal=farm.clock.now_s / ideal_s,
            driver=farm.driver.busy(),
            memory=farm.memory.busy(),
            models=sum(one.busy() for one in farm.replicas) / len(farm.replicas),
            at_home=farm.at_home / farm.calls,
        )


def driver_s() -> float:
    """The processor's time for one node call of a batch, by two batches of different length."""
    spent = []
    for rows in MEASURED_ROWS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Path(__file__).with_name("bench_batch.py")
            command = [sys.executable, str(bench), "--alone", folder, "", "--many", str(rows)]
            told = subprocess.run(command, check=True, capture_output=True)
            spent.append(json.loads(told.stdout)["cpu_s"])
    few, many = MEASURED_ROWS
    return float(spent[1] - spent[0]) / (many - few) / 5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--nodes", type=int, default=5)
    arguments.add_argument("--places", type=int, default=32)
    arguments.add_argument("--call-s", type=float, default=2.0)
    arguments.add_argument("--driver-ms", type=float, help="measured if not given")
    arguments.add_argument("--engine-ms", type=float, default=1.5)
    arguments.add_argument("--write-ms", type=float, default=2.0)
    options = arguments.parse_args()

    times = Times(
        driver_s=options.driver_ms / 1e3 if options.driver_ms else driver_s(),
        engine_s=options.engine_ms / 1e3,
        write_s=options.write_ms / 1e3,
        call_s=options.call_s,
    )
    size = {"rows": options.rows, "nodes": options.nodes, "places": options.places}
    lines = simulated(times, **size)
    if options.json:
        found = {"times": times._asdict(), **size, "lines": [one._asdict() for one in lines]}
        print(json.dumps(found, indent=2))
        return
    print(
        f"{options.rows:,} rows of {options.nodes} calls; a call takes {times.call_s:g} s, and of "
        f"the driver {times.driver_s * 1e3:.1f} ms (measured) and {times.engine_s * 1e3:.1f} ms "
        f"(engine); a row's write {times.write_s * 1e3:.1f} ms"
    )
    print("workers  replicas  hours  of ideal  driver  memory  models  at the prefix's replica")
    for one in lines:
        print(
            f"{one.workers:7}  {one.replicas:8}  {one.hours:5.2f}  {one.of_ideal:8.2f}  "
            f"{one.driver:6.0%}  {one.memory:6.0%}  {one.models:6.0%}  {one.at_home:6.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
