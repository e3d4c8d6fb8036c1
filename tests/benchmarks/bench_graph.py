"""What a node costs the runner, beside LangGraph and pydantic-graph, and how parallel a run is.

    python tests/benchmarks/bench_graph.py [--json] [--part NAME] [--turns 7] [--dags 300]

For a quiet machine, and the extra `bench`. The parts, all of them unless one is named:

size      10,000 nodes against 100,000: how time and memory grow. Each run is a process of its own.
cost      Microseconds a node, of systems that take turns, by the median of turns: from the call to
          all outputs, ours with the journal closed, which is on the disk by then. `exit` writes as
          it goes; `node` has each output on the disk before anything that depends on it starts,
          and so is compared with LangGraph's checkpoints in SQLite. What the peers run is in
          `graph_peers.py`: they keep no journal but that one. Their nodes return a constant, ours
          make theirs of what they receive. Graphs are made, checked and compiled before that, once
          for all their runs; what that takes is told apart.
makespan  Random DAGs of nodes that sleep, against their critical path, until all outputs are
          there. Beside it, what asyncio alone does of it: a task for each node, which waits for its
          needs' tasks and sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from figures import Figure, print_figures

sys.path.insert(0, str(Path(__file__).parent.parent / "graph"))

from random_graphs import WORKING, Shape, chain, depths, fan_out, graph_of, random_dag

from harness.graph import Graph, NodeCall, execute
from harness.graph.plan import plan_of
from harness.graph.reuse import Shared
from harness.trace import RunTrace, TraceOptions

Durability = Literal["exit", "node"]
Timed = Callable[[], float]
"""Runs something once; returns the seconds that took."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--part", choices=("size", "cost", "makespan"))
    arguments.add_argument("--turns", type=int, default=7)
    arguments.add_argument("--dags", type=int, default=300)
    arguments.add_argument("--alone", nargs=2, metavar=("SHAPE", "NODES"), help="internal")
    options = arguments.parse_args()
    if options.alone:
        run_alone(options.alone[0], int(options.alone[1]))
        return
    # Size comes first: a process begins with its parent's peak memory as its own.
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "size": size_figures,
        "cost": lambda: cost_figures(options.turns),
        "makespan": lambda: makespan_figures(options.dags),
    }
    chosen = [part for name, part in parts.items() if options.part in {None, name}]
    figures = (figure for part in chosen for figure in part())
    print_figures(figures, as_json=options.json)


def layered(nodes: int) -> Shape:
    return random_dag(Random(nodes), nodes, degree=4, layer=100, ticks=(0, 0))


# --- Running ours -------------------------------------------------------------------------------


class Took(NamedTuple):
    """How long a run of its own took, in seconds from calling `execute`."""

    executed: float
    """Until that had all outputs."""
    closed: float
    """Until the journal was closed too."""


def run_ours(
    graph: Graph,
    expected: dict[str, object],
    durability: Durability,
    *,
    run_of: Callable[[NodeCall], object] = id,
) -> Took:
    options = TraceOptions(durability=durability, timelines=())

    async def once(directory: Path) -> Took:
        with RunTrace(directory, name="bench", options=options) as trace:
            begun = time.perf_counter()
            execution = await execute(graph, {}, Shared(run_of=run_of, tracer=trace))
            executed = time.perf_counter() - begun
        closed = time.perf_counter() - begun
        assert execution.outputs == expected
        return Took(executed, closed)

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(once(Path(directory)))


def timed_run(graph: Graph, expected: dict[str, object], durability: Durability) -> Timed:
    return lambda: run_ours(graph, expected, durability).closed


def map_of(items: int) -> Graph:
    graph = Graph("map")

    @graph.node
    async def numbers() -> list[int]:
        return list(range(items))

    @graph.node(each={"number": "numbers"})
    async def more(number: int) -> int:
        return number + 1

    return graph


# --- 1. Size ------------------------------------------------------------------------------------

SMALL, LARGE, PROCESSES = 10_000, 100_000, 3
SHAPES: dict[str, Callable[[int], Shape]] = {"layered": layered, "fan-out": fan_out}


