"""Many runs of one process: each opens its models itself, or all share those of `harness.open`.

    python tests/benchmarks/bench_runs_at_once.py [--json] [--runs 300] [--at-once 50] [--times 3]

Each is a pipeline of one node with one call, which a loopback server answers after 20 ms. Beside
them a task asks to be woken every 10 ms: how late that is, a clock of the run would be wrong too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from bench_batch_peers import server
from figures import Figure, print_figures

import harness
from harness import Pipeline, Run, Settings

EVERY_S = 0.01

one_call = Pipeline("one call")


@one_call.node
async def answer(run: Run, task: str) -> str:
    return await run.chat("producer", task)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--runs", type=int, default=300)
    arguments.add_argument("--at-once", type=int, default=50)
    arguments.add_argument("--times", type=int, default=3)
    options = arguments.parse_args()
    print_figures(figures(options.runs, options.at_once, options.times), as_json=options.json)


def figures(runs: int, at_once: int, times: int) -> Iterator[Figure]:
    taken = defaultdict(list)
    for _ in range(times):
        for how in ("by themselves", "in a session"):
            with server() as url, tempfile.TemporaryDirectory() as folder:
                figures_of_it = asyncio.run(measured(url, runs, at_once, Path(folder), how))
                taken[how].append(figures_of_it)
    for how, aims in (("by themselves", (60, 50)), ("in a session", (150, 50))):
        rates, cpus, lates = (statistics.median(values) for values in zip(*taken[how], strict=True))
        yield Figure(f"{at_once} at once, {how}: runs a second", rates, f"aim ≥ {aims[0]}")
        yield Figure(f"{at_once} at once, {how}: ms of the processor a run", cpus)
        yield Figure(
            f"{at_once} at once, {how}: ms that the loop is late, p95", lates, f"aim ≤ {aims[1]}"
        )


async def measured(
    url: str, runs: int, at_once: int, folder: Path, how: str
) -> tuple[float, float, float]:
    endpoint = {"tag": "writer", "model_id": "writer", "url": url}
    settings = Settings.model_validate(
        {
            "roles": {"producer": "writer"},
            "endpoints": {"writer": endpoint},
            "traces": folder / "traces",
            "trace": {"timelines": []},
        }
    )
    if how == "by themselves":
        return await timed(
            lambda: one_call.run_async({"task": "Say it."}, settings=settings), runs, at_once
        )
    async with harness.open(settings=settings) as session:
        return await timed(lambda: session.run(one_call, task="Say it."), runs, at_once)


async def timed(
    run: Callable[[], Awaitable[object]], runs: int, at_once: int
) -> tuple[float, float, float]:
    places = asyncio.Semaphore(at_once)

    async def one_run() -> None:
        async with places:
            await run()

    await one_run()  # what is imported and made once
    late_ms: list[float] = []
    watch = asyncio.create_task(watched(late_ms))
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one_run() for _ in range(runs)))
    seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    watch.cancel()
    return runs / seconds, cpu_s / runs * 1e3, statistics.quantiles(late_ms, n=20)[-1]


async def watched(late_ms: list[float]) -> None:
    while True:
        asked_s = time.perf_counter()
        await asyncio.sleep(EVERY_S)
        late_ms.append((time.perf_counter() - asked_s - EVERY_S) * 1e3)


if __name__ == "__main__":
    main()
