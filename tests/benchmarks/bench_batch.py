"""What a batch costs a row, beside as many single runs, and how one of 10,000 rows is carried.

    python tests/benchmarks/bench_batch.py [--json] [--part NAME] [--rows 500] [--many 10000]

For a quiet machine. Rows have five nodes, one call to a model each. The parts, all of them unless
one is named:

beside    A batch against single runs, on a loopback model server that answers at once, at most 16
          calls under way in either: the single runs go on side by side in one process. Both have
          their journals on the disk node by node; no timelines, which a large batch does not draw.
many      A batch on scripted replies: time, memory and journal; then the same command twice again:
          when nothing is left to do, and when the last node has changed. A process each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from figures import Figure, print_figures

sys.path.insert(0, str(Path(__file__).parent.parent / "inference"))

from servers.emulated import Answer, Asked, Emulated, forked, stream

from harness import Pipeline, Run, ScriptedBackend, Settings

MODEL = "writer"
PARALLEL = 16

Rows = list[dict[str, str]]


class Server(Emulated):
    """Says again what it is told, at once."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        self.asked.clear()
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            return
        body: Any = asked.body
        said = body["messages"][-1]["content"]
        await stream(answer, said, model=MODEL)


def five(ending: str = "") -> Pipeline:
    """Five nodes, one after the other."""
    pipeline = Pipeline("five", max_parallel=PARALLEL)

    @pipeline.node
    async def a(run: Run, task: str) -> str:
        return await run.chat("producer", f"a {task}")

    @pipeline.node
    async def b(run: Run, a: str) -> str:
        return await run.chat("producer", f"b {a}")

    @pipeline.node
    async def c(run: Run, b: str) -> str:
        return await run.chat("producer", f"c {b}")

    @pipeline.node
    async def d(run: Run, c: str) -> str:
        return await run.chat("producer", f"d {c}")

    @pipeline.node
    async def e(run: Run, d: str) -> str:
        return await run.chat("producer", f"e {d}{ending}")

    return pipeline


def rows_of(count: int) -> Rows:
    words = "Words of its document. " * 20
    return [{"id": str(n), "task": f"Row {n}. {words}"} for n in range(count)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--part", choices=("beside", "many"))
    arguments.add_argument("--rows", type=int, default=500)
    arguments.add_argument("--many", type=int, default=10_000)
    arguments.add_argument("--alone", nargs=2, metavar=("DIRECTORY", "ENDING"), help="internal")
    options = arguments.parse_args()
    if options.alone:
        run_alone(Path(options.alone[0]), options.alone[1], options.many)
        return
    parts = {"beside": lambda: beside(options.rows), "many": lambda: many(options.many)}
    chosen = [part for name, part in parts.items() if options.part in {None, name}]
    figures = (figure for part in chosen for figure in part())
    print_figures(figures, as_json=options.json)


# --- beside single runs -------------------------------------------------------------------------


def beside(rows: int) -> Iterator[Figure]:
    process, root = forked(Server())
    try:
        with tempfile.TemporaryDirectory() as folder:
            singles_s, singles = timed(single_runs(rows_of(rows), root, Path(folder) / "single"))
            batch_s, batch = timed(one_batch(rows_of(rows), root, Path(folder) / "batch"))
    finally:
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
    yield Figure(f"{rows} single runs, ms a row", singles_s / rows * 1e3)
    yield Figure(f"a batch of {rows} rows, ms a row", batch_s / rows * 1e3)
    yield Figure("the batch over them, ms a row", (batch_s - singles_s) / rows * 1e3, "aim ≤ 5")
    yield Figure("equal results, 1 if so", float(singles == batch), "aim 1")


def timed(work: Coroutine[Any, Any, dict[str, object]]) -> tuple[float, dict[str, object]]:
    begun = time.perf_counter()
    found = asyncio.run(work)
    return time.perf_counter() - begun, found


async def single_runs(rows: Rows, root: str, folder: Path) -> dict[str, object]:
    pipeline, found = five(), dict[str, object]()
    places = asyncio.Semaphore(PARALLEL)

    async def one(row: dict[str, str]) -> None:
        async with places:
            done = await pipeline.run_async(task=row["task"], settings=settings(root, folder))
            found[row["id"]] = done.result

    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(one(row))
    return found


async def one_batch(rows: Rows, root: str, folder: Path) -> dict[str, object]:
    done = await five().batch(
        rows, output=folder / "out.jsonl", max_parallel=PARALLEL, settings=settings(root, folder)
    )
    return dict(done.outputs)


def settings(root: str, folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "roles": {"producer": MODEL},
            "endpoints": {MODEL: {"tag": MODEL, "url": f"{root}/v1", "model_id": MODEL}},
            "traces": folder,
            "trace": {"timelines": []},
        }
    )


# --- many rows ----------------------------------------------------------------------------------


def many(rows: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        for what, ending in (
            ("from the beginning", ""),
            ("again, with nothing left to do", ""),
            ("again, with the last node changed", "!"),
        ):
            told = subprocess.run(
                [sys.executable, __file__, "--alone", folder, ending, "--many", str(rows)],
                check=True,
                capture_output=True,
            )
            said = json.loads(told.stdout)
            yield Figure(f"{rows:,} rows {what}: seconds", said["s"])
            yield Figure(f"{rows:,} rows {what}: of the processor", said["cpu_s"])
            yield Figure(f"{rows:,} rows {what}: memory, MB", said["mb"])
            yield Figure(f"{rows:,} rows {what}: journals, MB", said["journal_mb"])


def run_alone(folder: Path, ending: str, rows: int) -> None:
    begun = time.perf_counter()
    done = asyncio.run(
        five(ending).batch(
            rows_of(rows),
            output=folder / "out.jsonl",
            settings=Settings.model_validate({"traces": folder / "traces"}),
            backends={"producer": ScriptedBackend(lambda asked: asked.messages[-1].content)},
        )
    )
    assert len(done.outputs) == rows
    usage = resource.getrusage(resource.RUSAGE_SELF)
    said = {
        "s": time.perf_counter() - begun,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "mb": usage.ru_maxrss / 1024,
        "journal_mb": sum(one.stat().st_size for one in folder.glob("traces/2*.jsonl")) / 1e6,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