def size_figures() -> Iterator[Figure]:
    for name in SHAPES:
        small, large = alone(name, SMALL), alone(name, LARGE)
        for nodes, run in ((SMALL, small), (LARGE, large)):
            yield Figure(f"{name} of {nodes:,}, a run, µs a node", run.seconds / nodes * 1e6)
        yield Figure(
            f"{name}, time of {LARGE:,} / of {SMALL:,} nodes",
            large.seconds / small.seconds,
            "aim ≤ 11",
        )
        for nodes, run in ((SMALL, small), (LARGE, large)):
            yield Figure(f"{name} of {nodes:,}, the graph, bytes a node", run.graph_bytes / nodes)
            yield Figure(f"{name} of {nodes:,}, a run, bytes a node", run.run_bytes / nodes)
        yield Figure(
            f"{name}, memory of {LARGE:,} / of {SMALL:,} nodes",
            (large.graph_bytes + large.run_bytes) / (small.graph_bytes + small.run_bytes),
            "aim ≤ 11",
        )


class Alone(NamedTuple):
    """What a process says that makes one graph and runs it once."""

    seconds: float
    """The run."""
    graph_bytes: float
    """By how much the peak of its memory rose with the graph and its plan."""
    run_bytes: float
    """And then with the run."""


def alone(shape: str, nodes: int) -> Alone:
    """The medians of some processes."""
    command = [sys.executable, __file__, "--alone", shape, str(nodes)]
    said = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(PROCESSES)
    ]
    return Alone(*map(statistics.median, zip(*said, strict=True)))


def run_alone(name: str, nodes: int) -> None:
    """Prints what `Alone` holds."""
    shape = SHAPES[name](nodes)
    expected = depths(shape)
    before = peak_bytes()
    graph = graph_of(shape)
    graph.check()
    plan_of(graph)
    with_graph = peak_bytes()
    seconds = run_ours(graph, expected, "exit").closed
    print(json.dumps(Alone(seconds, with_graph - before, peak_bytes() - with_graph)))


def peak_bytes() -> int:
    """The most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# --- 2. Cost ------------------------------------------------------------------------------------

OURS, OURS_DURABLE = "ours, exit", "ours, node"
LANGGRAPH, LANGGRAPH_PLAIN = "LangGraph, ainvoke", "LangGraph, invoke"
LANGGRAPH_DURABLE = "LangGraph, SQLite before each step"
PYDANTIC = "pydantic-graph"
ABOVE_THIS_NOT_PYDANTIC = 1_000
"""Nodes of a layered DAG."""


def cost_figures(turns: int) -> Iterator[Figure]:
    """Each shape's lines, as soon as they are known."""
    empty = Graph("empty")
    alone = {
        "a bare task, µs": (bare_tasks(10_000), 10_000),
        "a run without nodes, exit, µs": (timed_run(empty, {}, "exit"), 1),
        "a run without nodes, node, µs": (timed_run(empty, {}, "node"), 1),
    }
    for name, (timed, count) in alone.items():
        yield Figure(name, median_of({name: timed}, 5 * turns)[name] / count * 1e6)
    with tempfile.TemporaryDirectory() as directory:
        shapes = {
            "fan-out of 100": fan_out(100),
            "fan-out of 1,000": fan_out(1_000),
            "chain of 400": chain(400),
            "layered of 2,000": layered(2_000),
            "layered of 400": layered(400),
        }
        for name, shape in shapes.items():
            yield from making_figures(name, shape)
            systems = systems_of(shape, Path(directory))
            yield from compared(name, len(shape.needs), median_of(systems, turns))
        for items in (100, 1_000):
            yield from compared(
                f"map over {items:,}", items, median_of(systems_of_a_map(items), turns)
            )


def making_figures(name: str, shape: Shape) -> Iterator[Figure]:
    begun = time.perf_counter()
    graph = graph_of(shape)
    made = time.perf_counter()
    graph.check()
    checked = time.perf_counter()
    plan_of(graph)
    compiled = time.perf_counter()
    nodes = len(shape.needs)
    yield Figure(f"{name}: making the graph, µs a node", (made - begun) / nodes * 1e6)
    yield Figure(f"{name}: checking it, µs a node", (checked - made) / nodes * 1e6)
    yield Figure(f"{name}: compiling it, µs a node", (compiled - checked) / nodes * 1e6)


def systems_of(shape: Shape, directory: Path) -> dict[str, Timed]:
    import graph_peers as peers

    graph, expected = graph_of(shape), depths(shape)
    systems: dict[str, Timed] = {
        OURS: timed_run(graph, expected, "exit"),
        OURS_DURABLE: timed_run(graph, expected, "node"),
        LANGGRAPH: peers.langgraph(shape, "ainvoke"),
        LANGGRAPH_PLAIN: peers.langgraph(shape, "invoke"),
        LANGGRAPH_DURABLE: peers.langgraph_durable(shape, directory),
    }
    if len(shape.needs) <= ABOVE_THIS_NOT_PYDANTIC:
        systems[PYDANTIC] = peers.pydantic_graph(shape)
    return systems


