"""A batch on a Ray cluster of three nodes, whose nodes and driver are killed on the way.

    python tests/session/kill_on_ray.py DIRECTORY [--rows 100] [--json]

Rows have five nodes that each call a loopback server from a worker. When a third of the calls are
answered, a raylet is killed (SIGKILL), with its workers; when two thirds are, the driver. Then the
same batch is run again. What is said at the end:

- `lost`, `wrong`: rows without an output, or with another than an uninterrupted batch gives;
- `again`: calls that were answered twice although they were not under way at a kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kill_batches import DIRECTORY, MODEL, PARALLEL, Server
from servers.emulated import forked

from harness import Pipeline, Resources, Run, Settings

WORKER = Resources(cpus=1)

five = Pipeline("five")


@five.node(on=WORKER)
async def a(run: Run, task: str) -> str:
    return await run.chat("producer", f"a {task}")


@five.node(on=WORKER)
async def b(run: Run, a: str) -> str:
    return await run.chat("producer", f"b {a}")


@five.node(on=WORKER)
async def c(run: Run, b: str) -> str:
    return await run.chat("producer", f"c {b}")


@five.node(on=WORKER)
async def d(run: Run, c: str) -> str:
    return await run.chat("producer", f"d {c}")


@five.node(on=WORKER)
async def e(run: Run, d: str) -> str:
    return await run.chat("producer", f"e {d}")


def batch(root: str, address: str, rows: int) -> int:
    """Runs the batch, in a process of its own; how many rows failed."""
    settings = Settings.model_validate(
        {
            "roles": {"producer": MODEL},
            "endpoints": {MODEL: {"tag": MODEL, "url": f"{root}/v1", "model_id": MODEL}},
            "traces": DIRECTORY / "traces",
            "trace": {"timelines": [], "sample_ms": 0},
            "execution": {"engine": "ray", "address": address},
        }
    )
    done = asyncio.run(
        five.batch(
            [{"id": f"row {n}", "task": f"task {n}"} for n in range(rows)],
            output=DIRECTORY / "out.jsonl",
            max_parallel=PARALLEL,
            settings=settings,
        )
    )
    return len(done.failures)


def main(rows: int) -> dict[str, Any]:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    log = DIRECTORY / "replies.jsonl"
    server, root = forked(Server(log))
    cluster, nodes = started()
    try:
        command = [sys.executable, __file__, str(DIRECTORY), "--rows", str(rows)]
        command += ["--part", root, cluster.address]
        begun_s = time.monotonic()
        driver = subprocess.Popen(command)
        wait_for_replies(log, rows * 5 // 3, driver)
        ((raylet, *_),) = (nodes[2].all_processes["raylet"],)
        os.kill(raylet.process.pid, signal.SIGKILL)
        wait_for_replies(log, rows * 10 // 3, driver)
        driver.kill()
        driver.wait()
        subprocess.run(command, check=True)
        took_s = time.monotonic() - begun_s
    finally:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
        cluster.shutdown()
    lines = [json.loads(line) for line in (DIRECTORY / "out.jsonl").read_bytes().splitlines()]
    found = {line["id"]: line["output"] for line in lines}
    said = Counter(json.loads(line)["said"] for line in log.read_bytes().splitlines())
    again = sum(said.values()) - len(said)
    return {
        "rows": rows,
        "seconds": round(took_s, 1),
        "lost": rows - len(found),
        "wrong": sum(found.get(f"row {n}") != f"e d c b a task {n}" for n in range(rows)),
        "answered_twice": again,
        "again": max(0, again - 2 * PARALLEL),
    }


def started(tries: int = 3) -> tuple[Any, list[Any]]:
    """A cluster of three nodes; Ray gives each 30 s to start, which a busy machine may exceed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        return cluster, [cluster.add_node(num_cpus=2, include_dashboard=False) for _ in range(3)]
    except Exception as error:
        cluster.shutdown()
        if tries == 1 or "timed out during startup" not in str(error):
            raise
    return started(tries - 1)


def wait_for_replies(log: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + 300
    while len(log.read_bytes().splitlines()) < count:
        if driver.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError("the batch ended, or stood still, before it could be killed")
        time.sleep(0.05)


if __name__ == "__main__":
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    many = int(given.get("--rows", 100))
    if "--part" in sys.argv:
        sys.exit(batch(*sys.argv[-2:], many))
    told = main(many)
    print(json.dumps(told) if "--json" in sys.argv else "\n".join(map(str, told.items())))
    sys.exit(bool(told["lost"] or told["wrong"] or told["again"]))
