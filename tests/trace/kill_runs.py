"""Runs a small pipeline again and again, and kills it at another moment each time.

    python kill_runs.py DIRECTORY RUNS

Leaves a folder for each run, with its traces in it and in `printed` the names of the nodes that
were over. The first three are let live, to learn how long a life is.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

from harness.trace import RunTrace

LET_LIVE = 3
WORKERS, NODES_EACH = 3, 60
AT_ONCE = 2


def main(directory: Path, runs: int) -> None:
    """Forks each run from this process, which has imported everything already."""
    randomness = random.Random(0)
    life_s = min(let_live(directory / str(number)) for number in range(LET_LIVE))
    living: dict[int, float] = {}
    number = LET_LIVE
    while number < runs or living:
        while number < runs and len(living) < AT_ONCE:
            # A few are killed while they write the timelines, or after.
            process = fork(directory / str(number))
            living[process] = time.monotonic() + randomness.uniform(0, 1.1 * life_s)
            number += 1
        process = min(living, key=living.__getitem__)
        time.sleep(max(0, living.pop(process) - time.monotonic()))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def let_live(directory: Path) -> float:
    """How long a run takes, in seconds."""
    begun_s = time.monotonic()
    _, status = os.waitpid(fork(directory), 0)
    assert status == 0, "a run that nobody kills succeeds"
    return time.monotonic() - begun_s


def fork(directory: Path) -> int:
    """The process of a new run."""
    directory.mkdir()
    process = os.fork()
    if process == 0:
        output = os.open(directory / "printed", os.O_WRONLY | os.O_CREAT, 0o666)
        os.dup2(output, sys.stdout.fileno())
        asyncio.run(run_pipeline(directory))
        os._exit(0)
    return process


async def run_pipeline(directory: Path) -> None:
    """Three nodes at a time; the name of each is printed when its output is safe."""
    with RunTrace(directory / "traces", name="killed") as trace, trace.span("run"):
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(work(trace, worker))


async def work(trace: RunTrace, worker: int) -> None:
    """One node after the other."""
    previous = None
    for number in range(NODES_EACH):
        name = f"{worker}-{number}"
        with trace.span("node", track=f"node {worker}", label=name) as node:
            trace.flow("needs", source=previous, target=node.id)
            prompt = trace.content(f"prompt {number % 7} ü\u2028")
            with trace.span("chat", model="small", prompt_sha256=prompt) as chat:
                begun_ns = trace.now_ns()
                trace.counter("requests", worker, unit="calls", track="model small")
                await asyncio.sleep(0.001)
                trace.completed_span("decode", start_ns=begun_ns, end_ns=trace.now_ns())
                chat.set(output_tokens=number)
            trace.instant("done", text="x" * (number * 5))
            trace.output(name, {"text": name})
        await trace.persisted()
        print(name, flush=True)
        previous = node.id


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
