"""Many runs of one process, each with its own session, models, journal and store of replies.

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
from collections.abc import Iterator
from pathlib import Path

from bench_batch_peers import server
from figures import Figure, print_figures

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
    taken = []
    for _ in range(times):
        with server() as url, tempfile.TemporaryDirectory() as folder:
            taken.append(asyncio.run(measured(url, runs, at_once, Path(folder))))
    rates, cpus, lates = (statistics.median(values) for values in zip(*taken, strict=True))
    yield Figure(f"{at_once} at once: runs a second", rates, "aim ≥ 60")
    yield Figure(f"{at_once} at once: ms of the processor a run", cpus)
    yield Figure(f"{at_once} at once: ms that the event loop is late, p95", lates, "aim ≤ 50")


async def measured(url: str, runs: int, at_once: int, folder: Path) -> tuple[float, float, float]:
    endpoint = {"tag": "writer", "model_id": "writer", "url": url}
    settings = Settings.model_validate(
        {
            "roles": {"producer": "writer"},
            "endpoints": {"writer": endpoint},
            "traces": folder / "traces",
            "trace": {"timelines": []},
        }
    )
    places = asyncio.Semaphore(at_once)

    async def one_run() -> None:
        async with places:
            await one_call.run_async({"task": "Say it."}, settings=settings)

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
