"""What a node's call costs on a Ray worker, beside a bare Ray task that does the same.

    python tests/benchmarks/bench_ray.py [--json] [--calls 500] [--cpus 2]

For a quiet machine. Ray runs here, with `--cpus` workers. The figures are medians of five rounds,
in which both take turns:

calls      A node over so many items that returns them, and as many bare tasks, at most 16 under way
           of either. And the same node without Ray: what the driver alone does for a call, journal
           included, and so how many calls one driver can carry however many workers there are.
questions  One call that asks a scripted model so many times, one after the other: what `run.chat`
           takes in the worker beyond what it takes in the driver. And a bare task that asks an
           actor as often, the least that a question to anything shared costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from typing import Any

from figures import Figure, print_figures

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from harness import Journal, Pipeline, Resources, Run, RunResult, ScriptedBackend, Settings

PARALLEL, ROUNDS = 16, 5
WORKER = Resources(cpus=1)


@ray.remote
def bare_same(item: str) -> str:
    return item


@ray.remote
def bare_asking(count: int, echo: Any) -> list[float]:
    async def ask() -> float:
        begun = time.perf_counter()
        await echo.say.remote("x")
        return time.perf_counter() - begun

    async def all_of_them() -> list[float]:
        return [await ask() for _ in range(count)]

    return asyncio.run(all_of_them())


@ray.remote(num_cpus=0)
class Echo:
    async def say(self, item: str) -> str:
        return item


def same_of(on: Resources | None) -> Pipeline:
    pipeline = Pipeline("same", max_parallel=PARALLEL)

    @pipeline.node(each={"item": "items"}, on=on)
    def same(item: str) -> str:
        return item

    return pipeline


asking = Pipeline("asking")


@asking.node(on=WORKER)
async def asks(run: Run, count: int) -> int:
    for n in range(count):
        with run.span("question"):
            await run.chat("producer", str(n))
    return count


async def bare(items: list[str]) -> float:
    """Seconds for all items, so many under way as in the pipeline."""
    places = asyncio.Semaphore(PARALLEL)

    async def one(item: str) -> None:
        async with places:
            await bare_same.remote(item)

    begun = time.perf_counter()
    await asyncio.gather(*(one(item) for item in items))
    return time.perf_counter() - begun


async def run_of(
    pipeline: Pipeline, inputs: dict[str, Any], folder: str, **trace: str
) -> RunResult:
    settings = Settings.model_validate(
        {"traces": folder, "trace": {"timelines": [], **trace}, "execution": {"engine": "ray"}}
    )
    backends = {"producer": ScriptedBackend(lambda asked: asked.messages[-1].content)}
    return await pipeline.run_async(inputs, settings=settings, backends=backends)


async def measured(calls: int) -> list[Figure]:
    items, echo = [f"item {n}" for n in range(calls)], Echo.remote()
    await bare(items[:100])
    rounds = []
    for _ in range(ROUNDS):
        bare_s = await bare(items)
        node_s, _ = await same(items, WORKER)
        here_s, records = await same(items, None)
        asked_s = statistics.median(await bare_asking.remote(calls, echo))
        crossed_s = await crossing(calls)
        rounds.append(
            (bare_s, node_s, node_s / bare_s, here_s, records / here_s, asked_s, crossed_s)
        )
    bare_s, node_s, ratio, here_s, rate, asked_s, crossed_s = map(
        statistics.median, zip(*rounds, strict=True)
    )
    return [
        Figure("a bare task, ms", bare_s / calls * 1e3),
        Figure("a node's call on Ray, ms", node_s / calls * 1e3),
        Figure("a node's call over a bare task", ratio, "aim ≤ 2"),
        Figure("a node's call without Ray, ms", here_s / calls * 1e3),
        Figure("records of the journal, a second, without Ray", rate),
        Figure("a bare question to an actor, ms", asked_s * 1e3),
        Figure("run.chat's way to the driver and back, ms", crossed_s * 1e3),
    ]


async def same(items: list[str], on: Resources | None) -> tuple[float, int]:
    """Seconds from the first call to the last, and the records of the run."""
    with tempfile.TemporaryDirectory() as folder:
        done = await run_of(same_of(on), {"items": items}, folder)
        spans = list(Journal(done.files.journal).spans())
        lines = done.files.journal.read_bytes().count(b"\n")
    nodes = [one for one in spans if one.name == "node"]
    return (max(one.end_ns for one in nodes) - min(one.start_ns for one in nodes)) / 1e9, lines


async def crossing(count: int) -> float:
    """Seconds that a question takes in the worker, without those that it takes in the driver."""
    with tempfile.TemporaryDirectory() as folder:
        # A reply is not kept for a resume, which takes as long without Ray.
        done = await run_of(asking, {"count": count}, folder, durability="exit")
        spans = sorted(Journal(done.files.journal).spans(), key=lambda one: one.start_ns)
    there = [one.duration_ns for one in spans if one.name == "question"]
    here = [one.duration_ns for one in spans if one.name == "chat"]
    return statistics.median(a - b for a, b in zip(there, here, strict=True)) / 1e9


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--calls", type=int, default=500)
    arguments.add_argument("--cpus", type=int, default=2)
    options = arguments.parse_args()
    ray.init("local", num_cpus=options.cpus, include_dashboard=False, log_to_driver=False)
    try:
        figures = asyncio.run(measured(options.calls))
    finally:
        ray.shutdown()
    print_figures(figures, as_json=options.json)


if __name__ == "__main__":
    main()
