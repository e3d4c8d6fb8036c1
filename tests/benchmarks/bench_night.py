"""A night of rows: three calls each, an outage, a dead replica, bad rows, a kill; then in shards.

    python tests/benchmarks/bench_night.py [--json] [--rows 10000] [--outage-s 60] [--shards 5]

Two loopback servers answer after 20 ms; a third address of the endpoint never answers. While the
batch runs, its process is killed and started again, and both servers are away for a while. Rows of
2 KB; 20 of them lack a column, and fail alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench_batch_peers import calls_at, serve
from figures import Figure, print_figures

BAD = 20
PIPELINE = """
from harness import Pipeline, Run

night = Pipeline("night")

@night.node
async def facts(run: Run, text: str) -> str:
    return await run.chat("producer", f"The facts of this: {text}")

@night.node
async def draft(run: Run, text: str, facts: str) -> str:
    return await run.chat("producer", f"Write it anew from {facts}: {text}")

@night.node
async def title(run: Run, draft: str) -> str:
    return await run.chat("producer", f"A title: {draft}")
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--serve", type=int)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rows", type=int, default=10_000)
    arguments.add_argument("--outage-s", type=float, default=60.0)
    arguments.add_argument("--shards", type=int, default=5)
    options = arguments.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    print_figures(figures(options.rows, options.outage_s, options.shards), as_json=options.json)


def figures(rows: int, outage_s: float, shards: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        yield from a_night(Path(name), rows, outage_s)
    if shards:
        with tempfile.TemporaryDirectory() as name:
            yield from in_shards(Path(name), rows, shards)


def a_night(folder: Path, rows: int, outage_s: float) -> Iterator[Figure]:
    ports = prepared(folder, rows)
    servers = [started(port) for port in ports]
    began_s = time.monotonic()
    killed = Batch(folder)
    killed.wait_for_rows(rows // 4)
    killed.process.kill()
    peak_mb = killed.ended()[1]
    calls_before = sum(map(calls_of, ports))
    again = Batch(folder)
    again.wait_for_rows(rows // 2)
    calls_between = sum(map(calls_of, ports))
    for server in servers:
        server.terminate()
        server.wait()
    time.sleep(outage_s)
    servers = [started(port) for port in ports]
    code, peak_again_mb = again.ended()
    calls = calls_between + sum(map(calls_of, ports))
    yield Figure("the night: seconds", time.monotonic() - began_s)
    yield Figure("exit code", code, "1: rows failed")
    yield Figure("rows with an output", len(ids_in(folder / "out.jsonl")), f"of {rows - BAD}")
    yield Figure("rows that failed", lines_in(folder / "out.jsonl.failures.jsonl"), f"of {BAD}")
    yield Figure("calls", calls, f"{3 * (rows - BAD):,} and those under way at the kill, outage")
    yield Figure("calls until the kill", calls_before)
    yield Figure("memory at its peak, MB", max(peak_mb, peak_again_mb), "aim ≤ 400")
    for server in servers:
        server.terminate()


def in_shards(folder: Path, rows: int, shards: int) -> Iterator[Figure]:
    ports = prepared(folder, rows)
    servers = [started(port) for port in ports]
    began_s, peak_mb = time.monotonic(), 0.0
    for number in range(1, shards + 1):
        shard = Batch(folder, "--shard", f"{number}/{shards}")
        if number == shards:
            shard.wait_for_rows(rows // shards // 2)
            shard.process.kill()
            shard.ended()
            yield Figure("merge with a shard that was killed: exit code", merged(folder), "2")
            shard = Batch(folder, "--shard", f"{number}/{shards}")
        peak_mb = max(peak_mb, shard.ended()[1])
    yield Figure("in shards: seconds", time.monotonic() - began_s)
    yield Figure("merge: exit code", merged(folder), "1: rows failed")
    yield Figure("rows with an output", len(ids_in(folder / "out.jsonl")), f"of {rows - BAD}")
    yield Figure("calls", sum(map(calls_of, ports)), f"{3 * (rows - BAD):,} and those at the kill")
    yield Figure("memory of a shard at its peak, MB", peak_mb, "aim ≤ 400")
    for server in servers:
        server.terminate()


# --- its parts ------------------------------------------------------------------------------------


def prepared(folder: Path, rows: int) -> list[int]:
    """Writes the table, the pipeline and the settings; returns the ports of the servers."""
    *ports, dead = (free_port() for _ in range(3))
    bad = range(rows // 40, rows, rows // BAD)
    with (folder / "rows.jsonl").open("w") as table:
        for number in range(rows):
            row = {"id": number, "text": f"Row {number}. {'Words of it. ' * 158}"}
            if number in bad:
                del row["text"]
            table.write(json.dumps(row) + "\n")
    (folder / "night.py").write_text(PIPELINE)
    urls = [f"http://127.0.0.1:{port}/v1" for port in (*ports, dead)]
    (folder / "harness.toml").write_text(
        f'[roles]\nproducer = "writer"\n[trace]\ntimelines = []\n'
        f'[endpoints.writer]\nmodel_id = "writer"\nurls = {json.dumps(urls)}\nmax_parallel = 16\n'
    )
    return ports


class Batch:
    """The command, as it goes on."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._output = folder / "out.jsonl"
        if options:
            number, _, of = options[1].partition("/")
            self._output = folder / f"out.{number}-of-{of}.jsonl"
        self._log = (folder / "stderr.txt").open("a")
        self.process = subprocess.Popen(
            [*command(), *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=self._log
        )
        self._peak_kb = 0

    def wait_for_rows(self, rows: int) -> None:
        """Until so many have an output."""
        while lines_in(self._output) < rows:
            assert self.process.poll() is None, "it ended before"
            self._look()

    def ended(self) -> tuple[int, float]:
        """Its exit code, and its memory at the peak in MB."""
        while self.process.poll() is None:
            self._look()
        self._log.close()
        return self.process.returncode, self._peak_kb / 1e3

    def _look(self) -> None:
        time.sleep(0.2)
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        _, _, rest = status.partition("VmHWM:")
        self._peak_kb = int(rest.split()[0]) if rest else self._peak_kb


def command() -> list[str]:
    harness = [sys.executable, "-m", "harness", "batch", "night.py", "rows.jsonl"]
    options = ["--bad-rows", "skip", "--max-parallel", "32", "--yes"]
    return [*harness, "--output", "out.jsonl", *options]


def merged(folder: Path) -> int:
    return subprocess.run(
        [*command(), "--merge"], cwd=folder, capture_output=True, check=False
    ).returncode


def ids_in(path: Path) -> set[object]:
    return {json.loads(line)["id"] for line in path.read_text().splitlines()}


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def calls_of(port: int) -> int:
    return calls_at(f"http://127.0.0.1:{port}/v1")


def started(port: int) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(port)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    server.stdout.readline()
    return server


if __name__ == "__main__":
    main()