def systems_of_a_map(items: int) -> dict[str, Timed]:
    import graph_peers as peers

    graph = map_of(items)
    expected = {"numbers": list(range(items)), "more": list(range(1, items + 1))}
    return {
        OURS: timed_run(graph, expected, "exit"),
        OURS_DURABLE: timed_run(graph, expected, "node"),
        LANGGRAPH: peers.langgraph_map(items, "ainvoke"),
        LANGGRAPH_PLAIN: peers.langgraph_map(items, "invoke"),
        PYDANTIC: peers.pydantic_graph_map(items),
    }


def median_of(systems: dict[str, Timed], turns: int) -> dict[str, float]:
    """Seconds, by the median of turns that follow one in which everybody warms up."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(turns + 1):
        for name, timed in systems.items():
            gc.collect()
            times[name].append(timed())
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def compared(shape: str, nodes: int, seconds: dict[str, float]) -> Iterator[Figure]:
    ours, durable = seconds[OURS], seconds[OURS_DURABLE]
    for system, taken in seconds.items():
        aim = "aim ≤ 15" if system == OURS else ""
        yield Figure(f"{shape}: {system}, µs a node", taken / nodes * 1e6, aim)
    # Whichever of its doors is the faster one here.
    best = min(seconds[LANGGRAPH], seconds[LANGGRAPH_PLAIN])
    yield Figure(f"{shape}: LangGraph / ours", best / ours, "aim ≥ 8")
    if PYDANTIC in seconds:
        yield Figure(f"{shape}: pydantic-graph / ours", seconds[PYDANTIC] / ours)
    if LANGGRAPH_DURABLE in seconds:
        yield Figure(
            f"{shape}: LangGraph with SQLite / ours with node", seconds[LANGGRAPH_DURABLE] / durable
        )


def bare_tasks(count: int) -> Timed:
    """What asyncio alone takes for tasks that do nothing."""

    async def nothing() -> int:
        return 0

    async def once() -> float:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(nothing())
        return time.perf_counter() - begun

    return lambda: asyncio.run(once())


# --- 3. Makespan --------------------------------------------------------------------------------


def makespan_figures(dags: int) -> Iterator[Figure]:
    """By random DAGs of up to 60 nodes that each sleep for 1 to 20 whole milliseconds.

    Whole ones, since the event loop's own clock knows no others: it would sleep longer than asked.
    """
    random = Random(6)
    ways: dict[str, Callable[[Shape], float]] = {
        "ours, exit": lambda shape: asleep(shape, "exit"),
        "ours, node": lambda shape: asleep(shape, "node"),
        "bare tasks": lambda shape: asyncio.run(bare(shape)),
    }
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    least_s: list[float] = []
    for _ in range(dags):
        layer = random.choice((None, 4, 10))
        shape = random_dag(random, random.randint(5, 60), layer=layer, ticks=(1, 20), tick_s=0.001)
        least_s.append(shape.critical_path_s)
        for name, way in ways.items():
            took_s[name].append(way(shape))
    for name, taken in took_s.items():
        ratios = [one / least for one, least in zip(taken, least_s, strict=True)]
        over_ms = [(one - 1.02 * least) * 1e3 for one, least in zip(taken, least_s, strict=True)]
        aim = "aim ≤ 2" if name == "ours, exit" else ""
        what = f"{dags} random DAGs, {name}"
        yield Figure(f"{what}: makespan / critical path, median", statistics.median(ratios))
        yield Figure(f"{what}: the same, worst", max(ratios))
        yield Figure(f"{what}: over 1.02 of it, worst, ms", max(over_ms), aim)
        yield Figure(f"{what}: by more than 2 ms, how many", sum(one > 2 for one in over_ms))


def asleep(shape: Shape, durability: Durability) -> float:
    graph = graph_of(shape, WORKING)
    plan_of(graph)
    return run_ours(
        graph,
        depths(shape),
        durability,
        run_of=lambda call: partial(asyncio.sleep, shape.seconds[call.label]),
    ).executed


async def bare(shape: Shape) -> float:
    tasks: dict[str, asyncio.Task[None]] = {}

    async def node(name: str) -> None:
        for need in shape.needs[name]:
            await tasks[need]
        await asyncio.sleep(shape.seconds[name])

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for name in shape.needs:
            tasks[name] = group.create_task(node(name))
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
