"""As parallel as the data allows: how long any DAG takes, by nodes whose times are given."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import virtual_time
from graph_runs import execute
from hypothesis import given
from random_graphs import SEED, WORKING, Shape, depths, graph_of, random_dag

from harness.graph import NodeCall
from harness.trace import Tracer

WORKERS = (1, 2, 3, 5, 8)


@dataclass
class Calls:
    """When calls of nodes began and ended, by name, on the loop's clock."""

    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    async def take(self, name: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert name not in self.begun
        self.begun[name] = loop.time()
        await asyncio.sleep(seconds)
        self.ended[name] = loop.time()

    def under_way(self, moment: float) -> int:
        return sum(begun <= moment < self.ended[name] for name, begun in self.begun.items())


@dataclass(frozen=True)
class Timed:
    """A run in virtual time."""

    makespan_s: float
    outputs: dict[str, object]
    calls: Calls


def run_timed(shape: Shape, *, workers: int | None = None) -> Timed:
    calls, graph = Calls(), graph_of(shape, WORKING)

    def run_of(call: NodeCall) -> Callable[[], Awaitable[None]]:
        return partial(calls.take, call.label, shape.seconds[call.label])

    async def main() -> Timed:
        execution = await execute(graph, {}, run_of=run_of, tracer=Tracer(), max_parallel=workers)
        assert execution.status == "finished", execution
        return Timed(asyncio.get_running_loop().time(), dict(execution.outputs), calls)

    return virtual_time.run(main())


def assert_nobody_idles(shape: Shape, calls: Calls, *, workers: int) -> None:
    """Where something was ready and had not begun, all workers were at work."""
    moments = sorted({*calls.begun.values(), *calls.ended.values()})
    for name, needs in shape.needs.items():
        ready = max((calls.ended[need] for need in needs), default=0.0)
        waited = [moment for moment in moments if ready <= moment < calls.begun[name]]
        idle = {moment: calls.under_way(moment) for moment in waited}
        assert set(idle.values()) <= {workers}, (name, ready, calls.begun[name], idle)


def graham_bound_s(shape: Shape, workers: int) -> float:
    """No schedule in which nobody idles takes longer.

    R. L. Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17 (1969).
    """
    return shape.work_s / workers + (1 - 1 / workers) * shape.critical_path_s


def scripted(seed: int) -> Shape:
    random = Random(seed)
    nodes = random.randint(1, 60)
    layer = random.choice((None, None, 1, 3, 8))
    return random_dag(random, nodes, degree=random.randint(1, 4), layer=layer)


@given(seed=SEED)
def test_without_a_limit_a_run_takes_as_long_as_its_critical_path(seed):
    shape = scripted(seed)

    timed = run_timed(shape)

    assert timed.makespan_s == shape.critical_path_s
    assert timed.outputs == depths(shape)


@given(seed=SEED)
def test_with_k_workers_none_idles_and_a_run_takes_at_most_grahams_bound(seed):
    shape = scripted(seed)

    workers = Random(-seed).choice(WORKERS)

    timed = run_timed(shape, workers=workers)

    assert timed.makespan_s <= graham_bound_s(shape, workers) + 1e-9
    assert timed.makespan_s >= max(shape.critical_path_s, shape.work_s / workers) - 1e-9
    assert_nobody_idles(shape, timed.calls, workers=workers)
    assert timed.outputs == depths(shape)
