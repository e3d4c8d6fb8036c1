"""Runs a small pipeline, kills it, goes on with it, kills it again, and so on.

    python killed_runs.py DIRECTORY RUNS

Leaves a folder for each run, with its traces in it, in `printed` the names of the nodes that were
over, a line for each, and in `calls` the model calls that were begun. Every second run goes on to
its end at last; the others stay as the last kill left them. One, `uninterrupted`, is not killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from harness.trace import Journal, NodeOutput, RunTrace

WORKERS, NODES_EACH = 3, 25
KILLS = 4
"""At most; after that a run may go on to its end."""


def main(directory: Path, runs: int) -> None:
    """Forks each part of a run from this process, which has imported everything already."""
    randomness = random.Random(0)
    assert live(directory / "uninterrupted", nodes=None)
    for number in range(runs):
        for _ in range(randomness.randint(1, KILLS)):
            # At a number of nodes rather than a time: how busy the machine is makes no difference.
            nodes, longer_s = randomness.randint(0, 30), randomness.uniform(0, 0.005)
            if live(directory / str(number), nodes=nodes, longer_s=longer_s):
                break
        else:
            assert number % 2 or live(directory / str(number), nodes=None)


def live(directory: Path, *, nodes: int | None, longer_s: float = 0) -> bool:
    """Runs a part in a process of its own; whether it came to its end before it was killed.

    Args:
        directory: The run's.
        nodes: After so many it is killed; never if None.
        longer_s: And a moment later.
    """
    directory.mkdir(exist_ok=True)
    printed = directory / "printed"
    printed.touch()
    before = printed.read_bytes().count(b"\n")
    process = os.fork()
    if process == 0:
        for name, stream in (("printed", sys.stdout), ("calls", sys.stderr)):
            output = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(output, stream.fileno())
        asyncio.run(run_pipeline(directory / "traces"))
        os._exit(0)
    if nodes is None:
        return os.waitpid(process, 0)[1] == 0
    while printed.read_bytes().count(b"\n") < before + nodes:
        time.sleep(0.0005)
        over, status = os.waitpid(process, os.WNOHANG)
        if over:
            return status == 0
    time.sleep(longer_s)
    os.kill(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1] == 0


def journal_in(directory: Path) -> Path | None:
    """The journal of the run to go on with, if there is one of which a line is whole."""
    for path in directory.glob("*.jsonl"):
        if "." not in path.stem:
            if b"\n" in path.read_bytes():
                return path
            path.unlink()
    return None


async def run_pipeline(directory: Path) -> None:
    """Three nodes at a time, but for those whose outputs the run has already."""
    journal = journal_in(directory)
    items = () if journal is None else Journal(journal).items()
    done = {one.node for one in items if isinstance(one, NodeOutput)}
    with RunTrace(directory, name="killed", resume=journal) as trace, trace.span("run"):
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(work(trace, worker, done))


async def work(trace: RunTrace, worker: int, done: set[str]) -> None:
    """One node after the other."""
    for number in range(NODES_EACH):
        name = f"{worker}-{number}"
        if name in done:
            continue
        with trace.span("node", track=f"node {worker}", label=name, node=name) as node:
            say(sys.stderr, name)
            prompt = trace.content(f"prompt {number % 7} ü\u2028")
            with trace.span("chat", model="small", prompt_sha256=prompt) as chat:
                begun_ns = trace.now_ns()
                trace.counter("requests", worker, unit="calls", track="model small")
                await asyncio.sleep(0.001)
                trace.completed_span("decode", start_ns=begun_ns, end_ns=trace.now_ns())
                chat.set(output_tokens=number)
            trace.flow("call", source=node.id, target=chat.id)
            trace.instant("done", text="x" * (number * 5))
            trace.output(name, {"text": name})
        await trace.persisted()
        say(sys.stdout, name)


def say(stream: TextIO, name: str) -> None:
    """Writes a line at once: `print` may be killed before it writes the line's end."""
    os.write(stream.fileno(), f"{name}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
