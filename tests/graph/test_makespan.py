"""As parallel as the data allows: how long whole graphs take, by nodes whose times are given."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random

import virtual_time
from hypothesis import given
from random_graphs import SEED, TICK_S, WORKING, Shape, depths, graph_of, random_dag

from harness.graph import Graph, NodeCall, execute
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


def run_timed(
    graph: Graph, calls: Calls, *, workers: int | None, run_of: Callable[[NodeCall], object]
) -> Timed:
    async def main() -> Timed:
        execution = await execute(graph, {}, run_of=run_of, tracer=Tracer(), parallel_calls=workers)
        assert execution.status == "finished", execution
        ended = asyncio.get_running_loop().time()
        return Timed(makespan_s=ended, outputs=dict(execution.outputs), calls=calls)

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


# --- any DAG -------------------------------------------------------------------------------------


def scripted(seed: int) -> Shape:
    random = Random(seed)
    nodes = random.randint(1, 60)
    layer = random.choice((None, None, 1, 3, 8))
    return random_dag(random, nodes, degree=random.randint(1, 4), layer=layer)


def run_scripted(shape: Shape, *, workers: int | None = None) -> Timed:
    calls = Calls()
    return run_timed(
        graph_of(shape, WORKING),
        calls,
        workers=workers,
        run_of=lambda call: partial(calls.take, call.label, shape.seconds[call.label]),
    )


@given(seed=SEED)
def test_without_a_limit_a_run_takes_as_long_as_its_critical_path(seed):
    shape = scripted(seed)

    timed = run_scripted(shape)

    assert timed.makespan_s == shape.critical_path_s
    assert timed.outputs == depths(shape)


@given(seed=SEED)
def test_with_k_workers_none_idles_and_a_run_takes_at_most_grahams_bound(seed):
    shape = scripted(seed)

    for workers in WORKERS:
        timed = run_scripted(shape, workers=workers)

        assert timed.makespan_s <= graham_bound_s(shape, workers) + 1e-9
        assert timed.makespan_s >= max(shape.critical_path_s, shape.work_s / workers) - 1e-9
        assert_nobody_idles(shape, timed.calls, workers=workers)
        assert timed.outputs == depths(shape)


def test_the_scripted_graphs_are_of_many_kinds():
    shapes = [scripted(seed) for seed in range(300)]
    widths = [shape.work_s / max(shape.critical_path_s, TICK_S) for shape in shapes]
    waiting = {len(needs) for shape in shapes for needs in shape.needs.values()}

    assert {len(shape.needs) for shape in shapes} >= {1, 2, 20, 40, 60}
    assert min(widths) <= 1
    assert max(widths) > max(WORKERS)
    assert waiting == {0, 1, 2, 3, 4}


# --- a stream of items ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """A node that gives items one by one, nodes that each map over the one before, and a last one.

    Args:
        pieces_s: What the first node takes for each item, and then until it ends.
        maps_s: What each item of each map takes.
        last_s: What the node takes that receives the list.
    """

    pieces_s: tuple[float, ...]
    maps_s: tuple[tuple[float, ...], ...]
    last_s: float

    @property
    def items(self) -> int:
        return len(self.pieces_s) - 1

    def shape(self) -> Shape:
        """The same with a node for each piece and each item."""
        needs: dict[str, tuple[str, ...]] = {}
        seconds: dict[str, float] = {}
        for number, piece_s in enumerate(self.pieces_s):
            needs[f"piece {number}"] = (f"piece {number - 1}",) if number else ()
            seconds[f"piece {number}"] = piece_s
        before = "piece"
        for level, items_s in enumerate(self.maps_s):
            for item, item_s in enumerate(items_s):
                needs[f"map{level} {item}"] = (f"{before} {item}",)
                seconds[f"map{level} {item}"] = item_s
            before = f"map{level}"
        everything = *(f"{before} {item}" for item in range(self.items)), f"piece {self.items}"
        needs["last"], seconds["last"] = everything, self.last_s
        return Shape(needs=needs, seconds=seconds)

    def graph(self) -> Graph:
        """Nodes whose `run` is `Calls`."""
        graph = Graph("stream")
        pieces_s, last_s = self.pieces_s, self.last_s

        @graph.node(name="piece")
        async def _(run):
            for item, piece_s in enumerate(pieces_s):
                await run.take(f"piece {item}", piece_s)
                if item < len(pieces_s) - 1:
                    yield item

        before = "piece"
        for level, items_s in enumerate(self.maps_s):
            graph.node(name=f"map{level}", each={"item": before})(_mapped(level, items_s))
            before = f"map{level}"

        @graph.node(name="last", takes={"items": before})
        async def _(run, items):
            await run.take("last", last_s)
            return items

        return graph


def _mapped(level: int, items_s: tuple[float, ...]):
    async def mapped(run, item):
        await run.take(f"map{level} {item}", items_s[item])
        return item

    return mapped


def scripted_stream(seed: int) -> Stream:
    random = Random(seed)
    items, maps = random.randint(0, 12), random.randint(1, 3)

    def times(count: int) -> tuple[float, ...]:
        return tuple(random.randint(0, 32) * TICK_S for _ in range(count))

    return Stream(times(items + 1), tuple(times(items) for _ in range(maps)), times(1)[0])


def run_stream(stream: Stream, *, workers: int | None = None) -> Timed:
    calls = Calls()
    timed = run_timed(stream.graph(), calls, workers=workers, run_of=lambda _: calls)
    assert timed.outputs["last"] == list(range(stream.items))
    return timed


@given(seed=SEED)
def test_an_item_goes_through_all_maps_without_waiting_for_another(seed):
    stream = scripted_stream(seed)

    timed = run_stream(stream)

    assert timed.makespan_s == stream.shape().critical_path_s


@given(seed=SEED)
def test_with_k_workers_none_idles_while_an_item_is_there(seed):
    stream = scripted_stream(seed)
    shape = stream.shape()

    for workers in WORKERS:
        timed = run_stream(stream, workers=workers)

        assert timed.makespan_s <= graham_bound_s(shape, workers) + 1e-9
        assert_nobody_idles(shape, timed.calls, workers=workers)


def test_a_node_that_streams_is_one_call_from_its_first_item_to_its_last():
    stream = Stream((TICK_S,) * 4, ((TICK_S,) * 3,), TICK_S)

    calls = run_stream(stream, workers=1).calls

    pieces = [f"piece {number}" for number in range(4)]
    assert all(calls.ended[one] == calls.begun[other] for one, other in pairwise(pieces))
