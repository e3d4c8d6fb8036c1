"""How much quicker `harness rubric score` is with several drafts judged at one time.

    python tests/benchmarks/bench_scoring.py [--drafts 1000] [--latency-s 0.05] [--json]

Drafts in one CSV file are scored by a judge on the loopback interface that takes its time: one at a
time, and 16 at a time. Scoring lasts from the begin of the first evaluation to the end of the last,
by the run's journal; the whole command has its start and its timelines to make besides. The peer is
httpx alone, which posts as many requests and reads the replies: what it gains is what there is to
gain on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "inference")]

import httpx  # noqa: E402 - as the next
from loopback_judge import RUBRIC, draft, loopback_judge  # noqa: E402 - found by the path above

from harness.trace import load_run  # noqa: E402

PARALLEL = 16


class Figure(NamedTuple):
    """One line of the table."""

    figure: str
    value: float
    aim: str = ""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--drafts", type=int, default=1000)
    arguments.add_argument("--latency-s", type=float, default=0.05)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    figures = measure(options.drafts, options.latency_s)
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
        return
    for figure in figures:
        print(f"{figure.figure:<52}{figure.value:>10,.2f}  {figure.aim}")


def measure(drafts: int, latency_s: float) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "notes.yaml").write_text(RUBRIC)
        with (directory / "drafts.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["id", "draft"])
            rows.writerows([number, draft(number)] for number in range(drafts))
        alone = timed(directory, latency_s, parallel=1)
        together = timed(directory, latency_s, parallel=PARALLEL)
    peers = [asyncio.run(posted(drafts, latency_s, parallel=n)) for n in (1, PARALLEL)]
    return [
        Figure(f"{drafts} drafts, one at a time: seconds", alone[0]),
        Figure(f"{drafts} drafts, {PARALLEL} at a time: seconds", together[0]),
        Figure("one at a time / together", alone[0] / together[0], "aim ≥ 12"),
        Figure("the whole command, one at a time: seconds", alone[1]),
        Figure(f"the whole command, {PARALLEL} at a time: seconds", together[1]),
        Figure("one at a time / together", alone[1] / together[1]),
        Figure("httpx, one at a time: seconds", peers[0]),
        Figure(f"httpx, {PARALLEL} at a time: seconds", peers[1]),
        Figure("one at a time / together", peers[0] / peers[1]),
    ]


def timed(directory: Path, latency_s: float, *, parallel: int) -> tuple[float, float]:
    """Seconds of scoring, and of the whole command."""
    output = directory / f"scores-{parallel}.jsonl"
    command = [sys.executable, "-m", "harness", "rubric", "score", "notes.yaml", "drafts.csv"]
    with loopback_judge(latency_s) as (endpoints, _):
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--output", output, "--max-parallel", str(parallel), "--json"],
            cwd=directory,
            env={**os.environ, "HARNESS_ENDPOINTS": endpoints},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        whole_s = time.perf_counter() - start
    journal = load_run(directory / json.loads(done.stdout)["journal"])
    spans = [span for span in journal.spans if span.name == "evaluate"]
    began_ns = min(span.start_ns for span in spans)
    return (max(span.end_ns for span in spans) - began_ns) / 1e9, whole_s


async def posted(drafts: int, latency_s: float, *, parallel: int) -> float:
    """Seconds that httpx takes for as many requests."""
    schema = {"type": "object", "properties": {"score": {"enum": [1, 2]}}}
    waiting = iter(range(drafts))

    async def work(client: httpx.AsyncClient, url: str) -> None:
        for number in waiting:
            body = {
                "messages": [{"role": "user", "content": draft(number)}],
                "response_format": {"json_schema": {"schema": schema}},
            }
            async with client.stream("POST", f"{url}/chat/completions", json=body) as reply:
                assert [line async for line in reply.aiter_lines()]

    with loopback_judge(latency_s) as (endpoints, _):
        url = json.loads(endpoints)["evaluator"]["url"]
        async with httpx.AsyncClient() as client:
            start = time.perf_counter()
            await asyncio.gather(*(work(client, url) for _ in range(parallel)))
            return time.perf_counter() - start


if __name__ == "__main__":
    main()
