"""How often a batch loads two models with room for one of them.

    python tests/benchmarks/bench_batch_loads.py [--json] [--rows 100] [--max-parallel 8]
        [--host router] [--max-wait-s 60]

Every row is written by one model and judged by the other: in two nodes, or twice by turns in one
node, as in a revise loop. `in step` is how many loads there are if as many rows as `--max-parallel`
says go through the models together, and then the next ones. The hosts are those of
`bench_keep_alive.py`: loopback servers with loads of 0.5 s and calls of 0.05 s, or the embedded
engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import structlog
from bench_keep_alive import CRITIC, PRODUCER, REPLY_TOKENS, embedded, ollama, router

from harness import Pipeline, Run, Settings
from harness.session.settings import BudgetSettings, TraceSettings
from harness.trace import Journal

HOSTS = {"router": router, "ollama": ollama, "embedded": embedded}


class Line(NamedTuple):
    """A batch."""

    pipeline: str
    loads: int
    in_step: int
    wall_s: float
    longest_wait_s: float
    """Of one call, until its model was there and had a place for it."""


async def ask(run: Run, role: str, prompt: str) -> str:
    return await run.chat(role, prompt, max_output_tokens=REPLY_TOKENS, on_cut="keep")


def two_nodes() -> Pipeline:
    pipeline = Pipeline("two nodes")

    @pipeline.node(models=[PRODUCER])
    async def draft(run: Run, task: str) -> str:
        return await ask(run, PRODUCER, task)

    @pipeline.node(models=[CRITIC])
    async def verdict(run: Run, draft: str) -> str:
        return await ask(run, CRITIC, f"What is wrong? {draft}")

    return pipeline


def by_turns() -> Pipeline:
    pipeline = Pipeline("by turns")

    @pipeline.node(models=[PRODUCER, CRITIC] * 2)
    async def draft(run: Run, task: str) -> str:
        for _ in range(2):
            task = await ask(run, PRODUCER, task)
            task = await ask(run, CRITIC, f"What is wrong? {task}")
        return task

    return pipeline


async def lines(host: str, rows: int, max_parallel: int, max_wait_s: float) -> list[Line]:
    found = []
    for pipeline, rounds in ((two_nodes(), 1), (by_turns(), 2)):
        async with HOSTS[host]() as scene:
            with tempfile.TemporaryDirectory() as folder:
                settings = Settings(
                    endpoints=scene.endpoints,
                    traces=Path(folder),
                    budget=BudgetSettings(capacity=scene.capacity_bytes, max_wait_s=max_wait_s),
                    trace=TraceSettings(timelines=(), sample_ms=0),
                )
                tasks = [{"task": f"Write a sentence about subject {n}."} for n in range(rows)]
                begun_s = time.monotonic()
                done = await pipeline.batch(tasks, max_parallel=max_parallel, settings=settings)
                wall_s = time.monotonic() - begun_s
                spans = list(Journal(done.run.files.journal).spans())
        assert not done.failures
        named = [one for one in spans if one.name == "load" and "waits_for" not in one.attributes]
        waits = [one.duration_ns for one in spans if one.name in {"queue", "load"}]
        found.append(
            Line(
                pipeline=pipeline.name,
                loads=sum(one.attributes.get("source") == "measured" for one in named),
                in_step=2 * rounds * math.ceil(rows / max_parallel),
                wall_s=wall_s,
                longest_wait_s=max(waits, default=0) / 1e9,
            )
        )
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rows", type=int, default=100)
    arguments.add_argument("--max-parallel", type=int, default=8)
    arguments.add_argument("--max-wait-s", type=float, default=60.0)
    arguments.add_argument("--host", choices=HOSTS, default="router")
    given = arguments.parse_args()
    # On standard output by default, where --json prints.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    found = asyncio.run(lines(given.host, given.rows, given.max_parallel, given.max_wait_s))
    if given.json:
        print(json.dumps([one._asdict() for one in found], indent=2))
        return
    print("pipeline   loads  in step  wall, s  longest wait, s")
    for one in found:
        print(
            f"{one.pipeline:<10} {one.loads:5}  {one.in_step:7}  {one.wall_s:7.1f}  "
            f"{one.longest_wait_s:15.1f}"
        )


if __name__ == "__main__":
    main()
