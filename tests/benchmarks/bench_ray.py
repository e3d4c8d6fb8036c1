"""What a node's call costs on a Ray worker, beside a bare Ray task that does the same.

    python tests/benchmarks/bench_ray.py [--json] [--calls 1000] [--cpus 2]

For a quiet machine. Ray runs here, with `--cpus` workers. A node over `--calls` items is run on it,
with at most 16 calls under way, and beside it as many bare tasks, awaited in the same way:

returns    The node's function returns its argument.
asks       It asks a scripted model once, which crosses the driver. The bare task asks an actor
           beside the driver, which is the least that a worker's question to anything shared costs.

Then the same in this process, without Ray: what the driver alone does for a call, journal included,
and so the most calls a second that one driver can carry however many workers there are. Each figure
is the median of five rounds, of which bare tasks and nodes take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from harness import Pipeline, Resources, Run, ScriptedBackend, Settings, load_run

PARALLEL, ROUNDS = 16, 5
WORKER = Resources(cpus=1)


class Figure(NamedTuple):
    """One line of the table."""

    figure: str
    value: float
    aim: str = ""


def pipelines(on: Resources | None) -> tuple[Pipeline, Pipeline]:
    returns, asks = (Pipeline(name, max_parallel=PARALLEL) for name in ("returns", "asks"))

    @returns.node(each={"item": "items"}, on=on)
    def same(item: str) -> str:
        return item

    @asks.node(each={"item": "items"}, on=on)
    async def asked(run: Run, item: str) -> str:
        return await run.chat("producer", item)

    return returns, asks


@ray.remote
def bare_same(item: str) -> str:
    return item


@ray.remote
def bare_asked(item: str, echo: Any) -> str:
    async def ask() -> str:
        return str(await echo.say.remote(item))

    return asyncio.run(ask())


@ray.remote(num_cpus=0, max_concurrency=1000)
class Echo:
    async def say(self, item: str) -> str:
        return item


async def bare(make: Callable[[str], Awaitable[str]], items: list[str]) -> float:
    """Seconds for all items, so many under way as in a pipeline."""
    places = asyncio.Semaphore(PARALLEL)

    async def one(item: str) -> None:
        async with places:
            await make(item)

    begun = time.perf_counter()
    await asyncio.gather(*(one(item) for item in items))
    return time.perf_counter() - begun


async def piped(
    pipeline: Pipeline, items: list[str], engine: str, folder: str
) -> tuple[float, int]:
    """Seconds of the node, from its first call to its last; and the records of the journal."""
    settings = Settings.model_validate(
        {"traces": folder, "trace": {"timelines": []}, "execution": {"engine": engine}}
    )
    backends = {"producer": ScriptedBackend(lambda asked: asked.messages[-1].content)}
    done = await pipeline.run_async({"items": items}, settings=settings, backends=backends)
    nodes = [one for one in load_run(done.files.journal).spans if one.name == "node"]
    took_ns = max(one.end_ns for one in nodes) - min(one.start_ns for one in nodes)
    return took_ns / 1e9, len(done.files.journal.read_bytes().splitlines())


async def measured(calls: int, folder: str) -> Iterator[Figure]:
    items = [f"item {n}" for n in range(calls)]
    echo = Echo.remote()
    bares = (bare_same.remote, lambda item: bare_asked.remote(item, echo))
    figures = []
    for on_ray, here, make in zip(pipelines(WORKER), pipelines(None), bares, strict=True):
        name = on_ray.name
        await bare(make, items[:100])
        await piped(on_ray, items[:100], "ray", folder)
        rounds = []
        for _ in range(ROUNDS):
            bare_s = await bare(make, items)
            node_s, _ = await piped(on_ray, items, "ray", folder)
            here_s, records = await piped(here, items, "process", folder)
            rounds.append((bare_s, node_s, here_s, node_s / bare_s, records))
        bare_s, node_s, here_s, ratio, records = map(statistics.median, zip(*rounds, strict=True))
        figures += [
            Figure(f"{name}: a bare task, ms", bare_s / calls * 1e3),
            Figure(f"{name}: a node's call on Ray, ms", node_s / calls * 1e3),
            Figure(f"{name}: a node's call over a bare task", ratio, "aim ≤ 2"),
            Figure(f"{name}: a node's call without Ray, ms", here_s / calls * 1e3),
            Figure(f"{name}: records of the journal, a second, without Ray", records / here_s),
        ]
    return iter(figures)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--calls", type=int, default=1000)
    arguments.add_argument("--cpus", type=int, default=2)
    options = arguments.parse_args()
    ray.init("local", num_cpus=options.cpus, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures = list(asyncio.run(measured(options.calls, folder)))
    finally:
        ray.shutdown()
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
        return
    for figure in figures:
        print(f"{figure.figure:58} {figure.value:10,.2f}  {figure.aim}")


if __name__ == "__main__":
    main()
